//! A broker in the process: every tenant has an ingest queue and a dead-letter queue of its own, durable on the local disk.
//!
//! What holds:
//!
//! * An event is synced to the disk when its publish returns, and so is an acknowledgement when `double_ack` returns. After a
//!   crash both are there; what was delivered and not settled comes back at once.
//! * A tenant at its budget, a tenant whose queue is broken and a handler that waits cost other tenants nothing.
//! * A queue is open to publishes when its dead-letter queue exists and every consumer holds it, never before.
//! * A failed resize is undone. A dead-letter queue is never limited to less than it holds.
//!
//! No port is opened. One process at a time can use a folder.
//!
//! * `names` says how streams and durables are called and configured, `engine` speaks to the server.
//! * `queues` opens, resizes and joins, one turn at a time, and paces what publishes may try.
//! * `fan_in` is one consumer over many queues. `purge` reclaims space.
//! * `graduate` moves everything to an operator's cluster; `gate` is the door that publishes go through, which it shuts for a
//!   moment; `moved` is what a store remembers of it.
//!
//! # What it does not do
//!
//! It has no units: a consumer takes all tenants' queues. It has no switch that makes it less durable.

#[cfg(feature = "compat")]
pub mod compat;
mod engine;
mod fan_in;
mod gate;
#[cfg(feature = "external")]
pub mod graduate;
mod moved;
mod names;
mod purge;
mod queues;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;
use windjet_server::jetstream::{AckPolicy, ConsumerConfig as Durable, DeliverPolicy, FetchOptions, Nanos};

use self::engine::{Engine, Published, block, failed, publish, timestamp};
use self::fan_in::{Mode, Registration};
use self::gate::Way;
use self::names::{DEAD, INGEST, Wanted};
use self::queues::{Open, Queues};
use crate::broker::dead_letter_tables;
use crate::topic::key_tenant;
use crate::{
    Broker, Consumer, ConsumerConfig, ConsumerManager, Consuming, Ctx, DeadLetterCounts, DeadLetterStats,
    DeadLetterer, Error, ErrorKind, Handler, Listener, Message, PublishOptions, Publisher, PurgeOutcome,
    Purger, ReplaySink, Replayer, Stats, Subscriber, TenantId, Topic,
};

/// A replay's consumer goes by itself when nobody asks it for so long.
const REPLAY_INACTIVE: Duration = Duration::from_secs(5);
/// How many events a replay takes at a time.
const REPLAY_BATCH: usize = 256;

/// A [`Broker`] in the process, over durable streams on the local disk. Cloning is cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use windjet_mq::{Broker, Ctx, EmbeddedNats, PublishOptions, Publisher, TenantId, Topic};
///
/// # let folder = std::env::temp_dir().join(format!("windjet-mq-doc-{}", std::process::id()));
/// let broker = EmbeddedNats::open(&folder).await?;
/// let (ctx, acme) = (Ctx::new(), TenantId::parse("acme")?);
/// broker.set_max_bytes(&ctx, &acme, 64 << 20).await?;
/// let topic = Topic::new(acme, "orders");
/// broker.publish(&ctx, &topic, "42".into(), PublishOptions::new()).await?; // on the disk now
/// broker.close().await?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
///
/// A tenant's queue is opened when its budget is first applied. After a restart, queues are there with the budgets they had,
/// those of tenants that are not served any more included: what is in them still reaches the consumers.
///
/// Publishes find [`QueueFull`](ErrorKind::QueueFull) when the tenant's budget is used up, and when its queue cannot be
/// opened; the latter is tried again by a publish at most every five seconds. They find
/// [`Unavailable`](ErrorKind::Unavailable) when the store failed or ended before it had confirmed the event.
///
/// When the last clone is dropped, delivery ends and the folder is given back soon after; [`close`](Publisher::close) waits
/// until it is.
#[derive(Clone)]
pub struct EmbeddedNats {
    queues: Arc<Queues>,
    _guard: Arc<Guard>,
}

