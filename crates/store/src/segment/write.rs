//! Writing a segment, in steps.
//!
//! Records come in the order in which they will stand: by stream, within a stream by sequence. A writer gathers blocks and
//! writes them when a step's worth is there; each step ends with a sync, so that no sync ever has more than a step to do.

use std::io;
use std::sync::Arc;

use super::footer::trailer;
use super::{BLOCK_HEADER, BlockHeader, BlockRef, FooterPart, SEGMENT_HEADER};
use crate::codec::Put;
use crate::disk::DiskFile;
use crate::options::Compression;
use crate::record::Record;

/// Longest block that is compressed, unless a single record is longer.
const PACKED_MAX: usize = 64 << 10;

/// A segment being written.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    pub(crate) id: u64,
    file: Arc<dyn DiskFile>,
    at: u64,
    pending: Vec<u8>,
    block: Vec<u8>,
    block_first: (u64, i64),
    block_max: usize,
    /// Whether the block is to be compressed.
    pack: bool,
    encoder: snap::raw::Encoder,
    packed: Vec<u8>,
    parts: Vec<FooterPart>,
}

impl SegmentWriter {
    pub(crate) fn new(id: u64, store_id: u64, file: Arc<dyn DiskFile>, block_max: usize) -> Self {
        let mut header = b"WJSEG001".to_vec();
        header.put_u64(store_id);
        header.put_u64(id);
        let crc = crc32c::crc32c(&header);
        header.put_u32(crc);
        header.resize(SEGMENT_HEADER, 0);
        Self {
            id,
            file,
            at: 0,
            pending: header,
            block: Vec::new(),
            block_first: (0, 0),
            block_max,
            pack: false,
            encoder: snap::raw::Encoder::new(),
            packed: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Bytes that wait for the next write.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len() + self.block.len()
    }

    pub(crate) fn add(&mut self, r: &Record<'_>, compression: Compression) {
        let other_stream = self.parts.last().is_none_or(|p| p.incarnation != r.incarnation());
        let pack = compression == Compression::Snappy;
        let block_max = if pack {
            (self.block_max * 4).min(PACKED_MAX)
        } else {
            self.block_max
        };
        if other_stream || pack != self.pack || self.block.len() + r.len() > block_max {
            self.end_block();
        }
        if other_stream {
            self.parts.push(FooterPart::new(r.incarnation()));
        }
        self.pack = pack;
        if self.block.is_empty() {
            self.block_first = (r.seq(), r.time());
        }
        self.block.extend_from_slice(r.bytes());
        if let Some(part) = self.parts.last_mut() {
            part.add(r);
        }
    }

    fn end_block(&mut self) {
        let Some(part) = self.parts.last_mut().filter(|_| !self.block.is_empty()) else {
            return;
        };
        let (first_seq, first_time) = self.block_first;
        let packed = self.pack && pack_block(&mut self.encoder, &self.block, &mut self.packed);
        let raw = self.block.len() as u32;
        let bytes = if packed { &self.packed } else { &self.block };
        let len = bytes.len() as u32;
        let at = self.at + self.pending.len() as u64;
        part.blocks.push(BlockRef {
            first_seq,
            first_time,
            at,
            len,
            packed,
        });
        let header = BlockHeader {
            incarnation: part.incarnation,
            first_seq,
            first_time,
            len,
            raw,
            packed,
        };
        self.pending.reserve(BLOCK_HEADER + bytes.len());
        self.pending.extend_from_slice(&header.encode());
        self.pending.extend_from_slice(bytes);
        self.block.clear();
    }

    /// Writes what was gathered and syncs it.
    pub(crate) fn write_step(&mut self) -> io::Result<()> {
        self.file.write_at(&self.pending, self.at)?;
        self.file.sync()?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Ends the file with its footer and syncs it. Answers the parts and the file's length.
    pub(crate) fn finish(mut self) -> io::Result<(Vec<FooterPart>, u64)> {
        self.end_block();
        let mut footer = Vec::new();
        self.parts.iter().for_each(|p| p.encode(&mut footer));
        let footer_at = self.at + self.pending.len() as u64;
        let trailer = trailer(self.id, footer_at, &footer);
        self.pending.extend_from_slice(&footer);
        self.pending.extend_from_slice(&trailer);
        self.write_step()?;
        Ok((self.parts, self.at))
    }
}

/// Compresses a block into `out`. False when that saves less than an eighth.
fn pack_block(encoder: &mut snap::raw::Encoder, block: &[u8], out: &mut Vec<u8>) -> bool {
    out.resize(snap::raw::max_compress_len(block.len()), 0);
    let Ok(n) = encoder.compress(block, out) else {
        return false;
    };
    out.truncate(n);
    n <= block.len() / 8 * 7
}
