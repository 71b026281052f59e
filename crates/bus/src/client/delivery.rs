//! One message in the hands of a handler, and what handlers answer.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use windjet_protocol::HeaderMap;
use windjet_protocol::jetstream::Timestamp;

/// What a handler did with a message. Returned, so that every message is answered exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or nothing that another delivery would mend.
    Ack,
    /// Not done; deliver it again, by default later and later. After the last delivery it becomes a dead letter.
    Nak {
        /// After how long; `None` for the consumer's schedule.
        delay: Option<Duration>,
        /// Why, for the dead letter.
        reason: String,
    },
    /// Never deliver it again.
    Term {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// Not done, for a reason, on the consumer's schedule.
    #[must_use]
    pub fn nak(reason: impl fmt::Display) -> Self {
        Self::Nak {
            delay: None,
            reason: reason.to_string(),
        }
    }
}

/// One delivery of a stored message.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The subject it was published on.
    pub subject: String,
    /// Its bytes.
    pub payload: Bytes,
    /// Its headers.
    pub headers: HeaderMap,
    /// The stream.
    pub stream: String,
    /// Its number there.
    pub seq: u64,
    /// How often it was delivered, this time included.
    pub deliveries: u64,
    /// When it was stored.
    pub stored_at: Timestamp,
}

/// What deals with messages. Implemented by closures `Fn(Arc<Delivery>) -> impl Future<Output = Outcome>`.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Deals with one message. A panic counts as a nak.
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome;
}

#[async_trait]
impl<F, R> Handler for F
where
    F: Fn(Arc<Delivery>) -> R + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        self(delivery).await
    }
}
