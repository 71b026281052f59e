//! The beginning of a consumer, new or taken up again, and its end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use windjet_protocol::jetstream::advisory::ConsumerActionKind;
use windjet_protocol::jetstream::{AckPolicy, ConsumerConfig, DeliverPolicy, Status, Timestamp};
use windjet_store::{ConsumerRecord, Position};

use super::position::{self, Initial, Left};
use super::rare::Rare;
use super::record::{self, Envelope, Log};
use super::waiting::NEVER;
use super::{Consumer, Home, Now, Port, RestoreError, Stop};
use crate::jetstream::fault::{Fault, planted};

const MILLI: u64 = 1_000_000;

impl Consumer {
    /// Makes a new consumer. Its configuration is valid, with defaults filled in and metadata stamped for storing.
    ///
    /// `by_time` is what [`windjet_store::StreamReader::first_at`] gives for `opt_start_time`, with that policy only. The
    /// caller puts [`Consumer::stored_config`] and the change that is there to take in one go, and tells it of its
    /// interest ([`Consumer::interest_changed`]).
    pub(crate) fn create(
        home: Arc<Home>,
        name: &str,
        config: ConsumerConfig,
        by_time: Option<u64>,
        now: Now,
    ) -> Self {
        let mut matcher = position::matcher(&config);
        let start = position::start(&home, &config, &mut matcher, by_time);
        let log = Log::new(!config.mem_storage);
        let mut consumer = Self::begin(home, name, config, now.timestamp(), log, now);
        consumer.matcher = matcher;
        let before = Position {
            stream_seq: start.seq - 1,
            consumer_seq: 0,
        };
        consumer.delivered = before;
        consumer.floor = before;
        consumer.next = start.seq;
        if let Some(initial) = start.initial {
            consumer.next = initial.up_to + 1;
            consumer.initial_up_to = Some(initial.up_to);
            consumer.initial = (!initial.set.is_empty()).then(|| Box::new(initial));
        }
        consumer.log.mark();
        consumer
    }

    fn begin(
        home: Arc<Home>,
        name: &str,
        config: ConsumerConfig,
        created: Timestamp,
        log: Log,
        now: Now,
    ) -> Self {
        let mut consumer = Self {
            home,
            name: name.into(),
            matcher: position::matcher(&config),
            config: Box::new(config),
            created,
            initial_up_to: None,
            delivered: Position::default(),
            floor: Position::default(),
            next: 1,
            left: Left::default(),
            ahead: VecDeque::new(),
            initial: None,
            tracked: Rare::default(),
            waiting: Rare::default(),
            log,
            push: None,
            pace: None,
            pin: None,
            holders: None,
            delivered_at: None,
            acked_at: None,
            idle_from: Some(now.mono),
            jitter: rand::random_range(100 * MILLI..1000 * MILLI),
            pause_due: NEVER,
            swept: 0,
        };
        consumer.refit(now);
        consumer.arm_pause(now);
        consumer
    }

    /// Takes up a consumer where it was. Deadlines are kept; when the stream lost its end, the consumer steps back.
    ///
    /// Where what a vanished connection held is delivered again at once, everything held is: no connection outlives a
    /// restart. What was handed back with a delay is held by nobody, and comes after it.
    ///
    /// # Errors
    /// When the stored configuration cannot be read.
    pub(crate) fn restore(
        home: Arc<Home>,
        name: &str,
        record: &ConsumerRecord,
        now: Now,
    ) -> Result<Self, RestoreError> {
        let envelope: Envelope<'_> = serde_json::from_slice(&record.config)?;
        let config = envelope.config.into_owned();
        let log = Log::new(!config.mem_storage);
        let mut consumer = Self::begin(home, name, config, envelope.created, log, now);
        consumer.initial_up_to = envelope.initial_up_to;
        let state = &record.state;
        consumer.delivered = state.delivered;
        consumer.floor = state.floor;
        for (seq, deliveries) in &state.redelivered {
            consumer.tracked.restore_count(*seq, *deliveries);
        }
        let timed = consumer.timed();
        for (seq, pending) in &state.pending {
            let ago = now.wall.saturating_sub(pending.time_ns);
            let wait = consumer.wait(consumer.tracked.deliveries(*seq));
            let mut due = now.nanos().saturating_sub(ago).saturating_add(wait);
            let (dseq, delayed) = record::numbered(pending.consumer_seq);
            if consumer.holders.is_some() && !delayed {
                due = due.min(now.nanos());
            }
            consumer.tracked.restore(*seq, dseq, due, delayed, timed);
        }
        consumer.step_back();
        consumer.drop_gone();
        consumer.next = consumer.delivered.stream_seq + 1;
        consumer.find_initial();
        Ok(consumer)
    }

