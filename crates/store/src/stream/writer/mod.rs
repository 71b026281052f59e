//! The one owner of a stream: stages operations, knows what is staged, commits what became durable.
//!
//! Staging encodes an operation once into the stream's open buffer and enters it in the overlay; nothing is shared with
//! other threads until [`StreamWriter::submit`], which an owner calls at the end of a turn. When the journal has what was
//! submitted, the waker is called once, and [`StreamWriter::commit`] makes it visible to readers and tells up to which
//! operation replies may be sent.
//!
//! A *group* (several appends, all or nothing) lies in one chunk, and a chunk counts whole or not at all.
//!
//! All questions answered here (`last_seq`, `subject`, ...) are about committed plus staged state. A reply that rests on one
//! of them must wait until [`StreamWriter::staged_op`], as of the question, is committed.

mod questions;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use super::op::{Append, Op, Purge, Ticket};
use super::overlay::{Overlay, Staged};
use super::reader::StreamReader;
use super::shared::{Chunk, StreamShared};
use crate::error::{CommitError, StageError};
use crate::fault::Fault;
use crate::index::{NO_RECORD, wire_size};
use crate::options::{Durability, Storage, StreamOptions};
use crate::record::{Effect, Kind, Parts, SeqRange, put_effect};
use crate::store::Core;

/// Distance of the sequence ceiling of weak streams, and when it is renewed.
const CEILING: u64 = 1 << 20;

/// Bytes in the open buffer at which it is submitted by itself.
const OPEN_MAX: usize = 256 << 10;

/// A dedup id that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    /// Sequence of the message that had the id.
    pub seq: u64,
    /// The operation that must be committed before a reply says so; 0 when it is.
    pub op: u64,
}

/// What is known about a subject, staged operations included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Subject {
    /// Live messages.
    pub messages: u64,
    /// The newest live sequence, `None` without messages.
    pub last: Option<u64>,
}

/// The owner of a stream.
#[derive(Debug)]
pub struct StreamWriter {
    shared: Arc<StreamShared>,
    core: Arc<Core>,
    options: StreamOptions,
    open: Vec<u8>,
    open_first_seq: u64,
    offsets: Vec<u32>,
    open_strict: bool,
    open_purges: bool,
    effects: Vec<u8>,
    overlay: Overlay,
    /// Consumers that staged operations make or remove, with the operation's number.
    consumers: HashMap<String, (u64, bool)>,
    /// Numbers of operations: newest staged, submitted, committed.
    op: u64,
    submitted_op: u64,
    committed_op: u64,
    /// The newest operation in the index, which the overlay therefore does not have any more.
    applied_op: u64,
    barrier: u64,
    last_seq: u64,
    last_time: i64,
    ceiling: u64,
    deleted: bool,
    capacity: usize,
}

impl StreamWriter {
    pub(crate) fn new(shared: Arc<StreamShared>, core: Arc<Core>) -> Self {
        let (options, op, last_seq, last_time, ceiling, deleted) = {
            let index = shared.index.read();
            let ceiling = index.ceiling;
            (
                index.options.clone(),
                index.applied_op,
                index.last_seq,
                index.last_time,
                ceiling,
                index.deleted,
            )
        };
        shared.queue.lock().owned = true;
        Self {
            shared,
            core,
            options,
            open: Vec::new(),
            open_first_seq: 0,
            offsets: Vec::new(),
            open_strict: false,
            open_purges: false,
            effects: Vec::new(),
            overlay: Overlay::default(),
            consumers: HashMap::new(),
            op,
            submitted_op: op,
            committed_op: op,
            applied_op: op,
            barrier: 0,
            last_seq,
            last_time,
            ceiling,
            deleted,
            capacity: 1024,
        }
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number that tells this stream from others that had its name.
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }

    /// The settings, a staged update included.
    pub fn options(&self) -> &StreamOptions {
        &self.options
    }

    /// A view of the committed state.
    pub fn reader(&self) -> StreamReader {
        StreamReader {
            stream: self.shared.clone(),
            segments: self.core.segments.clone(),
        }
    }

    /// The creation, which is operation 1, was submitted.
    pub(crate) fn created(&mut self) {
        self.op = 1;
        self.submitted_op = 1;
    }

    /// Who is woken when something became durable, when a refusal may have passed, and when the journal failed.
    pub fn set_waker(&self, waker: Waker) {
        self.shared.queue.lock().waker = Some(waker);
    }

    // Staging.

