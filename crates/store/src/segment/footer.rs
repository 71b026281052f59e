//! The footer of a segment: what the index needs to know of each stream's records, in columns.
//!
//! | per part | |
//! |---|---|
//! | `u64` incarnation, `u32` records | |
//! | `u32` blocks, each `u64` first sequence, `i64` first time, `u64` position, `u32` length of the records, 31st bit set when they are compressed | |
//! | `u32` subjects, each `u16` length and bytes | |
//! | `u8` 1 when sequences are consecutive, `u64` first sequence; else `u32` distances | |
//! | `u8` width, column of subject numbers | |
//! | `u8` width, `u32` smallest size, column of sizes above it | |
//!
//! A width is 0, 1, 2 or 4 bytes a value.

use std::io;

use hashbrown::HashMap;

use super::{BLOCK_HEADER, BlockHeader, BlockRef, SEGMENT_HEADER, TRAILER, unpack};
use crate::codec::{Cursor, Put, u32_at, u64_at};
use crate::disk::{DiskFile, read_all};
use crate::index::wire_size;
use crate::options::Storage;
use crate::record::{Kind, Record, find_next};

pub(crate) const TRAILER_MAGIC: &[u8; 8] = b"WJSEGEND";

/// The bit of a block's length that says that it is compressed; no record is that long.
const PACKED: u32 = 1 << 31;

/// Sequences in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seqs {
    /// So many consecutive ones from the first on.
    Dense(u64, usize),
    Listed(Vec<u64>),
}

impl Default for Seqs {
    fn default() -> Self {
        Self::Dense(0, 0)
    }
}

