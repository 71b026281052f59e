//! From streams' queues to the journal and back: frames are gathered, written, synced, answered.
//!
//! Two steps, each one call: [`Pump::write_step`] takes what is submitted, from each stream in turn, and writes one frame;
//! [`Pump::sync_step`] syncs what was written and hands every chunk in it back to its stream. While one batch is synced
//! the next gathers, so batching appears under load by itself.
//!
//! A record longer than a slice is cut into fragments, between which other streams' records go. A chunk whose stream
//! asked for less than a sync is handed back when it is written, unless an earlier chunk of the stream still waits for a
//! sync: what a stream commits is always a prefix of what it staged.
//!
//! After a failed write or sync nothing is known about the journal's end; the store stops writing until it is reopened.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use crate::codec::u32_at;
use crate::journal::{Journal, Written};
use crate::options::Durability;
use crate::record::{HEADER_LEN, Kind, Parts, Record, SeqRange};
use crate::stream::shared::{Chunk, DoneChunk, StreamShared};

/// Bytes taken from one stream before the next has its turn.
const TURN: usize = 64 << 10;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something was done.
    Worked,
    /// There was nothing to do.
    Idle,
    /// Another step must come first: the journal is full, or something is not applied yet.
    Blocked,
}

#[derive(Debug)]
pub(crate) struct Pump {
    pub(crate) journal: Journal,
    backlog: VecDeque<Source>,
    in_flight: Vec<(Arc<StreamShared>, DoneChunk)>,
    /// When the oldest write of an interval stream must be synced.
    pub(crate) sync_due: Option<Duration>,
    unsynced: bool,
    /// Bytes written since the last sync.
    batch: u64,
}

#[derive(Debug)]
struct Source {
    stream: Arc<StreamShared>,
    active: Option<Active>,
}

/// A chunk on its way into frames.
#[derive(Debug)]
struct Active {
    chunk: Chunk,
    at: usize,
    /// Bytes of the record at `at` that went out in fragments.
    cut: usize,
    first_frame: u64,
    tokens: Vec<Arc<()>>,
}

impl Source {
    /// Takes the next submitted chunk if none is active. False when there is none, and the stream is then unlisted.
    fn activate(&mut self) -> bool {
        if self.active.is_none() {
            let mut queue = self.stream.queue.lock();
            match queue.submitted.pop_front() {
                Some(chunk) => {
                    self.active = Some(Active {
                        chunk,
                        at: 0,
                        cut: 0,
                        first_frame: 0,
                        tokens: Vec::new(),
                    });
                }
                None => {
                    queue.listed = false;
                    return false;
                }
            }
        }
        true
    }
}

impl Active {
    /// Bytes that the next piece needs in a frame.
    fn need(&self, fragment: usize) -> usize {
        let len = u32_at(&self.chunk.bytes, self.at) as usize;
        if len > fragment {
            HEADER_LEN + fragment.min(len - self.cut)
        } else {
            len
        }
    }

    /// Copies whole records, or one fragment, into the frame, as far as `space` goes. Answers how many records.
    fn fill(&mut self, frame: &mut Vec<u8>, space: usize, fragment: usize, to: &Written) -> u32 {
        let bytes = &self.chunk.bytes;
        let mut count = 0;
        let run = self.at;
        let mut free = space;
        while self.at < bytes.len() {
            let len = u32_at(bytes, self.at) as usize;
            if len > fragment || len > free {
                break;
            }
            self.at += len;
            free -= len;
            count += 1;
        }
        if count > 0 {
            frame.extend_from_slice(&bytes[run..self.at]);
        } else if u32_at(bytes, self.at) as usize > fragment && self.need(fragment) <= space {
            self.cut(frame, fragment);
            count = 1;
        }
        if count > 0 {
            if self.first_frame == 0 {
                self.first_frame = to.number;
            }
            if self.tokens.last().is_none_or(|t| !Arc::ptr_eq(t, &to.token)) {
                self.tokens.push(to.token.clone());
            }
        }
        count
    }

