//! The materialiser: empties journal files into segments, keeps the manifest, removes dead files.
//!
//! One piece of work per call of [`Keeper::step`]. The order never varies: journal synced, segment bytes synced, directory
//! synced, manifest synced; only then are journal files recycled and dead files unlinked. A step that fails is begun
//! again from the journal, which still has everything.
//!
//! A stream with [`crate::StoreOptions::own_segment_min`] live bytes in the journal file gets a segment of its own, all
//! others share one, sorted by stream: one file per journal file at least, never one per stream. Records already removed
//! are not written; a work queue that keeps up writes no segments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::pump::Step;
use super::{Core, ids};
use crate::fault::Fault;
use crate::index::{Matching, NO_RECORD, SPAN, Settled, StreamIndex, TailChunk};
use crate::journal::{JournalFile, fill, journal_name, make_file, next_size};
use crate::manifest::{ConsumerEntry, Entry, IdsEntry, LiveEntry, Manifest, SegmentEntry, StreamEntry};
use crate::options::Storage;
use crate::record::Record;
use crate::segment::{FooterPart, Part, Segment, SegmentWriter, segment_name};
use crate::stream::shared::StreamShared;

/// The file whose room is used when the disk is full.
pub(crate) const BALLAST: &str = "ballast";

/// The materialiser's state.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) manifest: Manifest,
    /// Whether the manifest's end is unknown after a failure; it is then begun anew before anything else.
    broken: bool,
    pub(crate) segments: BTreeMap<u64, Arc<Segment>>,
    job: Option<Job>,
    /// Segments the manifest has forgotten and readers may still hold.
    doomed: Vec<Arc<Segment>>,
    pub(crate) compaction: super::compact::Compaction,
    ballast: Ballast,
}

#[derive(Debug, Default)]
struct Ballast {
    made: bool,
    checked: bool,
    next_try: Duration,
}

/// The emptying of one journal file.
#[derive(Debug)]
struct Job {
    /// The newest frame in the file.
    frame: u64,
    plans: VecDeque<Plan>,
    /// Streams whose tail shrinks, with what is then settled.
    settled: Vec<(Arc<StreamShared>, Settled, u64)>,
    own: Option<SegmentWriter>,
    common: Option<SegmentWriter>,
    finished: Vec<Finished>,
    files_synced: bool,
}

/// The records of one stream that leave the journal.
#[derive(Debug)]
struct Plan {
    stream: Arc<StreamShared>,
    chunks: VecDeque<Arc<TailChunk>>,
    at: usize,
    own: bool,
}

/// A segment whose bytes are synced and which nothing names yet.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) segment: Arc<Segment>,
    pub(crate) parts: Vec<FooterPart>,
}

impl Keeper {
    pub(crate) fn new(manifest: Manifest, segments: BTreeMap<u64, Arc<Segment>>) -> Self {
        Self {
            manifest,
            broken: false,
            segments,
            job: None,
            doomed: Vec::new(),
            compaction: super::compact::Compaction::default(),
            ballast: Ballast::default(),
        }
    }

    /// One piece of work.
    pub(crate) fn step(&mut self, core: &Core, force: bool) -> io::Result<Step> {
        let result = self.try_step(core, force);
        if let Err(e) = &result {
            self.failed(core, e);
        }
        result
    }

    fn try_step(&mut self, core: &Core, force: bool) -> io::Result<Step> {
        if core.has_failed() {
            return Ok(Step::Idle);
        }
        if self.broken {
            self.manifest.rewrite(&*core.disk)?;
            self.broken = false;
            return Ok(Step::Worked);
        }
        if core.disk_full.load(Ordering::Relaxed) {
            self.try_resume(core)?;
        } else if !self.ballast.checked {
            self.check_ballast(core)?;
        }
        if self.unlink(core)? {
            return Ok(Step::Worked);
        }
        if self.job.is_some() {
            return self.work(core);
        }
        if self.manifest.wants_rewrite(core.options.manifest_max) {
            self.manifest.rewrite(&*core.disk)?;
            return Ok(Step::Worked);
        }
        if self.grow(core)? {
            return Ok(Step::Worked);
        }
        match self.begin(core, force)? {
            Step::Idle if !core.disk_full.load(Ordering::Relaxed) => self.compact_step(core),
            step => Ok(step),
        }
    }

