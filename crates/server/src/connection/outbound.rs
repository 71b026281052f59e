//! The bounded outbound buffer of one connection.
//!
//! Producers append under a short lock and, at the end of their turn, flush: whoever flushes first becomes the writer,
//! takes what is there, writes it without the lock, and goes on until nothing is left. A plain TCP socket is written by
//! the producer's own thread, which saves a wake-up per batch; when the socket is full a drain task takes over until it
//! is empty again. Other transports (TLS, WebSocket) have a writer task of their own that is only notified here.
//!
//! Bound: `max_pending` bytes, counted until they are written. What would exceed it closes the connection as a slow
//! consumer. The lock is never held across I/O.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::buffers;
use crate::server::Memory;

/// Payloads of at least this size are queued as shared bytes instead of being copied into every receiver's buffer.
const SHARE_BYTES_MIN: usize = 32 << 10;
/// Slices of one vectored write.
const SLICES_MAX: usize = 64;

/// What carries the bytes away.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// A plain socket, written by whoever flushes. It belongs to the connection's task, so that it closes with it
    /// although the server remembers closed connections for monitoring.
    Socket(Weak<TcpStream>),
    /// A writer task, notified by whoever flushes.
    Task(Notify),
    /// Nothing: in-process connections receive through mailboxes.
    None,
}

#[derive(Debug)]
enum Segment {
    Owned(Vec<u8>),
    Shared(Bytes),
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Segment::Owned(bytes) => bytes,
            Segment::Shared(bytes) => bytes,
        }
    }
}

/// Bytes on their way out, in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that are written already.
    head: usize,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Slices of what is left, at most [`SLICES_MAX`].
    pub(crate) fn slices(&self) -> smallvec::SmallVec<[IoSlice<'_>; 8]> {
        let mut skip = self.head;
        self.segments
            .iter()
            .take(SLICES_MAX)
            .map(|segment| {
                let slice = IoSlice::new(&segment.bytes()[skip..]);
                skip = 0;
                slice
            })
            .collect()
    }

    /// What is left of the first segment; `None` when nothing is left.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        self.segments.front().map(|segment| &segment.bytes()[self.head..])
    }

    /// All that is left, in one piece.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut skip = self.head;
        let mut all = Vec::new();
        for segment in &self.segments {
            all.extend_from_slice(&segment.bytes()[skip..]);
            skip = 0;
        }
        all
    }

    /// Drops `written` bytes from the front.
    pub(crate) fn advance(&mut self, mut written: usize) {
        while let Some(first) = self.segments.front() {
            let left = first.bytes().len() - self.head;
            if written < left {
                self.head += written;
                return;
            }
            written -= left;
            self.head = 0;
            if let Some(Segment::Owned(buffer)) = self.segments.pop_front() {
                buffers::give_write(buffer);
            }
        }
    }
}

/// State under the lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Older bytes than `tail`.
    queued: Batch,
    /// Where producers append.
    tail: Vec<u8>,
    /// Bytes not written yet, in all places.
    pub(crate) pending: usize,
    /// Of these, what the server's memory count knows.
    counted: usize,
    /// Somebody writes right now.
    writing: bool,
    /// A drain task waits for the socket.
    draining: bool,
    /// Some producer's turn will flush.
    promised: bool,
    /// Nothing is accepted any more.
    closed: bool,
    /// Messages put here since the start.
    pub(crate) msgs: u64,
    /// Their bytes of headers and payload.
    pub(crate) bytes: u64,
}

impl State {
    /// Whether nothing is accepted any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Appends through `write`, which gets the buffer to append to, and counts the bytes.
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.tail.capacity() == 0 {
            self.tail = buffers::take_write();
        }
        let before = self.tail.len();
        write(&mut self.tail);
        self.pending += self.tail.len() - before;
    }

    /// Whether a payload of this size is better shared than copied.
    pub(crate) fn shares(len: usize) -> bool {
        len >= SHARE_BYTES_MIN
    }

    /// Appends bytes that are shared with other receivers.
    pub(crate) fn append_shared(&mut self, bytes: Bytes) {
        self.seal_tail();
        self.pending += bytes.len();
        self.queued.segments.push_back(Segment::Shared(bytes));
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.queued.segments.push_back(Segment::Owned(tail));
        }
    }

    /// Marks that a flush follows. False when somebody has promised one already.
    pub(crate) fn promise_flush(&mut self) -> bool {
        !std::mem::replace(&mut self.promised, true)
    }

    /// Brings the server's memory count up to date; false when this connection's growth is over the budget.
    fn count(&mut self, memory: &Memory) -> bool {
        let within = memory.changed(self.counted, self.pending);
        self.counted = self.pending;
        within
    }

    /// Frees what waits.
    fn discard(&mut self, memory: &Memory) {
        self.tail = Vec::new();
        self.queued = Batch::default();
        self.pending = 0;
        self.count(memory);
    }

    fn take_all(&mut self) -> Batch {
        self.seal_tail();
        std::mem::take(&mut self.queued)
    }

    fn put_back(&mut self, mut batch: Batch) {
        debug_assert_eq!(
            self.queued.head, 0,
            "only the front of a batch is ever half written"
        );
        batch.segments.append(&mut self.queued.segments);
        self.queued = batch;
    }
}

