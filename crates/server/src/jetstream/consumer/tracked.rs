//! Messages that were delivered and are not settled: which, when each is due again, and which wait to go out again.
//!
//! An entry takes 24 bytes in an ordered map and 16 in a heap of deadlines. The heap and the queue may hold what is out of
//! date; an entry tells whether it is, and both are cleaned when most of them is. Nothing here knows policies or clocks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::rare::Empty;
use super::record::Log;

const QUEUED: u64 = 1;
const STORED: u64 = 2;
const DELAYED: u64 = 4;
const FLAGS: u32 = 3;

/// One message that was delivered and is not settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Number of the first delivery, and three flags.
    word: u64,
    /// When the wait ends, on the monotonic clock. Before its origin for what was delivered before a restart.
    pub(super) due: i64,
}

impl Entry {
    fn new(dseq: u64, due: i64) -> Self {
        Self {
            word: dseq << FLAGS,
            due,
        }
    }

    /// Number of the first delivery.
    pub(super) fn dseq(self) -> u64 {
        self.word >> FLAGS
    }

    /// Whether it waits to go out again.
    pub(super) fn queued(self) -> bool {
        self.word & QUEUED != 0
    }

    /// Whether the store knows it.
    pub(super) fn stored(self) -> bool {
        self.word & STORED != 0
    }

    pub(super) fn set_stored(&mut self) {
        self.word |= STORED;
    }

    /// Whether it was handed back to come again later: nobody holds it until then.
    pub(super) fn delayed(self) -> bool {
        self.word & DELAYED != 0
    }

    fn set_delayed(&mut self, delayed: bool) {
        self.word = self.word & !DELAYED | if delayed { DELAYED } else { 0 };
    }
}

/// How often a message was delivered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count {
    pub(super) deliveries: u64,
    pub(super) stored: bool,
}

/// The messages in hand, and the ones given up.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    entries: BTreeMap<u64, Entry>,
    /// For messages delivered more than once; one without an entry was given up.
    counts: BTreeMap<u64, Count>,
    deadlines: BinaryHeap<Reverse<(i64, u64)>>,
    queue: VecDeque<u64>,
    queued: usize,
}

impl Empty for Tracked {
    const EMPTY: &'static Self = &Self {
        entries: BTreeMap::new(),
        counts: BTreeMap::new(),
        deadlines: BinaryHeap::new(),
        queue: VecDeque::new(),
        queued: 0,
    };

    fn is_spent(&self) -> bool {
        self.entries.is_empty() && self.counts.is_empty()
    }
}

impl Tracked {
    /// How many messages are delivered and not settled.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many messages wait to go out again.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// How many messages were delivered more than once, or given up.
    pub(super) fn redelivered(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn get(&self, seq: u64) -> Option<Entry> {
        self.entries.get(&seq).copied()
    }

    /// The lowest message that is not settled.
    pub(super) fn lowest(&self) -> Option<(u64, Entry)> {
        self.entries.first_key_value().map(|(seq, entry)| (*seq, *entry))
    }

    /// The highest message that is not settled.
    pub(super) fn highest(&self) -> Option<u64> {
        self.entries.last_key_value().map(|(seq, _)| *seq)
    }

    /// Deliveries of a message that is in hand or given up.
    pub(super) fn deliveries(&self, seq: u64) -> u64 {
        self.counts.get(&seq).map_or(1, |count| count.deliveries)
    }

    /// Whether a message was given up.
    pub(super) fn given_up(&self, seq: u64) -> bool {
        self.counts.contains_key(&seq) && !self.entries.contains_key(&seq)
    }

    /// The messages in hand in a range.
    pub(super) fn seqs(&self, first: u64, last: u64) -> Vec<u64> {
        if first > last {
            return Vec::new();
        }
        self.entries.range(first..=last).map(|(seq, _)| *seq).collect()
    }

    /// The messages delivered more than once or given up in a range.
    pub(super) fn counted(&self, first: u64, last: u64) -> Vec<u64> {
        if first > last {
            return Vec::new();
        }
        self.counts.range(first..=last).map(|(seq, _)| *seq).collect()
    }

    /// When the last of the running waits ends.
    pub(super) fn last_due(&self) -> Option<i64> {
        self.entries
            .values()
            .filter(|entry| !entry.queued())
            .map(|entry| entry.due)
            .max()
    }

    /// A first delivery.
    pub(super) fn add(&mut self, seq: u64, dseq: u64, due: i64, timed: bool, log: &mut Log) {
        self.entries.insert(seq, Entry::new(dseq, due));
        if timed {
            self.arm(seq, due);
        }
        log.touch(seq);
    }

    /// What the store knew: not a change.
    pub(super) fn restore(&mut self, seq: u64, dseq: u64, due: i64, delayed: bool, timed: bool) {
        let mut entry = Entry::new(dseq, due);
        entry.set_stored();
        entry.set_delayed(delayed);
        self.entries.insert(seq, entry);
        if timed {
            self.arm(seq, due);
        }
    }

    /// What the store knew of the number of deliveries.
    pub(super) fn restore_count(&mut self, seq: u64, deliveries: u64) {
        let count = Count {
            deliveries: deliveries.max(1),
            stored: true,
        };
        self.counts.insert(seq, count);
    }

    /// Another delivery.
    pub(super) fn again(&mut self, seq: u64, due: i64, timed: bool, log: &mut Log) {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return;
        };
        if entry.queued() {
            entry.word &= !QUEUED;
            self.queued -= 1;
        }
        entry.due = due;
        entry.set_delayed(false);
        let count = self.counts.entry(seq).or_insert(Count {
            deliveries: 1,
            stored: false,
        });
        count.deliveries += 1;
        if timed {
            self.arm(seq, due);
        }
        log.touch(seq);
    }

