//! A worker bus on an embedded JetStream broker: fixed subjects and streams, a typed client, work leases.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use std::time::Duration;
//! use windjet_bus::client::{Delivery, Outcome};
//! use windjet_bus::{Broker, BrokerConfig, Bus, Client, ConnectOptions, Token};
//!
//! let folder = tempfile::tempdir()?;
//! let broker = Broker::new(BrokerConfig {
//!     addr: "127.0.0.1:0".into(),
//!     data_dir: folder.path().into(),
//!     ..BrokerConfig::default()
//! });
//! broker.start().await?;
//!
//! let server = broker.client()?; // in this process, without a socket
//! let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
//! server
//!     .consume_task_status(Arc::new(move |delivery: Arc<Delivery>| {
//!         let _ = told.send(delivery.payload.clone());
//!         async { Outcome::Ack }
//!     }))
//!     .await?;
//!
//! let url = broker.client_url().ok_or("the broker runs")?;
//! let worker = Client::connect(&url, ConnectOptions::new()).await?; // anywhere
//! worker.publish_task_status(&Token::new("job-1")?, "done".into()).await?; // durable
//! assert_eq!(heard.recv().await.as_deref(), Some(&b"done"[..]));
//!
//! worker.drain(Duration::from_secs(5)).await?;
//! server.drain(Duration::from_secs(5)).await?;
//! broker.shutdown(Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`Broker`]: a server in this process with the streams of the bus and a listener for workers.
//! * [`Client`]: the typed client, in the broker's process without a socket or over TCP; [`Bus`] is its trait.
//! * [`auth`]: keys of workers, join tokens, permissions.
//! * [`fake`]: a bus in memory, for unit tests of code that uses [`Bus`].
//! * [`subjects`]: every subject, in the plain and the identity layout; [`Token`]s are their validated parts.
//! * [`message`]: what the messages say, with exact JSON forms.
//! * [`BusError`]: what went wrong, of which kind.

pub mod auth;
pub mod broker;
pub mod client;
pub mod error;
pub mod fake;
mod link;
pub mod message;
pub mod streams;
pub mod subjects;
mod token;

pub use broker::{Broker, BrokerConfig};
pub use client::{Bus, Client, ConnectOptions};
pub use error::{BusError, ErrorKind};
pub use link::LinkState;
pub use subjects::{Layout, Subjects};
pub use token::{TOKEN_MAX, Token};

/// What calls of this crate answer.
pub type Result<T, E = BusError> = std::result::Result<T, E>;
