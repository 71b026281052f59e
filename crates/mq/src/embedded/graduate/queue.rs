//! One queue on its way: what of it is to be moved, in batches, each noted before and after.
//!
//! The steps of a batch, every one durable before the next begins: the record says that these messages may be on the target;
//! they are sent; the record says that they are done with; the durable here begins behind them. Whatever ends the process, the
//! next run finds in the record from where on it must go, and which messages may be there.

use std::collections::{BTreeMap, HashSet};
use std::time::SystemTime;

use futures_util::future::try_join_all;
use windjet_server::jetstream::{GetError, OrderedConfig, StartAt, StreamMessage};

use super::Mover;
use super::record::{QueueRecord, Sending, instant, millis};
use super::report::QueueCount;
use super::send::{Ids, Parcel, Sent};
use crate::embedded::engine::{failed, timestamp};
use crate::embedded::names::{self, DEAD, INGEST};
use crate::nats::Arrival;
use crate::{EMBEDDED_DUPLICATE_WINDOW, Error, ErrorKind, TenantId};

/// Messages are read so many at a time, and a batch ends with so many bytes.
const CHUNK: usize = 32;
const BATCH_BYTES: usize = 4 << 20;
/// Entries of a trail are so far apart, in milliseconds.
const TRAIL_STEP: u64 = 5_000;

/// Which of a tenant's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Events,
    DeadLetters,
}

/// What of a queue is written.
#[derive(Debug)]
struct Written {
    delivered: u64,
    pending: HashSet<u64>,
}

impl Written {
    fn holds(&self, seq: u64) -> bool {
        seq <= self.delivered && !self.pending.contains(&seq)
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) tenant: TenantId,
    pub(super) part: Part,
    pub(super) stream: String,
    pub(super) record: QueueRecord,
    /// Where this run began.
    base: u64,
    /// What was accounted for then.
    before: u64,
    /// `None`: nothing is; there is no such durable on this queue.
    written: Option<Written>,
    /// Whether the durable here is to follow.
    durable: bool,
}

impl Queue {
    /// Looks at a queue; `None` when it has gone.
    pub(super) async fn open(
        mover: &Mover<'_>,
        tenant: &TenantId,
        part: Part,
    ) -> Result<Option<Self>, Error> {
        let stream = match part {
            Part::Events => names::ingest_stream(tenant),
            Part::DeadLetters => names::dead_stream(tenant),
        };
        let Some(info) = mover.engine.stream(&stream).await? else {
            return Ok(None);
        };
        let mut queue = Self {
            tenant: tenant.clone(),
            part,
            stream,
            record: QueueRecord::default(),
            base: 0,
            before: 0,
            written: None,
            durable: false,
        };
        let known = mover.load(&queue.key()).await?;
        let mut floor = info.state.first_seq.saturating_sub(1);
        if part == Part::Events {
            let unsettled = mover
                .js
                .consumer_unsettled(&queue.stream, &mover.options.consumer)
                .await;
            queue.durable = unsettled.is_some();
            if let Some(unsettled) = unsettled {
                floor = floor.max(unsettled.floor);
                queue.written = Some(Written {
                    delivered: unsettled.delivered,
                    pending: unsettled.pending.into_iter().collect(),
                });
            }
        }
        // An earlier run's mark, unless events behind it were written since.
        queue.record = known.unwrap_or_else(|| QueueRecord {
            mark: floor,
            begun: floor,
            ..QueueRecord::default()
        });
        queue.base = queue.record.mark;
        queue.before = queue.record.count.done();
        Ok(Some(queue))
    }

    /// Its key in the records.
    fn key(&self) -> String {
        match self.part {
            Part::Events => format!("ingest.{}", self.tenant),
            Part::DeadLetters => format!("dead.{}", self.tenant),
        }
    }

    pub(super) fn has_durable(&self) -> bool {
        self.durable
    }

    /// Messages behind a sequence, counted in the index.
    async fn count_behind(&self, mover: &Mover<'_>, seq: u64) -> Result<u64, Error> {
        let from = OrderedConfig::default().start(StartAt::Sequence(seq + 1));
        let ordered = mover.js.ordered(&self.stream, from).await;
        let mut ordered = ordered.map_err(|error| failed(format!("count stream {}", self.stream), error))?;
        Ok(ordered.pending())
    }

