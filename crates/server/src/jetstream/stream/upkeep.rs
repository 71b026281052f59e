//! What happens to a stream without being asked: messages whose time is over go, schedules fire.
//!
//! One deadline a stream: the earliest of the oldest message's age, the next life time, the next schedule. Age needs no scan:
//! what is older than the limit is one range, because times never decrease. Life times and schedules of messages that were
//! stored before the start are found by going through the stream once, on a thread that may wait.

use std::sync::Arc;

use parking_lot::Mutex;
use windjet_protocol::jetstream::StreamConfig;
use windjet_store::{Found, FoundSeq, Matcher, Op, SeqRange, StageError, StreamReader};

use super::task::{Feed, Task, earlier};
use crate::jetstream::consumer::Now;
use crate::jetstream::local::Outcome;
use crate::jetstream::medium::off_thread;
use crate::jetstream::publish::check::{Incoming, Origin};
use crate::jetstream::publish::expiry::{Expiry, marker_block, wants_marker};
use crate::jetstream::publish::headers::PublishHeaders;
use crate::jetstream::publish::schedule::{Schedules, When, next_in, produced_block};
use crate::jetstream::publish::ttl::Ttl;

/// How long an attempt that the store refused waits.
const RETRY: u64 = 50_000_000;
/// Messages that end in one turn.
const ENDS: usize = 512;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// When the oldest message is due, in the monotonic clock.
    age_due: Option<u64>,
    expiry: Expiry,
    pub(super) schedules: Schedules,
    /// When life times and schedules are looked at, in the monotonic clock.
    next_at: Option<u64>,
    /// Whether what nobody needs must be looked for again.
    unneeded: bool,
    retry_at: Option<u64>,
    found: Arc<Mutex<Vec<Scanned>>>,
}

/// A message from before the start that has a life time or is, or was made by, a schedule.
#[derive(Debug)]
struct Scanned {
    seq: u64,
    time: i64,
    ttl: Option<Ttl>,
    schedule: Option<(Vec<u8>, When, Option<i64>)>,
}

impl Upkeep {
    /// When something is due.
    pub(super) fn deadline(&self) -> Option<u64> {
        earlier(earlier(self.age_due, self.retry_at), self.next_at)
    }

    /// A message is staged.
    pub(super) fn stored(
        &mut self,
        config: &StreamConfig,
        subject: &[u8],
        seq: u64,
        time: i64,
        ttl: Option<Ttl>,
        when: Option<When>,
    ) {
        if config.max_age.is_positive() && self.age_due.is_none() {
            self.age_due = Some(0);
        }
        self.expiry.stored(seq, time, ttl);
        if config.allow_msg_schedules {
            self.schedules.stored(subject, seq, time, when);
        }
        if ttl.is_some() || config.allow_msg_schedules {
            self.next_at = Some(0);
        }
    }

    /// Messages are gone.
    pub(super) fn removed(&mut self, ranges: &[SeqRange]) {
        for range in ranges {
            self.expiry.removed(*range);
            if self.schedules.len() > 0 {
                self.schedules
                    .removed_where(|_, seq| range.first <= seq && seq <= range.last);
            }
        }
    }

    /// The store refused a removal that must not be forgotten.
    pub(super) fn retry_unneeded(&mut self, error: &StageError) {
        tracing::debug!("a removal waits: {error}");
        self.unneeded = true;
        self.retry_at = Some(0);
    }
}

fn scan(reader: &StreamReader, found: &Mutex<Vec<Scanned>>) {
    let mut all = Matcher::new(None::<&[u8]>);
    let (mut from, last) = (0, reader.state().last_seq);
    loop {
        let mut seqs = Vec::new();
        reader.next_matches(&mut all, from, 1024, &mut seqs);
        let Some(end) = seqs.last().copied() else { return };
        for seq in seqs {
            let message = match reader.read(seq) {
                Found::InMemory(message) => message,
                Found::NeedsDisk(ticket) => match ticket.read() {
                    Ok(Some(message)) => message,
                    _ => continue,
                },
                Found::Absent => continue,
            };
            let block = message.headers();
            let headers = PublishHeaders::read(&block);
            let ttl = headers
                .ttl
                .and_then(|text| Ttl::parse(text).ok())
                .filter(|ttl| *ttl != Ttl::Seconds(0));
            let when = headers
                .schedule
                .and_then(|text| When::parse(text, headers.schedule_time_zone).ok());
            let subject = message.subject();
            if ttl.is_none() && when.is_none() {
                continue;
            }
            let schedule = when.map(|when| {
                let target = headers.schedule_target.unwrap_or_default();
                let made = reader
                    .last_by_subject(target)
                    .and_then(|seq| match reader.read(seq) {
                        Found::InMemory(message) => Some(message),
                        Found::NeedsDisk(ticket) => ticket.read().ok().flatten(),
                        Found::Absent => None,
                    });
                let next = made.and_then(|made| next_in(&made.headers(), &subject));
                (subject.to_vec(), when, next)
            });
            found.lock().push(Scanned {
                seq,
                time: message.time(),
                ttl,
                schedule,
            });
        }
        if end >= last {
            return;
        }
        from = end + 1;
    }
}

