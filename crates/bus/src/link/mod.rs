//! A connection to the broker, whatever carries it.
//!
//! [`Link`] is what the client needs of a connection: publish, request, subscribe, and news of its state. Two kinds exist:
//! [`local`] in the broker's process, without a socket, and [`tcp`] over the official client. Everything above this module,
//! consumers and acknowledgements included, is written once and speaks through it.

pub(crate) mod local;
pub(crate) mod tcp;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use windjet_protocol::HeaderMap;

use crate::error::{BusError, ErrorKind};

/// A received message.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) subject: String,
    pub(crate) reply: Option<String>,
    pub(crate) headers: HeaderMap,
    /// The number of a status line; 0 for an ordinary message.
    pub(crate) status: u16,
    pub(crate) payload: Bytes,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// In order. The number grows with every reconnect.
    Connected(u64),
    /// Lost; it is being made again.
    Disconnected,
    /// The broker refuses the credentials; nothing more is tried.
    Rejected,
    /// Closed for good.
    Closed,
}

/// A subscription.
#[async_trait]
pub(crate) trait Feed: Send {
    /// The next message; `None` at the end. Cancel safe.
    async fn next(&mut self) -> Option<Incoming>;
    /// Takes no more messages; those that are here already still come.
    async fn finish(&mut self);
}

/// See the module.
#[async_trait]
pub(crate) trait Link: Send + Sync + 'static {
    /// Publishes without waiting for anybody.
    async fn publish(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), BusError>;

    /// Publishes and waits for one answer. A 503 is `NoResponders`; a connection that is lost before the answer is `Unknown`.
    async fn request(
        &self,
        subject: &str,
        headers: Option<&HeaderMap>,
        payload: Bytes,
        limit: Duration,
    ) -> Result<Incoming, BusError>;

    /// A request whose server can see that the asker went away: the answer's subject ends with the future.
    async fn ask(&self, subject: &str, payload: Bytes, limit: Duration) -> Result<Incoming, BusError> {
        self.request(subject, None, payload, limit).await
    }

    /// Subscribes. In force when [`Link::settle`] after it returns.
    async fn subscribe(&self, subject: &str, group: Option<&str>) -> Result<Box<dyn Feed>, BusError>;

    /// A round trip: what was subscribed before is in force when this returns. For clients that may publish to an inbox, which
    /// confined workers may not.
    async fn settle(&self, limit: Duration) -> Result<(), BusError>;

    /// Everything sent before has left when this returns.
    async fn flush(&self, limit: Duration) -> Result<(), BusError>;

    /// A subject that nobody else uses.
    fn new_inbox(&self) -> String;

    /// Most bytes of a message, headers included.
    fn max_payload(&self) -> usize;

    /// Where the connection stands, and news of it.
    fn state(&self) -> watch::Receiver<LinkState>;

    /// Whether anybody listens on the subject; `None` when this kind of connection cannot tell.
    fn has_listener(&self, subject: &str) -> Option<bool>;

    /// Closes at once. Idempotent.
    async fn close(&self);
}

pub(crate) fn closed(operation: &str, subject: &str) -> BusError {
    BusError::new(
        ErrorKind::Closed,
        format!("{operation} {subject:?}: the client is closed"),
    )
}

pub(crate) fn no_responders(subject: &str) -> BusError {
    BusError::new(
        ErrorKind::NoResponders,
        format!("request {subject:?}: nobody serves this subject"),
    )
}

pub(crate) fn timed_out(operation: &str, subject: &str, limit: Duration) -> BusError {
    BusError::new(
        ErrorKind::Timeout { limit },
        format!("{operation} {subject:?}: nothing came within {limit:?}"),
    )
}