    /// After an error nothing acknowledged is lost: the journal has it. What was begun is begun again.
    fn failed(&mut self, core: &Core, error: &io::Error) {
        if let Some(job) = self.job.take() {
            for writer in [job.own, job.common].into_iter().flatten() {
                let _ = core.disk.remove(&segment_name(writer.id));
            }
            for finished in job.finished {
                let _ = core.disk.remove(&segment_name(finished.segment.id));
            }
        }
        self.compaction.abandon(&*core.disk);
        if error.kind() == io::ErrorKind::StorageFull {
            self.disk_full(core);
        }
    }

    /// A file number that no file ever had.
    pub(crate) fn take_file(&mut self) -> u64 {
        let id = self.manifest.image.next_file;
        self.manifest.image.next_file += 1;
        id
    }

    /// Appends to the manifest; after a failure it is begun anew before it is used again.
    ///
    /// The journal is synced first: what a weak stream committed may only be written, and neither the state of a stream nor
    /// the choice of what compaction left out may run ahead of what is synced.
    pub(crate) fn append(&mut self, core: &Core, entries: Vec<Entry>) -> io::Result<()> {
        if !core.options.fault(Fault::SegmentBeforeJournal) {
            core.sync_step()?;
        }
        if core.has_failed() {
            return Err(io::Error::other("the journal failed"));
        }
        let result = self.manifest.append(entries);
        self.broken |= result.is_err();
        result
    }

    // The journal.

    /// Makes another journal file when no free one is left and the journal may still grow.
    fn grow(&mut self, core: &Core) -> io::Result<bool> {
        let (slot, size) = {
            let mut pump = core.pump.lock();
            if !pump.journal.free.is_empty() {
                return Ok(false);
            }
            let o = &core.options;
            match next_size(
                o.journal_first,
                o.journal_file_max,
                o.journal_max,
                pump.journal.size(),
            ) {
                Some(size) => (pump.journal.take_slot(), size),
                None => return Ok(false),
            }
        };
        let file = make_file(&*core.disk, &journal_name(slot), size)?;
        core.disk.sync_dir()?;
        core.pump
            .lock()
            .journal
            .free
            .push_back(JournalFile::new(slot, file, size));
        core.wake_waiting();
        Ok(true)
    }

    /// Picks the oldest journal file, if it can be emptied, and plans what to write.
    fn begin(&mut self, core: &Core, force: bool) -> io::Result<Step> {
        let frame = {
            let mut pump = core.pump.lock();
            let journal = &mut pump.journal;
            if journal.used.len() == 1 && force && journal.used[0].at > 0 {
                journal.close_current();
            }
            if journal.used.len() < 2 {
                return Ok(Step::Idle);
            }
            let oldest = &journal.used[0];
            let unsynced =
                oldest.last_frame > journal.synced && !core.options.fault(Fault::SegmentBeforeJournal);
            let applied = Arc::strong_count(&oldest.token) == 1;
            let frame = oldest.last_frame;
            drop(pump);
            if unsynced {
                core.sync_step()?;
                return Ok(Step::Worked);
            }
            if !applied {
                return Ok(if apply_unowned(core) {
                    Step::Worked
                } else {
                    Step::Blocked
                });
            }
            frame
        };
        let mut job = Job {
            frame,
            plans: VecDeque::new(),
            settled: Vec::new(),
            own: None,
            common: None,
            finished: Vec::new(),
            files_synced: false,
        };
        let streams: Vec<_> = core.registry.lock().all.values().cloned().collect();
        let mut common = VecDeque::new();
        for stream in streams.into_iter().filter(|s| s.storage == Storage::File) {
            if let Some(plan) = plan(core, &stream, frame, &mut job.settled) {
                if plan.own {
                    job.plans.push_back(plan);
                } else {
                    common.push_back(plan);
                }
            }
        }
        job.plans.append(&mut common);
        self.job = Some(job);
        Ok(Step::Worked)
    }

