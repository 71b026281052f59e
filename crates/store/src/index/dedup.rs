//! The dedup ids of one stream.
//!
//! An id is kept as a keyed 128-bit hash with the sequence and stored time of its message: 32 bytes in a ring in the order
//! of storing, and 5 bytes in a table. Whatever happens to the message, the id counts until its window ends. The ring is
//! bounded; beyond the bound the oldest ids go and are counted.

use std::collections::VecDeque;

use hashbrown::HashTable;

/// One remembered id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) hash: u128,
    pub(crate) seq: u64,
    pub(crate) time: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Ids {
    ring: VecDeque<Id>,
    /// Positions in the ring, counted from the stream's first id, modulo 2^32.
    table: HashTable<u32>,
    /// Position of the ring's first entry.
    start: u32,
    forgotten: u64,
}

impl Ids {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Ids dropped before their window ended, because there were too many.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The newest message with this id, whatever its age.
    pub(crate) fn find(&self, hash: u128) -> Option<Id> {
        let (ring, start) = (&self.ring, self.start);
        let at = self.table.find(hash as u64, |p| {
            at(ring, start, *p).is_some_and(|id| id.hash == hash)
        })?;
        at_copy(ring, start, *at)
    }

    pub(crate) fn insert(&mut self, id: Id, max: usize) {
        if self.find(id.hash).is_some_and(|known| known.seq == id.seq) {
            return;
        }
        while self.ring.len() >= max.max(1) {
            self.pop();
            self.forgotten += 1;
        }
        let position = self.start.wrapping_add(self.ring.len() as u32);
        self.ring.push_back(id);
        let (ring, start) = (&self.ring, self.start);
        let same = |p: &u32| at(ring, start, *p).is_some_and(|known| known.hash == id.hash);
        match self.table.find_mut(id.hash as u64, same) {
            Some(slot) => *slot = position,
            None => {
                let hash_of = |p: &u32| at(ring, start, *p).map_or(0, |id| id.hash as u64);
                self.table.insert_unique(id.hash as u64, position, hash_of);
            }
        }
    }

    /// Forgets ids stored before `time`.
    pub(crate) fn expire(&mut self, before: i64) {
        while self.ring.front().is_some_and(|id| id.time < before) {
            self.pop();
        }
        if self.ring.is_empty() && self.ring.capacity() > 1024 {
            self.ring = VecDeque::new();
            self.table = HashTable::new();
        }
    }

    /// All ids, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Id> {
        self.ring.iter()
    }

    fn pop(&mut self) {
        let position = self.start;
        if let Some(id) = self.ring.front().copied()
            && let Ok(slot) = self.table.find_entry(id.hash as u64, |p| *p == position)
        {
            slot.remove();
        }
        self.ring.pop_front();
        self.start = self.start.wrapping_add(1);
    }
}

fn at(ring: &VecDeque<Id>, start: u32, position: u32) -> Option<&Id> {
    ring.get(position.wrapping_sub(start) as usize)
}

fn at_copy(ring: &VecDeque<Id>, start: u32, position: u32) -> Option<Id> {
    at(ring, start, position).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(hash: u128, seq: u64) -> Id {
        Id {
            hash,
            seq,
            time: seq as i64 * 10,
        }
    }

    #[test]
    fn an_id_counts_until_it_expires_and_a_newer_use_replaces_it() {
        let mut ids = Ids::default();
        for seq in 1..=100 {
            ids.insert(id(u128::from(seq % 50), seq), 1000);
        }
        assert_eq!(ids.find(7).unwrap().seq, 57);
        ids.expire(550);
        assert_eq!(ids.find(7).unwrap().seq, 57);
        assert_eq!(ids.find(4), None);
        ids.expire(i64::MAX);
        assert_eq!((ids.len(), ids.find(7)), (0, None));
    }

    #[test]
    fn beyond_the_bound_the_oldest_go_and_are_counted() {
        let mut ids = Ids::default();
        for seq in 1..=10 {
            ids.insert(id(u128::from(seq), seq), 4);
        }
        assert_eq!((ids.len(), ids.forgotten()), (4, 6));
        assert_eq!((ids.find(6), ids.find(7).map(|i| i.seq)), (None, Some(7)));
    }

    #[test]
    fn inserting_the_same_record_again_changes_nothing() {
        let mut ids = Ids::default();
        ids.insert(id(1, 1), 4);
        ids.insert(id(1, 1), 4);
        assert_eq!(ids.len(), 1);
    }
}
