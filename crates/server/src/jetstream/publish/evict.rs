//! Which messages go because a new one comes.
//!
//! The limits hold at every moment that anybody can see, so what goes, goes in the operation that stores the new message.
//! What is over a limit that was lowered goes when it is lowered, not here.

use smallvec::SmallVec;
use windjet_store::{SeqRange, Subject};

use super::rules::Rules;
use super::view::View;
use crate::jetstream::fault::{Fault, planted};

/// Sequences to remove, as ranges for the store.
///
/// Ranges may span sequences that no live message has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Removals {
    ranges: SmallVec<[SeqRange; 2]>,
}

impl Removals {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The ranges, in the order in which they were added.
    pub(crate) fn ranges(&self) -> &[SeqRange] {
        &self.ranges
    }

    #[cfg(test)]
    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether a sequence is among them.
    pub(crate) fn contains(&self, seq: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(seq))
    }

    /// Adds one sequence.
    pub(crate) fn add(&mut self, seq: u64) {
        self.add_after(seq, seq);
    }

    /// Adds one sequence; none from `free` up to it has a live message.
    fn add_after(&mut self, free: u64, seq: u64) {
        if self.contains(seq) {
            return;
        }
        match self.ranges.last_mut() {
            Some(range) if free <= range.last + 1 && seq > range.last => range.last = seq,
            _ => self.ranges.push(SeqRange::one(seq)),
        }
    }
}

/// Adds to `remove` what must go when a message of `size` is stored on `subject`. What is in it before is live. The new message's own sequence is the last
/// to go, when nothing else helps.
pub(super) fn evict(
    rules: &Rules,
    view: &impl View,
    subject: &[u8],
    known: Subject,
    size: u64,
    remove: &mut Removals,
) {
    let mut messages = view.messages() + 1 + u64::from(planted(Fault::EvictionTakesMore));
    let mut bytes = view.bytes() + size;
    let size_of = |seq| view.size_of(seq).map_or(0, u64::from);
    for seq in remove.ranges().iter().flat_map(|range| range.first..=range.last) {
        messages = messages.saturating_sub(1);
        bytes = bytes.saturating_sub(size_of(seq));
    }
    if rules.max_per_subject.is_some_and(|max| known.messages >= max)
        && let Some(oldest) = view.subject_next(subject, 0)
    {
        remove.add(oldest);
        messages -= 1;
        bytes = bytes.saturating_sub(size_of(oldest));
    }
    if rules.discard_new {
        return;
    }
    let over = |messages: u64, bytes: u64| {
        rules.max_msgs.is_some_and(|max| messages > max) || rules.max_bytes.is_some_and(|max| bytes > max)
    };
    let own = view.last_seq() + 1;
    let mut from = 0;
    while over(messages, bytes) {
        let seq = view.next_live(from).filter(|seq| *seq < own);
        let Some(seq) = seq else {
            remove.add_after(from.max(1), own);
            return;
        };
        if !remove.contains(seq) {
            remove.add_after(if from == 0 { seq } else { from }, seq);
            messages = messages.saturating_sub(1);
            bytes = bytes.saturating_sub(size_of(seq));
        }
        from = seq + 1;
    }
}