/// Ends the broker with its last handle. Consumers are no such handles.
struct Guard(Arc<Queues>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.closed.cancel();
        self.0.engine.end();
    }
}

impl fmt::Debug for EmbeddedNats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedNats").finish_non_exhaustive()
    }
}

static NEXT_REGISTRATION: AtomicU64 = AtomicU64::new(1);

impl EmbeddedNats {
    /// Starts the broker over a folder, which is made if need be, and takes stock of the queues there.
    ///
    /// A pair of streams that an earlier layout kept for all tenants together is deleted with its events, and a warning.
    ///
    /// # Errors
    /// When the folder cannot be used, another process has it, or what is in it cannot be read.
    ///
    /// # Cancel safety
    /// Dropped early, nothing keeps running.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let engine = Engine::start(folder.as_ref()).await?;
        let queues = Arc::new(Queues::open(engine).await?);
        let guard = Arc::new(Guard(Arc::clone(&queues)));
        Ok(Self {
            queues,
            _guard: guard,
        })
    }

    /// The server that keeps the queues, for tools and monitoring. How queues are laid out in it is not part of the
    /// contract; changing them behind the broker's back is at your own risk.
    #[must_use]
    pub fn server(&self) -> &windjet_server::Server {
        self.queues.engine.server()
    }

    /// A tenant's open queue; opens it if that may be tried now.
    async fn open_for(&self, ctx: &Ctx, tenant: &TenantId) -> Result<Arc<Open>, Error> {
        if let Some(open) = self.queues.opened(tenant) {
            return Ok(open);
        }
        self.reopen(ctx, tenant).await
    }

    async fn reopen(&self, ctx: &Ctx, tenant: &TenantId) -> Result<Arc<Open>, Error> {
        let shut = |error| match ctx.is_canceled() {
            true => error,
            false => {
                let text = format!("tenant {tenant}: its ingest queue cannot be opened");
                Error::wrap(ErrorKind::QueueFull, text, error)
            }
        };
        self.queues.reopen_paced(ctx, tenant).await.map_err(shut)?;
        let opened = self.queues.opened(tenant);
        opened.ok_or_else(|| shut(Error::new(ErrorKind::Other, "a consumer has not joined it yet")))
    }

    async fn register(&self, ctx: &Ctx, config: &ConsumerConfig) -> Result<Arc<Registration>, Error> {
        if config.durable.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "consumer durable: empty"));
        }
        let wanted = Wanted {
            durable: config.durable.clone(),
            filter: None,
            ack_wait: config.ack_wait,
            max_ack_pending: config.max_ack_pending,
        };
        let id = NEXT_REGISTRATION.fetch_add(1, Ordering::Relaxed);
        let registration = Arc::new(Registration::new(id, ctx, wanted, INGEST));
        self.queues.register(ctx, &registration).await?;
        Ok(registration)
    }

    fn published(&self) {
        self.queues.published.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Publisher for EmbeddedNats {
    async fn publish(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        data: Bytes,
        options: PublishOptions,
    ) -> Result<(), Error> {
        let tenant = topic.checked()?;
        self.queues.check_open()?;
        ctx.check("publish")?;
        let pass = match self.queues.gate.enter(ctx, &self.queues.closed).await? {
            Way::Here(pass) => pass,
            Way::There(broker) => return broker.publish(ctx, topic, data, options).await,
        };
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        let (block, subject) = (block(&headers)?, format!("{INGEST}{}", topic.key()));
        let mut open = self.open_for(ctx, tenant).await?;
        let mut again = true;
        loop {
            let (through, to) = ((&open.js, Some(&pass)), (open.ingest.as_str(), subject.as_str()));
            let stored = publish(through, ctx, to, &block, data.clone()).await?;
            match stored {
                Published::Stored => {
                    self.published();
                    return Ok(());
                }
                Published::NoStream if again => {
                    again = false;
                    self.queues.check_open()?;
                    open = self.reopen(ctx, tenant).await?;
                }
                Published::Full | Published::NoStream => {
                    let text = format!("tenant {tenant}: ingest queue is full");
                    return Err(Error::new(ErrorKind::QueueFull, text));
                }
            }
        }
    }

    async fn close(&self) -> Result<(), Error> {
        self.queues.closed.cancel();
        self.queues.engine.shutdown().await
    }
}

#[async_trait]
impl Subscriber for EmbeddedNats {
    async fn subscribe(&self, ctx: &Ctx, consumer: &str, listener: Listener) -> Result<(), Error> {
        let registration = self.register(ctx, &ConsumerConfig::new(consumer)).await?;
        // Just registered, so it cannot deliver already; a subscription has nobody to report an end to.
        self.queues
            .begin(&registration, (Mode::Listen(listener), 0))
            .await;
        Ok(())
    }
}

#[async_trait]
impl ConsumerManager for EmbeddedNats {
    async fn create_consumer(&self, ctx: &Ctx, config: ConsumerConfig) -> Result<Box<dyn Consumer>, Error> {
        if config.units.is_some() {
            return Err(Error::new(
                ErrorKind::UnitsUnsupported,
                "consumer units not supported: this broker has none",
            ));
        }
        let registration = self.register(ctx, &config).await?;
        Ok(Box::new(EmbeddedConsumer {
            queues: Arc::clone(&self.queues),
            registration,
        }))
    }
}

/// A durable consumer of every tenant's queue.
struct EmbeddedConsumer {
    queues: Arc<Queues>,
    registration: Arc<Registration>,
}

#[async_trait]
impl Consumer for EmbeddedConsumer {
    async fn consume(&self, handler: Handler, prefetch: usize) -> Result<Consuming, Error> {
        self.queues.check_open()?;
        let (sender, failed) = oneshot::channel();
        let stop = self.registration.stop.clone();
        self.registration.failed.lock().get_or_insert(sender);
        if !self
            .queues
            .begin(&self.registration, (Mode::Handle(handler), prefetch))
            .await
        {
            let durable = &self.registration.wanted.durable;
            let text = format!("consumer {durable} delivers already; create another");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Consuming::new(move || stop.cancel(), failed))
    }
}

impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        if self.registration.mode.get().is_none() {
            self.queues.unregister(self.registration.id);
        }
    }
}

