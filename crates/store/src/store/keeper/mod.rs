//! The materialiser: empties journal files into segments, keeps the manifest, removes dead files.
//!
//! One piece of work per call of [`Keeper::step`]. The order never varies: journal synced, segment bytes synced, directory
//! synced, manifest synced; only then are journal files recycled and dead files unlinked. A step that fails is begun
//! again from the journal, which still has everything.
//!
//! A stream with [`crate::StoreOptions::own_segment_min`] live bytes in the journal file gets a segment of its own, all
//! others share one, sorted by stream: one file per journal file at least, never one per stream. Records already removed
//! are not written; a work queue that keeps up writes no segments.
//!
//! The options of an opening hold for it: journal files and a ballast that a former one made longer are given back when what
//! is in them is in segments.

mod ballast;
mod changes;
mod dedup;
mod erase;
mod job;
mod mark;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use ballast::BALLAST;
use ballast::Ballast;
use changes::Gathered;
pub(crate) use changes::stream_entry;
use job::Job;
pub(crate) use job::live_bytes;

use super::Core;
use super::pump::Step;
use crate::fault::Fault;
use crate::journal::frame::PAGE;
use crate::journal::{JournalFile, journal_name, make_file, next_size};
use crate::manifest::{Entry, Manifest, SegmentEntry};
use crate::segment::{FooterPart, Part, Segment, SegmentWriter, segment_name};

/// The materialiser's state.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) manifest: Manifest,
    /// Whether the manifest's end is unknown after a failure; it is then begun anew before anything else.
    broken: bool,
    pub(crate) segments: BTreeMap<u64, Arc<Segment>>,
    job: Option<Job>,
    /// Segments the manifest has forgotten and readers may still hold, with what the manifest said.
    doomed: Vec<(Arc<Segment>, SegmentEntry)>,
    erase: erase::Erasure,
    /// Files of dedup ids that take more, by the stretch of time whose ids they hold.
    ids_files: BTreeMap<(i64, i64), u64>,
    pub(crate) compaction: super::compact::Compaction,
    ballast: Ballast,
    /// How often in a row a journal file could not be emptied.
    failures: u32,
    /// Whether there was no room for larger journal files.
    small_stay: bool,
    mark: mark::Mark,
}

/// How often in a row a journal file is not emptied until appends are refused as on a full disk.
const FAILURES_MAX: u32 = 3;

/// A segment whose bytes are synced and which nothing names yet.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) segment: Arc<Segment>,
    pub(crate) parts: Vec<FooterPart>,
}

impl Keeper {
    pub(crate) fn new(manifest: Manifest, segments: BTreeMap<u64, Arc<Segment>>) -> Self {
        let ids_files = manifest.image.ids.iter();
        let ids_files = ids_files
            .filter_map(|(id, file)| file.bucket.map(|b| ((b.from, b.until), *id)))
            .collect();
        Self {
            mark: mark::Mark::of(&manifest.image),
            manifest,
            broken: false,
            segments,
            job: None,
            doomed: Vec::new(),
            erase: erase::Erasure::default(),
            ids_files,
            compaction: super::compact::Compaction::default(),
            ballast: Ballast::default(),
            failures: 0,
            small_stay: false,
        }
    }