    /// The stream may have lost messages at its end: nothing above its last sequence was delivered.
    fn step_back(&mut self) {
        let last = self.home.reader.state().last_seq;
        // A consumer may be told to begin behind the end of the stream.
        let ahead_by_will = self.delivered.consumer_seq == 0
            && matches!(
                self.config.deliver_policy,
                DeliverPolicy::All | DeliverPolicy::ByStartSequence
            );
        if self.delivered.stream_seq <= last || ahead_by_will {
            return;
        }
        self.forget_range(last + 1, u64::MAX);
        self.floor.stream_seq = self.floor.stream_seq.min(last);
        let highest = self.tracked.highest().unwrap_or(0);
        self.delivered.stream_seq = highest.max(self.floor.stream_seq);
        if self.tracked.len() == 0 {
            self.move_floor();
        }
        self.log.mark();
    }

    /// What is not stored any more is settled: its removal was recorded, that it is settled was not.
    fn drop_gone(&mut self) {
        let reader = &self.home.reader;
        let mut seqs = self.tracked.seqs(0, u64::MAX);
        seqs.extend(self.tracked.counted(0, u64::MAX));
        seqs.retain(|seq| reader.subject_of(*seq).is_none());
        for seq in &seqs {
            self.tracked.settle(*seq, &mut self.log);
        }
        if !seqs.is_empty() {
            self.move_floor();
        }
    }

    /// Finds what is left of the initial set after the last delivery.
    pub(super) fn find_initial(&mut self) {
        self.initial = None;
        if let Some(up_to) = self
            .initial_up_to
            .filter(|up_to| self.delivered.stream_seq < *up_to)
        {
            let found = Initial::find(
                &self.home.reader,
                &mut self.matcher,
                self.delivered.stream_seq,
                up_to,
            );
            self.next = self.next.max(up_to + 1);
            self.initial = (!found.set.is_empty()).then(|| Box::new(found));
        }
        self.recount();
    }

    /// Takes messages out of everything in a range, without a word.
    pub(super) fn forget_range(&mut self, first: u64, last: u64) {
        for seq in self.tracked.seqs(first, last) {
            self.tracked.settle(seq, &mut self.log);
            self.release(seq);
        }
        for seq in self.tracked.counted(first, last) {
            self.tracked.forget(seq, &mut self.log);
        }
    }

    /// Whether deliveries have an ack wait.
    pub(super) fn timed(&self) -> bool {
        matches!(self.config.ack_policy, AckPolicy::Explicit | AckPolicy::All)
    }

    /// The ack wait of the delivery with this count.
    pub(super) fn wait(&self, deliveries: u64) -> i64 {
        wait(&self.config, deliveries)
    }

    /// Makes what the configuration needs beside the rest, and drops what it does not need any more.
    pub(super) fn refit(&mut self, now: Now) {
        super::push::refit(self, now);
        super::pace::refit(self);
        let requeues = self
            .config
            .metadata
            .get(REQUEUE_KEY)
            .is_some_and(|value| value == "true");
        if !requeues {
            self.holders = None;
        } else if self.holders.is_none() {
            self.holders = Some(BTreeMap::new());
        }
    }

    /// Ends all requests; with [`Stop::Deleted`] publishes that it is gone. Nothing must be asked of it afterwards.
    pub(crate) fn stop(&mut self, port: &mut dyn Port, why: Stop, now: Now) {
        let ids: Vec<_> = self.waiting.iter().map(|(id, _)| id).collect();
        for id in ids {
            match why {
                Stop::Deleted => self.end(port, id, &Status::ConsumerDeleted, false),
                Stop::Shutdown => self.end(port, id, &Status::ServerShutdown, true),
            }
        }
        if why == Stop::Deleted {
            self.tell_action(port, ConsumerActionKind::Delete, now);
        }
    }
}

/// Metadata key: with `true`, what a connection had and did not settle is delivered again as soon as it is gone.
const REQUEUE_KEY: &str = "windjet.requeue_on_disconnect";

/// The ack wait of a delivery.
pub(super) fn wait(config: &ConsumerConfig, deliveries: u64) -> i64 {
    if !matches!(config.ack_policy, AckPolicy::Explicit | AckPolicy::All) {
        return 0;
    }
    let at = usize::try_from(deliveries.saturating_sub(1)).unwrap_or(usize::MAX);
    let wait = config
        .backoff
        .get(at)
        .or(config.backoff.last())
        .unwrap_or(&config.ack_wait);
    if planted(Fault::WaitTooShort) {
        return wait.0 / 2;
    }
    wait.0.max(0)
}