    /// Stages one operation.
    ///
    /// # Errors
    /// Nothing is staged then; see [`StageError`].
    pub fn stage(&mut self, op: Op<'_>) -> Result<Ticket, StageError> {
        let frees = !matches!(op, Op::Append(_) | Op::Skip { .. } | Op::SkipTo { .. });
        let ticket = match op {
            Op::Append(a) => {
                let len = self.check_append(&a)?;
                self.admit(frees, len)?;
                self.renew_ceiling();
                self.append(&a, 0)
            }
            Op::Skip { id } => {
                self.admit(frees, 0)?;
                self.renew_ceiling();
                let time = self.core.clock.wall_ns().max(self.last_time);
                self.skip(id, self.last_seq + 1, time)
            }
            Op::SkipTo { seq } => {
                if seq <= self.last_seq {
                    return Err(StageError::Invalid);
                }
                self.admit(frees, 0)?;
                self.skip(None, seq, self.last_time)
            }
            Op::Remove(ranges) | Op::Lost(ranges) => {
                self.admit(frees, ranges.len() * 17)?;
                self.effects.clear();
                self.remove_ranges(ranges);
                let kind = if matches!(op, Op::Lost(_)) {
                    Kind::Lost
                } else {
                    Kind::Effects
                };
                self.record(kind, b"", &[])
            }
            Op::Erase(ranges) => {
                self.admit(frees, ranges.len() * 34)?;
                // In a chunk of its own, so that no operation before it waits for the overwriting.
                self.submit();
                self.effects.clear();
                self.remove_ranges(ranges);
                for range in ranges {
                    let last = range.last.min(self.last_seq);
                    put_effect(&mut self.effects, &Effect::Erase(SeqRange { last, ..*range }));
                }
                self.open_strict = true;
                let ticket = self.record(Kind::Effects, b"", &[]);
                self.submit();
                ticket
            }
            Op::Purge(purge) => {
                self.admit(frees, purge.filter.len())?;
                self.effects.clear();
                let below = purge.below.min(self.last_seq + 1);
                put_effect(
                    &mut self.effects,
                    &Effect::Purge {
                        filter: purge.filter,
                        below,
                    },
                );
                self.barrier = self.op + 1;
                self.open_purges |= !purge.filter.is_empty();
                self.record(Kind::Effects, b"", &[])
            }
            Op::Update(options) => {
                self.admit(frees, options.config.len())?;
                let (name, storage, first_seq) = (
                    self.options.name.clone(),
                    self.options.storage,
                    self.options.first_seq,
                );
                self.options = StreamOptions {
                    name,
                    storage,
                    first_seq,
                    ..options.clone()
                };
                let mut payload = Vec::new();
                self.options.encode(&mut payload);
                self.effects.clear();
                self.open_strict = true;
                self.record(Kind::Update, b"", &payload)
            }
            Op::Delete => {
                self.admit(frees, 0)?;
                self.effects.clear();
                self.open_strict = true;
                let ticket = self.record(Kind::Delete, b"", &[]);
                self.deleted = true;
                self.core.unlist(&self.shared);
                ticket
            }
            Op::ConsumerPut { name, config } => {
                self.admit(frees, config.len())?;
                self.effects.clear();
                self.open_strict = true;
                let new = !self.has_consumer(name);
                self.op += 1;
                self.consumers.insert(name.to_owned(), (self.op, true));
                self.encode(
                    Kind::ConsumerPut,
                    0,
                    u64::from(new),
                    self.last_time,
                    name.as_bytes(),
                    b"",
                    config,
                );
                self.numbered()
            }
            Op::ConsumerDelete { name } => {
                self.admit(frees, 0)?;
                self.effects.clear();
                self.open_strict = true;
                self.consumers.insert(name.to_owned(), (self.op + 1, false));
                self.record(Kind::ConsumerDelete, name.as_bytes(), &[])
            }
            Op::ConsumerChange { name, change, remove } => {
                let mut payload = Vec::new();
                change.encode(&mut payload);
                self.admit(frees, payload.len() + remove.len() * 17)?;
                self.effects.clear();
                self.remove_ranges(remove);
                if self.core.options.fault(Fault::ConfirmedAckLost) {
                    return Ok(self.numbered());
                }
                self.record(Kind::ConsumerChange, name.as_bytes(), &payload)
            }
        };
        if self.open.len() >= OPEN_MAX {
            self.submit();
        }
        Ok(ticket)
    }

