//! A publish, from its checks to its acknowledgement.
//!
//! [`check`] decides, on what is committed and staged together ([`Known`] is the view that it gets); what passes becomes one
//! store operation that lists all it does: the message, what it evicts, what it purges. The answer, good or bad, goes into
//! the outbox behind the newest staged operation, because it rests on that.

use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::jetstream::publish::{PubAck, encode_pub_error};
use windjet_protocol::jetstream::{ApiError, DiscardPolicy, ErrorCode, StreamConfig};
use windjet_store::{
    Append, Duplicate, Found, Matcher, Op, SeqRange, StageError, StreamWriter, Subject, Ticket,
};

use super::consumers::Consumers;
use super::inbox::Item;
use super::outbox::Out;
use super::task::{Feed, Task};
use super::upkeep::Upkeep;
use crate::jetstream::JetStream;
use crate::jetstream::consumer::Now;
use crate::jetstream::fault::{Fault, planted};
use crate::jetstream::local::Outcome;
use crate::jetstream::publish::check::{Incoming, Place, Plan, Stop, check};
use crate::jetstream::publish::counter::{Known as Counted, Total, Totals};
use crate::jetstream::publish::fast::Control;
use crate::jetstream::publish::headers::PublishHeaders;
use crate::jetstream::publish::republish::Republisher;
use crate::jetstream::publish::rules::Rules;
use crate::jetstream::publish::schedule::{Part, Schedules};
use crate::jetstream::publish::view::{NotYet, View};
use crate::jetstream::quota::Quota;

/// What publishing into a stream needs besides its configuration.
#[derive(Debug)]
pub(super) struct Ingest {
    pub(super) rules: Arc<Rules>,
    pub(super) totals: Totals,
    pub(super) republish: Option<Republisher>,
    /// The id of the newest message; `None` until it is asked for.
    last_id: Option<Vec<u8>>,
}

impl Ingest {
    pub(super) fn new(config: &StreamConfig, js: &JetStream) -> Self {
        Self {
            rules: Arc::new(rules(config, js)),
            totals: Totals::default(),
            republish: republisher(config),
            last_id: None,
        }
    }

    /// A new configuration.
    pub(super) fn configure(&mut self, config: &StreamConfig, js: &JetStream) {
        self.rules = Arc::new(rules(config, js));
        self.republish = republisher(config);
    }

    /// Whether stored messages are published again.
    pub(super) fn republishes(&self) -> bool {
        self.republish.is_some()
    }

    /// The journal has failed: what was staged is not there.
    pub(super) fn forget(&mut self) {
        self.totals.clear();
        self.last_id = None;
    }
}

/// What a validated configuration says about republishing.
fn republisher(config: &StreamConfig) -> Option<Republisher> {
    config.republish.as_ref().and_then(|r| Republisher::new(r).ok())
}

/// The rules of a validated configuration.
fn rules(config: &StreamConfig, js: &JetStream) -> Rules {
    let plain = StreamConfig {
        subject_transform: None,
        ..config.clone()
    };
    // A transform that does not hold was refused with the configuration; without one there is nothing to fail.
    Rules::new(config, js.max_payload)
        .or_else(|_| Rules::new(&plain, js.max_payload))
        .unwrap_or_else(|_| unreachable!("rules without a transform always hold"))
}

/// A stream as its owner knows it, for the checks.
pub(super) struct Known<'t> {
    writer: &'t StreamWriter,
    consumers: &'t Consumers,
    quota: &'t Quota,
    totals: &'t Totals,
    schedules: &'t Schedules,
    last_id: &'t [u8],
}

impl<'t> Known<'t> {
    pub(super) fn new(
        writer: &'t StreamWriter,
        consumers: &'t Consumers,
        quota: &'t Quota,
        ingest: &'t Ingest,
        upkeep: &'t Upkeep,
    ) -> Self {
        Self {
            writer,
            consumers,
            quota,
            totals: &ingest.totals,
            schedules: &upkeep.schedules,
            last_id: ingest.last_id.as_deref().unwrap_or_default(),
        }
    }

