//! All settings of the kit, with defaults that are safe in production.
//!
//! [`Config::default`] is the only factory; recipes for workloads are in the documentation. [`Config::validate`] checks
//! everything that can be checked without a network. Building a client never creates, changes or deletes a stream or a
//! consumer, whatever stands here.

mod connection;
mod metrics;
mod secret;

use std::time::Duration;

pub(crate) use connection::redact;
pub use connection::{Connection, Delay, Hook, Tls};
pub use metrics::{MetricsConfig, TrackedConsumer};
pub use secret::Secret;

use crate::error::Result;
use crate::message::Compression;

/// All settings.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where and how to connect.
    pub connection: Connection,
    /// Publishing.
    pub publisher: PublisherConfig,
    /// Requests.
    pub requester: RequesterConfig,
    /// Replies.
    pub responder: ResponderConfig,
    /// How consumers run.
    pub consumer: ConsumerConfig,
    /// What happens when workers cannot keep up.
    pub backpressure: BackpressureConfig,
    /// Measurements and spans.
    pub metrics: MetricsConfig,
}

impl Config {
    /// The defaults with this address.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        let mut config = Self::default();
        config.connection.address = address.into();
        config
    }

    /// Checks everything that needs no network: address, authentication, seed, TLS.
    ///
    /// # Errors
    /// The first thing that cannot be used.
    pub fn validate(&self) -> Result<()> {
        self.connection.validate()
    }
}

/// Settings of the publisher.
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// Measure publishes, if anything is measured. On.
    pub allow_metrics: bool,
    /// Make spans of publishes, if any are made. On.
    pub allow_tracing: bool,
    /// Do not check subjects; for those that are known to be good. Off.
    pub skip_subject_validation: bool,
    /// Most asynchronous publishes that wait for their acknowledgement. 1024; `None` for any number.
    pub max_async_pending: Option<usize>,
    /// Compression of payloads over 32 KiB. Off.
    pub compression: Compression,
    /// How long to wait for an acknowledgement. 5 s.
    pub ack_timeout: Duration,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            allow_metrics: true,
            allow_tracing: true,
            skip_subject_validation: false,
            max_async_pending: Some(1024),
            compression: Compression::Off,
            ack_timeout: Duration::from_secs(5),
        }
    }
}

/// Settings of the requester.
#[derive(Debug, Clone)]
pub struct RequesterConfig {
    /// Measure requests, if anything is measured. On.
    pub allow_metrics: bool,
    /// Make spans of requests, if any are made. On.
    pub allow_tracing: bool,
    /// How long to wait for a reply. 2 s.
    pub timeout: Duration,
    /// Do not check subjects; for those that are known to be good. Off.
    pub skip_subject_validation: bool,
    /// Compression of payloads over 32 KiB. Off.
    pub compression: Compression,
    /// Expand compressed replies. On.
    pub decompression: bool,
}

impl Default for RequesterConfig {
    fn default() -> Self {
        Self {
            allow_metrics: true,
            allow_tracing: true,
            timeout: Duration::from_secs(2),
            skip_subject_validation: false,
            compression: Compression::Off,
            decompression: true,
        }
    }
}

/// Settings of the responder.
#[derive(Debug, Clone)]
pub struct ResponderConfig {
    /// Measure replies, if anything is measured. On.
    pub allow_metrics: bool,
    /// Make spans of replies, if any are made. On.
    pub allow_tracing: bool,
    /// Compression of payloads over 32 KiB. Off.
    pub compression: Compression,
    /// Expand compressed requests. On.
    pub decompression: bool,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            allow_metrics: true,
            allow_tracing: true,
            compression: Compression::Off,
            decompression: true,
        }
    }
}

/// How consumers run.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Measure deliveries, if anything is measured. On.
    pub allow_metrics: bool,
    /// Make spans of deliveries, if any are made. On.
    pub allow_tracing: bool,
    /// The ack wait of consumers that the kit creates. 30 s.
    pub ack_wait: Duration,
    /// Heartbeats of pulls and of push consumers without a queue group; zero for none. 5 s.
    pub idle_heartbeat: Duration,
    /// Flow control of push consumers with heartbeats. On.
    pub flow_control: bool,
    /// Run handlers on the client's shared pool. Off.
    pub worker_pool_enabled: bool,
    /// Handlers that the pool runs at a time. 4.
    pub worker_pool_size: usize,
    /// Messages that may wait for the pool. 64.
    pub worker_buffer_size: usize,
    /// Expand compressed payloads before the handler sees them. On.
    pub decompression: bool,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            allow_metrics: true,
            allow_tracing: true,
            ack_wait: Duration::from_secs(30),
            idle_heartbeat: Duration::from_secs(5),
            flow_control: true,
            worker_pool_enabled: false,
            worker_pool_size: 4,
            worker_buffer_size: 64,
            decompression: true,
        }
    }
}

/// What to do with a message when the worker pool's queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Backpressure {
    /// Wait for a place.
    Block,
    /// Hand the message back. The default.
    #[default]
    Nak,
    /// Give the message up for good. **This discards data.**
    Term,
    /// Give the message up for good, with a warning in the log. **This discards data.**
    Drop,
}

/// What happens when workers cannot keep up.
#[derive(Debug, Clone)]
pub struct BackpressureConfig {
    /// What to do with a message for which there is no place. Hand it back.
    pub mode: Backpressure,
    /// Unacknowledged messages of a durable that the kit creates. 1000.
    pub max_ack_pending: usize,
    /// How often to measure what waits for the worker pool; zero means 5 s. 5 s.
    pub queue_depth_sample_interval: Duration,
}

impl Default for BackpressureConfig {
    fn default() -> Self {
        Self {
            mode: Backpressure::Nak,
            max_ack_pending: 1000,
            queue_depth_sample_interval: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests;
