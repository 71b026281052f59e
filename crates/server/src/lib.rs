//! A NATS server as a library.
//!
//! The server runs inside the caller's process and on the caller's tokio runtime. As a library it opens no
//! port unless told to, installs no signal handler, prints nothing and reads no environment.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use windjet_server::Server;
//!
//! let server = Server::builder().start().await?;
//! let client = server.client();
//! let mut orders = client.subscribe("orders.>").await?;
//! client.publish("orders.new", "42").await?;
//! let message = orders.next().await.ok_or("the subscription ended")?;
//! assert_eq!(&message.payload[..], b"42");
//! server.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```

mod account;
pub mod auth;
pub mod client;
pub mod config;
mod connection;
mod imports;
pub mod jetstream;
mod monitor;
pub mod options;
mod router;
mod server;
mod system;
mod tls;
mod trace;
mod websocket;

pub use client::Client;
pub use options::Options;
pub use server::{
    Applied, Builder, Counts, JetStreamReport, Listener, MemoryReport, PROTOCOL_VERSION, ReloadError,
    ReloadReport, Server, ShutdownReport, StartError, StorageReport,
};
pub use tls::TlsError;
