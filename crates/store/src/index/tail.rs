//! The tail: records that are committed and not yet in segments, in the buffers in which they went to the journal.
//!
//! Reading from it takes no disk and copies nothing: a message is a slice of a shared buffer.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::record::{Kind, Record};

/// Offset of a sequence that has no record in the chunk.
pub(crate) const NO_RECORD: u32 = u32::MAX;

/// A run of records of one stream, in one buffer.
#[derive(Debug)]
pub(crate) struct TailChunk {
    pub(crate) bytes: Bytes,
    /// Sequence of `offsets[0]`.
    pub(crate) first_seq: u64,
    /// Where the record of each sequence begins.
    pub(crate) offsets: Vec<u32>,
    /// The stream's last time with this chunk.
    pub(crate) last_time: i64,
    /// The first journal frame that holds a part of it.
    pub(crate) first_frame: u64,
}

impl TailChunk {
    /// A chunk over whole records, whose offsets are found by walking them.
    pub(crate) fn scan(bytes: Bytes, first_frame: u64) -> Self {
        let (mut first_seq, mut last_time, mut offsets, mut at) = (0, 0, Vec::new(), 0);
        while let Some(r) = Record::parse(&bytes[at..]) {
            if matches!(r.kind, Kind::Message | Kind::Skip) {
                if offsets.is_empty() {
                    first_seq = r.seq();
                }
                last_time = r.time();
                let index = (r.seq() - first_seq) as usize;
                offsets.resize(index, NO_RECORD);
                offsets.push(if r.kind == Kind::Message {
                    at as u32
                } else {
                    NO_RECORD
                });
            }
            at += r.len();
            if at >= bytes.len() {
                break;
            }
        }
        Self {
            bytes,
            first_seq,
            offsets,
            last_time,
            first_frame,
        }
    }

    pub(crate) fn end_seq(&self) -> u64 {
        self.first_seq + self.offsets.len() as u64
    }

    /// The bytes of the message with this sequence.
    pub(crate) fn get(&self, seq: u64) -> Option<Bytes> {
        let at = *self
            .offsets
            .get(usize::try_from(seq.checked_sub(self.first_seq)?).ok()?)?;
        let record = Record::parse(self.bytes.get(at as usize..)?)?;
        Some(self.bytes.slice(at as usize..at as usize + record.len()))
    }
}

/// The chunks of one stream, in order of sequences.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    chunks: VecDeque<Arc<TailChunk>>,
}

impl Tail {
    pub(crate) fn push(&mut self, chunk: Arc<TailChunk>) {
        self.chunks.push_back(chunk);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<TailChunk>> {
        self.chunks.iter()
    }

    /// The chunk that would hold `seq`.
    pub(crate) fn find(&self, seq: u64) -> Option<&Arc<TailChunk>> {
        let i = self.chunks.partition_point(|c| c.end_seq() <= seq);
        self.chunks.get(i).filter(|c| c.first_seq <= seq)
    }

    /// Lets go of chunks that begin in frames up to `frame`.
    pub(crate) fn drop_through(&mut self, frame: u64) {
        while self.chunks.front().is_some_and(|c| c.first_frame <= frame) {
            self.chunks.pop_front();
        }
    }

    /// Lets go of the chunks for which `dead` says so, wherever they stand.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Arc<TailChunk>) -> bool) {
        self.chunks.retain(keep);
    }

    /// Replaces one chunk by another over the same sequences.
    pub(crate) fn replace(&mut self, old: &Arc<TailChunk>, new: Arc<TailChunk>) {
        if let Some(slot) = self.chunks.iter_mut().find(|c| Arc::ptr_eq(c, old)) {
            *slot = new;
        }
    }

    /// The first sequence in the tail stored at or after `time`, live or not.
    pub(crate) fn first_at(&self, time: i64) -> Option<u64> {
        let newest = |c: &TailChunk| {
            let seq = c.offsets.iter().rposition(|o| *o != NO_RECORD)?;
            Record::parse(&c.bytes[c.offsets[seq] as usize..]).map(|r| r.time())
        };
        let i = self
            .chunks
            .iter()
            .position(|c| newest(c).is_some_and(|t| t >= time))?;
        let chunk = self.chunks.get(i)?;
        let at = chunk.offsets.iter().position(|o| {
            *o != NO_RECORD && Record::parse(&chunk.bytes[*o as usize..]).is_some_and(|r| r.time() >= time)
        })?;
        Some(chunk.first_seq + at as u64)
    }
}