impl Seqs {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Dense(_, n) => *n,
            Self::Listed(seqs) => seqs.len(),
        }
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.get(0)
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.get(self.len().checked_sub(1)?)
    }

    pub(crate) fn get(&self, i: usize) -> Option<u64> {
        match self {
            Self::Dense(first, n) => (i < *n).then(|| first + i as u64),
            Self::Listed(seqs) => seqs.get(i).copied(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// How many from the position `from` on are below `end`.
    pub(crate) fn below(&self, from: usize, end: u64) -> usize {
        match self {
            Self::Dense(first, n) => {
                let at = first + from as u64;
                usize::try_from(end.saturating_sub(at)).map_or(n - from, |k| k.min(n - from))
            }
            Self::Listed(seqs) => seqs[from..].partition_point(|seq| *seq < end),
        }
    }

    fn push(&mut self, seq: u64) {
        match self {
            Self::Dense(_, 0) => *self = Self::Dense(seq, 1),
            Self::Dense(first, n) if seq == *first + *n as u64 => *n += 1,
            Self::Dense(..) => {
                let mut seqs: Vec<u64> = self.iter().collect();
                seqs.push(seq);
                *self = Self::Listed(seqs);
            }
            Self::Listed(seqs) => seqs.push(seq),
        }
    }
}

/// The records of one stream in a segment, as its footer tells them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct FooterPart {
    pub(crate) incarnation: u64,
    pub(crate) blocks: Vec<BlockRef>,
    pub(crate) subjects: Vec<Vec<u8>>,
    pub(crate) seqs: Seqs,
    pub(crate) columns: Column,
    /// What every message has at least, and what each has beyond that.
    pub(crate) size_min: u32,
    pub(crate) sizes: Column,
    numbers: HashMap<Vec<u8>, u32, foldhash::fast::FixedState>,
}

fn width(max: u32) -> u8 {
    match max {
        0 => 0,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

fn put_column(out: &mut Vec<u8>, width: u8, values: impl Iterator<Item = u32>) {
    for v in values {
        match width {
            0 => {}
            1 => out.put_u8(v as u8),
            2 => out.put_u16(v as u16),
            _ => out.put_u32(v),
        }
    }
}

/// Numbers, as wide as the widest needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Column {
    /// So many zeros.
    Zeros(usize),
    Bytes(Vec<u8>),
    Pairs(Vec<u16>),
    Words(Vec<u32>),
}

impl Default for Column {
    fn default() -> Self {
        Self::Words(Vec::new())
    }
}

impl Column {
    #[inline]
    pub(crate) fn get(&self, i: usize) -> u32 {
        match self {
            Self::Zeros(_) => 0,
            Self::Bytes(v) => u32::from(v[i]),
            Self::Pairs(v) => u32::from(v[i]),
            Self::Words(v) => v[i],
        }
    }

    /// Puts those of a range into `out`, each with `more` added.
    pub(crate) fn copy(&self, range: std::ops::Range<usize>, more: u32, out: &mut Vec<u32>) {
        out.clear();
        match self {
            Self::Zeros(_) => out.resize(range.len(), more),
            Self::Bytes(v) => out.extend(v[range].iter().map(|n| more.saturating_add(u32::from(*n)))),
            Self::Pairs(v) => out.extend(v[range].iter().map(|n| more.saturating_add(u32::from(*n)))),
            Self::Words(v) => out.extend(v[range].iter().map(|n| more.saturating_add(*n))),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Zeros(n) => *n,
            Self::Bytes(v) => v.len(),
            Self::Pairs(v) => v.len(),
            Self::Words(v) => v.len(),
        }
    }

    fn max(&self) -> u32 {
        match self {
            Self::Zeros(_) => 0,
            Self::Bytes(v) => v.iter().max().copied().map_or(0, u32::from),
            Self::Pairs(v) => v.iter().max().copied().map_or(0, u32::from),
            Self::Words(v) => v.iter().max().copied().unwrap_or(0),
        }
    }

    /// Columns that were decoded are not added to.
    fn push(&mut self, value: u32) {
        if let Self::Words(v) = self {
            v.push(value);
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    fn decode(c: &mut Cursor<'_>, width: u8, n: usize) -> Option<Self> {
        Some(match width {
            0 => Self::Zeros(n),
            1 => Self::Bytes(c.take(n)?.to_vec()),
            2 => {
                let (pairs, _) = c.take(n.checked_mul(2)?)?.as_chunks::<2>();
                Self::Pairs(pairs.iter().map(|b| u16::from_le_bytes(*b)).collect())
            }
            4 => {
                let (words, _) = c.take(n.checked_mul(4)?)?.as_chunks::<4>();
                Self::Words(words.iter().map(|b| u32::from_le_bytes(*b)).collect())
            }
            _ => return None,
        })
    }
}

impl FooterPart {
    pub(crate) fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, r: &Record<'_>) {
        let number = match self.numbers.get(r.subject()) {
            Some(n) => *n,
            None => {
                let n = self.subjects.len() as u32;
                self.subjects.push(r.subject().to_vec());
                self.numbers.insert(r.subject().to_vec(), n);
                n
            }
        };
        self.seqs.push(r.seq());
        self.columns.push(number);
        self.sizes.push(wire_size(
            Storage::File,
            r.subject().len(),
            r.headers().len(),
            r.payload().len(),
        ));
    }

    /// The size of a message by the wire's formula.
    #[inline]
    pub(crate) fn size(&self, i: usize) -> u32 {
        self.size_min.saturating_add(self.sizes.get(i))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.incarnation);
        out.put_u32(self.seqs.len() as u32);
        out.put_u32(self.blocks.len() as u32);
        for b in &self.blocks {
            out.put_u64(b.first_seq);
            out.put_i64(b.first_time);
            out.put_u64(b.at);
            out.put_u32(b.len | if b.packed { PACKED } else { 0 });
        }
        out.put_u32(self.subjects.len() as u32);
        for s in &self.subjects {
            out.put_u16(s.len() as u16);
            out.extend_from_slice(s);
        }
        out.put_u8(u8::from(matches!(self.seqs, Seqs::Dense(..))));
        out.put_u64(self.seqs.first().unwrap_or(0));
        if let Seqs::Listed(seqs) = &self.seqs {
            seqs.iter().for_each(|seq| out.put_u64(*seq));
        }
        let w = width((self.subjects.len() as u32).saturating_sub(1));
        out.put_u8(w);
        put_column(out, w, self.columns.iter());
        let min = self.sizes.iter().min().unwrap_or(0);
        let max = self.sizes.max();
        let w = width(max - min);
        out.put_u8(w);
        out.put_u32(self.size_min.saturating_add(min));
        put_column(out, w, self.sizes.iter().map(|s| s - min));
    }

    fn decode(c: &mut Cursor<'_>) -> Option<Self> {
        let incarnation = c.u64()?;
        let n = c.u32()? as usize;
        let blocks = c.u32()?;
        let blocks = (0..blocks)
            .map(|_| {
                let (first_seq, first_time, at, len) = (c.u64()?, c.i64()?, c.u64()?, c.u32()?);
                Some(BlockRef {
                    first_seq,
                    first_time,
                    at,
                    len: len & !PACKED,
                    packed: len & PACKED != 0,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        let subjects = c.u32()?;
        let subjects = (0..subjects)
            .map(|_| {
                let len = c.u16()?;
                Some(c.take(usize::from(len))?.to_vec())
            })
            .collect::<Option<Vec<_>>>()?;
        let dense = c.u8()? != 0;
        let first = c.u64()?;
        let seqs = if dense {
            first.checked_add(n as u64)?;
            Seqs::Dense(first, n)
        } else {
            Seqs::Listed((0..n).map(|_| c.u64()).collect::<Option<Vec<_>>>()?)
        };
        let w = c.u8()?;
        let columns = Column::decode(c, w, n)?;
        let w = c.u8()?;
        let size_min = c.u32()?;
        let sizes = Column::decode(c, w, n)?;
        if n > 0 && columns.max() as usize >= subjects.len() {
            return None;
        }
        Some(Self {
            incarnation,
            blocks,
            subjects,
            seqs,
            columns,
            size_min,
            sizes,
            numbers: HashMap::default(),
        })
    }
}

/// Encodes the trailer for a footer.
pub(crate) fn trailer(id: u64, footer_at: u64, footer: &[u8]) -> [u8; TRAILER] {
    let mut body = TRAILER_MAGIC.to_vec();
    body.put_u64(footer_at);
    body.put_u32(footer.len() as u32);
    body.put_u32(crc32c::crc32c(footer));
    body.put_u64(id);
    let crc = crc32c::crc32c(&body);
    body.put_u32(crc);
    let mut out = [0; TRAILER];
    out[..body.len()].copy_from_slice(&body);
    out
}

/// The parts of a segment: from its footer, or, when that is damaged, from its blocks. The second value says which.
///
/// # Errors
/// What the medium reports.
pub(crate) fn read_footer(id: u64, file: &dyn DiskFile) -> io::Result<(Vec<FooterPart>, bool)> {
    let len = file.len()?;
    match intact_footer(id, file, len)? {
        Some(parts) => Ok((parts, true)),
        None => Ok((rebuild(&read_all(file)?), false)),
    }
}

fn intact_footer(id: u64, file: &dyn DiskFile, len: u64) -> io::Result<Option<Vec<FooterPart>>> {
    let Some(trailer_at) = len.checked_sub(TRAILER as u64) else {
        return Ok(None);
    };
    let mut t = [0; TRAILER];
    file.read_at(&mut t, trailer_at)?;
    if &t[..8] != TRAILER_MAGIC || crc32c::crc32c(&t[..32]) != u32_at(&t, 32) || u64_at(&t, 24) != id {
        return Ok(None);
    }
    let mut footer = vec![0; u32_at(&t, 16) as usize];
    let n = file.read_at(&mut footer, u64_at(&t, 8))?;
    if n < footer.len() || crc32c::crc32c(&footer) != u32_at(&t, 20) {
        return Ok(None);
    }
    Ok(decode_parts(&footer))
}

fn decode_parts(footer: &[u8]) -> Option<Vec<FooterPart>> {
    let mut c = Cursor::new(footer);
    let mut parts = Vec::new();
    while !c.is_empty() {
        parts.push(FooterPart::decode(&mut c)?);
    }
    Some(parts)
}

/// Walks blocks and, where a block header is damaged, single records.
fn rebuild(file: &[u8]) -> Vec<FooterPart> {
    let mut parts: Vec<FooterPart> = Vec::new();
    let mut at = SEGMENT_HEADER;
    while at < file.len() {
        if let Some(h) = BlockHeader::decode(&file[at..]) {
            let start = at + BLOCK_HEADER;
            let end = (start + h.len as usize).min(file.len());
            let stored = &file[start..end];
            if h.packed {
                add_block(&mut parts, &unpack(stored).unwrap_or_default(), at, h.len, true);
            } else {
                add_block(&mut parts, stored, at, h.len, false);
            }
            at = end;
            continue;
        }
        // Records behind a damaged header: one record at a time until the next good block header.
        let record = find_next(file, at);
        let header = (at + 1..file.len().saturating_sub(BLOCK_HEADER))
            .find(|p| u32_at(file, *p) == super::BLOCK_MAGIC && BlockHeader::decode(&file[*p..]).is_some());
        match (record, header) {
            (Some(start), header) if header.is_none_or(|h| start < h) => {
                let len = u32_at(file, start);
                let end = start + len as usize;
                add_block(&mut parts, &file[start..end], start - BLOCK_HEADER, len, false);
                at = end;
            }
            (_, Some(header)) => at = header,
            _ => break,
        }
    }
    parts
}

/// Adds the records of a block that stands at `at`, with `len` bytes of records as stored.
fn add_block(parts: &mut Vec<FooterPart>, records: &[u8], at: usize, len: u32, packed: bool) {
    let mut pos = 0;
    let mut block: Option<BlockRef> = None;
    while pos < records.len() {
        let Some(r) = Record::parse_checked(&records[pos..]) else {
            match find_next(records, pos + 1) {
                Some(next) => pos = next,
                None => break,
            }
            continue;
        };
        if r.kind == Kind::Message {
            let incarnation = r.incarnation();
            block.get_or_insert(BlockRef {
                first_seq: r.seq(),
                first_time: r.time(),
                at: at as u64,
                len,
                packed,
            });
            if parts.last().is_none_or(|p| p.incarnation != incarnation) {
                parts.push(FooterPart::new(incarnation));
            }
            if let Some(part) = parts.last_mut() {
                part.add(&r);
            }
        }
        pos += r.len();
    }
    if let (Some(block), Some(part)) = (block, parts.last_mut()) {
        part.blocks.push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Parts;

    #[test]
    fn a_footer_reads_back_as_it_was_written() {
        for seqs in [vec![5, 6, 7], vec![5, 9, 10]] {
            let mut part = FooterPart::new(3);
            for seq in seqs {
                let mut bytes = Vec::new();
                Parts {
                    kind: Kind::Message,
                    remaining: 0,
                    incarnation: 3,
                    seq,
                    time: 1,
                    subject: if seq == 9 { b"x" } else { b"yy" },
                    effects: &[],
                    headers: &[],
                    payload: &vec![0; seq as usize * 100],
                }
                .encode(&mut bytes);
                part.add(&Record::parse(&bytes).unwrap());
            }
            part.blocks.push(BlockRef {
                first_seq: 5,
                first_time: 1,
                at: 64,
                len: 9,
                packed: true,
            });
            let mut out = Vec::new();
            part.encode(&mut out);
            let back = FooterPart::decode(&mut Cursor::new(&out)).unwrap();
            assert_eq!((&back.seqs, &back.subjects), (&part.seqs, &part.subjects));
            assert_eq!((&back.blocks, back.incarnation), (&part.blocks, 3));
            for i in 0..part.seqs.len() {
                assert_eq!(back.size(i), part.size(i));
                assert_eq!(back.columns.get(i), part.columns.get(i));
            }
            let mut again = Vec::new();
            back.encode(&mut again);
            assert_eq!(again, out);
        }
    }
}
