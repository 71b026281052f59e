//! The boundary: what a service may ask of a broker.

use std::collections::BTreeMap;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{ConsumerManager, Ctx, Error, Listener, Message, PublishOptions, TenantId, Topic};

/// Appends events to the ingest queue.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Stores one event on a topic. Returns once the broker has it durably.
    ///
    /// # Errors
    /// [`QueueFull`](crate::ErrorKind::QueueFull) when the queue is at a limit or cannot be opened yet,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the broker cannot take it now,
    /// [`Invalid`](crate::ErrorKind::Invalid) for a topic without a tenant, before anything is sent.
    ///
    /// # Cancel safety
    /// May be dropped at any point; the event may then be stored or not. Repeat it under the same idempotency key.
    async fn publish(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        data: Bytes,
        options: PublishOptions,
    ) -> Result<(), Error>;

    /// Ends the broker's part in this process. Consumers stop without a report. May be called again.
    ///
    /// # Errors
    /// When something could not be flushed.
    async fn close(&self) -> Result<(), Error>;
}

/// Delivers every event on the ingest queue, across all tenants and topics, each tenant's in order.
#[async_trait]
pub trait Subscriber: Send + Sync {
    /// Registers a listener; returns once every event published from now on will reach it. Whether earlier ones do, and
    /// whether the name is that of a durable, is the broker's. Delivery goes on until `ctx` ends or the broker is closed.
    ///
    /// The listener runs one message at a time in each delivery unit, and concurrently for different units. Each
    /// message's context is a child of `ctx` with the trace context of the message's headers.
    ///
    /// # Errors
    /// When the subscription cannot be made on every queue there is.
    async fn subscribe(&self, ctx: &Ctx, consumer: &str, listener: Listener) -> Result<(), Error>;
}

/// Parks messages on the dead-letter queue.
#[async_trait]
pub trait DeadLetterer: Send + Sync {
    /// Stores the message's data on the dead-letter queue of its tenant, under its topic exactly as delivered, with
    /// only the headers that the options set. It does not acknowledge the message: do that once this has returned.
    ///
    /// # Errors
    /// When the data is not safely parked. Leave the message to be redelivered.
    ///
    /// # Cancel safety
    /// May be dropped at any point; the message may then be parked or not.
    async fn dead_letter(&self, ctx: &Ctx, message: &Message, options: PublishOptions) -> Result<(), Error>;
}

/// Reports on dead-letter queues.
#[async_trait]
pub trait DeadLetterStats: Send + Sync {
    /// Counts a tenant's parked messages per table, served or not. A table narrows the map to it, all of its scopes;
    /// the total ignores it.
    ///
    /// # Errors
    /// [`NoDeadLetterQueue`](crate::ErrorKind::NoDeadLetterQueue) when the tenant has no queue of its own. A failed
    /// read is another error and never an empty count.
    async fn dead_letter_counts(
        &self,
        ctx: &Ctx,
        tenant: &TenantId,
        table: Option<&str>,
    ) -> Result<DeadLetterCounts, Error>;
}

/// What is parked on one tenant's dead-letter queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterCounts {
    /// Parked messages of each table asked about; every scope counts under its table.
    pub tables: BTreeMap<String, u64>,
    /// All parked messages of the tenant.
    pub total: u64,
}

/// Adds counts of dead-letter keys up by table.
pub(crate) fn dead_letter_tables<'a>(
    counts: impl IntoIterator<Item = (&'a str, u64)>,
    table: Option<&str>,
) -> BTreeMap<String, u64> {
    let mut tables = BTreeMap::new();
    for (key, count) in counts {
        let topic = Topic::parse_key(key);
        if table.is_none_or(|table| table == topic.table) {
            *tables.entry(topic.table).or_insert(0) += count;
        }
    }
    tables
}

/// Reclaims space of the ingest queue.
#[async_trait]
pub trait Purger: Send + Sync {
    /// Removes of each tenant's ingest queue the events that the durable has acknowledged (all before its first
    /// unacknowledged one) *and* that were stored before the tenant's cutoff. A tenant without a cutoff keeps nothing
    /// that is acknowledged. No unacknowledged event is ever removed. A tenant whose purge fails stops no other's.
    async fn purge_acked(
        &self,
        ctx: &Ctx,
        consumer: &str,
        older_than: &BTreeMap<TenantId, SystemTime>,
    ) -> PurgeOutcome;
}

