//! Purges: what they remove, in one step that readers see, after a preparation in turns that they do not see.
//!
//! A purge of everything below a bound takes whole spans. One with a filter looks at every message of the spans that have
//! a matching subject, which may be millions: [`Purging`] does that in turns of a bounded number of messages, under the
//! index's read lock, while the stream does not change (its owner stages nothing behind a purge, and applies nothing before
//! it is ready). What remains for the step itself is, per span, a mask and the counts of its subjects.
//!
//! The preparation is no part of what is durable: the record says filter and bound, and replay purges directly.

use windjet_protocol::subject;

use super::span::Doomed;
use super::{Matching, SPAN, StreamIndex, filter_matches, locate};
use crate::record::{Effect, Record, effects};

/// The preparation of the purges in one chunk of records.
#[derive(Debug)]
pub(crate) struct Purging {
    /// The chunk, by its last operation.
    pub(crate) op: u64,
    purges: Vec<Prepared>,
    /// The purge in hand.
    at: usize,
}

/// One purge and what it will remove.
#[derive(Debug)]
pub(crate) struct Prepared {
    filter: Vec<u8>,
    below: u64,
    /// Numbering of the subjects, and the last sequence, as of the preparation.
    epoch: u64,
    last_seq: u64,
    set: Matching,
    /// Subjects up to here are in the set.
    next_id: u32,
    /// Spans below this one are prepared.
    next_span: u64,
    spans: Vec<(u64, Doomed)>,
}

fn has_filter(filter: &[u8]) -> bool {
    !filter.is_empty() && filter != b">"
}

impl Purging {
    /// The purges of a chunk that have a filter.
    pub(crate) fn new(index: &StreamIndex, op: u64, chunk: &[u8]) -> Self {
        let (mut purges, mut at) = (Vec::new(), 0);
        while let Some(r) = chunk.get(at..).and_then(Record::parse) {
            for effect in effects(r.effects()) {
                if let Effect::Purge { filter, below } = effect
                    && has_filter(filter)
                {
                    purges.push(Prepared {
                        filter: filter.to_vec(),
                        below,
                        epoch: index.subjects.epoch(),
                        last_seq: index.last_seq,
                        set: Matching::None,
                        next_id: 0,
                        next_span: 0,
                        spans: Vec::new(),
                    });
                }
            }
            at += r.len();
        }
        Self { op, purges, at: 0 }
    }

    /// One turn over about so many messages or subjects. True when all is prepared.
    pub(crate) fn turn(&mut self, index: &StreamIndex, mut budget: usize) -> bool {
        while let Some(purge) = self.purges.get_mut(self.at) {
            if !purge.turn(index, &mut budget) {
                return false;
            }
            self.at += 1;
        }
        true
    }

    pub(crate) fn into_prepared(self) -> Vec<Prepared> {
        self.purges
    }
}

impl Prepared {
    fn turn(&mut self, index: &StreamIndex, budget: &mut usize) -> bool {
        if self.next_id == 0 && subject::is_literal(&self.filter) {
            index.subjects.matching(&self.filter, |id| self.set.insert(id));
            self.next_id = index.subjects.len();
        }
        while self.next_id < index.subjects.len() {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let id = self.next_id;
            self.next_id += 1;
            if index.subjects.entry(id).count > 0 && filter_matches(&self.filter, index.subjects.key(id)) {
                self.set.insert(id);
            }
        }
        let (last, _) = locate(self.below.saturating_sub(1));
        while let Some((number, span)) = index
            .spans
            .range(self.next_span..=last.max(self.next_span))
            .next()
        {
            if *number > last {
                break;
            }
            if *budget == 0 {
                return false;
            }
            let end = usize::try_from(self.below - number * SPAN as u64).map_or(SPAN, |n| n.min(SPAN));
            match span.doom(&self.set, end) {
                Some(doomed) => {
                    *budget = budget.saturating_sub(span.live() as usize);
                    self.spans.push((*number, doomed));
                }
                // Its dictionary says that none matches.
                None => *budget = budget.saturating_sub(16),
            }
            self.next_span = number + 1;
        }
        true
    }
}

