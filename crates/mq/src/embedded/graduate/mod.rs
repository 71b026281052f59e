//! Moving a store to an operator's cluster, from inside the service that owns it, while it keeps publishing.
//!
//! ```no_run
//! # async fn example(worker: windjet_mq::Consuming) -> Result<(), windjet_mq::Error> {
//! use windjet_mq::graduate::GraduateOptions;
//! use windjet_mq::nats::{ExternalConfig, ExternalNats};
//! use windjet_mq::EmbeddedNats;
//!
//! let embedded = EmbeddedNats::open("queue").await?;
//! # let settle_what_it_holds = async || {};
//! worker.stop(); // no event is written from here any more
//! settle_what_it_holds().await;
//!
//! let cluster = ExternalNats::connect(ExternalConfig::new(["nats://nats.internal:4222"])).await?;
//! // A worker and a subscription on the cluster may begin now.
//! let report = embedded.graduate(&cluster, GraduateOptions::new("buffer-consumer")).await?;
//! println!("{} events moved", report.totals().events.moved);
//! // Publishes through `embedded` go to the cluster since. Put `cluster` in its place at leisure.
//! # Ok(())
//! # }
//! ```
//!
//! # What is moved
//!
//! * **Events that are not written**: those that the durable named in the options has not acknowledged, of every tenant, served
//!   or not. Only that durable counts: an event that it has acknowledged stays, whatever other durables and subscriptions here
//!   have yet to see of it, and one that it has not is moved, whatever others have acknowledged. On a queue that never had the
//!   durable nothing is written.
//! * **Parked messages**, all.
//! * Each with its data, its key, and its headers, save those that told the server here what to do with the publish
//!   (`Nats-Expected-…`, `Nats-TTL` and their like). A message without an idempotency key gets an id of the move's.
//! * **Idempotency keys**: an event that is moved has the key it was published with, so that a repetition on the cluster is the
//!   duplicate that it would have been here. Of an event that is written the key alone is moved while it is remembered here: as a
//!   message without an event, which `ExternalNats` acknowledges and shows to nobody. The cluster's window begins with the move,
//!   so it ends no sooner. The key of an event that was purged here is gone with it.
//!
//! What is written and acknowledged, and with it what a replay could reach, stays in the folder; nothing is deleted from it.
//!
//! # Order
//!
//! Events of a table are stored on the cluster in the order of their publishes, and those that the service publishes there
//! itself come behind them: publishes lead there only when everything here has arrived.
//!
//! # Phases
//!
//! 1. *Copying.* Every queue is copied in batches, queues and tables side by side, while publishes go on here. A batch is noted
//!    in the record before it is sent and after it has arrived, and the durable here begins behind it, once it is beyond what was
//!    delivered here: an event waits here or is there. The phase ends when little is left.
//! 2. *Holding.* Publishes wait. What is under way is waited for, the rest is copied, every queue is counted anew in its index
//!    and compared with what was moved or passed over, and the durable has nothing left.
//! 3. *Switched.* The record says so, and publishes, those that waited first, go to the cluster, also through the old broker.
//!    The store takes nothing any more; opened again, it refuses publishes and says why.
//!
//! When the counts do not add up, or holding takes too long, publishes go on here and the move has failed for now.
//!
//! # Interrupted
//!
//! Dropped, failed or killed at any point, a move is taken up by the next call, in this process or another, from its record (a
//! bucket in the store, `record`). What the last run may have sent without noting it is sent again under the same ids, which
//! the cluster drops as duplicates. Once its window is over, such messages are looked for in the history first. What
//! nothing can tell any more (the history does not reach back, or the message is a parked one) is sent again and counted as
//! `repeated`: delivery is at least once.
//!
//! Take the move up before a consumer of the named durable begins here, or the last batch of each queue, and what the consumer
//! held unsettled when it was stopped, may be written here and there. A move goes on with the consumer and the topology with which it began.
//!
//! # What the caller does
//!
//! Before: stop the consumer of the named durable and settle what it holds. While it is moved none is created. After: put
//! the cluster's broker in place of this one; keep this one open until its subscriptions have seen what they should.
//!
//! * `queue` is one queue on its way, `send` one message, `keys` which keys are whose, `record` what survives.

mod keys;
mod options;
mod queue;
mod record;
mod report;
mod send;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::Instant;
use windjet_server::jetstream::JetStreamContext;

pub use self::options::{GraduateOptions, Phase, Progress};
use self::queue::{Part, Queue};
use self::record::{MoveRecord, QueueRecord, Records};
pub use self::report::{GraduateReport, QueueCount, TenantCount, Unbalanced};
use self::send::Sender;
use super::engine::{Engine, failed};
use super::gate::Held;
use super::moved::{BUCKET, SWITCHED};
use super::queues::Queues;
use super::{EmbeddedNats, names};
use crate::nats::ExternalNats;
use crate::{Error, ErrorKind, TenantId};

/// Rounds that do not get shorter, before publishes are held all the same.
const ROUNDS: usize = 3;

