//! A broker that keeps everything in memory, for tests of what stands on the boundary.
//!
//! [`MemoryBroker`] passes the conformance suite and behaves like the broker in the process: a queue and a dead-letter
//! queue per tenant, byte budgets, durables, redelivery, idempotency keys, purge, replay.
//!
//! It runs on tokio's clock. In a test with `#[tokio::test(start_paused = true)]` ack waits and delays cost no real time,
//! and the order of events is the same in every run. `tokio::time::advance` moves the clock by hand.
//!
//! # What it does not do
//!
//! Nothing outlives it. It fetches nothing ahead of the handler, so `prefetch` has no effect. It has no units, and it
//! never answers [`Unavailable`](crate::ErrorKind::Unavailable).

mod deliver;
mod durable;
mod log;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::deliver::{MemoryConsumer, Mode, Registration};
use self::log::{Append, Row};
use self::state::State;
use crate::broker::dead_letter_tables;
use crate::topic::key_tenant;
use crate::{
    Broker, Consumer, ConsumerConfig, ConsumerManager, Ctx, DeadLetterCounts, DeadLetterStats, DeadLetterer,
    Error, ErrorKind, Listener, Message, PublishOptions, Publisher, PurgeOutcome, Purger, ReplaySink,
    Replayer, Stats, Subscriber, TenantId, Topic,
};

/// A [`Broker`] in memory, on tokio's clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windjet_mq::Error> {
/// use windjet_mq::{Broker, Ctx, MemoryBroker, PublishOptions, Publisher, TenantId, Topic};
///
/// let broker = MemoryBroker::new();
/// let (ctx, acme) = (Ctx::new(), TenantId::parse("acme")?);
/// broker.set_max_bytes(&ctx, &acme, 1 << 20).await?;
/// let topic = Topic::new(acme, "orders");
/// broker.publish(&ctx, &topic, "42".into(), PublishOptions::new()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    closed: CancellationToken,
    /// The same moment on the wall's clock and on tokio's.
    origin: (SystemTime, Instant),
}

impl Shared {
    fn now(&self) -> SystemTime {
        self.origin.0 + self.origin.1.elapsed()
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the broker is closed"));
        }
        Ok(())
    }
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBroker {
    /// An empty broker. A tenant's queue opens with its first budget.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                closed: CancellationToken::new(),
                origin: (SystemTime::now(), Instant::now()),
            }),
        }
    }

    /// The time on the broker's clock, which stamps what is stored.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.shared.now()
    }

    /// Deletes a durable from every queue behind its consumers' backs: their delivery ends by itself.
    pub fn delete_consumer(&self, durable: &str) {
        self.shared.state.lock().delete_durable(durable);
    }

    /// While it refuses, a queue of this tenant cannot be opened: what a broken disk or a full store does.
    pub fn refuse_opening(&self, tenant: &TenantId, refuse: bool) {
        self.shared.state.lock().refuse(tenant, refuse);
    }

    fn register(&self, ctx: &Ctx, config: &ConsumerConfig) -> Result<Arc<Registration>, Error> {
        self.shared.check_open()?;
        ctx.check("create consumer")?;
        if config.durable.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "consumer durable: empty"));
        }
        Ok(self.shared.state.lock().register(ctx, config))
    }
}

#[async_trait]
impl Publisher for MemoryBroker {
    async fn publish(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        data: Bytes,
        options: PublishOptions,
    ) -> Result<(), Error> {
        let tenant = topic.checked()?;
        self.shared.check_open()?;
        ctx.check("publish")?;
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        let row = Row {
            key: topic.key().into(),
            data,
            headers,
            stored: self.now(),
        };
        let mut state = self.shared.state.lock();
        state.in_msgs += 1;
        let joined = state.reopen(tenant)?;
        let queue = state.queue_mut(tenant)?;
        let appended = queue.ingest.append(row);
        queue.wake.notify_waiters();
        drop(state);
        deliver::start(&self.shared, joined);
        match appended {
            Append::Stored | Append::Duplicate => Ok(()),
            Append::Full => Err(Error::new(
                ErrorKind::QueueFull,
                format!("tenant {tenant}: ingest queue is full"),
            )),
        }
    }

    async fn close(&self) -> Result<(), Error> {
        self.shared.closed.cancel();
        Ok(())
    }
}

#[async_trait]
impl Subscriber for MemoryBroker {
    async fn subscribe(&self, ctx: &Ctx, consumer: &str, listener: Listener) -> Result<(), Error> {
        let config = ConsumerConfig::new(consumer);
        let registration = self.register(ctx, &config)?;
        // Just registered, so it cannot deliver already; a subscription has nobody to report an end to.
        drop(deliver::begin(
            &self.shared,
            &registration,
            &Mode::Listen(listener),
        ));
        Ok(())
    }
}

