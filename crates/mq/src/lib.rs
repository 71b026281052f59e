//! The message-queue boundary of a service.
//!
//! A service says what it wants, publish an event of a table, consume the ingest queue, park a message, replay since a
//! time, drop what is both written and expired, to an `Arc<dyn Broker>`. How that becomes subjects, streams, sequences
//! and consumers is the broker's. Changing the broker changes nothing else in the service.
//!
//! * **Types**: [`Topic`] addresses events, [`TenantId`] says whose they are, [`Message`] is one in the service's hands.
//! * **Contract**: [`Broker`] and the traits it is made of; [`Error`] with [`ErrorKind`]s that can be asked for through
//!   all wrapping; [`coord`] for leases.
//! * **Brokers**: `EmbeddedNats` (feature `embedded`) in the process, durable; `MemoryBroker` (feature `memory`) for
//!   tests; `nats::ExternalNats` (feature `external`) on a NATS cluster.
//! * **Early package**: `compat` (feature `compat`), raw subjects on one pair of streams.
//! * **Suite**: `mqtest` (feature `test-util`), the behaviour stated once. Every broker passes it; yours can too.
//!
//! Delivery is at least once. A *delivery unit* is what keeps order: a tenant's queue in the process, a shard of a
//! partition outside it. Within a unit first deliveries come in the order of publishing; across units nothing is
//! ordered.
//!
//! Trace context travels in the headers, by the process's global text-map propagator of `opentelemetry`; without one
//! nothing is written.

mod broker;
mod consumer;
pub mod coord;
mod ctx;
mod error;
mod handler;
mod headers;
mod message;
mod tenant;
mod topic;

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "test-util")]
pub mod mqtest;
#[cfg(feature = "external")]
pub mod nats;

pub use broker::{
    Broker, DeadLetterCounts, DeadLetterStats, DeadLetterer, IngestUnits, Publisher, PurgeOutcome, Purger,
    ReplaySink, Replayer, Sharded, Stats, Subscriber,
};
pub use consumer::{Consumer, ConsumerConfig, ConsumerManager, Consuming, Halter, Releaser};
pub use ctx::Ctx;
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedNats;
#[cfg(feature = "compat")]
pub use embedded::compat;
#[cfg(all(feature = "embedded", feature = "external"))]
pub use embedded::graduate;
pub use error::{Error, ErrorKind};
pub use handler::{BoxFuture, Handler, HandlerError, Listener, Panicked};
pub use headers::{Headers, MESSAGE_ID_HEADER, PublishOptions};
#[cfg(feature = "memory")]
pub use memory::MemoryBroker;
pub use message::{Message, Settle, Unsettled};
pub use tenant::{TENANT_ID_MAX, TenantId};
pub use topic::{Topic, decode_token, encode_token};

pub use async_trait::async_trait;
pub use opentelemetry;

use std::time::Duration;

/// How long the ingest queue of a broker in the process remembers an idempotency key.
///
/// A service that holds a claim for a time while a publish is uncertain must keep the window at least
/// [`duplicate_window_for`] that time.
pub const EMBEDDED_DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// The shortest duplicate window that goes with a claim held for `lease`.
///
/// The claim lapses after the lease; an obedient client then comes back after the lease, rounded up to whole seconds; a
/// store that rounds expiry up adds a second.
#[must_use]
pub fn duplicate_window_for(lease: Duration) -> Duration {
    let whole = Duration::from_secs(lease.as_secs() + u64::from(lease.subsec_nanos() > 0));
    lease + whole + Duration::from_secs(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_window_goes_with_claims_up_to_59_seconds() {
        assert!(duplicate_window_for(Duration::from_secs(59)) <= EMBEDDED_DUPLICATE_WINDOW);
        assert!(duplicate_window_for(Duration::from_secs(60)) > EMBEDDED_DUPLICATE_WINDOW);
        assert_eq!(
            duplicate_window_for(Duration::from_millis(1500)),
            Duration::from_millis(4500)
        );
    }

    #[test]
    fn the_boundary_is_object_safe() {
        fn takes(_: Option<&dyn Broker>, _: Option<&dyn Consumer>, _: Option<&dyn coord::Coordinator>) {}
        takes(None, None, None);
    }
}