type Moved = BTreeMap<(TenantId, Part), Queue>;

impl EmbeddedNats {
    /// Moves what is queued and parked here to an operator's cluster, and has publishes go there from then on. See
    /// [`graduate`](crate::graduate) for what holds and what to do before and after.
    ///
    /// A store that was moved already gives the same report again, and leads publishes to `target`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) while a consumer of the named durable takes events here, or another move runs, or one to
    /// another topology began; [`ConsumerNotFound`](ErrorKind::ConsumerNotFound) when no queue has the durable;
    /// [`QueueFull`](ErrorKind::QueueFull) and [`Unavailable`](ErrorKind::Unavailable) when the target did not take a message
    /// within the patience; [`Unbalanced`] as the cause when the counts do not add up. In all cases publishes go on here, and the next call
    /// takes the move up.
    ///
    /// # Cancel safety
    /// May be dropped at any point: publishes go on here, unless everything had arrived; the next call takes the move up.
    pub async fn graduate(
        &self,
        target: &ExternalNats,
        options: GraduateOptions,
    ) -> Result<GraduateReport, Error> {
        options.check()?;
        target.ready()?;
        self.queues.begin_move(&options.consumer).await?;
        let _moving = Moving(&self.queues);
        let js = self.queues.engine.handle();
        let (consumer, identity) = (options.consumer.clone(), target.identity());
        let mut records = Records::find(&js).await?;
        let known = match &records {
            Some(records) => records.load().await?,
            None => None,
        };
        if let Some(record) = &known {
            record.check(&consumer, &identity)?;
        }
        let resumed = known.is_some();
        let record = known.unwrap_or_else(|| MoveRecord {
            id: format!("wj-move-{}", target.fresh_name()),
            consumer,
            target: identity,
            phase: "copying".to_owned(),
        });
        let (dry_run, switched) = (options.dry_run, record.is_switched());
        if !dry_run && !switched && records.is_none() {
            records = Some(Records::open(&js).await?);
        }
        let mover = Mover {
            queues: &self.queues,
            engine: &self.queues.engine,
            js,
            sender: Sender::new(target, options.in_flight, options.patience).await?,
            target,
            options,
            records,
            id: record.id.clone(),
            done: AtomicU64::new(0),
            known: AtomicU64::new(0),
        };
        let mut queues = Moved::new();
        mover.discover(&mut queues).await?;
        if switched {
            self.queues.gate.lead_to(Arc::new(target.clone()));
            return Ok(mover.report(&queues));
        }
        mover.check_consumer(&queues, resumed).await?;
        if dry_run {
            for queue in queues.values_mut() {
                queue.record.count = queue.plan(&mover).await?;
            }
            return Ok(mover.report(&queues));
        }
        if !resumed {
            mover.store_move(&record).await?;
        }
        for queue in queues.values() {
            queue.reclaim(&mover).await?;
            queue.follow(&mover).await?;
        }
        for queue in queues.values_mut() {
            queue.remember(&mover).await?;
        }
        mover.copy(&mut queues).await?;
        let (held, waited) = mover.hold(&mut queues).await?;
        mover.switch(record, held).await?;
        mover.tell(Phase::Switched);
        let mut report = mover.report(&queues);
        report.held = waited.elapsed();
        Ok(report)
    }
}

/// Lets consumers of the durable in again.
struct Moving<'a>(&'a Queues);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        *self.0.moving.lock() = None;
    }
}

/// A move under way.
struct Mover<'a> {
    queues: &'a Queues,
    engine: &'a Engine,
    js: JetStreamContext,
    target: &'a ExternalNats,
    sender: Sender<'a>,
    options: GraduateOptions,
    /// None: nothing is noted, because it only looks.
    records: Option<Records>,
    id: String,
    done: AtomicU64,
    known: AtomicU64,
}