    fn settled(&self) -> Result<(), NotYet> {
        if self.writer.staged_op() > self.writer.committed_op() {
            return Err(NotYet);
        }
        Ok(())
    }
}

impl View for Known<'_> {
    fn last_seq(&self) -> u64 {
        self.writer.last_seq()
    }

    fn messages(&self) -> u64 {
        self.writer.messages()
    }

    fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    fn subject(&self, subject: &[u8]) -> Subject {
        self.writer.subject(subject)
    }

    fn subject_next(&self, subject: &[u8], from: u64) -> Option<u64> {
        self.writer.subject_next(subject, from)
    }

    fn subject_key(&self, subject: &[u8]) -> u128 {
        self.writer.subject_key(subject)
    }

    fn subject_key_of(&self, seq: u64) -> Option<u128> {
        self.writer.subject_key_of(seq)
    }

    fn last_match(&self, pattern: &[u8]) -> Result<Option<u64>, NotYet> {
        self.settled()?;
        Ok(self.writer.reader().last_match(&mut Matcher::new([pattern])))
    }

    fn next_live(&self, from: u64) -> Option<u64> {
        self.writer.next_live(from)
    }

    fn size_of(&self, seq: u64) -> Option<u32> {
        self.writer.size_of(seq)
    }

    fn duplicate(&self, id: &[u8]) -> Option<Duplicate> {
        if self.writer.options().dedup_window.is_zero() {
            return None;
        }
        self.writer.duplicate(id)
    }

    fn last_msg_id(&self) -> &[u8] {
        self.last_id
    }

    fn interested(&self, subject: &[u8]) -> bool {
        self.consumers
            .slots
            .values()
            .any(|slot| slot.consumer.filters_match(subject))
    }

    fn server_full(&self) -> bool {
        self.quota.server_full(self.writer.bytes())
    }

    fn account_full(&self, size: u64) -> bool {
        self.quota.account_full(self.writer.bytes(), size)
    }

    fn counter(&self, subject: &[u8]) -> Result<Counted, ApiError> {
        self.totals.get(subject, self.writer.subject(subject).last)
    }

    fn schedule(&self, subject: &[u8]) -> Option<u64> {
        self.schedules.get(subject)
    }
}

impl Task {
    /// Takes a publish; gives it back when the store cannot take it now.
    pub(super) fn publish(&mut self, rules: &Rules, item: Item, now: Now) -> Option<Item> {
        let subject = rules.stored_subject(&item.subject);
        let mut message = Incoming::new(&subject, &item.headers, &item.payload);
        message.time = Some(now.wall);
        let control = Control::parse(&item.reply);
        let done = if let Some(control) = control {
            self.publish_fast(rules, control, &message, &item, now)
        } else if message.headers.is_batched() {
            self.publish_atomic(rules, &message, &item, now)
        } else {
            match self.offer(rules, &message) {
                Some(outcome) => {
                    self.answer_publish(&item, outcome);
                    true
                }
                None => false,
            }
        };
        if done { None } else { Some(item) }
    }

    /// Decides on a message and stages it; `None` when the store cannot take it now.
    pub(super) fn offer(&mut self, rules: &Rules, message: &Incoming<'_>) -> Option<Outcome> {
        // A purge under way is not in what the writer answers yet.
        if matches!(self.writer.check_space(), Err(StageError::Barrier)) {
            return None;
        }
        if message.headers.expected_last_msg_id.is_some() {
            self.learn_last_id();
        }
        loop {
            let known = Known::new(
                &self.writer,
                &self.consumers,
                &self.quota,
                &self.ingest,
                &self.upkeep,
            );
            return match check(rules, &known, message, Place::Alone) {
                Ok(plan) => match self.store(message, plan) {
                    Ok(seq) => Some(Outcome::Stored { seq }),
                    Err(error) => error.map(Outcome::Refused),
                },
                Err(Stop::Refuse(error)) => Some(Outcome::Refused(error)),
                Err(Stop::Duplicate(duplicate)) => Some(Outcome::Duplicate { seq: duplicate.seq }),
                Err(Stop::Skip { id }) => match self.writer.stage(Op::Skip { id }) {
                    Ok(ticket) => {
                        self.ingest.last_id = Some(id.unwrap_or_default().to_vec());
                        Some(Outcome::Stored { seq: ticket.seq })
                    }
                    Err(error) => refusal(&error).map(Outcome::Refused),
                },
                Err(Stop::Wait) => None,
                Err(Stop::Read(seq)) => {
                    self.read_total(message.subject, seq);
                    continue;
                }
            };
        }
    }