#[async_trait]
impl DeadLetterer for EmbeddedNats {
    async fn dead_letter(&self, ctx: &Ctx, message: &Message, options: PublishOptions) -> Result<(), Error> {
        self.queues.check_open()?;
        ctx.check("dead letter")?;
        let key = message.topic_key();
        let tenant = key_tenant(key).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("dead letter {key}: no tenant in the key"),
            )
        })?;
        let pass = match self.queues.gate.enter(ctx, &self.queues.closed).await? {
            Way::Here(pass) => pass,
            Way::There(broker) => return broker.dead_letter(ctx, message, options).await,
        };
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        // The key as it was delivered, byte for byte.
        let (block, subject) = (block(&headers)?, format!("{DEAD}{key}"));
        let handle = self.queues.handle(&tenant);
        for again in [true, false] {
            let to = (handle.dead.as_str(), subject.as_str());
            match publish((&handle.js, Some(&pass)), ctx, to, &block, message.data().clone()).await? {
                Published::Stored => {
                    self.published();
                    return Ok(());
                }
                Published::NoStream if again => {
                    let opened = self.queues.reopen_paced(ctx, &tenant).await;
                    opened
                        .map_err(|error| failed(format!("tenant {tenant}: nowhere to park {key}"), error))?;
                }
                Published::NoStream => break,
                Published::Full => {
                    let text = format!("tenant {tenant}: the message is larger than the dead-letter queue");
                    return Err(Error::new(ErrorKind::Other, text));
                }
            }
        }
        Err(Error::new(
            ErrorKind::Other,
            format!("tenant {tenant}: no dead-letter queue takes {key}"),
        ))
    }
}