    /// The next step of the job in hand.
    fn work(&mut self, core: &Core) -> io::Result<Step> {
        let Some(mut job) = self.job.take() else {
            return Ok(Step::Idle);
        };
        let result = self.work_on(core, &mut job);
        if !matches!(result, Ok(true)) {
            self.job = Some(job);
        }
        result.map(|_| Step::Worked)
    }

    fn work_on(&mut self, core: &Core, job: &mut Job) -> io::Result<bool> {
        while let Some(plan) = job.plans.front_mut() {
            let own = plan.own;
            let slot = if own { &mut job.own } else { &mut job.common };
            let writer = match slot {
                Some(writer) => writer,
                None => {
                    let id = self.manifest.image.next_file;
                    self.manifest.image.next_file += 1;
                    let file = core.disk.create(&segment_name(id))?;
                    slot.insert(SegmentWriter::new(
                        id,
                        core.identity.store_id,
                        file,
                        core.options.block,
                    ))
                }
            };
            let done = copy(plan, writer, core.options.step);
            if done {
                job.plans.pop_front();
                if own {
                    return finish(job, true).map(|()| false);
                }
            }
            if writer_full(slot_of(job, own), core.options.step) {
                if let Some(writer) = slot_mut(job, own) {
                    writer.write_step()?;
                }
                return Ok(false);
            }
        }
        if job.common.is_some() {
            return finish(job, false).map(|()| false);
        }
        if !job.files_synced {
            if !job.finished.is_empty() && !core.options.fault(Fault::NoDirectorySync) {
                core.disk.sync_dir()?;
            }
            job.files_synced = true;
            return Ok(false);
        }
        if core.options.fault(Fault::RecycleBeforeManifest) {
            core.pump.lock().journal.recycle_oldest();
            core.write_step()?;
            core.sync_step()?;
        }
        self.publish(core, job)?;
        Ok(true)
    }

    /// Names the new segments in the manifest, then lets go of the journal file.
    fn publish(&mut self, core: &Core, job: &mut Job) -> io::Result<()> {
        let mut entries = vec![Entry::Trim(job.frame)];
        let settled: BTreeMap<u64, Settled> = job
            .settled
            .iter()
            .map(|(s, settled, _)| (s.incarnation, *settled))
            .collect();
        let ids_file = self.write_ids(core, job)?;
        entries.extend(ids_file);
        for f in &job.finished {
            entries.push(Entry::Segment(f.segment.id, segment_entry(f)));
        }
        let dirty = Gathered::take(core, &settled, &mut entries);
        entries.extend(self.drop_ids(core));
        entries.push(Entry::Next {
            incarnation: core.registry.lock().next_incarnation,
            file: self.manifest.image.next_file,
        });
        let gone_ids: Vec<u64> = entries
            .iter()
            .filter_map(|e| {
                if let Entry::IdsGone(id) = e {
                    Some(*id)
                } else {
                    None
                }
            })
            .collect();
        if let Err(e) = self.append(core, entries) {
            dirty.put_back();
            return Err(e);
        }
        for f in job.finished.drain(..) {
            core.counters
                .segment_bytes
                .fetch_add(f.segment.len, Ordering::Relaxed);
            self.segments.insert(f.segment.id, f.segment.clone());
            attach(core, &f);
        }
        for (stream, settled, bytes) in job.settled.drain(..) {
            let mut index = stream.index.write();
            index.settled = settled;
            index.dirty.ids_from_seq = settled.seq;
            index.tail.drop_through(job.frame);
            drop(index);
            core.tail.fetch_sub(bytes, Ordering::Relaxed);
        }
        dirty.forget_gone(core);
        {
            let mut pump = core.pump.lock();
            if !core.options.fault(Fault::RecycleBeforeManifest) {
                pump.journal.recycle_oldest();
            }
            core.journal_used
                .store(pump.journal.size() - pump.journal.room(), Ordering::Relaxed);
        }
        for id in gone_ids {
            core.disk.remove(&ids::ids_name(id))?;
        }
        core.wake_waiting();
        Ok(())
    }