impl Task {
    /// After a start or a change of configuration.
    pub(super) fn begin_upkeep(&mut self, _now: Now) {
        self.upkeep.age_due = self.config.max_age.is_positive().then_some(0);
        let wanted = self.config.allow_msg_ttl || self.config.allow_msg_schedules;
        if wanted && self.stream.reader.state().messages > 0 {
            let (reader, found) = (self.stream.reader.clone(), self.upkeep.found.clone());
            let (reads, inbox) = (self.js.reads.clone(), self.stream.inbox.clone());
            self.server.tasks.spawn(async move {
                let _permit = reads.acquire_owned().await;
                let scanned = off_thread(move || scan(&reader, &found)).await;
                if scanned.is_err() {
                    tracing::error!("the search for life times and schedules ended early");
                }
                inbox.wake();
            });
        }
    }

    fn take_scanned(&mut self) {
        let found = std::mem::take(&mut *self.upkeep.found.lock());
        for message in found {
            if !self.writer.is_live(message.seq) {
                continue;
            }
            if self.config.allow_msg_ttl {
                self.upkeep.expiry.stored(message.seq, message.time, message.ttl);
            }
            if let Some((subject, when, next)) = message.schedule
                && self.config.allow_msg_schedules
                && self.writer.subject(&subject).last == Some(message.seq)
            {
                self.upkeep
                    .schedules
                    .restore(&subject, message.seq, message.time, when, next);
            }
            self.upkeep.next_at = Some(0);
        }
    }

    /// What is due by time.
    pub(super) fn due(&mut self, now: Now) {
        self.consumers_due(now);
        self.batches_due(now);
        self.take_scanned();
        if self.upkeep.retry_at.is_some_and(|due| due <= now.mono) {
            self.upkeep.retry_at = None;
            if std::mem::take(&mut self.upkeep.unneeded) {
                self.remove_unneeded();
                if self.upkeep.unneeded {
                    self.upkeep.retry_at = Some(now.mono + RETRY);
                }
            }
        }
        if self.upkeep.age_due.is_some_and(|due| due <= now.mono) {
            self.expire_age(now);
        }
        if self.upkeep.next_at.is_some_and(|due| due <= now.mono) {
            self.upkeep.next_at = None;
            let waits = !self.expire_single(now) || !self.fire(now);
            let next = [self.upkeep.expiry.next_due(), self.upkeep.schedules.next_due()];
            let next = next.into_iter().flatten().min();
            self.upkeep.next_at = next.map(|due| {
                let wait = u64::try_from(due - now.wall).unwrap_or(0);
                now.mono + if waits { RETRY / 10 } else { wait }
            });
            if self.upkeep.expiry.wants_pruning() {
                let writer = &self.writer;
                self.upkeep.expiry.prune_with(|seq| writer.is_live(seq));
            }
        }
    }

    /// Ends messages whose own life time is over; false when the store cannot take that now.
    fn expire_single(&mut self, now: Now) -> bool {
        let mut over = self.upkeep.expiry.take_due(now.wall, ENDS);
        over.retain(|seq| self.writer.is_live(*seq));
        let left = self.end(&over);
        let done = left.is_empty();
        self.upkeep.expiry.put_back(now.wall, &left);
        done
    }

    /// Ends messages, with markers where the stream has them; what could not be ended is returned.
    fn end(&mut self, over: &[u64]) -> Vec<u64> {
        let rules = self.ingest.rules.clone();
        for (at, seq) in over.iter().enumerate() {
            let range = SeqRange {
                first: *seq,
                last: *seq,
            };
            if rules.marker_ttl.is_positive()
                && let Some(message) = self.read_committed(*seq)
            {
                let subject = message.subject();
                if wants_marker(&rules, self.writer.subject(&subject), *seq, &message.headers()) {
                    let block = marker_block(&rules);
                    let mut marker = Incoming::new(&subject, &block, b"");
                    marker.origin = Origin::Engine;
                    match self.offer(&rules, &marker) {
                        None => return over[at..].to_vec(),
                        Some(Outcome::Refused(error)) => {
                            tracing::warn!(stream = %self.stream.name, "no marker for an expired message: {error}");
                        }
                        Some(_) => continue,
                    }
                }
            }
            match self.writer.stage(Op::Remove(&[range])) {
                Ok(ticket) => {
                    self.upkeep.removed(&[range]);
                    self.feed.push_back((ticket.op, Feed::Removed(range)));
                }
                Err(_) => return over[at..].to_vec(),
            }
        }
        Vec::new()
    }

