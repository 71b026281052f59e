//! Reading what is committed.
//!
//! A [`StreamReader`] sees committed state only, whatever is staged, and never blocks on the disk: a message that is not in
//! memory is answered with a [`ReadTicket`], whose [`ReadTicket::read`] may be called on a thread that may wait.

use std::sync::Arc;

use bytes::Bytes;

use super::message::Message;
use super::shared::StreamShared;
use crate::error::ReadError;
use crate::index::{ConsumerRecord, Matcher, StreamIndex, StreamState, SubjectRow};
use crate::options::StreamOptions;
use crate::record::Record;
use crate::segment::{BlockRef, Part, Segments};

/// Where a message is.
#[derive(Debug)]
pub enum Found {
    /// Here it is.
    InMemory(Message),
    /// It must be fetched.
    NeedsDisk(ReadTicket),
    /// There is no live message with the sequence.
    Absent,
}

/// The answer to a question about time.
#[derive(Debug)]
pub enum FoundSeq {
    /// The first live sequence stored at or after the time.
    Seq(u64),
    /// It is in a block on disk.
    NeedsDisk(TimeTicket),
    /// All live messages are older.
    None,
}

/// A read that has to go to the disk.
#[derive(Debug)]
pub struct ReadTicket {
    stream: Arc<StreamShared>,
    segments: Arc<Segments>,
    part: Arc<Part>,
    block: BlockRef,
    seq: u64,
}

/// A question about time that has to go to the disk.
#[derive(Debug)]
pub struct TimeTicket {
    stream: Arc<StreamShared>,
    segments: Arc<Segments>,
    part: Arc<Part>,
    block: BlockRef,
    time: i64,
}

/// A view of one stream's committed state. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StreamReader {
    pub(crate) stream: Arc<StreamShared>,
    pub(crate) segments: Arc<Segments>,
}