    /// What a run would do now.
    pub(super) async fn plan(&self, mover: &Mover<'_>) -> Result<QueueCount, Error> {
        let behind = self.count_behind(mover, self.base).await?;
        let mut count = self.record.count;
        count.found = self.before + behind;
        if let Some(written) = &self.written {
            let undelivered = self.count_behind(mover, written.delivered.max(self.base)).await?;
            let pending = written.pending.iter().filter(|seq| **seq > self.base).count() as u64;
            count.skipped += behind.saturating_sub(undelivered).saturating_sub(pending);
        }
        Ok(count)
    }

    /// The last sequence of the stream.
    pub(super) async fn end(&self, mover: &Mover<'_>) -> Result<u64, Error> {
        let info = mover.engine.stream(&self.stream).await?;
        info.map(|info| info.state.last_seq).ok_or_else(|| {
            Error::new(
                ErrorKind::Other,
                format!("stream {} has gone meanwhile", self.stream),
            )
        })
    }

    fn place(&self, mover: &Mover<'_>, message: &StreamMessage) -> (Arrival, String) {
        let subject = message.subject_str();
        match self.part {
            Part::Events => {
                let key = subject.strip_prefix(INGEST).unwrap_or(&subject);
                (mover.target.place_event(&self.tenant, key), key.to_owned())
            }
            Part::DeadLetters => {
                let key = subject.strip_prefix(DEAD).unwrap_or(&subject);
                (mover.target.place_parked(key), key.to_owned())
            }
        }
    }

    fn pack(&self, mover: &Mover<'_>, message: StreamMessage) -> Parcel {
        let ids = Ids {
            prefix: &mover.id,
            stream: &self.stream,
        };
        let seq = message.sequence;
        let (to, key) = self.place(mover, &message);
        let sending = self
            .record
            .sending
            .as_ref()
            .filter(|sending| seq <= sending.until);
        let rename = |to: &Arrival, key: &str| match sending {
            Some(sending) if sending.renamed.contains(&seq) => true,
            Some(_) => {
                // It was sent under its key, if it was.
                mover.sender.keys.claim(&to.stream, key, (&self.stream, seq));
                false
            }
            None => !mover.sender.keys.claim(&to.stream, key, (&self.stream, seq)),
        };
        let mut parcel = Parcel::new(message, (to, &key), &ids, rename);
        parcel.maybe_since = sending.map(|sending| instant(sending.since));
        parcel
    }

