//! Questions to the index.

use super::{Item, Matching, SPAN, StreamIndex, locate};

/// One subject of a stream, as readers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubjectRow<'a> {
    /// The subject.
    pub subject: &'a [u8],
    /// Its live messages.
    pub messages: u64,
    /// The lowest of their sequences.
    pub first: u64,
    /// The highest of their sequences.
    pub last: u64,
}

/// What is known about one subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubjectState {
    pub(crate) count: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl StreamIndex {
    pub(crate) fn get(&self, seq: u64) -> Option<Item> {
        let (number, off) = locate(seq);
        let item = self.spans.get(&number)?.get(off)?;
        Some(Item {
            size: item.size + self.subjects.key(item.subject).len() as u32,
            ..item
        })
    }

    /// The first live sequence at or after `from`.
    pub(crate) fn next_live(&self, from: u64) -> Option<u64> {
        self.next_match(&Matching::All, from)
    }

    /// Calls `f` for live matches from `from` on, in order, until it answers false. Sizes are without the subject.
    pub(crate) fn each_match(&self, set: &Matching, from: u64, mut f: impl FnMut(u64, Item) -> bool) {
        let (number, off) = locate(from);
        for (n, span) in self.spans.range(number..) {
            let start = n * SPAN as u64;
            let from = if *n == number { off } else { 0 };
            if !span.each_match(set, from, |o, item| f(start + o as u64, item)) {
                return;
            }
        }
    }

    /// The first live match at or after `from`.
    pub(crate) fn next_match(&self, set: &Matching, from: u64) -> Option<u64> {
        let mut found = None;
        self.each_match(set, from, |seq, _| {
            found = Some(seq);
            false
        });
        found
    }

    /// The last live match at or before `to`.
    pub(crate) fn prev_match(&self, set: &Matching, to: u64) -> Option<u64> {
        let (number, off) = locate(to);
        self.spans.range(..=number).rev().find_map(|(n, span)| {
            let to = if *n == number { off } else { SPAN - 1 };
            span.prev_match(set, to).map(|o| n * SPAN as u64 + o as u64)
        })
    }

    /// How many live matches there are at or after `from`.
    pub(crate) fn count(&self, set: &Matching, from: u64) -> u64 {
        if from <= self.first_seq {
            return match set {
                Matching::All => self.messages,
                set => set
                    .ids()
                    .iter()
                    .map(|id| u64::from(self.subjects.entry(*id).count))
                    .sum(),
            };
        }
        let (number, off) = locate(from);
        let in_span = |(n, span): (&u64, &super::Span)| span.count(set, if *n == number { off } else { 0 });
        self.spans.range(number..).map(in_span).sum()
    }

    /// How many live messages there are from one sequence to another, both included.
    pub(crate) fn count_range(&self, first: u64, last: u64) -> u64 {
        if last < first {
            return 0;
        }
        let ((from, first_off), (to, last_off)) = (locate(first), locate(last));
        let spans = self.spans.range(from..=to);
        let n: u64 = spans.map(|(_, span)| u64::from(span.live())).sum();
        let of = |number: u64| self.spans.get(&number);
        let before = of(from).map_or(0, |s| u64::from(s.live()) - s.count(&Matching::All, first_off));
        let behind = of(to).map_or(0, |s| s.count(&Matching::All, last_off + 1));
        n - before - behind
    }

    /// Count and bounds of one subject, `None` when it has no live message.
    pub(crate) fn subject_by_id(&self, id: u32) -> Option<SubjectState> {
        let e = self.subjects.entry(id);
        if e.count == 0 {
            return None;
        }
        let set = Matching::One(id);
        let first = if e.first_stale() {
            self.next_match(&set, e.first)?
        } else {
            e.first
        };
        let last = if e.last_stale() {
            self.prev_match(&set, e.last)?
        } else {
            e.last
        };
        Some(SubjectState {
            count: u64::from(e.count),
            first,
            last,
        })
    }

    /// Count and bounds of one subject; remembers bounds it had to look for.
    pub(crate) fn subject(&mut self, subject: &[u8]) -> Option<SubjectState> {
        let id = self.subjects.find(subject)?;
        let state = self.subject_by_id(id)?;
        self.subjects.resolve(id, Some(state.first), Some(state.last));
        Some(state)
    }
}
