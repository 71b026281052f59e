//! Emptying one journal file: what of it lives goes to segments, the manifest names those, the file is free again.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Core, Finished, Gathered, Keeper, attach, end_segment, segment_entry};
use crate::fault::Fault;
use crate::index::{Matching, NO_RECORD, Settled, StreamIndex, TailChunk, locate};
use crate::manifest::{Bucket, Entry};
use crate::options::Storage;
use crate::record::Record;
use crate::segment::{SegmentWriter, segment_name};
use crate::store::ids;
use crate::store::pump::Step;
use crate::stream::shared::StreamShared;

/// The emptying of one journal file.
#[derive(Debug)]
pub(super) struct Job {
    /// The newest frame in the file.
    frame: u64,
    plans: VecDeque<Plan>,
    /// Streams whose tail shrinks, with what is then settled.
    pub(super) settled: Vec<(Arc<StreamShared>, Settled, u64)>,
    pub(super) own: Option<SegmentWriter>,
    pub(super) common: Option<SegmentWriter>,
    pub(super) finished: Vec<Finished>,
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

impl Keeper {
    /// Picks the oldest journal file, if it can be emptied, and plans what to write.
    pub(super) fn begin(&mut self, core: &Core, force: bool) -> io::Result<Step> {
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
    pub(super) fn work(&mut self, core: &Core) -> io::Result<Step> {
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
        let ids_files = self.write_ids(core, job)?;
        let written: Vec<(u64, Bucket)> = ids_files
            .iter()
            .filter_map(|e| match e {
                Entry::Ids(id, file) => file.bucket.map(|b| (*id, b)),
                _ => None,
            })
            .collect();
        entries.extend(ids_files);
        for f in &job.finished {
            entries.push(Entry::Segment(f.segment.id, segment_entry(f)));
        }
        job.finished.iter().for_each(|f| tell_gaps(core, f));
        let dirty = Gathered::take(core, &settled, &mut entries);
        entries.extend(self.drop_ids(core, &written));
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
        self.failures = 0;
        for (id, bucket) in written {
            self.ids_files.insert((bucket.from, bucket.until), id);
        }
        self.ids_files.retain(|_, id| !gone_ids.contains(id));
        for f in job.finished.drain(..) {
            core.count_segment(f.segment.len);
            self.segments.insert(f.segment.id, f.segment.clone());
            attach(core, &f);
        }
        for (stream, settled, bytes) in job.settled.drain(..) {
            let mut index = stream.index.write();
            index.settled = settled;
            index.dirty.ids_from_seq = settled.seq;
            index.tail.drop_through(job.frame);
            drop(index);
            core.tail_shrank(bytes);
        }
        let gone = dirty.forget_gone(core);
        self.erase.adopt(gone);
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
}

/// Has the manifest say which messages of a part with gaps are live, so that it is known of a file that is damaged, too.
fn tell_gaps(core: &Core, f: &Finished) {
    for part in &f.parts {
        let (Some(first), Some(last)) = (part.seqs.first(), part.seqs.last()) else {
            continue;
        };
        if last - first + 1 == part.seqs.len() as u64 {
            continue;
        }
        let stream = core.registry.lock().all.get(&part.incarnation).cloned();
        if let Some(stream) = stream {
            let mut index = stream.index.write();
            index.dirty.spans.extend(locate(first).0..=locate(last).0);
        }
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

pub(crate) fn live_bytes(index: &StreamIndex, chunk: &TailChunk) -> u64 {
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
        let compression = index.options.compression;
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
                writer.add(&r, compression);
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
