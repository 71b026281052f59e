//! The simulation: random programs on a disk that forgets, against a model that remembers.
//!
//! A run is a function of its seed. It opens a store on a simulated disk, stages random operations on several streams,
//! makes the store's steps in random order, and lets the disk die at a random operation; then power is cut (or the
//! process killed), the store is opened again (sometimes dying again while it recovers), and every stream must be in a
//! state that some prefix of its operations gives: at least all that were acknowledged, at most all that were issued,
//! no half operation, no sequence twice. Answers given before the crash (duplicates) must still be true.
//!
//! `model` is what a stream should be, `program` the random actions, `check` the comparison.

mod check;
mod model;
mod program;

pub use program::{Outcome, Plan, run};