/// What a purge did.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct PurgeOutcome {
    /// Whether anything was removed.
    pub purged: bool,
    /// The failures, joined. [`ConsumerNotFound`](crate::ErrorKind::ConsumerNotFound) for a queue without the durable.
    pub error: Option<Error>,
}

impl PurgeOutcome {
    /// Whether anything was removed, when everything went well.
    ///
    /// # Errors
    /// The failures, joined; other tenants may have been purged all the same.
    pub fn into_result(self) -> Result<bool, Error> {
        self.error.map_or(Ok(self.purged), Err)
    }
}

/// Takes what a replay sends. Any `FnMut(Bytes) -> bool` is one.
#[async_trait]
pub trait ReplaySink: Send {
    /// Takes the data of one event; `false` ends the replay.
    async fn send(&mut self, data: Bytes) -> bool;
}

#[async_trait]
impl<F: FnMut(Bytes) -> bool + Send> ReplaySink for F {
    async fn send(&mut self, data: Bytes) -> bool {
        self(data)
    }
}

/// Sends stored events again.
#[async_trait]
pub trait Replayer: Send + Sync {
    /// Sends the data of every event on exactly this topic that was stored at or after `since`, in order, until the
    /// sink answers `false` or the queue is caught up.
    ///
    /// # Errors
    /// When the replay cannot begin, or ends before it has caught up; [`Canceled`](crate::ErrorKind::Canceled) when
    /// `ctx` ended, [`Invalid`](crate::ErrorKind::Invalid) for a topic without a tenant.
    async fn replay_since(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        since: SystemTime,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error>;
}

/// Counters of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections: of the embedded broker all of its own, of an outside one whether this process has one.
    pub connections: u64,
    /// Messages received so far.
    pub in_msgs: u64,
}

/// Everything a service needs of its message queue. Hold it as `Arc<dyn Broker>` and choose the implementation from
/// configuration.
#[async_trait]
pub trait Broker:
    Publisher + Subscriber + ConsumerManager + DeadLetterer + DeadLetterStats + Purger + Replayer
{
    /// Applies a tenant's byte budget to its queues, opening them if it has none. No other tenant is touched. A broker
    /// whose tenants share queues may only record it.
    ///
    /// # Errors
    /// When it was not applied in full. [`Broker::max_bytes`] then keeps the previous budget, and the next call tries
    /// the whole again.
    async fn set_max_bytes(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error>;

    /// The budget last applied in full, 0 when there is none.
    fn max_bytes(&self, tenant: &TenantId) -> u64;

    /// The broker's counters.
    ///
    /// # Errors
    /// When they cannot be read.
    fn stats(&self) -> Result<Stats, Error>;

    /// The broker's units, if its ingest queue is split into such.
    fn as_sharded(&self) -> Option<&dyn Sharded> {
        None
    }
}

/// A broker whose ingest queue is split into units, each owned by one consumer at a time. All events of one table are
/// in one unit.
#[async_trait]
pub trait Sharded: Send + Sync {
    /// The names of the units.
    fn ingest_units(&self) -> IngestUnits;

    /// Delivers at once what a dead owner of the unit had received and not settled; `false` when nothing is waiting.
    /// A missing hold alone is no proof that the owner is gone: call it only with other evidence, before consuming the
    /// unit and never while consuming it.
    ///
    /// # Errors
    /// [`UnitHeld`](crate::ErrorKind::UnitHeld) while somebody holds the unit or was active on it recently,
    /// [`UnitsUnsupported`](crate::ErrorKind::UnitsUnsupported) for an unknown unit.
    async fn reset_orphaned(&self, ctx: &Ctx, unit: &str) -> Result<bool, Error>;

    /// Counts the units with events waiting that nobody holds and nobody was active on recently.
    ///
    /// # Errors
    /// When a unit cannot be read.
    async fn unowned(&self, ctx: &Ctx) -> Result<usize, Error>;
}

/// The units of a sharded broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IngestUnits {
    /// The configured ones, in an order that is the same in every process.
    pub configured: Vec<String>,
    /// Those that a lower count left behind with events in them, as last read. Drain them like the others.
    pub extra: Vec<String>,
}
