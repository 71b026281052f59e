//! A durable message broker inside your own process, on the NATS wire protocol.
//!
//! This is the crate an application depends on. It re-exports the embedded broker; the pieces live in crates of their own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use windjet::Server;
//!
//! let server = Server::builder().start().await?; // no port, no thread, no file
//! let client = server.client();
//! let mut orders = client.subscribe("orders.>").await?;
//! client.publish("orders.new", "42").await?;
//! let message = orders.next().await.ok_or("the subscription ended")?;
//! assert_eq!(&message.payload[..], b"42");
//! server.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! With a folder it stores messages, and says so only when they are on disk:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use windjet::Server;
//! use windjet::jetstream::StreamConfig;
//!
//! # let folder = std::env::temp_dir().join(format!("windjet-doc-{}", std::process::id()));
//! let server = Server::builder().jetstream(&folder).start().await?;
//! let js = server.jetstream().ok_or("no JetStream")?;
//! let orders = StreamConfig { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..Default::default() };
//! js.create_stream(orders).await?;
//! let stored = js.publish("ORDERS", "orders.new", "42")?.await?;
//! assert_eq!(stored.seq, 1);
//! # server.shutdown(std::time::Duration::from_secs(5)).await;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! Features: `test-util` adds the `test` module, which gives a private server in one line; `client` adds the module `kit`,
//! the client kit for JetStream consumers over the official client; `mq` adds the module `mq`, the message-queue boundary;
//! `bus` adds the module `bus`, the worker bus.

#[cfg(feature = "test-util")]
pub mod test;

/// The programs of the README, run as they stand there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(feature = "bus")]
pub use windjet_bus as bus;
#[cfg(feature = "client")]
pub use windjet_client as kit;
#[cfg(feature = "mq")]
pub use windjet_mq as mq;
pub use windjet_protocol as protocol;
pub use windjet_protocol::{HeaderMap, Subject, SubjectFilter};
pub use windjet_server::{
    Applied, Builder, Client, Counts, JetStreamReport, Listener, MemoryReport, Options, PROTOCOL_VERSION,
    ReloadError, ReloadReport, Server, ShutdownReport, StartError, StorageReport, TlsError, auth, client,
    config, jetstream, options,
};
pub use windjet_store as store;
