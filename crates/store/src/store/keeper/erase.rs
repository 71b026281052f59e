//! Secure erase: overwriting the bytes of messages that are gone, wherever they stand.
//!
//! The intent is a record of the stream, synced before anything here begins, and when its journal file goes the manifest
//! keeps it (`Entry::Erasing`), until everything is overwritten and synced. Only then the operation counts as committed.
//! Done again after a crash, whatever was done before.
//!
//! The order: what is in hand (a journal file on its way into segments, a compaction) is finished, since it may hold a copy.
//! Journal files that may hold the messages are emptied, so that no frame that counts is ever changed; then the old bytes in
//! them are overwritten with zeros. In segments, dead ones that a reader still holds included, the record is replaced by
//! one of kind `Erased` of the same length. A write that a crash tears in the middle can only hit the record itself. A
//! compressed block cannot be changed so; its segment is written anew, and the block in the old file overwritten whole.
//!
//! Not reached: blocks of the file system that belonged to files removed before, and a file's list of subjects.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::{Core, Keeper};
use crate::fault::Fault;
use crate::index::Erasing;
use crate::journal::Contents;
use crate::manifest::SegmentEntry;
use crate::record::{HEADER_LEN, Kind, Parts, SeqRange};
use crate::segment::{BLOCK_HEADER, BlockRef, read_block, read_footer};
use crate::store::pump::Step;
use crate::stream::shared::StreamShared;

/// What is being overwritten.
#[derive(Debug, Default)]
pub(super) struct Erasure {
    targets: Vec<Target>,
    /// Deleted streams that the manifest has forgotten, with something to overwrite.
    gone: Vec<Arc<StreamShared>>,
    /// Segments to go through; `None` until the journal is done.
    segments: Option<VecDeque<u64>>,
}

#[derive(Debug)]
struct Target {
    stream: Arc<StreamShared>,
    erasing: Vec<Erasing>,
}

impl Target {
    fn ranges(&self) -> impl Iterator<Item = SeqRange> + '_ {
        self.erasing.iter().map(|e| e.range)
    }

    fn wants(&self, seq: u64) -> bool {
        self.ranges().any(|r| r.contains(seq)) && self.stream.index.read().get(seq).is_none()
    }
}

impl Erasure {
    /// After a failure: everything is gone through again.
    pub(super) fn begin_again(&mut self) {
        self.segments = None;
    }

    pub(super) fn adopt(&mut self, gone: Vec<Arc<StreamShared>>) {
        self.gone.extend(gone);
    }
}

fn hits(targets: &[Target], contents: &Contents) -> bool {
    targets
        .iter()
        .any(|t| t.ranges().any(|r| contents.may_hold(t.stream.incarnation, r)))
}

fn concerns(targets: &[Target], entry: &SegmentEntry) -> bool {
    entry.parts.iter().any(|(incarnation, first, last)| {
        targets.iter().any(|t| {
            t.stream.incarnation == *incarnation && t.ranges().any(|r| r.first <= *last && *first <= r.last)
        })
    })
}

impl Keeper {
    /// Whether something is being overwritten.
    pub(crate) fn is_erasing(&self) -> bool {
        !self.erase.targets.is_empty()
    }

    /// One step of overwriting; `None` when there is nothing to overwrite, or other work must be finished first.
    pub(super) fn erase_step(&mut self, core: &Core) -> io::Result<Option<Step>> {
        if self.erase.targets.is_empty() && !self.gather_erasing(core) {
            return Ok(None);
        }
        if self.job.is_some() {
            return Ok(None);
        }
        if self.compaction.is_busy() {
            return self.compact_step(core).map(Some);
        }
        if self.erase.segments.is_none() && !core.options.fault(Fault::EraseSkipsJournal) {
            let targets = &self.erase.targets;
            let in_use = core.pump.lock().journal.in_use(|c| hits(targets, c));
            if in_use {
                if self.grow(core)? {
                    return Ok(Some(Step::Worked));
                }
                return self.begin(core, true).map(Some);
            }
            if core.wipe_step(|c| hits(&self.erase.targets, c))? {
                return Ok(Some(Step::Worked));
            }
            // Old bytes that newer frames lie upon are back after a power cut, unless those are synced.
            core.sync_step()?;
        }
        let doomed = self.doomed.iter().map(|(s, entry)| (s.id, entry));
        let named = self.manifest.image.segments.iter().map(|(id, e)| (*id, e));
        let targets = &self.erase.targets;
        let segments = self.erase.segments.get_or_insert_with(|| {
            let all = named.chain(doomed).filter(|(_, entry)| concerns(targets, entry));
            all.map(|(id, _)| id).collect()
        });
        if let Some(id) = segments.front().copied() {
            let named = self.segments.get(&id).cloned();
            if erase_in(core, id, targets, named.is_none())? {
                segments.pop_front();
            } else if let Some(segment) = named {
                // Written anew without the messages; what is left of it is then overwritten.
                self.plan(core, &segment, false);
            }
            return Ok(Some(Step::Worked));
        }
        // Files that are removed already must not come back by a power cut.
        core.disk.sync_dir()?;
        self.erase.segments = None;
        for target in std::mem::take(&mut self.erase.targets) {
            {
                let mut index = target.stream.index.write();
                index.erasing.retain(|e| !target.erasing.contains(e));
                index.dirty.erasing = true;
            }
            target.stream.wake();
        }
        Ok(Some(Step::Worked))
    }

