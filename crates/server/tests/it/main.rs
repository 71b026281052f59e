//! Behaviour of a running server, seen through its public surface and over real sockets.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod accounts;
mod backup;
mod config_corpus;
mod hostile;
mod in_process;
mod jetstream;
mod jetstream_local;
mod jwt_corpus;
mod monitor;
mod monitor_jetstream;
mod offline;
mod operation;
mod seams;
mod sources;
mod storm;
mod system;
mod tls;
mod websocket;
mod wire;