    /// Writes the dedup ids that the journal file is the last to tell, if any still count.
    fn write_ids(&mut self, core: &Core, job: &Job) -> io::Result<Option<Entry>> {
        let (mut bytes, mut newest) = (Vec::new(), Vec::new());
        if core.options.fault(Fault::DedupForgotten) {
            return Ok(None);
        }
        for (stream, settled, _) in &job.settled {
            let index = stream.index.read();
            let from = index.dirty.ids_from_seq;
            let mut last = None;
            for id in index
                .ids
                .iter()
                .filter(|id| id.seq > from && id.seq <= settled.seq)
            {
                ids::put_id(&mut bytes, index.incarnation, id);
                last = last.max(Some(id.time));
            }
            newest.extend(last.map(|time| (index.incarnation, time)));
        }
        if newest.is_empty() {
            return Ok(None);
        }
        let id = self.take_file();
        ids::write(&*core.disk, id, &bytes)?;
        core.disk.sync_dir()?;
        Ok(Some(Entry::Ids(id, IdsEntry { newest })))
    }

    /// Files of ids none of which counts any more.
    fn drop_ids(&self, core: &Core) -> Vec<Entry> {
        let now = core.clock.wall_ns();
        let registry = core.registry.lock();
        let counts = |(incarnation, time): &(u64, i64)| {
            registry.all.get(incarnation).is_some_and(|s| {
                let index = s.index.read();
                let window = i64::try_from(index.options.dedup_window.as_nanos()).unwrap_or(i64::MAX);
                !index.deleted && time.saturating_add(window) > now
            })
        };
        let image = &self.manifest.image;
        image
            .ids
            .iter()
            .filter(|(_, f)| !f.newest.iter().any(counts))
            .map(|(id, _)| Entry::IdsGone(*id))
            .collect()
    }

    // Dead files.

    /// Takes segments out of the manifest; their files go when no reader holds them.
    pub(crate) fn doom(
        &mut self,
        core: &Core,
        dead: Vec<Arc<Segment>>,
        mut entries: Vec<Entry>,
    ) -> io::Result<()> {
        if core.options.fault(Fault::UnlinkBeforeManifest) {
            for segment in &dead {
                core.disk.remove(&segment_name(segment.id))?;
            }
            core.disk.sync_dir()?;
        }
        entries.extend(dead.iter().map(|s| Entry::SegmentGone(s.id)));
        self.append(core, entries)?;
        for segment in &dead {
            self.segments.remove(&segment.id);
        }
        self.doomed.extend(dead);
        Ok(())
    }

    /// Removes the files of doomed segments that nobody holds.
    fn unlink(&mut self, core: &Core) -> io::Result<bool> {
        let free = self.doomed.iter().position(|s| Arc::strong_count(s) == 1);
        let Some(segment) = free.map(|i| self.doomed.swap_remove(i)) else {
            return Ok(false);
        };
        core.segments.forget(segment.id);
        match core.disk.remove(&segment_name(segment.id)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(true),
        }
    }

    // A full disk.

    /// Refuses appends and frees the ballast, which is enough to materialise the whole journal.
    fn disk_full(&mut self, core: &Core) {
        if !core.disk_full.swap(true, Ordering::Relaxed) {
            self.ballast.next_try = core.clock.monotonic() + Duration::from_secs(1);
        }
        if core.disk.remove(BALLAST).is_ok() {
            self.ballast.made = false;
        }
    }

    fn ballast_size(core: &Core) -> u64 {
        core.options.journal_max / 10 * 11
    }

    fn check_ballast(&mut self, core: &Core) -> io::Result<()> {
        self.ballast.checked = true;
        if core.options.ballast && !self.ballast.made {
            self.make_ballast(core)?;
        }
        Ok(())
    }

