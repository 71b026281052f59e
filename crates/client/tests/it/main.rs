//! The client kit against a JetStream server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod admin;
mod blocking;

mod connection;
mod consume;
mod contract;
mod delivery;
mod harness;
mod incidents;
mod layers;
mod ops;
mod publish;
mod pull;
mod push;
mod rpc;
