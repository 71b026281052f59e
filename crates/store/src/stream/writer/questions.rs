//! Questions about committed plus staged state.

use super::{Duplicate, StreamWriter, Subject};
use crate::error::StageError;
use crate::fault::Fault;

impl StreamWriter {
    /// The highest sequence given out.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// The time stored last.
    pub fn last_time(&self) -> i64 {
        self.last_time
    }

    /// Live messages.
    pub fn messages(&self) -> u64 {
        self.shared
            .index
            .read()
            .messages
            .saturating_add_signed(self.overlay.messages)
    }

    /// The sizes of all live messages, by the wire's formula.
    pub fn bytes(&self) -> u64 {
        self.shared
            .index
            .read()
            .bytes
            .saturating_add_signed(self.overlay.bytes)
    }

    /// The first live sequence at or after `from`.
    pub fn next_live(&self, from: u64) -> Option<u64> {
        let index = self.shared.index.read();
        let mut at = from;
        while let Some(seq) = index.next_live(at) {
            if !self.overlay.is_removed(seq) {
                return Some(seq);
            }
            at = seq + 1;
        }
        self.overlay.next_live(from)
    }

    /// Whether there is a live message with this sequence.
    pub fn is_live(&self, seq: u64) -> bool {
        self.next_live(seq) == Some(seq)
    }

    /// The size of a live message, by the wire's formula.
    pub fn size_of(&self, seq: u64) -> Option<u32> {
        if self.overlay.is_removed(seq) {
            return None;
        }
        self.overlay
            .get(seq)
            .map(|s| s.size)
            .or_else(|| self.shared.index.read().get(seq).map(|i| i.size))
    }

    /// Count and newest sequence of a subject.
    pub fn subject(&self, subject: &[u8]) -> Subject {
        let hash = self.core.hash(subject);
        let base = self.shared.index.write().subject(subject);
        let messages = base
            .map_or(0, |s| s.count)
            .saturating_add_signed(self.overlay.subject_count(hash));
        let last = self.overlay.subject_last(hash).or_else(|| {
            let mut last = base?.last;
            if !self.overlay.is_removed(last) {
                return Some(last);
            }
            let index = self.shared.index.read();
            let set = crate::index::Matching::One(index.subjects.find(subject)?);
            while self.overlay.is_removed(last) {
                last = index.prev_match(&set, last.checked_sub(1)?)?;
            }
            Some(last)
        });
        Subject { messages, last }
    }

    /// The oldest live sequence of a subject: what a per-subject limit evicts next.
    pub fn subject_first(&self, subject: &[u8]) -> Option<u64> {
        self.subject_next(subject, 0)
    }

    /// The first live sequence of a subject at or after `from`.
    pub fn subject_next(&self, subject: &[u8], from: u64) -> Option<u64> {
        let committed = {
            let mut index = self.shared.index.write();
            index.subject(subject).and_then(|state| {
                let set = crate::index::Matching::One(index.subjects.find(subject)?);
                let mut at = state.first;
                if at < from {
                    at = index.next_match(&set, from)?;
                }
                while self.overlay.is_removed(at) {
                    at = index.next_match(&set, at + 1)?;
                }
                Some(at)
            })
        };
        committed.or_else(|| self.overlay.subject_next(self.core.hash(subject), from))
    }

    /// A number that stands for a subject while the store is open; two subjects do not share one.
    pub fn subject_key(&self, subject: &[u8]) -> u128 {
        self.core.hash(subject)
    }

    /// The same for the subject of a live message.
    pub fn subject_key_of(&self, seq: u64) -> Option<u128> {
        if self.overlay.is_removed(seq) {
            return None;
        }
        self.staged_item(seq).map(|(subject, _)| subject)
    }

    /// Whether there is a consumer of this name.
    pub fn has_consumer(&self, name: &str) -> bool {
        match self.consumers.get(name) {
            Some((_, exists)) => *exists,
            None => self.shared.index.read().consumers.contains_key(name),
        }
    }

    /// The message with this dedup id, if its window has not ended.
    pub fn duplicate(&self, id: &[u8]) -> Option<Duplicate> {
        let hash = self.core.hash(id);
        let (op, seq, time) = match self.overlay.id(hash) {
            Some(found) => found,
            None => self
                .shared
                .index
                .read()
                .ids
                .find(hash)
                .map(|i| (0, i.seq, i.time))?,
        };
        let window = i64::try_from(self.options.dedup_window.as_nanos()).unwrap_or(i64::MAX);
        let op = if self.core.options.fault(Fault::DuplicateAnsweredEarly) {
            0
        } else {
            op
        };
        (time.saturating_add(window) > self.core.clock.wall_ns()).then_some(Duplicate { seq, op })
    }

    /// Whether an operation that needs space would be refused now, and why.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_room(&self, len: usize) -> Result<(), StageError> {
        self.admit(false, len)
    }

    /// Whether an operation that frees space (a removal, a consumer's change) would be refused now, and why: for a caller
    /// that cannot give back what it is about to stage.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_space(&self) -> Result<(), StageError> {
        self.admit(true, 0)
    }
}
