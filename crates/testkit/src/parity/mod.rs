//! Parity: the same script against the real nats-server and against ours, with equal answers.
//!
//! A *script* starts a server, opens connections, sends bytes and records what comes back. [`run`] makes such a
//! transcript, normalised so that two runs can be compared; [`suite`] runs many scripts on two servers and compares.
//! A script may differ only when it names a row of `docs/parity.md` and carries what our server says instead.
//!
//! The scripts lie in `crates/testkit/parity`, in [`Collection`]s; `docs/parity-scripts.md` describes their language, and
//! a page for each collection, made by [`coverage`], lists which sections of its specification it covers. The scripts
//! that do not agree yet are on the collection's list, and [`open`] holds that the list only shrinks.

pub mod collection;
pub mod coverage;
pub mod diff;
pub mod open;
pub mod suite;

mod act;
mod ask;
mod backup;
mod escape;
mod normal;
mod peer;
mod program;
mod run;
mod script;
mod show;
mod step;
mod vars;

pub use collection::Collection;
pub use run::{Outcome, PATIENCE, run};
pub use script::{Difference, Script, load};