impl StreamIndex {
    /// Removes all messages below `below` that match `filter`; an empty filter matches all.
    pub(crate) fn purge(&mut self, filter: &[u8], below: u64) {
        if !has_filter(filter) {
            self.purge_all(below);
            return;
        }
        let prepared = self
            .prepared
            .iter()
            .position(|p| p.filter == filter && p.below == below && p.epoch == self.subjects.epoch());
        let from = match prepared {
            Some(i) => {
                let prepared = self.prepared.swap_remove(i);
                let from = prepared.last_seq + 1;
                self.strike(prepared);
                from
            }
            None => 0,
        };
        let mut set = Matching::None;
        self.subjects.matching(filter, |id| set.insert(id));
        let mut doomed = Vec::new();
        if from < below {
            self.each_match(&set, from, |seq, _| {
                if seq < below {
                    doomed.push(seq);
                }
                seq < below
            });
        }
        for seq in doomed {
            // A removal may renumber subjects, which is why the sequences were listed first.
            self.remove(seq);
        }
        if self.subjects.wants_compaction() {
            self.compact_subjects();
        }
    }

    /// Removes what was prepared.
    fn strike(&mut self, prepared: Prepared) {
        let mut one_by_one = Vec::new();
        for (number, doomed) in prepared.spans {
            let Some(span) = self.spans.get_mut(&number) else {
                continue;
            };
            let start = number * SPAN as u64;
            if !span.strike(&doomed) {
                // Something before the purge in its chunk changed the span.
                one_by_one.extend(doomed.offsets().map(|off| start + off as u64));
                continue;
            }
            if span.live() == 0 {
                self.spans.remove(&number);
            }
            let bound = prepared.below.min(start + SPAN as u64);
            let mut of_subjects = 0;
            for (id, n) in doomed.totals() {
                of_subjects += self.subjects.key(id).len() as u64 * u64::from(n);
                self.subjects.removed_below(id, n, bound);
            }
            self.messages -= u64::from(doomed.len());
            self.bytes -= doomed.bytes() + of_subjects;
            self.dirty.stream = true;
            if start <= self.settling {
                self.dirty.spans.insert(number);
            }
        }
        // These may renumber subjects, so they come last.
        one_by_one.into_iter().for_each(|seq| {
            self.remove(seq);
        });
        if self.get(self.first_seq).is_none() {
            self.first_seq = self.next_live(self.first_seq).unwrap_or(self.last_seq + 1);
        }
    }

    fn purge_all(&mut self, below: u64) {
        while let Some(first) = self.spans.first_entry() {
            if (first.key() + 1) * SPAN as u64 > below {
                break;
            }
            let end = (first.key() + 1) * SPAN as u64;
            let span = first.remove();
            self.messages -= u64::from(span.live());
            self.bytes -= span.bytes();
            let subjects = &mut self.subjects;
            let mut of_subjects = 0;
            span.totals(|id, n| {
                of_subjects += subjects.key(id).len() as u64 * u64::from(n);
                subjects.removed_below(id, n, end);
            });
            self.bytes -= of_subjects;
        }
        if let Some(number) = self.spans.keys().next().copied() {
            let mut doomed = Vec::new();
            let start = number * SPAN as u64;
            if let Some(span) = self.spans.get(&number) {
                span.each(0, |off, _| {
                    let dead = start + (off as u64) < below;
                    if dead {
                        doomed.push(start + off as u64);
                    }
                    dead
                });
            }
            self.first_seq = self.next_live(0).unwrap_or(self.last_seq + 1);
            for seq in doomed {
                self.remove(seq);
            }
        }
        self.first_seq = self.next_live(0).unwrap_or(self.last_seq + 1);
        self.dirty.stream = true;
        if self.subjects.wants_compaction() {
            self.compact_subjects();
        }
    }
}
