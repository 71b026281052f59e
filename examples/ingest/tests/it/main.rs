//! The service as processes: used, refused, killed.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod client;
mod cluster;
mod kills;
mod load;
mod service;
