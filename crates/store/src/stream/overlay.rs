//! What is staged and not committed, laid over the index for the owner's checks.
//!
//! Holds, per staged message, its sequence, subject hash and size; per subject the newest staged sequence and how many
//! messages are added and removed; staged removals; staged dedup ids. Subjects are known by a keyed 128-bit hash, so that
//! nothing is allocated per message. As operations commit, what they staged is taken off again, so the sum of overlay and
//! index never counts anything twice; when the journal fails the overlay is dropped whole.

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::{HashMap, HashSet};

/// Keys that are hashes already.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct TakeLow(u64);

impl Hasher for TakeLow {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }

    fn write_u128(&mut self, v: u128) {
        self.0 = v as u64;
    }

    fn write_u64(&mut self, v: u64) {
        self.0 = v.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

type Build = BuildHasherDefault<TakeLow>;

/// A message as the overlay knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) op: u64,
    pub(crate) seq: u64,
    pub(crate) subject: u128,
    pub(crate) size: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct SubjectDelta {
    added: u32,
    removed: u32,
    last_seq: u64,
}

/// The staged state of one stream.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    added: VecDeque<Staged>,
    removed: VecDeque<Staged>,
    removed_set: HashSet<u64, Build>,
    subjects: HashMap<u128, SubjectDelta, Build>,
    ids: HashMap<u128, (u64, u64, i64), Build>,
    id_queue: VecDeque<(u64, u128)>,
    pub(crate) messages: i64,
    pub(crate) bytes: i64,
}

impl Overlay {
    pub(crate) fn add(&mut self, staged: Staged) {
        self.messages += 1;
        self.bytes += i64::from(staged.size);
        let s = self.subjects.entry(staged.subject).or_default();
        s.added += 1;
        s.last_seq = staged.seq;
        self.added.push_back(staged);
    }

    pub(crate) fn remove(&mut self, staged: Staged) {
        if !self.removed_set.insert(staged.seq) {
            return;
        }
        self.messages -= 1;
        self.bytes -= i64::from(staged.size);
        self.subjects.entry(staged.subject).or_default().removed += 1;
        self.removed.push_back(staged);
    }

    pub(crate) fn add_id(&mut self, op: u64, id: u128, seq: u64, time: i64) {
        self.ids.insert(id, (op, seq, time));
        self.id_queue.push_back((op, id));
    }

    pub(crate) fn id(&self, id: u128) -> Option<(u64, u64, i64)> {
        self.ids.get(&id).copied()
    }

    /// Whether a staged operation removes `seq`.
    pub(crate) fn is_removed(&self, seq: u64) -> bool {
        !self.removed_set.is_empty() && self.removed_set.contains(&seq)
    }

    /// Messages of a subject, staged minus removed.
    pub(crate) fn subject_count(&self, subject: u128) -> i64 {
        self.subjects
            .get(&subject)
            .map_or(0, |s| i64::from(s.added) - i64::from(s.removed))
    }

    /// The newest staged sequence of a subject that no staged operation removes.
    pub(crate) fn subject_last(&self, subject: u128) -> Option<u64> {
        let s = self.subjects.get(&subject).filter(|s| s.added > 0)?;
        if !self.is_removed(s.last_seq) {
            return Some(s.last_seq);
        }
        self.live().rev().find(|a| a.subject == subject).map(|a| a.seq)
    }

    /// The first staged message of a subject at or after `from` that no staged operation removes.
    pub(crate) fn subject_next(&self, subject: u128, from: u64) -> Option<u64> {
        self.subjects
            .get(&subject)
            .filter(|s| s.added > 0 && s.last_seq >= from)?;
        let start = self.added.partition_point(|a| a.seq < from);
        self.added
            .range(start..)
            .find(|a| a.subject == subject && !self.is_removed(a.seq))
            .map(|a| a.seq)
    }

    fn live(&self) -> impl DoubleEndedIterator<Item = &Staged> {
        self.added.iter().filter(|a| !self.is_removed(a.seq))
    }

    /// The first staged message at or after `from` that no staged operation removes.
    pub(crate) fn next_live(&self, from: u64) -> Option<u64> {
        let start = self.added.partition_point(|a| a.seq < from);
        self.added
            .range(start..)
            .find(|a| !self.is_removed(a.seq))
            .map(|a| a.seq)
    }

    /// A staged message by sequence, removed or not.
    pub(crate) fn get(&self, seq: u64) -> Option<Staged> {
        let i = self.added.partition_point(|a| a.seq < seq);
        self.added.get(i).filter(|a| a.seq == seq).copied()
    }

    /// Takes off what operations up to `op` staged, since the index has it now.
    pub(crate) fn committed(&mut self, op: u64) {
        while let Some(a) = self.added.front().filter(|a| a.op <= op).copied() {
            self.added.pop_front();
            self.messages -= 1;
            self.bytes -= i64::from(a.size);
            self.take_off(a.subject, |s| s.added -= 1);
        }
        while let Some(r) = self.removed.front().filter(|r| r.op <= op).copied() {
            self.removed.pop_front();
            self.removed_set.remove(&r.seq);
            self.messages += 1;
            self.bytes += i64::from(r.size);
            self.take_off(r.subject, |s| s.removed -= 1);
        }
        while let Some((_, id)) = self.id_queue.front().filter(|i| i.0 <= op).copied() {
            self.id_queue.pop_front();
            if self.ids.get(&id).is_some_and(|known| known.0 <= op) {
                self.ids.remove(&id);
            }
        }
    }

    fn take_off(&mut self, subject: u128, f: impl FnOnce(&mut SubjectDelta)) {
        if let Some(s) = self.subjects.get_mut(&subject) {
            f(s);
            if s.added == 0 && s.removed == 0 {
                self.subjects.remove(&subject);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(op: u64, seq: u64, subject: u128) -> Staged {
        Staged {
            op,
            seq,
            subject,
            size: 10,
        }
    }

    #[test]
    fn what_is_staged_is_counted_and_taken_off_on_commit() {
        let mut o = Overlay::default();
        o.add(staged(1, 10, 1));
        o.add(staged(2, 11, 1));
        o.add(staged(3, 12, 2));
        o.remove(staged(3, 11, 1));
        o.remove(staged(4, 5, 1));
        assert_eq!((o.messages, o.bytes), (1, 10));
        assert_eq!(
            (o.subject_count(1), o.subject_last(1), o.subject_next(1, 0)),
            (0, Some(10), Some(10))
        );
        assert_eq!(o.next_live(11), Some(12));
        assert_eq!((o.subject_next(1, 11), o.subject_next(2, 11)), (None, Some(12)));
        o.committed(2);
        assert_eq!((o.messages, o.subject_count(1)), (-1, -2));
        o.committed(4);
        assert_eq!((o.messages, o.bytes, o.subjects.len()), (0, 0, 0));
        assert!(!o.is_removed(5));
    }

    #[test]
    fn a_staged_id_is_known_until_its_operation_commits() {
        let mut o = Overlay::default();
        o.add_id(1, 7, 100, 5);
        assert_eq!(o.id(7), Some((1, 100, 5)));
        o.committed(1);
        assert_eq!(o.id(7), None);
    }
}
