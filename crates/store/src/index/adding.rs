//! Building the index from the footers of segments: a part of a segment at a time, a span at a time.
//!
//! A footer numbers its subjects by itself. A span of which a part has every message is packed at once, without being
//! opened first: what opening a store of millions of messages spends its time on.

use std::ops::Range;

use super::{Item, SPAN, Span, StreamIndex, locate};
use crate::segment::{BlockRef, FooterPart};

/// A part whose live messages are being added, above all that are in the index.
#[derive(Debug)]
pub(crate) struct Adding {
    pub(crate) part: FooterPart,
    subjects: Vec<Of>,
    /// Scratch of the packing, see there.
    counts: Vec<u16>,
}

/// One subject of the part.
#[derive(Debug, Clone, Copy)]
struct Of {
    id: u32,
    key_len: u32,
    count: u32,
    first: u64,
    last: u64,
}

impl Adding {
    pub(crate) fn new(part: FooterPart) -> Self {
        let none = Of {
            id: u32::MAX,
            key_len: 0,
            count: 0,
            first: 0,
            last: 0,
        };
        Self {
            subjects: vec![none; part.subjects.len()],
            counts: vec![0; part.subjects.len()],
            part,
        }
    }

    /// Adds those at these positions of the part, all in one span, that `live` says are.
    pub(crate) fn span(&mut self, index: &mut StreamIndex, run: Range<usize>, live: impl Fn(u64) -> bool) {
        let Some(first) = self.part.seqs.get(run.start) else {
            return;
        };
        let (number, _) = locate(first);
        let mut mask = [0u64; SPAN / 64];
        let mut n = 0;
        for at in run.clone() {
            let seq = self.part.seqs.get(at).unwrap_or(0);
            if live(seq) {
                let (_, off) = locate(seq);
                mask[off / 64] |= 1 << (off % 64);
                n += 1;
            }
        }
        if n == 0 {
            return;
        }
        if run.len() == SPAN && Span::packs(n) {
            self.pack(index, run.start, number, Box::new(mask));
        } else {
            self.push(index, run, number, &mask);
        }
    }

    /// Adds to a span that other parts have messages of.
    fn push(&mut self, index: &mut StreamIndex, run: Range<usize>, number: u64, mask: &[u64; SPAN / 64]) {
        let (mut items, mut bytes) = (Vec::with_capacity(run.len()), 0);
        for at in run {
            let seq = self.part.seqs.get(at).unwrap_or(0);
            let (_, off) = locate(seq);
            if mask[off / 64] & (1 << (off % 64)) != 0 {
                let of = self.known(index, self.part.columns[at] as usize);
                of.add(1, seq, seq);
                let (subject, key_len) = (of.id, of.key_len);
                let size = self.part.sizes[at];
                bytes += u64::from(size);
                let size = size.saturating_sub(key_len);
                items.push((off, Item { subject, size }));
            }
        }
        index.push_items(number, &items, bytes);
    }

    /// Counts what was added under the subjects of the index; answers the part's blocks.
    pub(crate) fn finish(self, index: &mut StreamIndex) -> Vec<BlockRef> {
        for of in self.subjects {
            index.subjects.added_many(of.id, of.count, of.first, of.last);
        }
        self.part.blocks
    }

    fn known(&mut self, index: &mut StreamIndex, number: usize) -> &mut Of {
        let of = &mut self.subjects[number];
        if of.count == 0 && of.id == u32::MAX {
            let key = &self.part.subjects[number];
            of.id = index.subjects.intern(key);
            of.key_len = key.len() as u32;
        }
        of
    }

    /// Adds a span of which the part has every message, from the position `start` on.
    fn pack(&mut self, index: &mut StreamIndex, start: usize, number: u64, mask: Box<[u64; SPAN / 64]>) {
        let first = number * SPAN as u64;
        let columns = start..start + SPAN;
        // For each subject of the part: how many, then where in the dictionary. All zero between spans.
        let mut used = Vec::new();
        let full = mask.iter().all(|w| *w == u64::MAX);
        let is_live = |off: usize| full || mask[off / 64] & (1 << (off % 64)) != 0;
        for (off, column) in self.part.columns[columns.clone()].iter().enumerate() {
            if is_live(off) {
                let n = &mut self.counts[*column as usize];
                if *n == 0 {
                    used.push((*column, off));
                }
                *n += 1;
            }
        }
        let mut dict = Vec::with_capacity(used.len());
        for (column, off) in used {
            let n = u32::from(self.counts[column as usize]);
            let seq = first + off as u64;
            let of = self.known(index, column as usize);
            // The last one is told below.
            of.add(n, seq, seq);
            dict.push((of.id, column));
        }
        dict.sort_unstable();
        let (mut bytes, mut sizes) = (0, Vec::with_capacity(SPAN));
        let of_all = self.part.columns[columns.clone()]
            .iter()
            .zip(&self.part.sizes[columns.clone()]);
        for (off, (column, size)) in of_all.enumerate() {
            let live = is_live(off);
            let of = &mut self.subjects[*column as usize];
            if live {
                of.last = first + off as u64;
                bytes += u64::from(*size);
            }
            sizes.push(if live { size.saturating_sub(of.key_len) } else { 0 });
        }
        let counts: Vec<u16> = dict
            .iter()
            .map(|(_, column)| std::mem::take(&mut self.counts[*column as usize]))
            .collect();
        for (i, (_, column)) in dict.iter().enumerate() {
            self.counts[*column as usize] = i as u16;
        }
        let numbers = self.part.columns[columns]
            .iter()
            .map(|column| self.counts[*column as usize]);
        let span = Span::packed(
            dict.iter().map(|(id, _)| *id).collect(),
            counts,
            numbers,
            &sizes,
            mask,
        );
        for (_, column) in &dict {
            self.counts[*column as usize] = 0;
        }
        index.push_span(number, span, bytes);
    }
}

impl Of {
    fn add(&mut self, n: u32, first: u64, last: u64) {
        if self.count == 0 {
            self.first = first;
        }
        self.count += n;
        self.last = last;
    }
}
