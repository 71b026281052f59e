//! The end of messages by time: life times of single messages beside the stream's age, and markers in place of what ended.
//!
//! [`Expiry`] holds 16 bytes for each message that has a life time of its own, until that is over; a message without one
//! costs nothing. Entries of messages that went otherwise are taken out when they are as many as the living ones
//! ([`Expiry::prune_with`]), so that a subject that is written again and again does not pile them up.
//!
//! Age needs no entries, because stored times never decrease: what is over is everything below a sequence, except what
//! [`Expiry::aged`] leaves out.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use smallvec::SmallVec;
use windjet_protocol::header::{block, names};
use windjet_store::{SeqRange, Subject};

use super::rules::Rules;
use super::ttl::Ttl;

/// Entries below which there is nothing to gain by taking any out.
const PRUNE_MIN: usize = 4096;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Expiry {
    due: BinaryHeap<Reverse<(i64, u64)>>,
    /// Messages that live whatever their age.
    forever: BTreeSet<u64>,
    /// Entries at which to look for those that are of no use.
    prune_at: usize,
}

impl Default for Expiry {
    fn default() -> Self {
        Self {
            due: BinaryHeap::new(),
            forever: BTreeSet::new(),
            prune_at: PRUNE_MIN,
        }
    }
}

impl Expiry {
    /// A message was stored at `time`.
    pub(crate) fn stored(&mut self, seq: u64, time: i64, ttl: Option<Ttl>) {
        match ttl {
            None => {}
            Some(Ttl::Never) => {
                self.forever.insert(seq);
            }
            Some(ttl) => {
                if let Some(end) = ttl.deadline(time) {
                    self.due.push(Reverse((end, seq)));
                }
            }
        }
    }

    /// A message is gone, however. Only needed for those that [`Expiry::is_forever`]; others are forgotten in time.
    pub(crate) fn removed(&mut self, range: SeqRange) {
        while let Some(seq) = self.forever.range(range.first..=range.last).next().copied() {
            self.forever.remove(&seq);
        }
    }

    /// Whether a message lives whatever its age.
    pub(crate) fn is_forever(&self, seq: u64) -> bool {
        self.forever.contains(&seq)
    }

    /// When the next life time ends.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.peek().map(|Reverse((end, _))| *end)
    }

    /// Takes the sequences of messages whose life time is over at `now`, at most `max`, in order; some may be gone already.
    pub(crate) fn take_due(&mut self, now: i64, max: usize) -> Vec<u64> {
        let mut over = Vec::new();
        while over.len() < max
            && let Some(Reverse((end, seq))) = self.due.peek()
            && *end <= now
        {
            over.push(*seq);
            self.due.pop();
        }
        over.sort_unstable();
        over
    }

    /// Puts sequences back that could not be dealt with: they are due at `at`.
    pub(crate) fn put_back(&mut self, at: i64, seqs: &[u64]) {
        self.due.extend(seqs.iter().map(|seq| Reverse((at, *seq))));
    }

    /// What of `first..=last`, which is over by age, really goes.
    pub(crate) fn aged(&self, first: u64, last: u64) -> SmallVec<[SeqRange; 2]> {
        let mut ranges = SmallVec::new();
        let mut from = first;
        for seq in self.forever.range(first..=last.max(first)) {
            if *seq > from {
                ranges.push(SeqRange {
                    first: from,
                    last: seq - 1,
                });
            }
            from = seq + 1;
        }
        if from <= last {
            ranges.push(SeqRange { first: from, last });
        }
        ranges
    }

    /// The first sequence at or after `from` that age counts for, when `next_live` tells the living ones.
    pub(crate) fn next_aging(&self, from: u64, next_live: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut seq = next_live(from)?;
        while self.is_forever(seq) {
            seq = next_live(seq + 1)?;
        }
        Some(seq)
    }

    /// Whether it is time for [`Expiry::prune_with`].
    pub(crate) fn wants_pruning(&self) -> bool {
        self.due.len() + self.forever.len() >= self.prune_at
    }

    /// Takes out the entries of messages that are gone.
    pub(crate) fn prune_with(&mut self, is_live: impl Fn(u64) -> bool) {
        self.due.retain(|Reverse((_, seq))| is_live(*seq));
        self.forever.retain(|seq| is_live(*seq));
        self.prune_at = PRUNE_MIN.max(2 * (self.due.len() + self.forever.len()));
    }

    #[cfg(test)]
    /// Forgets everything, before the stream is gone through anew.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Whether a marker takes the place of the message `seq`, whose time is over. `subject` is what is known of its subject,
/// `message` its header block.
pub(crate) fn wants_marker(rules: &Rules, subject: Subject, seq: u64, message: &[u8]) -> bool {
    rules.marker_ttl.is_positive()
        && subject.messages == 1
        && subject.last == Some(seq)
        && block::find(message, names::MARKER_REASON).is_none()
        && block::find(message, names::KV_OPERATION) != Some(b"PURGE")
}

/// The header block of a marker. It is published with [`super::check::Origin::Engine`], and its rollup removes what ended.
pub(crate) fn marker_block(rules: &Rules) -> Vec<u8> {
    let mut out = Vec::new();
    block::append(&mut out, names::MARKER_REASON, b"MaxAge");
    block::append(&mut out, names::TTL, rules.marker_ttl.to_string().as_bytes());
    block::append(&mut out, names::ROLLUP, b"sub");
    out
}

#[cfg(test)]
mod tests {
    use windjet_protocol::jetstream::Nanos;