    fn make_ballast(&mut self, core: &Core) -> io::Result<()> {
        let size = Self::ballast_size(core);
        match core.disk.open(BALLAST) {
            Ok(file) => {
                let len = file.len()?;
                if len < size {
                    fill(&*file, len, size)?;
                }
            }
            Err(_) => {
                make_file(&*core.disk, BALLAST, size)?;
            }
        }
        core.disk.sync_dir()?;
        self.ballast.made = true;
        Ok(())
    }

    /// Once a second: appends resume when the ballast can be made again.
    fn try_resume(&mut self, core: &Core) -> io::Result<()> {
        let now = core.clock.monotonic();
        if now < self.ballast.next_try {
            return Ok(());
        }
        self.ballast.next_try = now + Duration::from_secs(1);
        if core.options.ballast {
            match self.make_ballast(core) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                    let _ = core.disk.remove(BALLAST);
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        core.disk_full.store(false, Ordering::Relaxed);
        core.wake_waiting();
        Ok(())
    }

    /// Notes a clean end, and every stream's last sequence with it.
    pub(crate) fn close(&mut self, core: &Core) -> io::Result<()> {
        if self.broken {
            self.manifest.rewrite(&*core.disk)?;
            self.broken = false;
        }
        let mut entries = Vec::new();
        let settled = BTreeMap::new();
        let _ = Gathered::take(core, &settled, &mut entries);
        entries.push(Entry::Boot {
            id: core.disk.boot_id(),
            clean: true,
        });
        self.append(core, entries)
    }
}

fn slot_of(job: &Job, own: bool) -> Option<&SegmentWriter> {
    if own {
        job.own.as_ref()
    } else {
        job.common.as_ref()
    }
}

fn slot_mut(job: &mut Job, own: bool) -> Option<&mut SegmentWriter> {
    if own {
        job.own.as_mut()
    } else {
        job.common.as_mut()
    }
}

fn writer_full(writer: Option<&SegmentWriter>, step: usize) -> bool {
    writer.is_some_and(|w| w.pending() >= step)
}

fn finish(job: &mut Job, own: bool) -> io::Result<()> {
    let rank = job.frame;
    let writer = if own { job.own.take() } else { job.common.take() };
    if let Some(writer) = writer {
        job.finished.push(end_segment(writer, rank)?);
    }
    Ok(())
}

pub(crate) fn end_segment(writer: SegmentWriter, rank: u64) -> io::Result<Finished> {
    let id = writer.id;
    let (parts, len) = writer.finish()?;
    Ok(Finished {
        segment: Arc::new(Segment { id, len, rank }),
        parts,
    })
}

pub(crate) fn segment_entry(f: &Finished) -> SegmentEntry {
    let range = |p: &FooterPart| {
        (
            p.incarnation,
            p.seqs.first().copied().unwrap_or(0),
            p.seqs.last().copied().unwrap_or(0),
        )
    };
    SegmentEntry {
        len: f.segment.len,
        rank: f.segment.rank,
        parts: f.parts.iter().map(range).collect(),
    }
}

/// Tells the streams of a segment that it has their records.
pub(crate) fn attach(core: &Core, f: &Finished) {
    for part in &f.parts {
        let stream = core.registry.lock().all.get(&part.incarnation).cloned();
        let (Some(stream), Some(first_seq), Some(last_seq)) = (stream, part.seqs.first(), part.seqs.last())
        else {
            continue;
        };
        let part = Part {
            segment: f.segment.clone(),
            first_seq: *first_seq,
            last_seq: *last_seq,
            count: part.seqs.len() as u64,
            blocks: part.blocks.clone().into_boxed_slice(),
        };
        stream.index.write().parts.insert(part.first_seq, Arc::new(part));
    }
}

/// What of one stream leaves the journal with frames up to `frame`.
fn plan(
    core: &Core,
    stream: &Arc<StreamShared>,
    frame: u64,
    settled: &mut Vec<(Arc<StreamShared>, Settled, u64)>,
) -> Option<Plan> {
    let mut index = stream.index.write();
    let chunks: VecDeque<_> = index
        .tail
        .iter()
        .take_while(|c| c.first_frame <= frame)
        .cloned()
        .collect();
    let last = chunks.back()?;
    let to = Settled {
        seq: last.end_seq() - 1,
        time: last.last_time,
    };
    settled.push((
        stream.clone(),
        to,
        chunks.iter().map(|c| c.bytes.len() as u64).sum(),
    ));
    // From now on removals among these are noted for the manifest, and later appends cannot be among them.
    index.settling = to.seq;
    if index.deleted {
        return None;
    }
    let live: u64 = chunks.iter().map(|c| live_bytes(&index, c)).sum();
    (live > 0).then(|| Plan {
        stream: stream.clone(),
        chunks,
        at: 0,
        own: live >= core.options.own_segment_min,
    })
}

fn live_bytes(index: &StreamIndex, chunk: &TailChunk) -> u64 {
    let mut n = 0;
    index.each_match(&Matching::All, chunk.first_seq, |seq, item| {
        let inside = seq < chunk.end_seq();
        n += if inside { u64::from(item.size) } else { 0 };
        inside
    });
    n
}

/// Copies live records until a step's worth waits in the writer. True when the plan is done.
fn copy(plan: &mut Plan, writer: &mut SegmentWriter, step: usize) -> bool {
    while let Some(chunk) = plan.chunks.front() {
        let index = plan.stream.index.read();
        while plan.at < chunk.offsets.len() {
            if writer.pending() >= step {
                return false;
            }
            let offset = chunk.offsets[plan.at];
            let seq = chunk.first_seq + plan.at as u64;
            plan.at += 1;
            if offset != NO_RECORD
                && index.get(seq).is_some()
                && let Some(r) = Record::parse(&chunk.bytes[offset as usize..])
            {
                writer.add(&r);
            }
        }
        drop(index);
        plan.at = 0;
        plan.chunks.pop_front();
    }
    true
}

/// Applies what is done of streams that have no owner. True when there was any.
fn apply_unowned(core: &Core) -> bool {
    let streams: Vec<_> = core.registry.lock().all.values().cloned().collect();
    let mut any = false;
    for stream in streams {
        let unowned = {
            let queue = stream.queue.lock();
            !queue.owned && !queue.done.is_empty()
        };
        if unowned {
            core.apply(&stream);
            any = true;
        }
    }
    any
}

/// What the manifest says about a stream.
pub(crate) fn stream_entry(index: &StreamIndex, settled: Settled) -> StreamEntry {
    StreamEntry {
        options: index.options.clone(),
        settled_seq: settled.seq,
        settled_time: settled.time,
        floor: index.first_seq,
        last_seq: index.last_seq,
        last_time: index.last_time,
        ceiling: index.ceiling,
        lost: index.lost.iter().map(|(first, last)| (*first, *last)).collect(),
    }
}

/// Which settled messages of a span are live.
fn live_entry(index: &StreamIndex, number: u64, upto: u64) -> LiveEntry {
    let start = number * SPAN as u64;
    let mut runs: Vec<(u16, u16)> = Vec::new();
    if let Some(span) = index.spans.get(&number) {
        span.each(0, |off, _| {
            if start + off as u64 > upto {
                return false;
            }
            match runs.last_mut() {
                Some(run) if usize::from(run.1) + 1 == off => run.1 = off as u16,
                _ => runs.push((off as u16, off as u16)),
            }
            true
        });
    }
    LiveEntry { upto, runs }
}

/// What changed in all streams, taken for one batch of the manifest.
#[derive(Debug, Default)]
struct Gathered {
    changed: Vec<(Arc<StreamShared>, BTreeSet<u64>, BTreeSet<String>)>,
    gone: Vec<u64>,
}

impl Gathered {
    fn take(core: &Core, settled: &BTreeMap<u64, Settled>, entries: &mut Vec<Entry>) -> Self {
        let streams: Vec<_> = core.registry.lock().all.values().cloned().collect();
        let mut out = Self::default();
        for stream in streams.into_iter().filter(|s| s.storage == Storage::File) {
            let incarnation = stream.incarnation;
            let moved = settled.get(&incarnation);
            let mut index = stream.index.write();
            if !index.created {
                continue;
            }
            let d = &mut index.dirty;
            if moved.is_none() && !d.stream && d.spans.is_empty() && d.consumers.is_empty() {
                continue;
            }
            let (spans, consumers) = (std::mem::take(&mut d.spans), std::mem::take(&mut d.consumers));
            d.stream = false;
            if index.deleted {
                entries.push(Entry::StreamGone(incarnation));
                out.gone.push(incarnation);
            } else {
                let to = moved.copied().unwrap_or(index.settled);
                entries.push(Entry::Stream(incarnation, stream_entry(&index, to)));
                for number in &spans {
                    entries.push(Entry::Live(
                        incarnation,
                        *number,
                        live_entry(&index, *number, to.seq),
                    ));
                }
                for name in &consumers {
                    entries.push(consumer_entry(&index, incarnation, name));
                }
            }
            drop(index);
            out.changed.push((stream, spans, consumers));
        }
        out
    }