#[async_trait]
impl ConsumerManager for MemoryBroker {
    async fn create_consumer(&self, ctx: &Ctx, config: ConsumerConfig) -> Result<Box<dyn Consumer>, Error> {
        if config.units.is_some() {
            return Err(Error::new(
                ErrorKind::UnitsUnsupported,
                "consumer units not supported: this broker has none",
            ));
        }
        let registration = self.register(ctx, &config)?;
        Ok(Box::new(MemoryConsumer::new(
            Arc::clone(&self.shared),
            registration,
        )))
    }
}

#[async_trait]
impl DeadLetterer for MemoryBroker {
    async fn dead_letter(&self, ctx: &Ctx, message: &Message, options: PublishOptions) -> Result<(), Error> {
        self.shared.check_open()?;
        ctx.check("dead letter")?;
        let tenant = key_tenant(message.topic_key()).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("dead letter {}: no tenant in the key", message.topic_key()),
            )
        })?;
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        let row = Row {
            key: message.topic_key().into(),
            data: message.data().clone(),
            headers,
            stored: self.now(),
        };
        let mut state = self.shared.state.lock();
        state.in_msgs += 1;
        let joined = state.reopen(&tenant)?;
        let appended = state.queue_mut(&tenant)?.dead.append(row);
        drop(state);
        deliver::start(&self.shared, joined);
        if appended == Append::Full {
            let text = format!("tenant {tenant}: the message is larger than the dead-letter queue");
            return Err(Error::new(ErrorKind::Other, text));
        }
        Ok(())
    }
}

#[async_trait]
impl DeadLetterStats for MemoryBroker {
    async fn dead_letter_counts(
        &self,
        ctx: &Ctx,
        tenant: &TenantId,
        table: Option<&str>,
    ) -> Result<DeadLetterCounts, Error> {
        self.shared.check_open()?;
        ctx.check("dead-letter counts")?;
        let state = self.shared.state.lock();
        let queue = state.queue(tenant).ok_or_else(|| {
            Error::new(
                ErrorKind::NoDeadLetterQueue,
                format!("tenant {tenant}: dead-letter queue not found"),
            )
        })?;
        Ok(DeadLetterCounts {
            tables: dead_letter_tables(queue.dead.rows().map(|row| (&*row.key, 1)), table),
            total: queue.dead.len(),
        })
    }
}

#[async_trait]
impl Purger for MemoryBroker {
    async fn purge_acked(
        &self,
        ctx: &Ctx,
        consumer: &str,
        older_than: &BTreeMap<TenantId, SystemTime>,
    ) -> PurgeOutcome {
        let (mut purged, mut errors) = (false, Vec::new());
        let now = self.now();
        let mut state = self.shared.state.lock();
        for (tenant, queue) in state.queues_mut() {
            if let Err(error) = self.shared.check_open().and_then(|()| ctx.check("purge")) {
                errors.push(error);
                break;
            }
            let Some(durable) = queue.durables.get(consumer) else {
                let text = format!("tenant {tenant}: consumer {consumer} not found");
                errors.push(Error::new(ErrorKind::ConsumerNotFound, text));
                continue;
            };
            let cutoff = older_than.get(tenant).copied().unwrap_or(now);
            let below = queue.ingest.first_since(cutoff).min(durable.floor() + 1);
            purged |= queue.ingest.purge_below(below);
        }
        PurgeOutcome {
            purged,
            error: Error::join(errors),
        }
    }
}

#[async_trait]
impl Replayer for MemoryBroker {
    async fn replay_since(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        since: SystemTime,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error> {
        let tenant = topic.checked()?;
        let key = topic.key();
        let mut sequence = 0;
        loop {
            ctx.check("replay")?;
            self.shared.check_open()?;
            let found = {
                let state = self.shared.state.lock();
                let queue = state.queue(tenant).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Other,
                        format!("tenant {tenant}: no queue is open for it yet"),
                    )
                })?;
                let from = queue.ingest.first_since(since).max(sequence);
                (from..queue.ingest.next()).find_map(|sequence| {
                    let row = queue.ingest.get(sequence)?;
                    (*row.key == *key).then(|| (sequence, row.data.clone()))
                })
            };
            let Some((at, data)) = found else { return Ok(()) };
            if !sink.send(data).await {
                return Ok(());
            }
            sequence = at + 1;
        }
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    async fn set_max_bytes(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            let text = format!("tenant {tenant}: a budget of 0 bytes; give it at least one");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.shared.check_open()?;
        ctx.check("set max bytes")?;
        let joined = self.shared.state.lock().set_budget(tenant, bytes)?;
        deliver::start(&self.shared, joined);
        Ok(())
    }

    fn max_bytes(&self, tenant: &TenantId) -> u64 {
        let state = self.shared.state.lock();
        state.queue(tenant).map_or(0, |queue| queue.budget)
    }

    fn stats(&self) -> Result<Stats, Error> {
        self.shared.check_open()?;
        Ok(Stats {
            connections: 1,
            in_msgs: self.shared.state.lock().in_msgs,
        })
    }
}

/// How much of a budget goes to dead letters: a tenth.
const DEAD_LETTER_SHARE: u64 = 10;
/// How long a dead-letter queue remembers idempotency keys.
const DEAD_LETTER_WINDOW: Duration = Duration::from_secs(120);