impl Mover<'_> {
    async fn load(&self, key: &str) -> Result<Option<QueueRecord>, Error> {
        match &self.records {
            Some(records) => records.load_queue(key).await,
            None => Ok(None),
        }
    }

    async fn store(&self, key: &str, record: &QueueRecord) -> Result<(), Error> {
        match &self.records {
            Some(records) => records.store_queue(key, record).await,
            None => Ok(()),
        }
    }

    async fn store_move(&self, record: &MoveRecord) -> Result<(), Error> {
        match &self.records {
            Some(records) => records.store(record).await,
            None => Ok(()),
        }
    }

    /// How long the target may remember an id of ours, in milliseconds.
    fn remembered(&self) -> u64 {
        let kept = self.sender.recognised + self.target.publish_time() * 2 + self.options.patience;
        u64::try_from(kept.as_millis()).unwrap_or(u64::MAX)
    }

    fn count(&self, messages: u64) {
        self.done.fetch_add(messages, Ordering::Relaxed);
        self.tell(Phase::Copying);
    }

    fn tell(&self, phase: Phase) {
        let done = self.done.load(Ordering::Relaxed);
        self.options.tell(Progress {
            phase,
            done,
            known: self.known.load(Ordering::Relaxed).max(done),
        });
    }

    /// Looks at queues that were not looked at yet.
    async fn discover(&self, queues: &mut Moved) -> Result<(), Error> {
        for tenant in self.queues.known() {
            for part in [Part::Events, Part::DeadLetters] {
                let key = (tenant.clone(), part);
                if !queues.contains_key(&key)
                    && let Some(queue) = Queue::open(self, &tenant, part).await?
                {
                    queues.insert(key, queue);
                }
            }
        }
        Ok(())
    }

    /// A name that no queue knows is a mistake, when there is anything to move.
    async fn check_consumer(&self, queues: &Moved, resumed: bool) -> Result<(), Error> {
        if resumed || queues.values().any(Queue::has_durable) {
            return Ok(());
        }
        for queue in queues.values().filter(|queue| queue.part == Part::Events) {
            if queue.plan(self).await?.found > 0 {
                let text = format!(
                    "graduate: no queue has consumer {}: name the durable whose acknowledgement means that an event is written",
                    self.options.consumer
                );
                return Err(Error::new(ErrorKind::ConsumerNotFound, text));
            }
        }
        Ok(())
    }

    /// Copies every queue up to where it ends now; how many messages were done with.
    async fn round(&self, queues: &mut Moved) -> Result<u64, Error> {
        self.discover(queues).await?;
        let (mut copies, mut left) = (Vec::new(), 0);
        for queue in queues.values_mut() {
            let end = queue.end(self).await?;
            if end > queue.record.mark {
                left += end - queue.record.mark;
                copies.push(queue.copy(self, end));
            }
        }
        self.known
            .store(self.done.load(Ordering::Relaxed) + left, Ordering::Relaxed);
        self.tell(Phase::Copying);
        let copies = stream::iter(copies).buffer_unordered(self.options.tenants);
        copies.try_fold(0, |all, one| async move { Ok(all + one) }).await
    }

    /// Copies until little is left, or it gets no less.
    async fn copy(&self, queues: &mut Moved) -> Result<(), Error> {
        let (mut last, mut longer) = (u64::MAX, 0);
        loop {
            let copied = self.round(queues).await?;
            longer = if copied < last { 0 } else { longer + 1 };
            if copied <= self.options.remainder || longer >= ROUNDS {
                return Ok(());
            }
            last = copied;
        }
    }

    /// Holds publishes, copies the rest, and counts.
    async fn hold(&self, queues: &mut Moved) -> Result<(Held, Instant), Error> {
        let since = Instant::now();
        let rest = async {
            let held = self.queues.gate.shut().await;
            self.tell(Phase::Holding);
            while self.round(queues).await? > 0 {}
            let mut wrong = Vec::new();
            for queue in queues.values_mut() {
                wrong.extend(queue.verify(self).await?);
            }
            if wrong.is_empty() {
                return Ok(held);
            }
            let report = self.report(queues);
            let text = "graduate: the counts do not add up, and nothing was switched";
            Err(Error::wrap(
                ErrorKind::Other,
                text,
                Unbalanced {
                    report,
                    queues: wrong,
                },
            ))
        };
        let held = tokio::time::timeout(self.options.hold, rest).await.map_err(|_| {
            let text = format!(
                "graduate: publishes were held for {:?} and not everything had arrived; they go on here. Try again when the \
                 service publishes less",
                self.options.hold
            );
            Error::new(ErrorKind::Unavailable, text)
        })??;
        Ok((held, since))
    }

    /// Makes the switch durable and leads publishes to the target. Goes on when the caller goes away: a switch that is
    /// noted must be made.
    async fn switch(&self, record: MoveRecord, held: Held) -> Result<(), Error> {
        let Some(records) = self.records.clone() else {
            return Ok(());
        };
        let (gate, target) = (Arc::clone(&self.queues.gate), self.target.clone());
        let record = MoveRecord {
            phase: SWITCHED.to_owned(),
            ..record
        };
        let switch = tokio::spawn(async move {
            records.store(&record).await?;
            gate.lead_to(Arc::new(target));
            drop(held);
            Ok(())
        });
        switch
            .await
            .unwrap_or_else(|error| Err(failed("graduate", error)))
    }

    fn report(&self, queues: &Moved) -> GraduateReport {
        let mut report = GraduateReport {
            dry_run: self.options.dry_run,
            held: Duration::ZERO,
            ..GraduateReport::default()
        };
        for ((tenant, part), queue) in queues {
            let count = report.tenants.entry(tenant.clone()).or_default();
            match part {
                Part::Events => count.events = queue.record.count,
                Part::DeadLetters => count.dead_letters = queue.record.count,
            }
        }
        let ours = format!("KV_{BUCKET}");
        let mut streams = self.engine.streams();
        streams.retain(|stream| *stream != ours && names::kind(stream).is_none());
        report.foreign = streams;
        report
    }
}
