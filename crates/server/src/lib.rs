//! A NATS server as a library.
//!
//! The server runs inside the caller's process and on the caller's tokio runtime. As a library it opens no
//! port unless told to, installs no signal handler, prints nothing and reads no environment.

pub mod auth;
pub mod options;

pub use options::Options;