    async fn read(
        &self,
        mover: &Mover<'_>,
        from: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<StreamMessage>, Error> {
        let (mut messages, mut bytes, mut from) = (Vec::new(), 0, from);
        while messages.len() < most && bytes < BATCH_BYTES {
            let chunk = CHUNK.min(most - messages.len());
            let read = mover.js.read_messages(&self.stream, from, &[], chunk).await;
            let read = read.map_err(|error| failed(format!("read stream {}", self.stream), error))?;
            let Some(last) = read.last() else { break };
            from = last.sequence + 1;
            bytes += read
                .iter()
                .map(|message| message.payload.len() + message.headers.len())
                .sum::<usize>();
            messages.extend(read);
            if from > end {
                break;
            }
        }
        messages.retain(|message| message.sequence <= end);
        Ok(messages)
    }

    /// Claims the keys that an earlier run has sent and the target may remember.
    pub(super) async fn reclaim(&self, mover: &Mover<'_>) -> Result<(), Error> {
        let oldest = millis(SystemTime::now()).saturating_sub(mover.remembered());
        let recent = self
            .record
            .trail
            .iter()
            .rev()
            .take_while(|(at, _)| *at >= oldest)
            .last();
        let until = self
            .record
            .sending
            .as_ref()
            .map_or(self.record.mark, |sending| sending.until);
        let Some(&(_, first)) = recent else { return Ok(()) };
        let mut from = first;
        while from <= until {
            let messages = self.read(mover, from, until, mover.options.batch).await?;
            let Some(last) = messages.last() else { break };
            from = last.sequence + 1;
            for message in messages {
                let written = self
                    .written
                    .as_ref()
                    .is_some_and(|written| written.holds(message.sequence));
                if !written || message.sequence <= self.record.mark {
                    drop(self.pack(mover, message));
                }
            }
        }
        Ok(())
    }

    /// Has the target remember the keys of events that are written and were published not longer ago than a key is remembered
    /// here. A run that is taken up does so again: then they are duplicates there.
    pub(super) async fn remember(&mut self, mover: &Mover<'_>) -> Result<(), Error> {
        let Some(written) = self.written.as_ref().filter(|_| self.part == Part::Events) else {
            return Ok(());
        };
        let Some(since) = SystemTime::now().checked_sub(EMBEDDED_DUPLICATE_WINDOW) else {
            return Ok(());
        };
        let recent = OrderedConfig::default()
            .start(StartAt::Time(timestamp(since)))
            .stop_at_end();
        let reading = |error| failed(format!("read stream {}", self.stream), error);
        let mut recent = mover.js.ordered(&self.stream, recent).await.map_err(reading)?;
        let (mut keys, mut count) = (Vec::new(), 0);
        while let Some(message) = recent.next().await {
            let message = match message {
                Err(GetError::Damaged { sequence }) => {
                    tracing::warn!(component = "mq", tenant = %self.tenant, sequence, "the key of a damaged event is not moved");
                    continue;
                }
                message => message.map_err(reading)?,
            };
            let seq = message.sequence;
            if seq > written.delivered {
                break;
            }
            // What was moved by an earlier run went with its key.
            let moved = seq <= self.record.mark && seq > self.record.begun;
            if moved || !written.holds(seq) {
                continue;
            }
            let (to, _) = self.place(mover, &message);
            let claim =
                |to: &Arrival, key: &str| mover.sender.keys.claim(&to.stream, key, (&self.stream, seq));
            keys.extend(Parcel::key_only(&message, to, claim));
            if keys.len() >= mover.options.batch {
                count += keys.len() as u64;
                send_all(mover, std::mem::take(&mut keys)).await?;
            }
        }
        count += keys.len() as u64;
        send_all(mover, keys).await?;
        self.record.count.keys = self.record.count.keys.max(count);
        Ok(())
    }

    /// Copies everything up to a sequence; how many messages were done with.
    pub(super) async fn copy(&mut self, mover: &Mover<'_>, end: u64) -> Result<u64, Error> {
        let before = self.record.count.done();
        let mut noted = true;
        while self.record.mark < end {
            // What an earlier run may have sent is dealt with first, and by itself.
            let unsure = self
                .record
                .sending
                .take_if(|sending| sending.until <= self.record.mark);
            drop(unsure);
            let until = self
                .record
                .sending
                .as_ref()
                .map_or(end, |sending| end.min(sending.until));
            let messages = self
                .read(mover, self.record.mark + 1, until, mover.options.batch)
                .await?;
            let Some(last) = messages.last().map(|message| message.sequence) else {
                // Nothing is left up to there.
                self.record.mark = until;
                noted = false;
                continue;
            };
            let (mut parcels, mut skipped) = (Vec::new(), 0);
            for message in messages {
                if self
                    .written
                    .as_ref()
                    .is_some_and(|written| written.holds(message.sequence))
                {
                    skipped += 1;
                } else {
                    parcels.push(self.pack(mover, message));
                }
            }
            if !parcels.is_empty() {
                self.announce(last, &parcels, mover);
                self.note(mover).await?;
            }
            let sent = send_all(mover, parcels).await?;
            let count = &mut self.record.count;
            count.skipped += skipped;
            count.moved += sent.moved;
            count.already_there += sent.already_there;
            count.repeated += sent.repeated;
            self.record.mark = last;
            self.note(mover).await?;
            self.follow(mover).await?;
            noted = true;
            mover.count(skipped + sent.moved + sent.already_there);
        }
        if !noted {
            self.note(mover).await?;
            self.follow(mover).await?;
        }
        Ok(self.record.count.done() - before)
    }

    /// Says in the record what is about to be sent.
    fn announce(&mut self, last: u64, parcels: &[Parcel], mover: &Mover<'_>) {
        if self.record.sending.is_some() {
            // It was announced by the run that may have sent it.
            return;
        }
        let now = millis(SystemTime::now());
        self.record.sending = Some(Sending {
            until: last,
            since: now,
            renamed: parcels
                .iter()
                .filter(|parcel| parcel.renamed)
                .map(|parcel| parcel.seq)
                .collect(),
        });
        let oldest = now.saturating_sub(mover.remembered() + TRAIL_STEP);
        self.record.trail.retain(|(at, _)| *at >= oldest);
        if self
            .record
            .trail
            .last()
            .is_none_or(|(at, _)| at + TRAIL_STEP <= now)
        {
            self.record.trail.push((now, self.record.mark + 1));
        }
    }

    async fn note(&self, mover: &Mover<'_>) -> Result<(), Error> {
        mover.store(&self.key(), &self.record).await
    }

    /// The durable here begins behind what is done with, once that is all that was delivered here: what it has acknowledged
    /// out of order before would be forgotten.
    pub(super) async fn follow(&self, mover: &Mover<'_>) -> Result<(), Error> {
        let delivered = self.written.as_ref().map(|written| written.delivered);
        if delivered.is_none_or(|delivered| self.record.mark < delivered) {
            return Ok(());
        }
        let consumer = &mover.options.consumer;
        let reset = mover
            .js
            .reset_consumer(&self.stream, consumer, self.record.mark + 1)
            .await;
        reset.map(drop).map_err(|error| {
            failed(
                format!(
                    "tenant {}: consumer {consumer} cannot follow the move",
                    self.tenant
                ),
                error,
            )
        })
    }

    /// Counts the queue anew, without publishes, and says what does not add up.
    pub(super) async fn verify(&mut self, mover: &Mover<'_>) -> Result<Option<String>, Error> {
        let wrong = |text: String| Ok(Some(format!("tenant {}, {}: {text}", self.tenant, self.stream)));
        let there = mover.engine.stream(&self.stream).await?;
        let Some(info) = there else {
            return wrong("the stream has gone".to_owned());
        };
        let behind = self.count_behind(mover, self.base).await?;
        let done = self.record.count.done() - self.before;
        // A full dead-letter queue drops its oldest, also those that were moved in this run.
        let dropped = info.state.first_seq > self.base + 1 && self.part == Part::DeadLetters;
        self.record.count.found = self.before + if dropped { behind.max(done) } else { behind };
        if self.record.count.found != self.before + done {
            return wrong(format!(
                "{behind} messages were to be moved or passed over, {done} were"
            ));
        }
        if info.state.last_seq > self.record.mark {
            let text = format!(
                "it ends with {}, and {} was done last",
                info.state.last_seq, self.record.mark
            );
            return wrong(text);
        }
        if self.durable {
            let open = mover
                .js
                .consumer_unsettled(&self.stream, &mover.options.consumer)
                .await;
            let behind = match open {
                Some(open) => open.pending.len() as u64 + self.count_behind(mover, open.delivered).await?,
                None => return wrong("its durable has gone".to_owned()),
            };
            if behind > 0 {
                return wrong(format!("{behind} events still wait for the consumer here"));
            }
        }
        self.record.sending = None;
        self.note(mover).await?;
        Ok(None)
    }
}

/// Sends parcels: those of one lane one behind the other, lanes side by side.
async fn send_all(mover: &Mover<'_>, parcels: Vec<Parcel>) -> Result<QueueCount, Error> {
    let mut lanes = BTreeMap::<String, Vec<Parcel>>::new();
    for parcel in parcels {
        lanes.entry(parcel.lane.clone()).or_default().push(parcel);
    }
    let lanes = lanes.into_values().map(|lane| async move {
        let mut count = QueueCount::default();
        for parcel in &lane {
            match mover.sender.send(parcel).await? {
                Sent::Moved => count.moved += 1,
                Sent::AlreadyThere => count.already_there += 1,
                Sent::Repeated => {
                    count.moved += 1;
                    count.repeated += 1;
                }
            }
        }
        Ok::<_, Error>(count)
    });
    let mut all = QueueCount::default();
    for count in try_join_all(lanes).await? {
        all.add(count);
    }
    Ok(all)
}