    use super::*;
    use crate::jetstream::publish::check::Origin;
    use crate::jetstream::publish::testing::Model;
    use crate::jetstream::publish::view::View;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn life_times_end_in_order_of_their_end_and_sequences_in_theirs() {
        let mut expiry = Expiry::default();
        assert_eq!(expiry.next_due(), None);
        expiry.stored(1, 0, Some(Ttl::Seconds(30)));
        expiry.stored(2, 0, None);
        expiry.stored(3, 0, Some(Ttl::Seconds(10)));
        expiry.stored(4, 0, Some(Ttl::Never));
        expiry.stored(5, 0, Some(Ttl::Seconds(u64::MAX)));
        expiry.stored(6, SECOND, Some(Ttl::Seconds(8)));
        assert_eq!(expiry.next_due(), Some(9 * SECOND));
        assert!(expiry.take_due(9 * SECOND - 1, 10).is_empty());
        assert_eq!(expiry.take_due(10 * SECOND, 1), [6]);
        assert_eq!(expiry.take_due(30 * SECOND, 10), [1, 3]);
        assert_eq!(expiry.next_due(), None);
        expiry.put_back(31 * SECOND, &[1, 3]);
        assert_eq!(expiry.take_due(31 * SECOND, 10), [1, 3]);
    }

    fn ranges(expiry: &Expiry, first: u64, last: u64) -> Vec<(u64, u64)> {
        let ranges = expiry.aged(first, last);
        ranges.iter().map(|range| (range.first, range.last)).collect()
    }

    #[test]
    fn age_passes_over_what_lives_for_ever() {
        let mut expiry = Expiry::default();
        assert_eq!(ranges(&expiry, 3, 9), [(3, 9)]);
        for seq in [1, 3, 6, 7, 9, 20] {
            expiry.stored(seq, 0, Some(Ttl::Never));
        }
        assert_eq!(ranges(&expiry, 3, 9), [(4, 5), (8, 8)]);
        assert_eq!(ranges(&expiry, 2, 10), [(2, 2), (4, 5), (8, 8), (10, 10)]);
        assert_eq!(ranges(&expiry, 6, 7), []);
        assert_eq!(ranges(&expiry, 6, 5), []);
        let live = |from: u64| (from <= 30).then_some(from);
        assert_eq!(expiry.next_aging(6, live), Some(8));
        assert_eq!(expiry.next_aging(31, live), None);
        expiry.removed(SeqRange { first: 4, last: 9 });
        assert_eq!(ranges(&expiry, 3, 9), [(4, 9)]);
        assert!(expiry.is_forever(3) && !expiry.is_forever(6));
        expiry.clear();
        assert!(!expiry.is_forever(3));
    }

    #[test]
    fn entries_of_messages_that_are_gone_do_not_pile_up() {
        let mut expiry = Expiry::default();
        let (mut longest, mut pruned) = (0, 0);
        // One subject, written again and again: the newest message alone is live.
        for seq in 1..=100_000u64 {
            expiry.stored(seq, 0, Some(Ttl::Seconds(86_400)));
            if expiry.wants_pruning() {
                expiry.prune_with(|at| at == seq);
                pruned += 1;
            }
            longest = longest.max(expiry.due.len());
        }
        assert!(longest <= PRUNE_MIN && pruned < 30, "{longest} {pruned}");
        // All are live: looking for others stays rare.
        pruned = 0;
        for seq in 1..=100_000u64 {
            expiry.stored(seq, 0, Some(Ttl::Seconds(86_400)));
            if expiry.wants_pruning() {
                expiry.prune_with(|_| true);
                pruned += 1;
            }
        }
        assert!(pruned < 10, "{pruned}");
    }

    fn marked() -> Model {
        Model::new(|c| {
            (c.allow_msg_ttl, c.allow_rollup_hdrs) = (true, true);
            c.subject_delete_marker_ttl = Nanos::from_secs(60);
        })
    }

    #[test]
    fn a_marker_takes_the_place_of_the_last_message() {
        let mut stream = marked();
        let block = marker_block(&stream.rules);
        let text = "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m0s\r\nNats-Rollup: sub\r\n\r\n";
        assert_eq!(block, text.as_bytes());
        stream.publish("a", &[], "x");
        stream.publish("b", &[], "x");
        assert_eq!(stream.publish_from(Origin::Engine, "a", &block, ""), "ok 3");
        assert_eq!((stream.live(), stream.block(3)), (vec![2, 3], text.to_owned()));
    }

    #[test]
    fn not_everything_gets_a_marker() {
        let mut stream = marked();
        let wants = |stream: &Model, seq: u64| {
            let message = &stream.messages[&seq];
            let subject = stream.subject(message.subject.as_bytes());
            wants_marker(&stream.rules, subject, seq, &message.block)
        };
        stream.publish("a", &[], "x");
        stream.publish("b", &[("KV-Operation", "PURGE")], "");
        stream.publish("c", &[("KV-Operation", "DEL")], "");
        stream.publish("d", &[("Nats-Marker-Reason", "MaxAge")], "");
        let answers: Vec<bool> = (1..=4).map(|seq| wants(&stream, seq)).collect();
        assert_eq!(answers, [true, false, true, false]);
        stream.publish("a", &[], "y");
        assert!(!wants(&stream, 1) && !wants(&stream, 5));
        stream.messages.remove(&1);
        assert!(wants(&stream, 5));
        stream.rules.marker_ttl = Nanos::ZERO;
        assert!(!wants(&stream, 5));
    }
}