    /// Stages what was decided. `Err(None)` means later.
    fn store(&mut self, message: &Incoming<'_>, plan: Plan<'_>) -> Result<u64, Option<ApiError>> {
        let subject = message.subject;
        let seq = self.writer.last_seq() + 1;
        let purge = plan.purge(subject, seq);
        let remove = plan.remove.ranges();
        let append = Append {
            subject,
            headers: &plan.block,
            payload: &plan.payload,
            time: message.time,
            id: plan.id.filter(|_| !self.writer.options().dedup_window.is_zero()),
            remove,
            purge,
        };
        let ticket = self
            .writer
            .stage(Op::Append(append))
            .map_err(|error| refusal(&error))?;
        let seq = ticket.seq;
        self.staged(subject, plan, ticket, false);
        Ok(seq)
    }

    /// What follows when a message is staged. One that was skipped nobody hears of.
    pub(super) fn staged(&mut self, subject: &[u8], plan: Plan<'_>, ticket: Ticket, skipped: bool) {
        self.ingest.last_id = Some(plan.id.unwrap_or_default().to_vec());
        if skipped {
            return;
        }
        let remove = plan.remove.ranges();
        let purge = plan.purge(subject, ticket.seq);
        if let Some(total) = plan.counter {
            self.ingest.totals.put(subject, ticket.seq, Ok(total));
            self.ingest.totals.trim(self.stream.reader.state().last_seq);
        }
        if !self.consumers.slots.is_empty() || self.ingest.republishes() {
            let before = plan.before;
            self.feed.push_back((
                ticket.op,
                Feed::Appended {
                    seq: ticket.seq,
                    before,
                },
            ));
            for range in remove {
                self.feed.push_back((ticket.op, Feed::Removed(*range)));
            }
            if let Some(purge) = purge {
                let filter = Bytes::copy_from_slice(purge.filter);
                self.feed.push_back((ticket.op, Feed::Purged { filter }));
            }
        }
        self.upkeep.removed(plan.remove.ranges());
        let when = match plan.schedule {
            Part::Schedule(when) => Some(when),
            _ => None,
        };
        self.upkeep
            .stored(&self.config, subject, ticket.seq, ticket.time, plan.ttl, when);
    }

    pub(super) fn answer_publish(&mut self, item: &Item, outcome: Outcome) {
        let op = self.writer.staged_op();
        if let Some(source) = item.source() {
            if planted(Fault::AckedBeforeDurable) {
                return source.clone().settle(outcome);
            }
            match outcome {
                Outcome::Stored { seq } => self.outbox.stored(op, seq, source),
                outcome => {
                    let source = source.clone();
                    self.outbox.push(op, Out::Local { source, outcome });
                }
            }
            return;
        }
        if item.reply.is_empty() || self.config.no_ack {
            return;
        }
        let reply = item.reply.clone();
        let mut body = Vec::new();
        match outcome {
            Outcome::Stored { seq } => {
                let total = self.ingest.rules.counters.then(|| {
                    let subject = self.ingest.rules.stored_subject(&item.subject);
                    match self.ingest.totals.get(&subject, Some(seq)) {
                        Ok(Counted::Is(total)) => Some(total.value.to_string()),
                        _ => None,
                    }
                });
                let Some(value) = total.flatten() else {
                    self.outbox.push(op, Out::Ack { reply, seq });
                    return;
                };
                PubAck {
                    stream: (&*self.stream.name).into(),
                    domain: self.account.domain().map(Into::into),
                    seq,
                    value: Some(value.into()),
                    ..PubAck::default()
                }
                .encode(&mut body);
            }
            Outcome::Duplicate { seq } => PubAck {
                stream: (&*self.stream.name).into(),
                domain: self.account.domain().map(Into::into),
                seq,
                duplicate: true,
                ..PubAck::default()
            }
            .encode(&mut body),
            Outcome::Refused(error) => encode_pub_error(&self.stream.name, &error, &mut body),
            Outcome::Unknown | Outcome::Staged => return,
        }
        let body = Bytes::from(body);
        self.outbox.push(
            op,
            Out::Reply {
                reply,
                headers: b"",
                body,
            },
        );
    }