impl StreamReader {
    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.stream.name
    }

    /// The number that tells this stream from others that had its name.
    pub fn incarnation(&self) -> u64 {
        self.stream.incarnation
    }

    /// The committed settings.
    pub fn options(&self) -> StreamOptions {
        self.stream.index.read().options.clone()
    }

    /// Whether the stream's deletion is committed.
    pub fn is_deleted(&self) -> bool {
        self.stream.index.read().deleted
    }

    /// Counts and bounds. O(1).
    pub fn state(&self) -> StreamState {
        self.stream.index.read().state()
    }

    /// The message with a sequence.
    pub fn read(&self, seq: u64) -> Found {
        find(&self.stream, &self.segments, seq)
    }

    /// Whether there is a live message with this sequence, and its subject.
    pub fn subject_of(&self, seq: u64) -> Option<Bytes> {
        let index = self.stream.index.read();
        let item = index.get(seq)?;
        Some(Bytes::copy_from_slice(index.subjects.key(item.subject)))
    }

    /// Sequence of the newest message of a subject.
    pub fn last_by_subject(&self, subject: &[u8]) -> Option<u64> {
        let index = self.stream.index.read();
        let id = index.subjects.find(subject)?;
        index.subject_by_id(id).map(|s| s.last)
    }

    /// Sequence of the newest message that matches.
    pub fn last_match(&self, matcher: &mut Matcher) -> Option<u64> {
        let index = self.stream.index.read();
        index.prev_match(matcher.resolve(&index.subjects), index.last_seq)
    }

    /// The first live match at or after `from`.
    pub fn next_match(&self, matcher: &mut Matcher, from: u64) -> Option<u64> {
        let index = self.stream.index.read();
        index.next_match(matcher.resolve(&index.subjects), from)
    }

    /// Up to `max` live matches at or after `from`, in order, appended to `out`: the way to walk a stream, since each call
    /// looks at each span once.
    pub fn next_matches(&self, matcher: &mut Matcher, from: u64, max: usize, out: &mut Vec<u64>) {
        let index = self.stream.index.read();
        let end = out.len() + max;
        if max > 0 {
            index.each_match(matcher.resolve(&index.subjects), from, |seq, _| {
                out.push(seq);
                out.len() < end
            });
        }
    }

    /// How many live matches there are at or after `from`.
    pub fn count(&self, matcher: &mut Matcher, from: u64) -> u64 {
        let index = self.stream.index.read();
        index.count(matcher.resolve(&index.subjects), from)
    }

    /// Calls `f` with each subject that matches and has messages, its count, first and last sequence, in no order, until
    /// it answers false. The stream does not change meanwhile: keep it short.
    pub fn subjects(&self, matcher: &mut Matcher, mut f: impl FnMut(SubjectRow<'_>) -> bool) {
        let index = self.stream.index.read();
        let row = |id: u32| {
            let s = index.subject_by_id(id)?;
            Some(SubjectRow {
                subject: index.subjects.key(id),
                messages: s.count,
                first: s.first,
                last: s.last,
            })
        };
        if matcher.is_all() {
            (0..index.subjects.len()).filter_map(row).all(&mut f);
        } else {
            matcher
                .resolve(&index.subjects)
                .ids()
                .iter()
                .filter_map(|id| row(*id))
                .all(&mut f);
        }
    }

    /// The newest sequence of each subject that matches, at or below `up_to`, in order of sequence. `None` when there are
    /// more than `max`.
    pub fn multi_last(&self, matcher: &mut Matcher, up_to: u64, max: usize) -> Option<Vec<u64>> {
        let index = self.stream.index.read();
        let mut out = Vec::new();
        let ids: Vec<u32> = match matcher.resolve(&index.subjects) {
            crate::index::Matching::All => (0..index.subjects.len()).collect(),
            set => set.ids().to_vec(),
        };
        for id in ids {
            let Some(s) = index.subject_by_id(id).filter(|s| s.first <= up_to) else {
                continue;
            };
            let last = if s.last <= up_to {
                Some(s.last)
            } else {
                index.prev_match(&crate::index::Matching::One(id), up_to)
            };
            out.extend(last);
            if out.len() > max {
                return None;
            }
        }
        out.sort_unstable();
        Some(out)
    }

    /// The first live message stored at or after `time`.
    pub fn first_at(&self, time: i64) -> FoundSeq {
        first_at(&self.stream, &self.segments, time)
    }

    /// Deleted sequences between first and last, as ranges in order, until `f` answers false.
    pub fn deleted(&self, mut f: impl FnMut(crate::record::SeqRange) -> bool) {
        let index = self.stream.index.read();
        let mut expected = index.first_seq;
        let mut go = true;
        index.each_match(&crate::index::Matching::All, index.first_seq, |seq, _| {
            if seq > expected {
                go = f(crate::record::SeqRange {
                    first: expected,
                    last: seq - 1,
                });
            }
            expected = seq + 1;
            go
        });
        if go && expected <= index.last_seq {
            f(crate::record::SeqRange {
                first: expected,
                last: index.last_seq,
            });
        }
    }

    /// Names of all consumers.
    pub fn consumers(&self) -> Vec<String> {
        self.stream.index.read().consumers.keys().cloned().collect()
    }

    /// A consumer's committed configuration and position.
    pub fn consumer(&self, name: &str) -> Option<ConsumerRecord> {
        self.stream.index.read().consumers.get(name).cloned()
    }

    /// Bytes of memory that the stream's message index takes.
    pub fn index_memory(&self) -> usize {
        self.stream.index.read().memory()
    }
}

fn place(index: &StreamIndex, seq: u64) -> Option<(Arc<Part>, BlockRef)> {
    let part = index.parts.range(..=seq).next_back()?.1;
    Some((part.clone(), part.block(seq)?))
}

