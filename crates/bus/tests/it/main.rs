//! The bus as its users see it: a broker in this process, clients over both kinds of connection.
//!
//! Tests begin with the number of the invariant they hold.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[macro_use]
mod support;

mod broker;
mod client;
mod consumers;
mod fake;
mod identity;
mod leases;
mod streams;