    fn cut(&mut self, frame: &mut Vec<u8>, fragment: usize) {
        let bytes = &self.chunk.bytes;
        let len = u32_at(bytes, self.at) as usize;
        let n = fragment.min(len - self.cut);
        let from = self.at + self.cut;
        let Some(record) = Record::parse(&bytes[self.at..]) else {
            return;
        };
        Parts {
            kind: Kind::Fragment,
            remaining: (len - self.cut - n).div_ceil(fragment) as u32,
            incarnation: record.incarnation(),
            seq: record.seq(),
            // The position in the record, by which recovery knows a beginning.
            time: self.cut as i64,
            subject: b"",
            effects: b"",
            headers: b"",
            payload: &bytes[from..from + n],
        }
        .encode(frame);
        self.cut += n;
        if self.cut == len {
            self.at += len;
            self.cut = 0;
        }
    }
}

impl Pump {
    pub(crate) fn new(journal: Journal) -> Self {
        Self {
            journal,
            backlog: VecDeque::new(),
            in_flight: Vec::new(),
            sync_due: None,
            unsynced: false,
            batch: 0,
        }
    }

    /// Writes one frame of what is submitted.
    pub(crate) fn write_step(&mut self, core: &Core) -> io::Result<Step> {
        let listed = std::mem::take(&mut core.list.lock().streams);
        self.backlog
            .extend(listed.into_iter().map(|stream| Source { stream, active: None }));
        let fragment = core.options.fragment;
        let need = loop {
            let Some(front) = self.backlog.front_mut() else {
                return Ok(Step::Idle);
            };
            if front.activate()
                && let Some(active) = &front.active
            {
                break active.need(fragment);
            }
            self.backlog.pop_front();
        };
        let Some(room) = self.journal.make_room(need) else {
            return Ok(Step::Blocked);
        };
        let limit = room.min(core.options.frame_max.max(need));
        let Some(to) = self.journal.next() else {
            return Ok(Step::Blocked);
        };
        let scarce = self.journal.room() < core.options.journal_max / 4;
        let mut frame = self.journal.begin();
        let head = frame.len();
        let mut count = 0;
        let mut done = Vec::new();
        while let Some(mut source) = self.backlog.pop_front() {
            if !source.activate() {
                continue;
            }
            let Some(active) = &mut source.active else {
                continue;
            };
            let body = frame.len() - head;
            let space = (limit - body).min(TURN.max(active.need(fragment)));
            let n = active.fill(&mut frame, space.min(limit - body), fragment, &to);
            count += n;
            let (first, held) = (active.chunk.first_seq, active.chunk.offsets.len() as u64);
            if n > 0 && held > 0 {
                let last = first + held - 1;
                self.journal
                    .note(source.stream.incarnation, SeqRange { first, last });
            }
            if n == 0 {
                self.backlog.push_front(source);
                break;
            }
            if active.at == active.chunk.bytes.len()
                && let Some(a) = source.active.take()
            {
                let Active {
                    chunk,
                    first_frame,
                    tokens,
                    ..
                } = a;
                done.push((
                    source.stream.clone(),
                    DoneChunk {
                        chunk,
                        first_frame,
                        tokens,
                    },
                ));
            }
            // Where room is short a begun chunk is finished first: it keeps the files it began in from being emptied.
            match source.active {
                Some(_) if scarce => self.backlog.push_front(source),
                _ => self.backlog.push_back(source),
            }
            if frame.len() - head >= limit {
                break;
            }
        }
        let written = self.journal.write(frame, count)?;
        core.counters.journal_bytes.fetch_add(written, Ordering::Relaxed);
        self.batch += written;
        self.unsynced = true;
        core.journal_used
            .store(self.journal.size() - self.journal.room(), Ordering::Relaxed);
        for (stream, chunk) in done {
            self.written(core, stream, chunk);
        }
        Ok(Step::Worked)
    }

