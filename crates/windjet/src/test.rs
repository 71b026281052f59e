//! Private servers for tests.
//!
//! Each call gives a server of its own on a free port of the loopback interface: nothing is shared, no port is fixed, and
//! hundreds may live in one test process. A server ends when its last handle is dropped.

use windjet_server::{Builder, Server, StartError};

/// A running server that nobody else uses, with a listener on a free loopback port.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windjet::StartError> {
/// let server = windjet::test::server().await?;
/// let url = server.client_url(); // for clients over a socket
/// let client = server.client(); // or without one
/// # assert!(url.is_some_and(|url| url.starts_with("nats://127.0.0.1:")));
/// # drop(client);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When the system has no port left, or there is no tokio runtime.
///
/// # Cancel safety
///
/// Dropped early, nothing keeps running.
pub async fn server() -> Result<Server, StartError> {
    builder().start().await
}

/// The same, to be changed before it is started.
pub fn builder() -> Builder {
    Server::builder().listen_loopback()
}
