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
use crate::record::Record;

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
            parts: Vec::new(),
        }
    }

    /// Bytes that wait for the next write.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len() + self.block.len()
    }

    pub(crate) fn add(&mut self, r: &Record<'_>) {
        let other_stream = self.parts.last().is_none_or(|p| p.incarnation != r.incarnation());
        if other_stream || self.block.len() + r.len() > self.block_max {
            self.end_block();
        }
        if other_stream {
            self.parts.push(FooterPart::new(r.incarnation()));
        }
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
        let len = self.block.len() as u32;
        let at = self.at + self.pending.len() as u64;
        part.blocks.push(BlockRef {
            first_seq,
            first_time,
            at,
            len,
        });
        let header = BlockHeader {
            incarnation: part.incarnation,
            first_seq,
            first_time,
            len,
        };
        self.pending.reserve(BLOCK_HEADER + self.block.len());
        self.pending.extend_from_slice(&header.encode());
        self.pending.append(&mut self.block);
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
