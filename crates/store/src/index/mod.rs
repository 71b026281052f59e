//! The committed state of one stream: what is live and where it is.
//!
//! A [`StreamIndex`] changes in one way only: by applying durable records, in order ([`StreamIndex::apply`]); recovery and
//! commit run the same code. It is derived from the log and never evidence against it.
//!
//! | question | answered by | cost |
//! |---|---|---|
//! | is `seq` live, its subject and size | its span | O(log spans) |
//! | first and last live sequence, counts, bytes | fields, always current | O(1) |
//! | subject's count, first, last | subject table | O(1), a scan of spans after a delete of just that message |
//! | next match of filters from `seq` | dictionary of each span, then one column | O(spans), 50 ns each |
//! | count of matches from `seq` | live counts in the dictionaries | O(spans x subjects in them) |
//! | first at or after a time | block index of segments, tail | O(log blocks) and one block |
//! | where the bytes are | tail, else block index | O(log) |
//!
//! Nothing here reads the disk. The lock around it is held for short sections and never across I/O.

mod adding;
mod apply;
mod columns;
mod dedup;
mod matcher;
mod purge;
mod query;
mod span;
mod subjects;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use adding::Adding;
pub(crate) use apply::wire_size;
pub(crate) use dedup::{Id, Ids};
pub use matcher::Matcher;
pub(crate) use matcher::{Matching, filter_matches};
pub(crate) use purge::{Prepared, Purging};
pub use query::SubjectRow;
#[cfg(test)]
pub(crate) use query::SubjectState;
pub(crate) use span::{Item, SPAN, Span};
pub(crate) use subjects::SubjectTable;
pub(crate) use tail::{NO_RECORD, Tail, TailChunk};

use crate::consumer::ConsumerState;
use crate::options::StreamOptions;
use crate::record::SeqRange;
use crate::segment::Part;

/// What is counted about a stream, always current.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamState {
    /// The lowest live sequence; one above `last_seq` when there is none.
    pub first_seq: u64,
    /// The highest sequence ever given out, 0 for none.
    pub last_seq: u64,
    /// Stored time of the last sequence, nanoseconds since the Unix epoch; kept when its message goes.
    pub last_time: i64,
    /// Stored time of the first live message when it is known without the disk; otherwise read that message.
    pub first_time: Option<i64>,
    /// Live messages.
    pub messages: u64,
    /// Their sizes by the wire's formula.
    pub bytes: u64,
    /// Subjects with a live message.
    pub subjects: u64,
    /// Sequences between first and last that have no live message.
    pub deleted: u64,
    /// Messages lost to damage.
    pub lost: u64,
    /// Consumers.
    pub consumers: u64,
    /// Dedup ids dropped before their window ended, because there were too many.
    pub ids_forgotten: u64,
}

/// One consumer as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumerRecord {
    /// The caller's configuration.
    pub config: Bytes,
    /// The position.
    pub state: ConsumerState,
}

/// The committed state of one stream.
#[derive(Debug)]
pub(crate) struct StreamIndex {
    pub(crate) incarnation: u64,
    pub(crate) options: StreamOptions,
    /// Whether its creation is committed.
    pub(crate) created: bool,
    pub(crate) deleted: bool,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) last_time: i64,
    pub(crate) first_time: Option<(u64, i64)>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Sequences lost to damage, by the first of each range.
    pub(crate) lost: BTreeMap<u64, u64>,
    pub(crate) ceiling: u64,
    pub(crate) subjects: SubjectTable,
    pub(crate) spans: BTreeMap<u64, Span>,
    /// Spans that were begun.
    births: u32,
    pub(crate) tail: Tail,
    pub(crate) parts: BTreeMap<u64, Arc<Part>>,
    pub(crate) ids: Ids,
    pub(crate) consumers: BTreeMap<String, ConsumerRecord>,
    /// Number of the newest operation in it, counted by the stream's writer.
    pub(crate) applied_op: u64,
    /// Everything up to here is in segments or gone.
    pub(crate) settled: Settled,
    /// Like `settled.seq`, for what the materialiser is about to settle.
    pub(crate) settling: u64,
    /// Messages whose bytes are still to be overwritten.
    pub(crate) erasing: Vec<Erasing>,
    /// What purges in the chunk that is being applied will remove.
    pub(crate) prepared: Vec<Prepared>,
    /// What the manifest does not say yet.
    pub(crate) dirty: Dirty,
}