    /// Stages several appends that are there all or none. Answers one ticket for each, with consecutive sequences.
    ///
    /// # Errors
    /// Nothing is staged then; see [`StageError`].
    pub fn stage_group(&mut self, appends: &[Append<'_>]) -> Result<Vec<Ticket>, StageError> {
        if appends.is_empty() {
            return Err(StageError::Invalid);
        }
        let mut len = 0;
        for a in appends {
            len += self.check_append(a)?;
        }
        let limit = self.core.group_max();
        if len > limit {
            return Err(StageError::TooLong { len, limit });
        }
        self.admit(false, len)?;
        self.renew_ceiling();
        // The group must not share a chunk with more than fits beside it.
        if self.open.len() + len > OPEN_MAX {
            self.submit();
        }
        let n = appends.len();
        let tickets = appends
            .iter()
            .enumerate()
            .map(|(i, a)| self.append(a, (n - 1 - i) as u32))
            .collect();
        if self.open.len() >= OPEN_MAX {
            self.submit();
        }
        Ok(tickets)
    }

    fn check_append(&self, a: &Append<'_>) -> Result<usize, StageError> {
        let len = crate::record::HEADER_LEN
            + a.subject.len()
            + a.headers.len()
            + a.payload.len()
            + a.remove.len() * 17
            + a.purge.map_or(0, |p| p.filter.len() + 13)
            + 17;
        let limit = self.core.options.record_max;
        if len > limit {
            return Err(StageError::TooLong { len, limit });
        }
        if a.subject.is_empty() || a.subject.len() > usize::from(u16::MAX) {
            return Err(StageError::Invalid);
        }
        Ok(len)
    }

    fn admit(&self, frees: bool, len: usize) -> Result<(), StageError> {
        if self.deleted {
            return Err(StageError::Deleted);
        }
        if self.barrier > self.applied_op {
            return Err(StageError::Barrier);
        }
        self.core.admit(&self.shared, frees, self.open.len(), len)
    }

    fn renew_ceiling(&mut self) {
        let weak = self.options.durability != Durability::Sync && self.shared.storage == Storage::File;
        if weak && self.last_seq + CEILING / 2 > self.ceiling {
            // In a chunk of its own, which must be synced before anything behind it counts.
            self.submit();
            self.ceiling = self.last_seq + CEILING;
            self.effects.clear();
            self.open_strict = true;
            let seq = self.ceiling;
            self.encode(Kind::Ceiling, 0, seq, self.last_time, b"", b"", &[]);
            self.op += 1;
            self.submit();
        }
    }

    fn append(&mut self, a: &Append<'_>, remaining: u32) -> Ticket {
        let seq = self.last_seq + 1;
        let time = a
            .time
            .unwrap_or_else(|| self.core.clock.wall_ns())
            .max(self.last_time);
        let op = self.op + 1;
        self.effects.clear();
        if let Some(id) = a.id {
            let hash = self.core.hash(id);
            put_effect(&mut self.effects, &Effect::Dedup(hash));
            self.overlay.add_id(op, hash, seq, time);
        }
        let subject = self.core.hash(a.subject);
        let size = wire_size(
            self.shared.storage,
            a.subject.len(),
            a.headers.len(),
            a.payload.len(),
        );
        self.overlay.add(Staged {
            op,
            seq,
            subject,
            size,
        });
        self.last_seq = seq;
        self.last_time = time;
        self.remove_ranges(a.remove);
        if let Some(Purge { filter, below }) = a.purge {
            put_effect(
                &mut self.effects,
                &Effect::Purge {
                    filter,
                    below: below.min(seq),
                },
            );
            self.barrier = op;
            self.open_purges |= !filter.is_empty();
        }
        self.op = op;
        self.mark_offset(seq, true);
        self.encode(
            Kind::Message,
            remaining,
            seq,
            time,
            a.subject,
            a.headers,
            a.payload,
        );
        Ticket { op, seq, time }
    }

    fn skip(&mut self, id: Option<&[u8]>, seq: u64, time: i64) -> Ticket {
        self.op += 1;
        self.effects.clear();
        if let Some(id) = id {
            let hash = self.core.hash(id);
            put_effect(&mut self.effects, &Effect::Dedup(hash));
            self.overlay.add_id(self.op, hash, seq, time);
        }
        if seq > self.last_seq + 1 {
            // Says that the sequences in between are meant to be missing.
            let range = SeqRange {
                first: self.last_seq + 1,
                last: seq,
            };
            put_effect(&mut self.effects, &Effect::Remove(range));
            self.submit();
        }
        self.mark_offset(seq, false);
        self.last_seq = seq;
        self.last_time = time;
        self.encode(Kind::Skip, 0, seq, time, b"", b"", &[]);
        Ticket {
            op: self.op,
            seq,
            time,
        }
    }

    fn record(&mut self, kind: Kind, subject: &[u8], payload: &[u8]) -> Ticket {
        self.op += 1;
        self.encode(kind, 0, 0, self.last_time, subject, b"", payload);
        self.numbered()
    }

    fn numbered(&self) -> Ticket {
        Ticket {
            op: self.op,
            seq: self.last_seq,
            time: self.last_time,
        }
    }

    fn mark_offset(&mut self, seq: u64, message: bool) {
        if self.offsets.is_empty() {
            self.open_first_seq = seq;
        }
        debug_assert_eq!(self.open_first_seq + self.offsets.len() as u64, seq);
        self.offsets.push(if message {
            self.open.len() as u32
        } else {
            NO_RECORD
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn encode(
        &mut self,
        kind: Kind,
        remaining: u32,
        seq: u64,
        time: i64,
        subject: &[u8],
        headers: &[u8],
        payload: &[u8],
    ) {
        if self.open.capacity() == 0 {
            self.open.reserve(self.capacity);
        }
        let incarnation = self.shared.incarnation;
        Parts {
            kind,
            remaining,
            incarnation,
            seq,
            time,
            subject,
            effects: &self.effects,
            headers,
            payload,
        }
        .encode(&mut self.open);
    }

    /// Enters removals of the next operation in the effects and in the overlay.
    fn remove_ranges(&mut self, ranges: &[SeqRange]) {
        let op = self.op + 1;
        if ranges.is_empty() {
            return;
        }
        let early = self.core.options.fault(Fault::EvictionAtStaging);
        for range in ranges {
            // What has no sequence yet is never removed.
            let range = &SeqRange {
                first: range.first,
                last: range.last.min(self.last_seq),
            };
            put_effect(&mut self.effects, &Effect::Remove(*range));
            if early {
                let mut index = self.shared.index.write();
                (range.first..=range.last).for_each(|seq| {
                    index.remove(seq);
                });
            }
            if range.first == range.last {
                self.overlay_removal(op, range.first);
                continue;
            }
            let mut from = range.first;
            while let Some(seq) = self.next_live(from).filter(|seq| *seq <= range.last) {
                self.overlay_removal(op, seq);
                from = seq + 1;
            }
        }
    }

    fn overlay_removal(&mut self, op: u64, seq: u64) {
        if let Some((subject, size)) = self.staged_item(seq) {
            self.overlay.remove(Staged {
                op,
                seq,
                subject,
                size,
            });
        }
    }

    fn staged_item(&self, seq: u64) -> Option<(u128, u32)> {
        if let Some(staged) = self.overlay.get(seq) {
            return Some((staged.subject, staged.size));
        }
        let index = self.shared.index.read();
        let item = index.get(seq)?;
        Some((self.core.hash(index.subjects.key(item.subject)), item.size))
    }

    /// Hands what was staged to the journal and wakes its writer if that sleeps.
    pub fn submit(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.capacity = self
            .open
            .len()
            .next_power_of_two()
            .clamp(256, OPEN_MAX + (OPEN_MAX >> 3));
        let strict = std::mem::take(&mut self.open_strict) || self.options.durability == Durability::Sync;
        let chunk = Chunk {
            bytes: Bytes::from(std::mem::take(&mut self.open)),
            last_op: self.op,
            first_seq: self.open_first_seq,
            offsets: std::mem::take(&mut self.offsets),
            last_time: self.last_time,
            strict: strict && !self.core.options.fault(Fault::AckBeforeSync),
            purges: std::mem::take(&mut self.open_purges),
        };
        self.submitted_op = self.op;
        self.core.submit(&self.shared, chunk);
    }

    /// Makes visible what became durable, and answers the newest committed operation.
    ///
    /// # Errors
    /// When the journal failed; operations above the last answer have an unknown outcome and the overlay is empty.
    pub fn commit(&mut self) -> Result<u64, CommitError> {
        let applied = self.core.apply(&self.shared);
        self.applied_op = applied.op;
        self.committed_op = applied.answerable;
        self.overlay.committed(applied.op);
        self.consumers.retain(|_, (staged, _)| *staged > applied.op);
        if self.core.has_failed() {
            self.overlay = Overlay::default();
            self.consumers.clear();
            // What follows is refused, not kept waiting for a purge that never comes to an end.
            self.barrier = 0;
            return Err(CommitError);
        }
        Ok(self.committed_op)
    }

    /// The newest operation that readers see; behind [`StreamWriter::committed_op`] while bytes are being overwritten.
    #[cfg(feature = "test-util")]
    pub(crate) fn applied_op(&self) -> u64 {
        self.applied_op
    }

    /// The newest staged operation.
    pub fn staged_op(&self) -> u64 {
        self.op
    }

    /// The newest operation that [`StreamWriter::commit`] answered.
    pub fn committed_op(&self) -> u64 {
        self.committed_op
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.submit();
        let mut queue = self.shared.queue.lock();
        queue.owned = false;
        queue.waker = None;
    }
}
