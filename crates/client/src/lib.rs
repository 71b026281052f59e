//! JetStream consumers that stay healthy, over the official client.
//!
//! The kit wraps [`async_nats`] and never hides it: [`Client::inner`] and [`Client::jetstream`] are always there. Its core
//! is one pull engine, [`pull`], and a [`Delivery`] that is settled exactly once; what stands around them is added layer by
//! layer.
//!
//! * [`Client`]: one connection and everything on it, from a [`Config`]; [`connector`] watches it.
//! * [`pull`]: asks a consumer for messages, bounded, cancel safe, without a task of its own.
//! * [`delivery`]: one message in the hands of the application, and the ways to settle it.
//! * [`message`]: messages to send, codecs, compression; [`publisher`] sends them into streams.
//! * [`consumer`]: messages to [`handler`]s, with [`ops`] around them as layers.
//! * [`rpc`]: requests and replies over core NATS.
//! * [`admin`]: streams, consumers, buckets and objects, managed.
//! * [`observe`]: measurements and spans.
//! * `monitoring` (feature): a server's monitoring pages. `blocking` (feature): calls that wait.
//! * [`names`]: what streams, consumers, subjects and keys may be called.
//! * [`error`]: what went wrong, whether to try again, whether it may have happened.

pub mod admin;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod client;
pub mod config;
pub mod connector;
pub mod consumer;
mod crew;
pub mod delivery;
pub mod error;
pub mod handler;
pub mod message;
#[cfg(feature = "monitoring")]
pub mod monitoring;
pub mod names;
pub mod observe;
pub mod ops;
pub mod publisher;
pub mod pull;
mod reached;
mod replies;
pub mod rpc;

pub use async_nats;
pub use client::{Client, CloseReport};
pub use config::Config;
pub use consumer::{ProcessOptions, PullConsumer};
pub use delivery::{Delivery, Dropped, Metadata, OnDrop, SettleError, SettleErrorKind};
pub use error::{Error, ErrorKind, Result};
pub use handler::{Disposition, Handler, HandlerError, Layer, Stack};
pub use message::{Compression, Message, MessageType};
pub use observe::Metrics;
pub use publisher::{Ack, Fate, Pending, PublishError, Publisher};
pub use pull::{Puller, Target};