    /// One piece of work.
    pub(crate) fn step(&mut self, core: &Core, force: bool) -> io::Result<Step> {
        let result = self.try_step(core, force);
        if let Err(e) = &result {
            self.failed(core, e);
        }
        let busy = self.job.is_some() || self.compaction.is_busy();
        core.counters.materialising.store(busy, Ordering::Relaxed);
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
        if let Some(step) = self.erase_step(core)? {
            return Ok(step);
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
        if self.grow(core)? || self.replace_small(core)? || self.shrink(core)? {
            return Ok(Step::Worked);
        }
        // Before segments take more of a room that is nearly used up, those that are dead give back theirs.
        if core.is_room_scarce() && self.compact_step(core)? == Step::Worked {
            return Ok(Step::Worked);
        }
        match self.begin(core, force)? {
            // On a full disk only what is dead goes.
            Step::Idle => match self.compact_step(core)? {
                Step::Idle => self.mark_step(core),
                step => Ok(step),
            },
            step => Ok(step),
        }
    }

    /// After an error nothing acknowledged is lost: the journal has it. What was begun is begun again.
    fn failed(&mut self, core: &Core, error: &io::Error) {
        if let Some(job) = self.job.take() {
            self.failures = self.failures.saturating_add(1);
            for writer in [job.own, job.common].into_iter().flatten() {
                let _ = core.disk.remove(&segment_name(writer.id));
            }
            for finished in job.finished {
                let _ = core.disk.remove(&segment_name(finished.segment.id));
            }
        }
        self.compaction.abandon(&*core.disk);
        self.erase.begin_again();
        if error.kind() == io::ErrorKind::StorageFull || self.failures >= FAILURES_MAX {
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

    /// Puts a file of full size in the place of one of the small ones with which the journal began, once it is past them: a
    /// segment is made of each file's contents, and many small ones are of no use.
    fn replace_small(&mut self, core: &Core) -> io::Result<bool> {
        let o = &core.options;
        let rests = core.disk_full.load(Ordering::Relaxed) || self.is_erasing() || self.small_stay;
        let (small, slot, size) = {
            let journal = &mut core.pump.lock().journal;
            let have = journal.size();
            let Some(small) = journal.free.iter().min_by_key(|f| f.size) else {
                return Ok(false);
            };
            let size = o
                .journal_file_max
                .min(o.journal_max.saturating_sub(have - small.size));
            let size = size / PAGE as u64 * PAGE as u64;
            if rests || have < o.journal_file_max || size < small.size * 2 {
                return Ok(false);
            }
            (small.slot, journal.take_slot(), size)
        };
        let file = match make_file(&*core.disk, &journal_name(slot), size) {
            // It is no reason to refuse anything.
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                self.small_stay = true;
                return Ok(false);
            }
            made => made?,
        };
        core.disk.sync_dir()?;
        let gone = {
            let journal = &mut core.pump.lock().journal;
            journal.free.push_back(JournalFile::new(slot, file, size));
            let at = journal.free.iter().position(|f| f.slot == small);
            at.and_then(|at| journal.free.remove(at))
        };
        core.wake_waiting();
        if let Some(gone) = gone {
            core.disk.remove(&journal_name(gone.slot))?;
        }
        Ok(true)
    }

    /// Takes the journal down to its bounds when a former opening had larger ones: files that are too long go once nothing in
    /// them counts, then as many others as there are too many. One is kept free, so that the current file can be left.
    fn shrink(&mut self, core: &Core) -> io::Result<bool> {
        let o = &core.options;
        let file_max = o.journal_file_max.max(o.journal_first);
        // An unlinked file is not overwritten.
        if self.is_erasing() {
            return Ok(false);
        }
        let (gone, missing) = {
            let journal = &mut core.pump.lock().journal;
            let too_long = |f: &JournalFile| f.size > file_max;
            let over = journal.size() > o.journal_max;
            let long_in_use = journal.used.iter().any(too_long);
            if !over && !long_in_use && !journal.free.iter().any(too_long) {
                return Ok(false);
            }
            let fitting = journal.free.iter().filter(|f| !too_long(f)).count();
            let spare = over && fitting > 1;
            let gone = journal.free.iter().position(|f| too_long(f) || spare);
            if let Some(file) = gone.and_then(|at| journal.free.remove(at)) {
                (Some(file.slot), None)
            } else if !long_in_use {
                return Ok(false);
            } else if fitting == 0 {
                (None, Some(journal.take_slot()))
            } else {
                let leave = journal.used.back().is_some_and(|f| too_long(f) && f.at > 0);
                return Ok(leave && journal.close_current());
            }
        };
        if let Some(slot) = gone {
            core.disk.remove(&journal_name(slot))?;
        }
        if let Some(slot) = missing {
            let file = make_file(&*core.disk, &journal_name(slot), file_max)?;
            core.disk.sync_dir()?;
            let file = JournalFile::new(slot, file, file_max);
            core.pump.lock().journal.free.push_back(file);
            core.wake_waiting();
        }
        Ok(true)
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
        let parts: Vec<_> = dead
            .iter()
            .filter_map(|s| self.manifest.image.segments.get(&s.id).cloned())
            .collect();
        self.append(core, entries)?;
        for segment in &dead {
            self.segments.remove(&segment.id);
        }
        self.doomed.extend(dead.into_iter().zip(parts));
        Ok(())
    }

    /// Removes the files of doomed segments that nobody holds.
    fn unlink(&mut self, core: &Core) -> io::Result<bool> {
        let free = self.doomed.iter().position(|(s, _)| Arc::strong_count(s) == 1);
        let Some((segment, _)) = free.map(|i| self.doomed.swap_remove(i)) else {
            return Ok(false);
        };
        core.segments.forget(segment.id);
        match core.disk.remove(&segment_name(segment.id)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(true),
        }
    }

    /// Empties the journal, so that the next opening has nothing to replay.
    fn drain(&mut self, core: &Core) -> io::Result<()> {
        loop {
            let files = {
                let pump = core.pump.lock();
                if pump.journal.is_drained() {
                    return Ok(());
                }
                pump.journal.used.len()
            };
            let worked = if self.job.is_some() {
                self.work(core)? == Step::Worked
            } else {
                files == 1 && self.grow(core)? || self.begin(core, true)? == Step::Worked
            };
            if !worked {
                return Ok(());
            }
        }
    }

    /// Notes a clean end, and every stream's last sequence with it.
    pub(crate) fn close(&mut self, core: &Core) -> io::Result<()> {
        if self.broken {
            self.manifest.rewrite(&*core.disk)?;
            self.broken = false;
        }
        if let Err(e) = self.drain(core) {
            // The journal keeps what is left, for the next opening to replay.
            self.failed(core, &e);
        }
        if self.broken {
            self.manifest.rewrite(&*core.disk)?;
            self.broken = false;
        }
        let mut entries = vec![Entry::End(core.pump.lock().journal.written())];
        let settled = BTreeMap::new();
        let _ = Gathered::take(core, &settled, &mut entries);
        entries.push(Entry::Boot {
            id: core.disk.boot_id(),
            clean: true,
        });
        self.append(core, entries)
    }
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
            p.seqs.first().unwrap_or(0),
            p.seqs.last().unwrap_or(0),
        )
    };
    SegmentEntry {
        len: f.segment.len,
        rank: f.segment.rank,
        parts: f.parts.iter().map(range).collect(),
        counts: f.parts.iter().map(|p| p.seqs.len() as u64).collect(),
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
            first_seq,
            last_seq,
            count: part.seqs.len() as u64,
            blocks: part.blocks.clone().into_boxed_slice(),
        };
        stream.index.write().parts.insert(part.first_seq, Arc::new(part));
    }
}
