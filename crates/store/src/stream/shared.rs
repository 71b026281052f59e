//! What a stream's owner, its readers, the pump and the materialiser share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::index::{StreamIndex, TailChunk};
use crate::options::Storage;
use crate::record::Record;

/// One stream of an open store.
pub(crate) struct StreamShared {
    pub(crate) incarnation: u64,
    pub(crate) name: String,
    pub(crate) storage: Storage,
    pub(crate) index: RwLock<StreamIndex>,
    pub(crate) queue: Mutex<Queue>,
    /// Bytes submitted and not through the journal.
    pub(crate) staged: AtomicU64,
    /// Counts sequences committed.
    pub(crate) records: metrics::Counter,
}

impl std::fmt::Debug for StreamShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamShared")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// Chunks on their way from the owner through the journal and back.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Waiting for the journal.
    pub(crate) submitted: VecDeque<Chunk>,
    /// Through the journal; to be applied by the owner.
    pub(crate) done: VecDeque<DoneChunk>,
    /// Whether the pump knows that something is submitted.
    pub(crate) listed: bool,
    /// Chunks written and not synced that must be synced before they count.
    pub(crate) strict_in_flight: usize,
    pub(crate) waker: Option<Waker>,
    /// Whether a `StreamWriter` exists. Without one the materialiser applies what is done.
    pub(crate) owned: bool,
}

/// A run of whole records of one stream, and the unit of commit: it counts whole or not at all.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Bytes,
    pub(crate) last_op: u64,
    pub(crate) first_seq: u64,
    pub(crate) offsets: Vec<u32>,
    /// The stream's last time with this chunk.
    pub(crate) last_time: i64,
    /// Whether it must be synced to count, whatever the stream's durability.
    pub(crate) strict: bool,
}

/// A chunk that went through the journal.
#[derive(Debug)]
pub(crate) struct DoneChunk {
    pub(crate) chunk: Chunk,
    pub(crate) first_frame: u64,
    /// Keeps the journal files that hold it from being emptied before it is applied.
    pub(crate) tokens: Vec<Arc<()>>,
}

/// What [`StreamShared::apply_done`] did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppliedChunks {
    /// The newest operation in the index.
    pub(crate) op: u64,
    /// The newest operation that may be answered.
    pub(crate) answerable: u64,
    /// Bytes taken into the tail.
    pub(crate) bytes: u64,
    /// Whether there is something new to overwrite.
    pub(crate) erases: bool,
}

impl StreamShared {
    /// Applies all chunks that are done.
    pub(crate) fn apply_done(&self, ids_max: usize, now_ns: i64) -> AppliedChunks {
        let done = std::mem::take(&mut self.queue.lock().done);
        if done.is_empty() {
            let index = self.index.read();
            return AppliedChunks {
                op: index.applied_op,
                answerable: index.answerable(),
                bytes: 0,
                erases: false,
            };
        }
        let mut index = self.index.write();
        let (mut bytes, mut erases) = (0, false);
        let mut tokens = Vec::new();
        let before = index.last_seq;
        for d in done {
            let (mut at, erasing) = (0, index.erasing.len());
            while let Some(r) = d.chunk.bytes.get(at..).and_then(Record::parse) {
                index.apply(&r, ids_max);
                at += r.len();
            }
            index.applied_op = d.chunk.last_op;
            for e in &mut index.erasing[erasing..] {
                e.op = d.chunk.last_op;
                erases = true;
            }
            if !d.chunk.offsets.is_empty() {
                bytes += d.chunk.bytes.len() as u64;
                index.tail.push(Arc::new(TailChunk {
                    bytes: d.chunk.bytes,
                    first_seq: d.chunk.first_seq,
                    offsets: d.chunk.offsets,
                    last_time: d.chunk.last_time,
                    first_frame: d.first_frame,
                }));
            }
            tokens.extend(d.tokens);
        }
        self.records.increment(index.last_seq - before);
        let window = i64::try_from(index.options.dedup_window.as_nanos()).unwrap_or(i64::MAX);
        index.ids.expire(now_ns.saturating_sub(window));
        let out = AppliedChunks {
            op: index.applied_op,
            answerable: index.answerable(),
            bytes,
            erases,
        };
        // Only now may the materialiser take these chunks from the tail.
        drop(index);
        drop(tokens);
        out
    }

    pub(crate) fn wake(&self) {
        let waker = self.queue.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
