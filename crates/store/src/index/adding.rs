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
    /// Scratch of the packing: by subject of the part, and for each offset of a span.
    scratch: Vec<OfSpan>,
    buffers: (Vec<u32>, Vec<u32>),
}

/// One subject of the part in the span that is being packed.
#[derive(Debug, Clone, Copy, Default)]
struct OfSpan {
    /// Live messages, zero between spans; the offset of the last one.
    n: u16,
    last: u16,
    /// Where in the dictionary.
    at: u16,
    key_len: u16,
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
            scratch: vec![OfSpan::default(); part.subjects.len()],
            buffers: (Vec::new(), Vec::new()),
            part,
        }
    }

    /// Adds those at these positions of the part, all in one span, that `live` says are; with `all` it is not asked.
    pub(crate) fn span(
        &mut self,
        index: &mut StreamIndex,
        run: Range<usize>,
        all: bool,
        live: impl Fn(u64) -> bool,
    ) {
        let Some(first) = self.part.seqs.get(run.start) else {
            return;
        };
        let (number, _) = locate(first);
        if all && run.len() == SPAN {
            self.pack(index, run.start, number, Box::new([u64::MAX; SPAN / 64]));
            return;
        }
        let mut mask = [0u64; SPAN / 64];
        let mut n = 0;
        for at in run.clone() {
            let seq = self.part.seqs.get(at).unwrap_or(0);
            if all || live(seq) {
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
                let of = self.known(index, self.part.columns.get(at) as usize);
                of.add(1, seq, seq);
                let (subject, key_len) = (of.id, of.key_len);
                let size = self.part.size(at);
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
        let mut columns = std::mem::take(&mut self.buffers.0);
        let mut sizes = std::mem::take(&mut self.buffers.1);
        self.part.columns.copy(start..start + SPAN, 0, &mut columns);
        self.part
            .sizes
            .copy(start..start + SPAN, self.part.size_min, &mut sizes);
        let full = mask.iter().all(|w| *w == u64::MAX);
        let is_live = |off: usize| full || mask[off / 64] & (1 << (off % 64)) != 0;
        let mut used = Vec::new();
        for (off, column) in columns.iter().enumerate() {
            if is_live(off) {
                let of = &mut self.scratch[*column as usize];
                if of.n == 0 {
                    used.push((*column, off));
                }
                of.n += 1;
                of.last = off as u16;
            }
        }
        let mut dict = Vec::with_capacity(used.len());
        for (column, off) in used {
            let of_span = self.scratch[column as usize];
            let of = self.known(index, column as usize);
            of.add(
                u32::from(of_span.n),
                first + off as u64,
                first + u64::from(of_span.last),
            );
            dict.push((of.id, column));
            self.scratch[column as usize].key_len = of.key_len as u16;
        }
        dict.sort_unstable();
        let mut counts = Vec::with_capacity(dict.len());
        for (at, (_, column)) in dict.iter().enumerate() {
            let of = &mut self.scratch[*column as usize];
            counts.push(of.n);
            of.n = 0;
            of.at = at as u16;
        }
        let (mut bytes, mut keys) = (0, 0);
        for (off, (column, size)) in columns.iter_mut().zip(&mut sizes).enumerate() {
            let of = &self.scratch[*column as usize];
            if is_live(off) {
                bytes += u64::from(*size);
                keys += u64::from(of.key_len);
            }
            // Where nothing is live anything may stand, as long as it is in the dictionary.
            *column = u32::from(of.at).min(dict.len() as u32 - 1);
            *size = size.saturating_sub(u32::from(of.key_len));
        }
        let numbers = columns.iter().map(|at| *at as u16);
        let ids: Vec<u32> = dict.iter().map(|(id, _)| *id).collect();
        let span = Span::packed(&ids, counts, numbers, &sizes, bytes - keys, mask);
        index.push_span(number, span, bytes);
        self.buffers = (columns, sizes);
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
