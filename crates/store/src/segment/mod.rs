//! Segments: files of records that left the journal.
//!
//! A segment is written once and never changed, but for a secure erase. It holds blocks, each of one stream, and at its end
//! a footer from which the index is built at opening.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `WJSEG001` |
//! | 8..16 | store id |
//! | 16..24 | segment id |
//! | 24..28 | CRC-32C of bytes 0..24 |
//! | 28..64 | zero |
//! | 64.. | blocks, see [`BlockHeader`] |
//! | then | footer, see `footer.rs` |
//! | last 64 | trailer: magic `WJSEGEND`, footer position `u64`, footer length `u32`, CRC-32C of the footer `u32`, segment id `u64`, CRC-32C of the 32 bytes before `u32`, zero |
//!
//! A block's records are checked one by one on every read from disk, so damage costs the records it touches. A damaged
//! footer or trailer costs nothing: the footer is then made again from the blocks, which say what they are; a damaged
//! block header costs nothing either, since the footer says where blocks stand.

mod cache;
mod footer;
mod write;

use std::io;
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use cache::Segments;
pub(crate) use footer::{FooterPart, read_footer};
pub(crate) use write::SegmentWriter;

use crate::codec::{Cursor, Put};
use crate::record::{Record, find_next};

pub(crate) const SEGMENT_HEADER: usize = 64;
pub(crate) const BLOCK_HEADER: usize = 48;
pub(crate) const TRAILER: usize = 64;
const BLOCK_MAGIC: u32 = 0x4B42_4A57;

/// A segment file known to the store.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: u64,
    pub(crate) len: u64,
    /// In order of rank, then of number, segments have ascending sequences of every stream.
    pub(crate) rank: u64,
}

/// The file name of a segment.
pub(crate) fn segment_name(id: u64) -> String {
    format!("seg-{id:012}")
}

/// Where a block stands and where its stream's sequences and times begin in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) first_seq: u64,
    pub(crate) first_time: i64,
    pub(crate) at: u64,
    /// Length of the records as stored.
    pub(crate) len: u32,
    /// Whether they are compressed.
    pub(crate) packed: bool,
}

/// The records of one stream in one segment.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) segment: Arc<Segment>,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// Records in it, removed ones included.
    pub(crate) count: u64,
    pub(crate) blocks: Box<[BlockRef]>,
}

impl Part {
    /// The block that would hold `seq`.
    pub(crate) fn block(&self, seq: u64) -> Option<BlockRef> {
        if seq > self.last_seq {
            return None;
        }
        let i = self.blocks.partition_point(|b| b.first_seq <= seq);
        self.blocks.get(i.checked_sub(1)?).copied()
    }

    /// The block in which the first message at or after `time` may stand; with a time after all, the last block.
    pub(crate) fn block_at_time(&self, time: i64) -> Option<BlockRef> {
        let i = self.blocks.partition_point(|b| b.first_time < time);
        self.blocks.get(i.saturating_sub(1)).copied()
    }
}

/// The header in front of a block's records.
///
/// | bytes | field |
/// |---|---|
/// | 0..4 | magic `WJBK` |
/// | 4..8 | CRC-32C of bytes 8..48 |
/// | 8..16 | incarnation of the stream |
/// | 16..24 | sequence of the first record |
/// | 24..32 | time of the first record |
/// | 32..36 | length of the records as stored |
/// | 36..40 | length of the records |
/// | 40..48 | codec, 0 for none, 1 for Snappy |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) incarnation: u64,
    pub(crate) first_seq: u64,
    pub(crate) first_time: i64,
    pub(crate) len: u32,
    /// Length of the records when they are not compressed.
    pub(crate) raw: u32,
    pub(crate) packed: bool,
}

impl BlockHeader {
    pub(crate) fn encode(&self) -> [u8; BLOCK_HEADER] {
        let mut body = Vec::with_capacity(BLOCK_HEADER - 8);
        body.put_u64(self.incarnation);
        body.put_u64(self.first_seq);
        body.put_i64(self.first_time);
        body.put_u32(self.len);
        body.put_u32(self.raw);
        body.put_u64(u64::from(self.packed));
        let mut out = [0; BLOCK_HEADER];
        out[..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        out[8..].copy_from_slice(&body);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BLOCK_HEADER)?;
        let mut c = Cursor::new(bytes);
        if c.u32()? != BLOCK_MAGIC || c.u32()? != crc32c::crc32c(&bytes[8..]) {
            return None;
        }
        let (incarnation, first_seq, first_time) = (c.u64()?, c.u64()?, c.i64()?);
        let (len, raw, codec) = (c.u32()?, c.u32()?, c.u64()?);
        (codec == 1 || codec == 0 && raw == len).then_some(Self {
            incarnation,
            first_seq,
            first_time,
            len,
            raw,
            packed: codec == 1,
        })
    }
}

/// The records of a block, as they were read from the disk.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    bytes: Bytes,
}

impl Block {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// Bytes of memory.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Walks whole, right records of `incarnation`, stepping over damage, until `f` answers false.
    pub(crate) fn each(&self, incarnation: u64, mut f: impl FnMut(usize, Record<'_>) -> bool) {
        let mut at = 0;
        while at < self.bytes.len() {
            match Record::parse_checked(&self.bytes[at..]) {
                Some(r) => {
                    if r.incarnation() == incarnation && !f(at, r) {
                        return;
                    }
                    at += r.len();
                }
                None => match find_next(&self.bytes, at + 1) {
                    Some(next) => at = next,
                    None => return,
                },
            }
        }
    }

    /// The record of one sequence.
    pub(crate) fn get(&self, incarnation: u64, seq: u64) -> Option<Bytes> {
        let mut at = 0;
        // Walk by lengths first and check only the record wanted; on damage fall back to the checked walk.
        while let Some(r) = self.bytes.get(at..).and_then(Record::parse) {
            if r.seq() == seq
                && r.incarnation() == incarnation
                && Record::parse_checked(&self.bytes[at..]).is_some()
            {
                return Some(self.bytes.slice(at..at + r.len()));
            }
            at += r.len();
        }
        let mut found = None;
        self.each(incarnation, |at, r| {
            if r.seq() == seq {
                found = Some(self.bytes.slice(at..at + r.len()));
            }
            r.seq() < seq
        });
        found
    }
}

/// Reads a block's records, whatever state its header is in. Of a compressed one that is damaged there are none.
pub(crate) fn read_block(file: &dyn crate::disk::DiskFile, block: BlockRef) -> io::Result<Block> {
    let mut bytes = vec![0; block.len as usize];
    let n = file.read_at(&mut bytes, block.at + BLOCK_HEADER as u64)?;
    bytes.truncate(n);
    if block.packed {
        bytes = unpack(&bytes).unwrap_or_default();
    }
    Ok(Block::new(Bytes::from(bytes)))
}

/// Expands a compressed block. `None` when it is damaged, as far as that shows before records are checked.
fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    // A damaged length must not cost memory: Snappy makes at most 64 bytes of 2.
    let raw = snap::raw::decompress_len(packed).ok()?;
    (raw <= packed.len().saturating_mul(32))
        .then(|| snap::raw::Decoder::new().decompress_vec(packed).ok())
        .flatten()
}