    /// Gives a message another deadline; if it waited to go out again, it does not any more. `delayed`: nobody holds it until then.
    pub(super) fn postpone(&mut self, seq: u64, due: i64, delayed: bool, log: &mut Log) {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return;
        };
        if entry.queued() {
            entry.word &= !QUEUED;
            self.queued -= 1;
        }
        entry.due = due;
        entry.set_delayed(delayed);
        self.arm(seq, due);
        log.touch(seq);
    }

    /// Puts a message at the end of those that go out again, unless it is among them.
    pub(super) fn enqueue(&mut self, seq: u64) {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return;
        };
        if entry.queued() {
            return;
        }
        entry.word |= QUEUED;
        self.queued += 1;
        self.queue.push_back(seq);
        if self.queue.len() > 2 * self.queued + 64 {
            let entries = &self.entries;
            self.queue
                .retain(|seq| entries.get(seq).is_some_and(|entry| entry.queued()));
        }
    }

    /// Makes a message due at a moment that has come, as far as the store is concerned, and puts it at the end of those
    /// that go out again.
    pub(super) fn enqueue_due(&mut self, seq: u64, due: i64, log: &mut Log) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.due = entry.due.min(due);
            log.touch(seq);
            self.enqueue(seq);
        }
    }

    /// The message that goes out again next.
    pub(super) fn next_queued(&mut self) -> Option<u64> {
        while let Some(seq) = self.queue.front().copied() {
            if self.entries.get(&seq).is_some_and(|entry| entry.queued()) {
                return Some(seq);
            }
            self.queue.pop_front();
        }
        self.queue = VecDeque::new();
        None
    }

    /// Takes out a message that is settled, and forgets how often it was delivered.
    pub(super) fn settle(&mut self, seq: u64, log: &mut Log) -> Option<Entry> {
        let entry = self.remove(seq, log);
        self.forget(seq, log);
        entry
    }

    /// Takes out a message that was delivered often enough, and remembers that.
    pub(super) fn give_up(&mut self, seq: u64, log: &mut Log) {
        if self.remove(seq, log).is_some() {
            self.counts.entry(seq).or_insert(Count {
                deliveries: 1,
                stored: false,
            });
            log.touch(seq);
        }
    }

    /// Forgets how often a message was delivered; true when it was known.
    pub(super) fn forget(&mut self, seq: u64, log: &mut Log) -> bool {
        match self.counts.remove(&seq) {
            Some(count) => {
                if count.stored {
                    log.forget(seq);
                }
                true
            }
            None => false,
        }
    }

    fn remove(&mut self, seq: u64, log: &mut Log) -> Option<Entry> {
        let entry = self.entries.remove(&seq)?;
        if entry.queued() {
            self.queued -= 1;
        }
        if entry.stored() {
            log.clear(seq);
        }
        if self.entries.is_empty() {
            self.deadlines = BinaryHeap::new();
            self.queue = VecDeque::new();
        }
        Some(entry)
    }

    /// Forgets everything; not a change of its own.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The messages whose wait is over, in ascending order. They keep their entries, and their deadlines are done.
    pub(super) fn expired(&mut self, now: i64) -> Vec<u64> {
        let mut seqs = Vec::new();
        while let Some(Reverse((due, seq))) = self.deadlines.peek().copied() {
            if due > now {
                break;
            }
            self.deadlines.pop();
            if self.is_current(due, seq) {
                seqs.push(seq);
            }
        }
        seqs.sort_unstable();
        seqs.dedup();
        seqs
    }

    /// When the next wait is over.
    pub(super) fn next_due(&mut self) -> Option<i64> {
        while let Some(Reverse((due, seq))) = self.deadlines.peek().copied() {
            if self.is_current(due, seq) {
                return Some(due);
            }
            self.deadlines.pop();
        }
        None
    }

    fn is_current(&self, due: i64, seq: u64) -> bool {
        self.entries
            .get(&seq)
            .is_some_and(|entry| entry.due == due && !entry.queued())
    }

    fn arm(&mut self, seq: u64, due: i64) {
        self.deadlines.push(Reverse((due, seq)));
        if self.deadlines.len() > 2 * self.entries.len() + 64 {
            self.rebuild();
        }
    }

    fn rebuild(&mut self) {
        self.deadlines = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.queued())
            .map(|(seq, entry)| Reverse((entry.due, *seq)))
            .collect();
    }

    /// Moves every deadline: `change` gives what to add for so many deliveries.
    pub(super) fn shift(&mut self, change: impl Fn(u64) -> i64) {
        let counts = &self.counts;
        for (seq, entry) in &mut self.entries {
            let deliveries = counts.get(seq).map_or(1, |count| count.deliveries);
            entry.due = entry.due.saturating_add(change(deliveries));
        }
        self.rebuild();
    }

    /// Visits an entry and a count that changed, for the record.
    pub(super) fn visit(&mut self, seq: u64) -> (Option<&mut Entry>, Option<&mut Count>) {
        (self.entries.get_mut(&seq), self.counts.get_mut(&seq))
    }

    #[cfg(test)]
    /// Bytes of memory, about.
    pub(super) fn memory(&self) -> usize {
        self.entries.len() * 44
            + self.counts.len() * 44
            + self.deadlines.capacity() * 16
            + self.queue.capacity() * 8
    }
}