    /// A committed message; may read one block, which happens once for each number or id that is not known yet.
    pub(super) fn read_committed(&self, seq: u64) -> Option<windjet_store::Message> {
        match self.stream.reader.read(seq) {
            Found::InMemory(message) => Some(message),
            Found::NeedsDisk(ticket) => ticket.read().ok().flatten(),
            Found::Absent => None,
        }
    }

    fn read_total(&mut self, subject: &[u8], seq: u64) {
        let total = match self.read_committed(seq) {
            Some(message) => Total::read(&message.headers(), &message.payload()),
            None => Err(ErrorCode::CounterBroken.error()),
        };
        self.ingest.totals.put(subject, seq, total);
    }

    fn learn_last_id(&mut self) {
        if self.ingest.last_id.is_some() {
            return;
        }
        let message = self.read_committed(self.stream.reader.state().last_seq);
        let id = message.and_then(|m| PublishHeaders::read(&m.headers()).msg_id.map(<[u8]>::to_vec));
        self.ingest.last_id = Some(id.unwrap_or_default());
    }

    /// Brings the stream within its limits: after an update, or where one message alone is over them.
    pub(super) fn enforce_limits(&mut self) {
        let config = self.config.clone();
        let limit = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
        let mut ranges: Vec<SeqRange> = Vec::new();
        let (mut messages, mut bytes) = (self.writer.messages(), self.writer.bytes());
        if let Some(max) = limit(config.max_msgs_per_subject) {
            for seq in self.over_per_subject(max) {
                messages -= 1;
                bytes -= self.writer.size_of(seq).map_or(0, u64::from);
                ranges.push(SeqRange {
                    first: seq,
                    last: seq,
                });
            }
        }
        if config.discard == DiscardPolicy::Old {
            let mut at = 0;
            while limit(config.max_msgs).is_some_and(|max| messages > max)
                || limit(config.max_bytes).is_some_and(|max| bytes > max)
            {
                let Some(seq) = self.writer.next_live(at) else {
                    break;
                };
                at = seq + 1;
                if ranges.iter().any(|range| range.first <= seq && seq <= range.last) {
                    continue;
                }
                messages -= 1;
                bytes -= self.writer.size_of(seq).map_or(0, u64::from);
                match ranges.last_mut() {
                    Some(range) if range.last + 1 == seq => range.last = seq,
                    _ => ranges.push(SeqRange {
                        first: seq,
                        last: seq,
                    }),
                }
            }
        }
        self.remove_ranges(&ranges);
    }

    /// The oldest messages of each subject beyond `max`.
    fn over_per_subject(&self, max: u64) -> Vec<u64> {
        let reader = &self.stream.reader;
        let mut over: Vec<(Vec<u8>, usize)> = Vec::new();
        reader.subjects(&mut Matcher::new(None::<&[u8]>), |row| {
            if row.messages > max {
                over.push((row.subject.to_vec(), (row.messages - max) as usize));
            }
            true
        });
        let mut out = Vec::new();
        for (subject, count) in over {
            reader.next_matches(&mut Matcher::new([subject]), 0, count, &mut out);
        }
        out.sort_unstable();
        out
    }
}

/// Why the store refuses, for the client; `None` when it will take it later.
pub(super) fn refusal(error: &StageError) -> Option<ApiError> {
    Some(match error {
        StageError::Busy | StageError::Barrier => return None,
        StageError::TooLong { .. } => ErrorCode::StoreFailed.with("message too large"),
        StageError::DiskFull => ErrorCode::InsufficientStorage.error(),
        error => ErrorCode::StoreFailed.with(error),
    })
}