    fn written(&mut self, core: &Core, stream: Arc<StreamShared>, mut done: DoneChunk) {
        let durability = stream.index.read().options.durability;
        let waits = {
            let mut queue = stream.queue.lock();
            let waits = done.chunk.strict || queue.strict_in_flight > 0;
            queue.strict_in_flight += usize::from(waits);
            waits
        };
        if waits {
            self.in_flight.push((stream, done));
            return;
        }
        if let Durability::Interval(d) = durability {
            let due = core.clock.monotonic() + d;
            self.sync_due = Some(self.sync_due.map_or(due, |known| known.min(due)));
        }
        done.chunk.strict = false;
        hand_back(core, &stream, done, false);
    }

    /// Whether something written waits for a sync to count.
    pub(crate) fn wants_sync(&self, now: Duration) -> bool {
        !self.in_flight.is_empty() || self.sync_due.is_some_and(|due| due <= now)
    }

    /// Syncs everything written and hands it back to its streams.
    pub(crate) fn sync_step(&mut self, core: &Core) -> io::Result<Step> {
        if !self.unsynced {
            return Ok(Step::Idle);
        }
        let begun = core.clock.monotonic();
        self.journal.sync()?;
        let took = core.clock.monotonic().saturating_sub(begun);
        core.meters.sync.record(took.as_secs_f64());
        core.meters.batch.record(std::mem::take(&mut self.batch) as f64);
        core.meters.staged.set(core.staged.load(Ordering::Relaxed) as f64);
        core.meters
            .journal_used
            .set((self.journal.size() - self.journal.room()) as f64);
        core.meters.lag.set(self.journal.lag() as f64);
        core.counters.syncs.fetch_add(1, Ordering::Relaxed);
        core.counters.sync_max_ns.fetch_max(
            u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        self.unsynced = false;
        self.sync_due = None;
        for (stream, done) in std::mem::take(&mut self.in_flight) {
            hand_back(core, &stream, done, true);
        }
        core.wake_waiting();
        Ok(Step::Worked)
    }

    /// Writes a frame without records when the newest synced frame is not told by a later one, so that damage to the last
    /// acknowledged batch is never taken for a torn tail.
    pub(crate) fn idle_step(&mut self, core: &Core) -> io::Result<Step> {
        if self.unsynced || !self.journal.untold() {
            return Ok(Step::Idle);
        }
        match self.write_empty(core)? {
            Step::Blocked => Ok(Step::Idle),
            step => Ok(step),
        }
    }

    /// Sees to it that something waits for a sync.
    pub(crate) fn probe_step(&mut self, core: &Core) -> io::Result<Step> {
        if self.unsynced {
            return Ok(Step::Idle);
        }
        self.write_empty(core)
    }

    /// Writes a frame without records.
    fn write_empty(&mut self, core: &Core) -> io::Result<Step> {
        if self.journal.make_room(0).is_none() {
            return Ok(Step::Blocked);
        }
        let frame = self.journal.begin();
        self.journal.write(frame, 0)?;
        self.unsynced = true;
        core.journal_used
            .store(self.journal.size() - self.journal.room(), Ordering::Relaxed);
        Ok(Step::Worked)
    }

    /// Drops everything on its way; the journal failed.
    pub(crate) fn fail(&mut self) -> Vec<Arc<StreamShared>> {
        let waiting = self.backlog.drain(..).map(|s| s.stream);
        let in_flight = self.in_flight.drain(..).map(|(s, _)| s);
        waiting.chain(in_flight).collect()
    }
}

fn hand_back(core: &Core, stream: &Arc<StreamShared>, done: DoneChunk, waited: bool) {
    let len = done.chunk.bytes.len() as u64;
    core.staged.fetch_sub(len, Ordering::Relaxed);
    stream.staged.fetch_sub(len, Ordering::Relaxed);
    let waker = {
        let mut queue = stream.queue.lock();
        queue.strict_in_flight -= usize::from(waited);
        let first = queue.done.is_empty();
        queue.done.push_back(done);
        if first { queue.waker.clone() } else { None }
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}
