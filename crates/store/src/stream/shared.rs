//! What a stream's owner, its readers, the pump and the materialiser share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::index::{Purging, StreamIndex, TailChunk};
use crate::options::Storage;
use crate::record::Record;
use crate::store::meters::{StreamMeters, Told};

/// One stream of an open store.
pub(crate) struct StreamShared {
    pub(crate) incarnation: u64,
    pub(crate) name: String,
    pub(crate) storage: Storage,
    pub(crate) index: RwLock<StreamIndex>,
    pub(crate) queue: Mutex<Queue>,
    /// The purge that is being prepared; locked by who applies, before the index.
    pub(crate) purging: Mutex<Option<Purging>>,
    /// Bytes submitted and not through the journal.
    pub(crate) staged: AtomicU64,
    pub(crate) meters: StreamMeters,
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
    /// Whether a purge with a filter is in it.
    pub(crate) purges: bool,
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
    /// Whether a purge needs more turns before what is done can be applied further.
    pub(crate) more: bool,
}

impl StreamShared {
    /// Applies what is done, up to a purge that needs more turns of `turn` messages.
    pub(crate) fn apply_done(&self, ids_max: usize, turn: usize, now_ns: i64) -> AppliedChunks {
        let mut purging = self.purging.lock();
        let mut done = std::mem::take(&mut self.queue.lock().done);
        let (mut bytes, mut erases) = (0, false);
        while let Some(first) = done.front() {
            if first.chunk.purges && !self.prepare(&mut purging, &first.chunk, turn) {
                break;
            }
            let rest = done.iter().skip(1).take_while(|d| !d.chunk.purges);
            let n = 1 + rest.count();
            let mut tokens = Vec::new();
            let mut index = self.index.write();
            let (before, told) = (index.last_seq, Told::of(&index));
            index.prepared = purging.take().map_or_else(Vec::new, Purging::into_prepared);
            for d in done.drain(..n) {
                let (applied, erasing) = apply_chunk(&mut index, d.chunk, d.first_frame, ids_max);
                bytes += applied;
                erases |= erasing;
                tokens.extend(d.tokens);
            }
            index.prepared = Vec::new();
            self.meters.records.increment(index.last_seq - before);
            let now = Told::of(&index);
            if index.deleted {
                self.meters.gone();
            } else if now != told {
                self.meters.tell(now);
            }
            let window = i64::try_from(index.options.dedup_window.as_nanos()).unwrap_or(i64::MAX);
            index.ids.expire(now_ns.saturating_sub(window));
            // Only now may the materialiser take these chunks from the tail.
            drop(index);
            drop(tokens);
        }
        let more = !done.is_empty();
        if more {
            let mut queue = self.queue.lock();
            done.append(&mut queue.done);
            queue.done = done;
        }
        drop(purging);
        let index = self.index.read();
        AppliedChunks {
            op: index.applied_op,
            answerable: index.answerable(),
            bytes,
            erases,
            more,
        }
    }

    /// One turn of preparing the purges of a chunk. True when they are ready.
    fn prepare(&self, purging: &mut Option<Purging>, chunk: &Chunk, turn: usize) -> bool {
        let index = self.index.read();
        let known = purging.take().filter(|p| p.op == chunk.last_op);
        let mut of = known.unwrap_or_else(|| Purging::new(&index, chunk.last_op, &chunk.bytes));
        let ready = of.turn(&index, turn);
        *purging = Some(of);
        ready
    }

    pub(crate) fn wake(&self) {
        let waker = self.queue.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Applies a chunk; answers the bytes it adds to the tail, and whether there is something new to overwrite.
fn apply_chunk(index: &mut StreamIndex, chunk: Chunk, first_frame: u64, ids_max: usize) -> (u64, bool) {
    let (mut at, erasing) = (0, index.erasing.len());
    while let Some(r) = chunk.bytes.get(at..).and_then(Record::parse) {
        index.apply(&r, ids_max);
        at += r.len();
    }
    index.applied_op = chunk.last_op;
    let erases = index.erasing.len() > erasing;
    for e in &mut index.erasing[erasing..] {
        e.op = chunk.last_op;
    }
    if chunk.offsets.is_empty() {
        return (0, erases);
    }
    let bytes = chunk.bytes.len() as u64;
    index.tail.push(Arc::new(TailChunk {
        bytes: chunk.bytes,
        first_seq: chunk.first_seq,
        offsets: chunk.offsets,
        last_time: chunk.last_time,
        first_frame,
    }));
    (bytes, erases)
}
