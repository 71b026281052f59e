//! Which messages a journal file may hold: for each stream a range of sequences, so that a secure erase knows where to go.

use std::collections::HashMap;

use crate::record::SeqRange;

/// What some part of a journal file may hold. Never too little.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    /// Whether it may hold anything: it was written before this opening.
    unknown: bool,
    seqs: HashMap<u64, SeqRange>,
}

impl Contents {
    pub(crate) fn unknown() -> Self {
        Self {
            unknown: true,
            ..Self::default()
        }
    }

    pub(crate) fn note(&mut self, incarnation: u64, range: SeqRange) {
        let known = self.seqs.entry(incarnation).or_insert(range);
        known.first = known.first.min(range.first);
        known.last = known.last.max(range.last);
    }

    pub(crate) fn may_hold(&self, incarnation: u64, range: SeqRange) -> bool {
        let overlaps = |known: &SeqRange| known.first <= range.last && range.first <= known.last;
        self.unknown || self.seqs.get(&incarnation).is_some_and(overlaps)
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.unknown |= other.unknown;
        for (incarnation, range) in other.seqs {
            self.note(incarnation, range);
        }
    }
}
