//! Where a consumer begins, what comes next, and how much is to come.
//!
//! The number of messages to come is exact: it is counted in the index once and then follows what happens; where what
//! happened does not say how many messages it was about, it is counted again when it is asked for.

use std::collections::VecDeque;

use windjet_protocol::jetstream::{AckPolicy, ConsumerConfig, DeliverPolicy};
use windjet_store::{Matcher, SeqRange, StreamReader};

use super::{Consumer, Home};
use crate::jetstream::fault::{Fault, planted};

/// How many matches are looked up at once.
const AHEAD: usize = 64;
/// How many matches are remembered as they are stored.
const REMEMBERED: usize = 16;

/// Where a new consumer begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The first sequence that is considered.
    pub(super) seq: u64,
    /// The first messages, and the sequence up to which they are the last of their subjects.
    pub(super) initial: Option<Initial>,
}

/// The messages with which a `last_per_subject` consumer begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Initial {
    /// Everything after it is delivered.
    pub(super) up_to: u64,
    /// What is left of them, in order.
    pub(super) set: VecDeque<u64>,
}

impl Initial {
    /// The last messages of all subjects that match, up to a sequence and after another.
    pub(super) fn find(reader: &StreamReader, matcher: &mut Matcher, after: u64, up_to: u64) -> Self {
        let set = reader.multi_last(matcher, up_to, usize::MAX).unwrap_or_default();
        let set = set.into_iter().filter(|seq| *seq > after).collect();
        Self { up_to, set }
    }

    fn remove(&mut self, range: SeqRange) {
        let from = self.set.partition_point(|seq| *seq < range.first);
        let to = self.set.partition_point(|seq| *seq <= range.last);
        if from < to {
            self.set.drain(from..to);
        }
    }
}

/// The matcher for the filters of a configuration.
pub(super) fn matcher(config: &ConsumerConfig) -> Matcher {
    Matcher::new(config.filters())
}

/// Where a consumer begins. `by_time` is the first message at or after the start time.
pub(super) fn start(
    home: &Home,
    config: &ConsumerConfig,
    matcher: &mut Matcher,
    by_time: Option<u64>,
) -> Start {
    let reader = &home.reader;
    let state = reader.state();
    let (first, last) = (state.first_seq, state.last_seq);
    let mut initial = None;
    let seq = match config.deliver_policy {
        DeliverPolicy::All => first,
        DeliverPolicy::Last if matcher.is_all() => last,
        DeliverPolicy::Last => reader.last_match(matcher).unwrap_or(first),
        DeliverPolicy::New => last + 1,
        DeliverPolicy::ByStartSequence => config.opt_start_seq,
        // The next match if there is one, so that nothing before it has to be passed over.
        DeliverPolicy::ByStartTime => {
            let from = by_time.unwrap_or(last + 1);
            reader.next_match(matcher, from).unwrap_or(from)
        }
        // With one message for each subject, the last of each is all there are.
        DeliverPolicy::LastPerSubject if home.max_msgs_per_subject == 1 => first,
        DeliverPolicy::LastPerSubject => {
            let found = Initial::find(reader, matcher, 0, last);
            let seq = found.set.front().copied().unwrap_or(last);
            initial = Some(found);
            seq
        }
    };
    let seq = if last == 0 && config.deliver_policy != DeliverPolicy::ByStartSequence {
        seq.max(1)
    } else {
        seq.max(first)
    };
    Start {
        seq: seq.max(1),
        initial,
    }
}

/// How many messages are to come after the initial set.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// `None` when it must be counted.
    count: Option<u64>,
    /// Messages up to here are in the count.
    seen: u64,
}

impl Consumer {
    /// Messages that match and were not delivered yet.
    pub(super) fn num_pending(&mut self) -> u64 {
        let initial = self
            .initial
            .as_ref()
            .map_or(0, |initial| initial.set.len() as u64);
        initial + self.left_after_initial()
    }

