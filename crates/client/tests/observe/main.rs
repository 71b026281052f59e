//! What the client kit measures and traces, against a JetStream server.
//!
//! A binary of its own: its subscriber is the whole process's, and would put headers on the messages of other tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../it/harness.rs"]
mod harness;
mod metrics;
mod traces;
