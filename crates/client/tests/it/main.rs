//! The client kit against a JetStream server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod delivery;
mod harness;
mod pull;
