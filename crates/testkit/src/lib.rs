//! Test support for the whole workspace; never published.
//!
//! What is here: the real nats-server and ours as child processes ([`server`], [`process`]), where the two programs
//! lie ([`binaries`]), NATS as an operator deploys it ([`natstest`]), a relay that loses and changes what it passes on
//! ([`relay`]), waiting with an end ([`deadline`]), tables of the documentation ([`page`]), raw clients for tests
//! ([`link`], [`wire`], [`websocket`], [`http`], [`tls`], [`keys`], [`json`]), and the comparison of both servers by
//! scripts ([`parity`]).
//!
//! Everything is blocking and built on the standard library: tests of any crate can use it without a runtime.
//! Tests that need a program fail with the command that provides it; none is skipped.

pub mod binaries;
pub mod deadline;
pub mod http;
pub mod json;
pub mod keys;
pub mod link;
pub mod natstest;
pub mod page;
pub mod parity;
pub mod process;
pub mod relay;
pub mod server;
pub mod tls;
pub mod websocket;
pub mod wire;

pub use binaries::{nats_server_path, windjet_path};
pub use deadline::{until, until_some};
pub use process::{Process, Signal};
pub use relay::{Relay, Way};
pub use server::{ServerUnderTest, Setup};