/// What a flush came to.
#[derive(Debug)]
pub(crate) enum Flushed {
    /// Nothing is left, or somebody else is on it.
    Done,
    /// The socket is full: a drain task must be started.
    Blocked,
    /// The socket is gone.
    Failed,
    /// More waits for the server's clients than its memory budget allows, and this one grew.
    OverBudget,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Outbound {
    state: Mutex<State>,
    carrier: Carrier,
}

impl Outbound {
    /// An empty buffer in front of `carrier`.
    pub(crate) fn new(carrier: Carrier) -> Self {
        Self {
            state: Mutex::default(),
            carrier,
        }
    }

    /// Locks the buffer for appending.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Bytes not written yet.
    pub(crate) fn pending(&self) -> usize {
        self.state.lock().pending
    }

    /// Messages and bytes put here since the start.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.msgs, state.bytes)
    }

    /// Refuses everything from now on; what is pending stays for a last flush unless `discard`.
    pub(crate) fn close(&self, discard: bool, memory: &Memory) {
        let mut state = self.state.lock();
        state.closed = true;
        if discard {
            state.discard(memory);
        }
    }

    /// Writes what is pending as far as the socket takes it, or wakes the writer task.
    pub(crate) fn flush(&self, memory: &Memory) -> Flushed {
        match &self.carrier {
            Carrier::Socket(socket) => self.write_to(socket, false, memory),
            Carrier::Task(notify) => {
                let mut state = self.state.lock();
                state.promised = false;
                if state.pending > 0 {
                    notify.notify_one();
                }
                if state.count(memory) {
                    Flushed::Done
                } else {
                    Flushed::OverBudget
                }
            }
            Carrier::None => Flushed::Done,
        }
    }

    /// The drain task's flush: goes on where a producer's flush was blocked.
    pub(crate) fn drain(&self, memory: &Memory) -> Flushed {
        match &self.carrier {
            Carrier::Socket(socket) => self.write_to(socket, true, memory),
            Carrier::Task(_) | Carrier::None => Flushed::Done,
        }
    }

    /// The socket of a plain connection, while its task lives.
    pub(crate) fn socket(&self) -> Option<Arc<TcpStream>> {
        match &self.carrier {
            Carrier::Socket(socket) => socket.upgrade(),
            Carrier::Task(_) | Carrier::None => None,
        }
    }

    /// Waits until there is something to write, for the writer task of a [`Carrier::Task`].
    pub(crate) async fn wait(&self) {
        if let Carrier::Task(notify) = &self.carrier {
            notify.notified().await;
        }
    }

    /// Wakes the writer task even when nothing is pending, so that it sees the close.
    pub(crate) fn wake_writer(&self) {
        if let Carrier::Task(notify) = &self.carrier {
            notify.notify_one();
        }
    }

    /// Takes everything for the writer task, which reports by [`Outbound::wrote`].
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        let batch = state.take_all();
        (!batch.is_empty()).then_some(batch)
    }

    /// Counts bytes that the writer task has written.
    pub(crate) fn wrote(&self, bytes: usize, memory: &Memory) {
        let mut state = self.state.lock();
        state.pending = state.pending.saturating_sub(bytes);
        state.count(memory);
    }

    fn write_to(&self, socket: &Weak<TcpStream>, drainer: bool, memory: &Memory) -> Flushed {
        let Some(socket) = socket.upgrade() else {
            self.close(true, memory);
            return Flushed::Failed;
        };
        loop {
            let work = {
                let mut state = self.state.lock();
                state.promised = false;
                if state.writing {
                    return Flushed::Done;
                }
                if state.draining && !drainer {
                    return if state.count(memory) {
                        Flushed::Done
                    } else {
                        Flushed::OverBudget
                    };
                }
                if state.pending == 0 {
                    state.draining = false;
                    state.count(memory);
                    return Flushed::Done;
                }
                state.writing = true;
                if state.queued.is_empty() {
                    Work::One(std::mem::take(&mut state.tail))
                } else {
                    Work::Many(state.take_all())
                }
            };
            let (written, rest, outcome) = work.write(&socket);
            let mut state = self.state.lock();
            state.writing = false;
            state.pending = state.pending.saturating_sub(written);
            match outcome {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.put_back(rest);
                    if !state.count(memory) {
                        return Flushed::OverBudget;
                    }
                    if drainer || !std::mem::replace(&mut state.draining, true) {
                        return Flushed::Blocked;
                    }
                    return Flushed::Done;
                }
                Err(_) => {
                    state.closed = true;
                    state.discard(memory);
                    return Flushed::Failed;
                }
            }
        }
    }
}

/// Bytes taken out of the buffer by a writer.
enum Work {
    /// The common case: one contiguous buffer.
    One(Vec<u8>),
    /// Several segments.
    Many(Batch),
}

impl Work {
    /// Writes until done or refused: bytes written, what is left, and how it ended.
    fn write(self, socket: &TcpStream) -> (usize, Batch, io::Result<()>) {
        match self {
            Work::One(buffer) => {
                let mut at = 0;
                while at < buffer.len() {
                    match socket.try_write(&buffer[at..]) {
                        Ok(written) => at += written,
                        Err(error) => {
                            let rest = Batch {
                                segments: [Segment::Owned(buffer)].into(),
                                head: at,
                            };
                            return (at, rest, Err(error));
                        }
                    }
                }
                buffers::give_write(buffer);
                (at, Batch::default(), Ok(()))
            }
            Work::Many(mut batch) => {
                let mut total = 0;
                while !batch.is_empty() {
                    let written = socket.try_write_vectored(&batch.slices());
                    match written {
                        Ok(written) => {
                            total += written;
                            batch.advance(written);
                        }
                        Err(error) => return (total, batch, Err(error)),
                    }
                }
                (total, batch, Ok(()))
            }
        }
    }
}