/// A position in a stream's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Settled {
    pub(crate) seq: u64,
    pub(crate) time: i64,
}

/// Messages whose bytes are to be overwritten, and the operation that waits for it; 0 when none does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Erasing {
    pub(crate) range: SeqRange,
    pub(crate) op: u64,
}

/// What changed since the manifest was last written.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) stream: bool,
    /// Settings, ceiling or losses, beside the position.
    pub(crate) settings: bool,
    /// Spans with removals among settled messages.
    pub(crate) spans: BTreeSet<u64>,
    pub(crate) consumers: BTreeSet<String>,
    pub(crate) erasing: bool,
    /// Position up to which dedup ids are in files.
    pub(crate) ids_from_seq: u64,
}

impl StreamIndex {
    pub(crate) fn new(incarnation: u64, options: StreamOptions) -> Self {
        let last_seq = options.first_seq.saturating_sub(1);
        Self {
            incarnation,
            options,
            created: false,
            deleted: false,
            first_seq: last_seq + 1,
            last_seq,
            last_time: 0,
            first_time: None,
            messages: 0,
            bytes: 0,
            lost: BTreeMap::new(),
            ceiling: 0,
            subjects: SubjectTable::default(),
            spans: BTreeMap::new(),
            births: 0,
            tail: Tail::default(),
            parts: BTreeMap::new(),
            ids: Ids::default(),
            consumers: BTreeMap::new(),
            applied_op: 0,
            settled: Settled {
                seq: last_seq,
                time: 0,
            },
            settling: last_seq,
            erasing: Vec::new(),
            prepared: Vec::new(),
            dirty: Dirty {
                stream: true,
                settings: true,
                ..Dirty::default()
            },
        }
    }

    pub(crate) fn state(&self) -> StreamState {
        StreamState {
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            last_time: self.last_time,
            first_time: self.first_time(),
            messages: self.messages,
            bytes: self.bytes,
            subjects: self.subjects.live() as u64,
            deleted: (self.last_seq + 1)
                .saturating_sub(self.first_seq)
                .saturating_sub(self.messages),
            lost: self.lost(),
            consumers: self.consumers.len() as u64,
            ids_forgotten: self.ids.forgotten(),
        }
    }

    /// Messages lost to damage.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// The newest operation that may be answered: those behind one whose bytes are not overwritten yet wait with it.
    pub(crate) fn answerable(&self) -> u64 {
        let waiting = self.erasing.iter().filter(|e| e.op > 0).map(|e| e.op - 1);
        waiting.min().unwrap_or(self.applied_op).min(self.applied_op)
    }

    fn first_time(&self) -> Option<i64> {
        if let Some((seq, time)) = self.first_time
            && seq == self.first_seq
        {
            return Some(time);
        }
        let chunk = self.tail.find(self.first_seq)?;
        let bytes = chunk.get(self.first_seq)?;
        crate::record::Record::parse(&bytes).map(|r| r.time())
    }

    /// Bytes of memory the message index takes, tail and segments' block indexes not counted.
    pub(crate) fn memory(&self) -> usize {
        self.subjects.memory() + self.spans.values().map(|s| s.memory() + 48).sum::<usize>()
    }
}

/// Span number and offset of a sequence.
pub(crate) fn locate(seq: u64) -> (u64, usize) {
    (seq / SPAN as u64, (seq % SPAN as u64) as usize)
}