    /// The batch was not written: everything is still to be said.
    fn put_back(self) {
        for (stream, spans, consumers) in self.changed {
            let mut index = stream.index.write();
            index.dirty.stream = true;
            index.dirty.spans.extend(spans);
            index.dirty.consumers.extend(consumers);
        }
    }

    /// The batch is durable: deleted streams need no place any more.
    fn forget_gone(self, core: &Core) {
        for incarnation in self.gone {
            let stream = core.registry.lock().all.remove(&incarnation);
            if let Some(stream) = stream {
                let mut index = stream.index.write();
                index.parts.clear();
                let left: u64 = index.tail.iter().map(|c| c.bytes.len() as u64).sum();
                index.tail = crate::index::Tail::default();
                core.tail.fetch_sub(left, Ordering::Relaxed);
            }
        }
    }
}

fn consumer_entry(index: &StreamIndex, incarnation: u64, name: &str) -> Entry {
    match index.consumers.get(name) {
        None => Entry::ConsumerGone(incarnation, name.to_owned()),
        Some(c) => {
            let mut state = Vec::new();
            c.state.as_change().encode(&mut state);
            Entry::Consumer(
                incarnation,
                name.to_owned(),
                ConsumerEntry {
                    config: c.config.clone(),
                    state: state.into(),
                },
            )
        }
    }
}

/// Lets go of a memory stream's dead bytes: dead chunks at once, and all chunks are copied when most of it is dead.
pub(crate) fn reclaim_memory(stream: &StreamShared) {
    let mut guard = stream.index.write();
    let index = &mut *guard;
    let first = index.first_seq;
    index.tail.retain(|c| c.end_seq() > first);
    let held: u64 = index.tail.iter().map(|c| c.bytes.len() as u64).sum();
    if held < 1 << 20 || held < index.bytes.saturating_add(index.messages * 64) * 2 {
        return;
    }
    let chunks: Vec<_> = index.tail.iter().cloned().collect();
    for chunk in chunks {
        let live = live_bytes(index, &chunk);
        if live == 0 {
            index.tail.retain(|c| !Arc::ptr_eq(c, &chunk));
        } else if live * 2 < chunk.bytes.len() as u64 {
            let mut bytes = Vec::new();
            let mut offsets = Vec::with_capacity(chunk.offsets.len());
            for (i, at) in chunk.offsets.iter().enumerate() {
                let record = chunk.bytes.get(*at as usize..).and_then(Record::parse);
                match record.filter(|_| index.get(chunk.first_seq + i as u64).is_some()) {
                    Some(r) => {
                        offsets.push(bytes.len() as u32);
                        bytes.extend_from_slice(r.bytes());
                    }
                    None => offsets.push(NO_RECORD),
                }
            }
            let (first_seq, last_time, first_frame) = (chunk.first_seq, chunk.last_time, chunk.first_frame);
            let copy = TailChunk {
                bytes: bytes.into(),
                first_seq,
                offsets,
                last_time,
                first_frame,
            };
            index.tail.replace(&chunk, Arc::new(copy));
        }
    }
}