    fn left_after_initial(&mut self) -> u64 {
        if let Some(count) = self.left.count {
            return count;
        }
        let seen = self.home.reader.state().last_seq;
        let count = self.home.reader.count(&mut self.matcher, self.next);
        self.left = Left {
            count: Some(count),
            seen,
        };
        count
    }

    /// What is to come must be counted and looked up again.
    pub(super) fn recount(&mut self) {
        self.left.count = None;
        self.ahead = VecDeque::new();
    }

    /// A message was stored. Those that do not match may be left out.
    pub(crate) fn appended(&mut self, seq: u64, subject: &[u8]) {
        let Some(count) = self.left.count else {
            return;
        };
        if planted(Fault::RequestSleeps)
            || seq < self.next
            || seq <= self.left.seen
            || !self.matcher.matches(subject)
        {
            return;
        }
        if self.ahead.len() as u64 == count && self.ahead.len() < REMEMBERED {
            self.ahead.push_back(seq);
        }
        self.left = Left {
            count: Some(count + 1),
            seen: seq,
        };
    }

    /// Messages are gone that may have been to come.
    pub(super) fn lost(&mut self, range: SeqRange) {
        if let Some(initial) = &mut self.initial {
            initial.remove(range);
        }
        if range.last >= self.next && !range.is_empty() {
            self.recount();
        }
    }

    /// The next message to deliver for the first time.
    pub(super) fn next_new(&mut self) -> Option<u64> {
        if let Some(seq) = self.initial.as_ref().and_then(|initial| initial.set.front()) {
            return Some(*seq);
        }
        if self.left_after_initial() == 0 {
            self.ahead = VecDeque::new();
            return None;
        }
        if let Some(seq) = self.ahead.front() {
            return Some(*seq);
        }
        let mut found = Vec::new();
        self.home
            .reader
            .next_matches(&mut self.matcher, self.next, AHEAD, &mut found);
        if found.is_empty() {
            self.recount();
        } else {
            self.ahead = found.into();
        }
        self.ahead.front().copied()
    }

    /// The next new message was delivered.
    pub(super) fn passed(&mut self, seq: u64) {
        if let Some(initial) = &mut self.initial
            && initial.set.front() == Some(&seq)
        {
            initial.set.pop_front();
        } else {
            self.left.count = self.left.count.map(|count| count.saturating_sub(1));
            if self.ahead.front() == Some(&seq) {
                self.ahead.pop_front();
            }
            self.next = seq + 1;
        }
        if self
            .initial
            .as_ref()
            .is_some_and(|initial| initial.set.is_empty())
        {
            self.initial = None;
        }
    }

    /// The next new message turned out to be gone.
    pub(super) fn skipped(&mut self, seq: u64) {
        self.passed(seq);
        self.recount();
    }

    /// The last sequence that was considered: with nothing to come, the stream's last.
    pub(super) fn position(&mut self) -> u64 {
        if let Some(initial) = self.initial.as_ref().and_then(|initial| initial.set.front()) {
            return initial - 1;
        }
        let considered = self.next - 1;
        if self.left_after_initial() == 0 {
            considered.max(self.home.reader.state().last_seq)
        } else {
            considered
        }
    }

    /// Whether a subject matches its filters.
    pub(crate) fn filters_match(&self, subject: &[u8]) -> bool {
        self.matcher.matches(subject)
    }

    /// Whether a message that matches its filters must stay for it, on an interest stream.
    pub(crate) fn needs(&self, seq: u64) -> bool {
        let to_come = seq >= self.next
            || self
                .initial
                .as_ref()
                .is_some_and(|initial| initial.set.binary_search(&seq).is_ok());
        match self.config.ack_policy {
            AckPolicy::None | AckPolicy::All | AckPolicy::FlowControl => seq > self.floor.stream_seq,
            AckPolicy::Explicit => to_come || self.tracked.get(seq).is_some() || self.tracked.given_up(seq),
        }
    }
}