#[async_trait]
impl DeadLetterStats for EmbeddedNats {
    async fn dead_letter_counts(
        &self,
        ctx: &Ctx,
        tenant: &TenantId,
        table: Option<&str>,
    ) -> Result<DeadLetterCounts, Error> {
        self.queues.check_open()?;
        ctx.check("dead-letter counts")?;
        let stream = names::dead_stream(tenant);
        let counted = self.queues.engine.subjects(&stream).await?;
        let (subjects, total) = counted.ok_or_else(|| {
            let text = format!("tenant {tenant}: dead-letter queue not found");
            Error::new(ErrorKind::NoDeadLetterQueue, text)
        })?;
        let keys = subjects
            .iter()
            .map(|(subject, count)| (subject.strip_prefix(DEAD).unwrap_or(subject), *count));
        Ok(DeadLetterCounts {
            tables: dead_letter_tables(keys, table),
            total,
        })
    }
}

#[async_trait]
impl Purger for EmbeddedNats {
    async fn purge_acked(
        &self,
        ctx: &Ctx,
        consumer: &str,
        older_than: &BTreeMap<TenantId, SystemTime>,
    ) -> PurgeOutcome {
        if self.queues.moving.lock().is_some() {
            // What is there is being counted.
            return PurgeOutcome::default();
        }
        purge::purge_acked(&self.queues, ctx, consumer, older_than).await
    }
}

#[async_trait]
impl Replayer for EmbeddedNats {
    async fn replay_since(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        since: SystemTime,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error> {
        let tenant = topic.checked()?;
        self.queues.check_open()?;
        ctx.check("replay")?;
        let subject = format!("{INGEST}{}", topic.key());
        let handle = self.queues.handle(tenant);
        let config = Durable {
            filter_subject: Some(subject),
            ack_policy: AckPolicy::None,
            deliver_policy: DeliverPolicy::ByStartTime,
            opt_start_time: Some(timestamp(since.max(SystemTime::UNIX_EPOCH))),
            inactive_threshold: Nanos::from_secs(REPLAY_INACTIVE.as_secs().cast_signed()),
            mem_storage: true,
            ..Durable::default()
        };
        let what = || format!("tenant {tenant}: replay");
        let made = handle.js.create_consumer(&handle.ingest, config).await;
        let name = made.map_err(|error| failed(what(), error))?.name;
        let sent = self.send_all(ctx, &handle, &name, sink).await;
        // It would go by itself; whether it is gone already does not matter.
        let _ = self.queues.engine.delete_durable(&handle.ingest, &name).await;
        sent
    }
}

impl EmbeddedNats {
    async fn send_all(
        &self,
        ctx: &Ctx,
        handle: &Open,
        name: &str,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error> {
        let broken = |error| failed("replay ended before it had caught up", error);
        let consumer = handle.js.consumer(&handle.ingest, name).await;
        let consumer = consumer.map_err(|error| failed("replay", error))?;
        let options = FetchOptions::new(REPLAY_BATCH).no_wait();
        loop {
            ctx.check("replay")?;
            self.queues.check_open()?;
            let batch = consumer.fetch_with(&options).await.map_err(broken)?;
            if batch.is_empty() {
                return Ok(());
            }
            for delivery in batch {
                ctx.check("replay")?;
                self.queues.check_open()?;
                if !sink.send(delivery.payload.clone()).await {
                    return Ok(());
                }
            }
        }
    }
}

#[async_trait]
impl Broker for EmbeddedNats {
    async fn set_max_bytes(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            let text = format!("tenant {tenant}: a budget of 0 bytes; give it at least one");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.queues.set_max_bytes(ctx, tenant, bytes).await
    }

    fn max_bytes(&self, tenant: &TenantId) -> u64 {
        self.queues.max_bytes(tenant)
    }

    fn stats(&self) -> Result<Stats, Error> {
        self.queues.check_open()?;
        Ok(Stats {
            connections: self.queues.engine.connections(),
            in_msgs: self.queues.engine.in_msgs() + self.queues.published.load(Ordering::Relaxed),
        })
    }
}