    /// Collects what is to be overwritten. False when there is nothing.
    fn gather_erasing(&mut self, core: &Core) -> bool {
        let mut streams = std::mem::take(&mut self.erase.gone);
        if core.erasing.swap(false, std::sync::atomic::Ordering::AcqRel) {
            streams.extend(core.registry.lock().all.values().cloned());
        }
        for stream in streams {
            let erasing = stream.index.read().erasing.clone();
            let known = self.erase.targets.iter().any(|t| Arc::ptr_eq(&t.stream, &stream));
            if !erasing.is_empty() && !known {
                self.erase.targets.push(Target { stream, erasing });
            }
        }
        !self.erase.targets.is_empty()
    }
}

/// Overwrites what is wanted in one segment and syncs it. Nothing needs a `doomed` one any more, so that its compressed
/// blocks can go whole; false when there are such blocks in a segment that still counts.
fn erase_in(core: &Core, id: u64, targets: &[Target], doomed: bool) -> io::Result<bool> {
    let file = match core.segments.file(id) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(e),
    };
    let mut changed = false;
    for part in read_footer(id, &*file)?.0 {
        let Some(target) = targets.iter().find(|t| t.stream.incarnation == part.incarnation) else {
            continue;
        };
        for (i, block) in part.blocks.iter().enumerate() {
            let end = part.blocks.get(i + 1).map_or(u64::MAX, |b| b.first_seq);
            if !target
                .ranges()
                .any(|r| r.first < end && block.first_seq <= r.last)
            {
                continue;
            }
            if block.packed {
                let mut inside = part.seqs.iter().filter(|s| (block.first_seq..end).contains(s));
                if inside.any(|s| target.wants(s)) {
                    if !doomed {
                        return Ok(false);
                    }
                    let zeros = vec![0; block.len as usize];
                    file.write_at(&zeros, block.at + BLOCK_HEADER as u64)?;
                    changed = true;
                }
                continue;
            }
            let listed = part.seqs.iter().filter(|s| (block.first_seq..end).contains(s));
            for (at, bytes) in replacements(&*file, *block, part.incarnation, target, listed)? {
                file.write_at(&bytes, at)?;
                changed = true;
            }
        }
    }
    if changed {
        file.sync()?;
        core.segments.forget_blocks(id);
    }
    Ok(true)
}

/// What to write where in a block.
fn replacements(
    file: &dyn crate::disk::DiskFile,
    block: BlockRef,
    incarnation: u64,
    target: &Target,
    listed: impl Iterator<Item = u64>,
) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let (mut out, mut good, mut end) = (Vec::new(), Vec::new(), 0);
    let mut gaps = Vec::new();
    let start = block.at + BLOCK_HEADER as u64;
    let bytes = read_block(file, block)?;
    bytes.each(incarnation, |at, r| {
        if at > end {
            gaps.push((end, at));
        }
        end = at + r.len();
        good.push(r.seq());
        if r.kind == Kind::Message && target.wants(r.seq()) {
            let room = r.len() - HEADER_LEN;
            out.push((start + at as u64, blank(incarnation, r.seq(), r.time(), room)));
        }
        true
    });
    if end < block.len as usize {
        gaps.push((end, block.len as usize));
    }
    // A record that cannot be read, be it that a crash tore its overwriting, is somewhere between the good ones.
    let unread: Vec<u64> = listed
        .filter(|s| good.binary_search(s).is_err() && target.wants(*s))
        .collect();
    if !unread.is_empty() {
        for (from, to) in gaps {
            let bytes = match (to - from).checked_sub(HEADER_LEN) {
                Some(room) => blank(incarnation, unread[0], block.first_time, room),
                None => vec![0; to - from],
            };
            out.push((start + from as u64, bytes));
        }
    }
    Ok(out)
}

/// A record that says that a message was here, with `room` zeros.
fn blank(incarnation: u64, seq: u64, time: i64, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + room);
    Parts {
        kind: Kind::Erased,
        remaining: 0,
        incarnation,
        seq,
        time,
        subject: b"",
        effects: b"",
        headers: b"",
        payload: &vec![0; room],
    }
    .encode(&mut out);
    out
}