    /// Fires schedules that are due; false when the store cannot take that now.
    fn fire(&mut self, now: Now) -> bool {
        let rules = self.ingest.rules.clone();
        while let Some(due) = self.upkeep.schedules.due(now.wall) {
            let (seq, subject) = (due.seq, due.subject.to_vec());
            let next = due.when.after(due.due, now.wall);
            let shown = next.map(|next| due.when.shown(next));
            if seq > self.stream.reader.state().last_seq {
                // Not committed yet.
                return false;
            }
            let Some(schedule) = self.read_committed(seq) else {
                self.upkeep.schedules.removed(seq);
                continue;
            };
            let block = schedule.headers();
            let headers = PublishHeaders::read(&block);
            let target = headers.schedule_target.unwrap_or_default().to_vec();
            let source = headers
                .schedule_source
                .and_then(|source| self.stream.reader.last_by_subject(source))
                .and_then(|seq| self.read_committed(seq));
            let original = source.as_ref().unwrap_or(&schedule);
            let produced = produced_block(&subject, &block, &original.headers(), shown.as_deref());
            let payload = original.payload();
            let mut message = Incoming::new(&target, &produced, &payload);
            message.origin = Origin::Engine;
            match self.offer(&rules, &message) {
                None => return false,
                Some(Outcome::Refused(error)) => {
                    tracing::warn!(stream = %self.stream.name, "a scheduled message is refused: {error}");
                }
                Some(_) => {}
            }
            self.upkeep.schedules.fired(seq, next);
            if next.is_none() && self.writer.is_live(seq) {
                self.remove_ranges(&[SeqRange {
                    first: seq,
                    last: seq,
                }]);
            }
        }
        true
    }

    fn expire_age(&mut self, now: Now) {
        self.upkeep.age_due = None;
        let age = self.config.max_age.0;
        if age <= 0 {
            return;
        }
        let reader = self.stream.reader.clone();
        let state = reader.state();
        let unsettled = self.writer.staged_op() > self.writer.committed_op();
        if state.messages == 0 {
            // Something may be staged: look again when it is committed.
            self.upkeep.age_due = unsettled.then_some(now.mono + RETRY / 5);
            return;
        }
        let limit = now.wall.saturating_sub(age).saturating_add(1);
        let first = match reader.first_at(limit) {
            FoundSeq::Seq(seq) => Some(seq),
            FoundSeq::None => None,
            // One block. What cannot be read now is not old for that.
            FoundSeq::NeedsDisk(ticket) => match ticket.read() {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(stream = %self.stream.name, "cannot tell what is too old: {error}");
                    self.upkeep.age_due = Some(now.mono + RETRY);
                    return;
                }
            },
        };
        let last = first.map_or(state.last_seq, |first| first - 1);
        if last >= state.first_seq {
            let ranges = self.upkeep.expiry.aged(state.first_seq, last);
            if self.ingest.rules.marker_ttl.is_positive() {
                let mut over = Vec::new();
                for range in &ranges {
                    let mut at = range.first;
                    while over.len() < ENDS
                        && let Some(seq) = self.writer.next_live(at).filter(|seq| *seq <= range.last)
                    {
                        over.push(seq);
                        at = seq + 1;
                    }
                }
                let full = over.len() == ENDS;
                if !self.end(&over).is_empty() || full {
                    self.upkeep.age_due = Some(now.mono + RETRY / 10);
                    return;
                }
            } else {
                self.remove_ranges(&ranges);
            }
        }
        // The oldest that stays is due next.
        let next = first.and_then(|first| {
            self.upkeep
                .expiry
                .next_aging(first, |seq| self.writer.next_live(seq))
        });
        match next {
            Some(next) => {
                let time = self
                    .read_committed(next)
                    .map_or(now.wall, |message| message.time());
                let wait = u64::try_from(time.saturating_add(age) - now.wall).unwrap_or(0);
                self.upkeep.age_due = Some(now.mono + wait.max(1_000_000));
            }
            None if unsettled => self.upkeep.age_due = Some(now.mono + RETRY / 5),
            None => {}
        }
    }
}