fn find(stream: &Arc<StreamShared>, segments: &Arc<Segments>, seq: u64) -> Found {
    let index = stream.index.read();
    if index.get(seq).is_none() {
        return Found::Absent;
    }
    if let Some(message) = index
        .tail
        .find(seq)
        .and_then(|c| c.get(seq))
        .and_then(Message::new)
    {
        return Found::InMemory(message);
    }
    let Some((part, block)) = place(&index, seq) else {
        return Found::Absent;
    };
    drop(index);
    if let Some(message) = segments
        .cached(part.segment.id, block)
        .and_then(|b| b.get(stream.incarnation, seq))
        .and_then(Message::new)
    {
        return Found::InMemory(message);
    }
    Found::NeedsDisk(ReadTicket {
        stream: stream.clone(),
        segments: segments.clone(),
        part,
        block,
        seq,
    })
}

fn first_at(stream: &Arc<StreamShared>, segments: &Arc<Segments>, time: i64) -> FoundSeq {
    let index = stream.index.read();
    let live = |seq| index.next_live(seq).map_or(FoundSeq::None, FoundSeq::Seq);
    // Times never decrease, so the last part that begins before `time` holds the place, or the one after it does.
    let part = index
        .parts
        .values()
        .rev()
        .find(|p| p.blocks.first().is_some_and(|b| b.first_time < time));
    let ticket = part.and_then(|part| {
        let block = part.block_at_time(time)?;
        let part = part.clone();
        Some(TimeTicket {
            stream: stream.clone(),
            segments: segments.clone(),
            part,
            block,
            time,
        })
    });
    match ticket {
        Some(ticket) => FoundSeq::NeedsDisk(ticket),
        None => match index.parts.values().next() {
            Some(first) => live(first.first_seq),
            None => index.tail.first_at(time).map_or(FoundSeq::None, live),
        },
    }
}

impl ReadTicket {
    /// The sequence asked for.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Fetches the message. Waits for the disk. `None` when the message was removed meanwhile.
    ///
    /// # Errors
    /// What the medium reports, or that the record is damaged.
    pub fn read(self) -> Result<Option<Message>, ReadError> {
        let Self {
            stream,
            segments,
            mut part,
            mut block,
            seq,
        } = self;
        loop {
            let loaded = segments.load(part.segment.id, block);
            let message = match &loaded {
                Ok(b) => b.get(stream.incarnation, seq).and_then(Message::new),
                Err(_) => None,
            };
            if let Some(message) = message {
                let mut index = stream.index.write();
                if index.first_seq == seq {
                    index.first_time = Some((seq, message.time()));
                }
                return Ok(index.get(seq).map(|_| message));
            }
            // Before this is called damage the index is asked again: the message may be gone or have moved.
            match find(&stream, &segments, seq) {
                Found::Absent => return Ok(None),
                Found::InMemory(message) => return Ok(Some(message)),
                Found::NeedsDisk(again) if !Arc::ptr_eq(&again.part, &part) => {
                    part = again.part.clone();
                    block = again.block;
                }
                Found::NeedsDisk(_) => {
                    return Err(loaded.err().map_or(ReadError::Damaged { seq }, ReadError::Io));
                }
            }
        }
    }
}

impl TimeTicket {
    /// Finds the sequence. Waits for the disk. `None` when all live messages are older.
    ///
    /// # Errors
    /// What the medium reports.
    pub fn read(self) -> Result<Option<u64>, ReadError> {
        let block = self.segments.load(self.part.segment.id, self.block)?;
        let mut found = None;
        block.each(self.stream.incarnation, |_, r: Record<'_>| {
            found = (r.time() >= self.time).then(|| r.seq());
            found.is_none()
        });
        let index = self.stream.index.read();
        let start = found.or_else(|| {
            // The place is at the start of the next block or part, or in the tail.
            let next_block = self
                .part
                .blocks
                .iter()
                .find(|b| b.first_seq > self.block.first_seq);
            let next_part = index.parts.range(self.part.last_seq + 1..).next();
            next_block
                .map(|b| b.first_seq)
                .or(next_part.map(|p| *p.0))
                .or_else(|| index.tail.first_at(self.time))
        });
        Ok(start.and_then(|seq| index.next_live(seq)))
    }
}
