//! Compaction: segments without live records go, segments with few are written anew.
//!
//! Looks at one segment per idle step, in turn. A segment with no live record is taken out of the manifest. One whose live
//! records are fewer than half is rewritten with those only, together with neighbours in rank while they fit: rank and
//! number order the sequences of every stream, so the parts of neighbours join without overlapping others. Eight neighbours
//! of about the same small size are joined although they live, so that each message is written anew a few times at most
//! and the number of segments grows with the logarithm of what was stored in small pieces. Written in paced
//! steps like any segment, within a budget of bytes a second, and replaced in one batch of the manifest. On a full disk only
//! segments without live records are dealt with. When a bounded disk ([`crate::Disk::room`]) has less room left than twice the
//! journal's size, this comes before emptying the journal, and an eighth of dead records is enough if the room takes what is
//! written anew.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use super::keeper::{Finished, Keeper, attach, end_segment, segment_entry};
use super::pump::Step;
use crate::disk::Disk;
use crate::manifest::Entry;
use crate::segment::{BlockRef, Part, Segment, SegmentWriter, segment_name};
use crate::stream::shared::StreamShared;

/// Small neighbours that are joined although all of them lives. A segment is written anew at most once for each eightfold
/// growth, until it is not small any more.
const JOIN_MIN: usize = 8;

/// Segments joined at most in one go.
const JOIN_MAX: usize = 32;

/// What compaction is about.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// The segment looked at last.
    at: u64,
    /// How many idle steps in a row found nothing.
    quiet: usize,
    /// How much had been written to the journal when a whole round found nothing; until more is, there is nothing to find.
    rested_at: Option<u64>,
    job: Option<Job>,
    budget: Budget,
}

/// How much may be read and written: [`crate::StoreOptions::compaction_rate`] a second, saved up for a second at most.
#[derive(Debug, Default)]
struct Budget {
    saved: u64,
    /// When `saved` was reckoned; at first a whole second's worth is there.
    at: Option<Duration>,
    spent: u64,
}

impl Budget {
    /// Whether there is something left. What a step takes beyond it the next ones lack.
    fn allows(&mut self, now: Duration, rate: u64) -> bool {
        let since = self
            .at
            .map_or(Duration::from_secs(1), |at| now.saturating_sub(at));
        let earned = since.as_secs_f64() * rate as f64;
        self.at = Some(now);
        self.saved = self.saved.saturating_add(earned as u64);
        let paid = self.spent.min(self.saved);
        self.spent -= paid;
        self.saved = (self.saved - paid).min(rate);
        self.spent == 0
    }
}

#[derive(Debug)]
struct Job {
    victims: Vec<Arc<Segment>>,
    blocks: VecDeque<(Arc<StreamShared>, Arc<Part>, BlockRef)>,
    writer: Option<SegmentWriter>,
    finished: Option<Finished>,
    synced: bool,
}

impl Compaction {
    /// Whether segments are being written anew.
    pub(crate) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// Gives up what is in hand; nothing names it.
    pub(crate) fn abandon(&mut self, disk: &dyn Disk) {
        if let Some(job) = self.job.take() {
            let id = job.writer.map(|w| w.id).or(job.finished.map(|f| f.segment.id));
            if let Some(id) = id {
                let _ = disk.remove(&segment_name(id));
            }
        }
        self.quiet = 0;
        self.rested_at = None;
    }
}

/// Segments of one tier are of about the same size, those of the next one eight times as long.
fn tier(segment: &Segment) -> u32 {
    segment.len.max(1).ilog2() / 3
}

/// Records in a segment and how many of them are live.
fn liveness(core: &Core, parts: &[(u64, u64, u64)], id: u64) -> (u64, u64) {
    let (mut total, mut live) = (0, 0);
    for (incarnation, first, _) in parts {
        let stream = core.registry.lock().all.get(incarnation).cloned();
        let Some(stream) = stream else { continue };
        let index = stream.index.read();
        if let Some(part) = index
            .parts
            .get(first)
            .filter(|p| p.segment.id == id && !index.deleted)
        {
            total += part.count;
            live += index.count_range(part.first_seq, part.last_seq);
        }
    }
    (total, live)
}

impl Keeper {
    /// One step of compaction.
    pub(crate) fn compact_step(&mut self, core: &Core) -> io::Result<Step> {
        let full = core.disk_full.load(Ordering::Relaxed);
        if self.compaction.job.is_some() {
            let (now, rate) = (core.clock.monotonic(), core.options.compaction_rate);
            // An erase that waits for it may not be held up.
            if !self.compaction.budget.allows(now, rate) && !self.is_erasing() {
                return Ok(Step::Idle);
            }
            return self.compact_work(core);
        }
        let written = core.counters.journal_bytes.load(Ordering::Relaxed);
        if self.segments.is_empty() || self.compaction.rested_at == Some(written) {
            return Ok(Step::Idle);
        }
        if self.compaction.quiet > self.segments.len() {
            self.compaction.quiet = 0;
            self.compaction.rested_at = Some(written);
            return Ok(Step::Idle);
        }
        self.compaction.quiet += 1;
        let next = self
            .segments
            .range(self.compaction.at + 1..)
            .next()
            .or_else(|| self.segments.iter().next());
        let Some((id, segment)) = next.map(|(id, s)| (*id, s.clone())) else {
            return Ok(Step::Idle);
        };
        self.compaction.at = id;
        let (total, live) = self.liveness_of(core, id);
        if live == 0 {
            self.compaction.quiet = 0;
            self.detach(core, &segment);
            self.doom(core, vec![segment], Vec::new())?;
            return Ok(Step::Worked);
        }
        if full {
            // Writing anew would take room first.
            return Ok(Step::Worked);
        }
        let fits = core.disk.room().is_some_and(|room| room / 2 > segment.len);
        let scarce = core.is_room_scarce() && fits;
        if live * 2 < total || scarce && live * 8 < total * 7 {
            self.compaction.quiet = 0;
            self.plan(core, &segment, false);
        } else if self.small_run(core, &segment) >= JOIN_MIN {
            self.compaction.quiet = 0;
            self.plan(core, &segment, true);
        }
        Ok(Step::Worked)
    }

    fn liveness_of(&self, core: &Core, id: u64) -> (u64, u64) {
        self.manifest
            .image
            .segments
            .get(&id)
            .map_or((0, 0), |entry| liveness(core, &entry.parts, id))
    }

    fn detach(&self, core: &Core, segment: &Arc<Segment>) {
        let Some(entry) = self.manifest.image.segments.get(&segment.id) else {
            return;
        };
        for (incarnation, first, _) in &entry.parts {
            let stream = core.registry.lock().all.get(incarnation).cloned();
            if let Some(stream) = stream {
                let mut index = stream.index.write();
                if index.parts.get(first).is_some_and(|p| p.segment.id == segment.id) {
                    index.parts.remove(first);
                }
            }
        }
    }

    fn by_rank(&self) -> Vec<Arc<Segment>> {
        let mut by_rank: Vec<Arc<Segment>> = self.segments.values().cloned().collect();
        by_rank.sort_by_key(|s| (s.rank, s.id));
        by_rank
    }

    /// How many small segments of this one's tier stand in a row from it on, lower ones between them not counted.
    fn small_run(&self, core: &Core, segment: &Segment) -> usize {
        // Of parts that would not get a segment of their own.
        let small = |s: &Segment| {
            let parts = self
                .manifest
                .image
                .segments
                .get(&s.id)
                .map_or(1, |e| e.parts.len().max(1));
            s.len < core.options.segment_max / 2 && s.len / (parts as u64) < core.options.own_segment_min
        };
        if !small(segment) || self.segments.values().filter(|s| small(s)).count() < JOIN_MIN {
            return 0;
        }
        let by_rank = self.by_rank();
        let from = by_rank.iter().skip_while(|s| s.id != segment.id);
        from.take_while(|s| tier(s) <= tier(segment))
            .filter(|s| tier(s) == tier(segment))
            .count()
    }

    /// Chooses the segment and neighbours in rank that are also mostly dead, or with `small` also small.
    pub(crate) fn plan(&mut self, core: &Core, segment: &Arc<Segment>, small: bool) {
        let by_rank = self.by_rank();
        let Some(start) = by_rank.iter().position(|s| s.id == segment.id) else {
            return;
        };
        let mut victims = vec![segment.clone()];
        let mut bytes = segment.len;
        for neighbour in by_rank.iter().skip(start + 1) {
            let (total, live) = self.liveness_of(core, neighbour.id);
            bytes += neighbour.len;
            // The joined segment takes the lowest rank and the highest number, so nothing of that rank may stay behind it.
            let tied = neighbour.rank == segment.rank;
            let fits = live * 2 < total || small && tier(neighbour) <= tier(segment);
            let enough = victims.len() >= JOIN_MAX || bytes > core.options.segment_max || !fits;
            if enough && !tied {
                break;
            }
            victims.push(neighbour.clone());
        }
        // Streams in order, and of each stream the parts in order of sequences.
        let mut parts: BTreeMap<(u64, u64), (Arc<StreamShared>, Arc<Part>)> = BTreeMap::new();
        for victim in &victims {
            let Some(entry) = self.manifest.image.segments.get(&victim.id) else {
                continue;
            };
            for (incarnation, first, _) in &entry.parts {
                let stream = core.registry.lock().all.get(incarnation).cloned();
                let Some(stream) = stream else { continue };
                let part = stream
                    .index
                    .read()
                    .parts
                    .get(first)
                    .filter(|p| p.segment.id == victim.id)
                    .cloned();
                if let Some(part) = part {
                    parts.insert((*incarnation, *first), (stream, part));
                }
            }
        }
        let blocks = parts
            .into_values()
            .flat_map(|(stream, part)| {
                let blocks: Vec<BlockRef> = part.blocks.to_vec();
                blocks.into_iter().map(move |b| (stream.clone(), part.clone(), b))
            })
            .collect();
        self.compaction.job = Some(Job {
            victims,
            blocks,
            writer: None,
            finished: None,
            synced: false,
        });
    }

    fn compact_work(&mut self, core: &Core) -> io::Result<Step> {
        let Some(mut job) = self.compaction.job.take() else {
            return Ok(Step::Idle);
        };
        let result = self.compact_on(core, &mut job);
        if !matches!(result, Ok(true)) {
            self.compaction.job = Some(job);
        }
        result.map(|_| Step::Worked)
    }

    fn compact_on(&mut self, core: &Core, job: &mut Job) -> io::Result<bool> {
        while let Some((stream, part, block)) = job.blocks.pop_front() {
            let writer = match &mut job.writer {
                Some(writer) => writer,
                None => {
                    let id = self.take_file();
                    let file = core.disk.create(&segment_name(id))?;
                    job.writer.insert(SegmentWriter::new(
                        id,
                        core.identity.store_id,
                        file,
                        core.options.block,
                    ))
                }
            };
            let bytes = crate::segment::read_block(&*core.segments.file(part.segment.id)?, block)?;
            self.compaction.budget.spent += u64::from(block.len);
            let index = stream.index.read();
            bytes.each(stream.incarnation, |_, r| {
                if index.get(r.seq()).is_some() {
                    writer.add(&r, index.options.compression);
                }
                true
            });
            drop(index);
            if writer.pending() >= core.options.step {
                self.compaction.budget.spent += writer.pending() as u64;
                writer.write_step()?;
                return Ok(false);
            }
        }
        if let Some(writer) = job.writer.take() {
            let rank = job.victims.iter().map(|v| v.rank).min().unwrap_or(0);
            job.finished = Some(end_segment(writer, rank)?);
            return Ok(false);
        }
        if !job.synced {
            core.disk.sync_dir()?;
            job.synced = true;
            return Ok(false);
        }
        let finished = job.finished.take();
        let entries = finished
            .iter()
            .map(|f| Entry::Segment(f.segment.id, segment_entry(f)))
            .collect();
        let victims = std::mem::take(&mut job.victims);
        let old: Vec<_> = victims
            .iter()
            .filter_map(|v| Some((v.clone(), self.manifest.image.segments.get(&v.id)?.clone())))
            .collect();
        self.doom(core, victims, entries)?;
        // Readers go from the old parts to the new ones in one step per stream: old ones out, then new ones in, under
        // one lock, so that no live message is without a place.
        replace(core, &old, finished.as_ref());
        if let Some(f) = finished {
            core.count_segment(f.segment.len);
            self.segments.insert(f.segment.id, f.segment);
        }
        Ok(true)
    }
}

fn replace(core: &Core, old: &[(Arc<Segment>, crate::manifest::SegmentEntry)], new: Option<&Finished>) {
    let mut gone: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for (segment, entry) in old {
        for (incarnation, first, _) in &entry.parts {
            gone.entry(*incarnation).or_default().push((*first, segment.id));
        }
    }
    for (incarnation, firsts) in gone {
        let stream = core.registry.lock().all.get(&incarnation).cloned();
        let Some(stream) = stream else { continue };
        let mut index = stream.index.write();
        for (first, id) in firsts {
            if index.parts.get(&first).is_some_and(|p| p.segment.id == id) {
                index.parts.remove(&first);
            }
        }
        if let Some(f) = new {
            for part in f.parts.iter().filter(|p| p.incarnation == incarnation) {
                if let (Some(first_seq), Some(last_seq)) = (part.seqs.first(), part.seqs.last()) {
                    let part = Part {
                        segment: f.segment.clone(),
                        first_seq,
                        last_seq,
                        count: part.seqs.len() as u64,
                        blocks: part.blocks.clone().into_boxed_slice(),
                    };
                    index.parts.insert(first_seq, Arc::new(part));
                }
            }
        }
    }
    if old.is_empty()
        && let Some(f) = new
    {
        attach(core, f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_earned_by_time_and_saved_for_a_second_at_most() {
        let at = Duration::from_millis;
        let mut budget = Budget::default();
        assert!(budget.allows(at(0), 1000), "nothing was spent yet");
        budget.spent = 1500;
        assert!(!budget.allows(at(100), 1000));
        assert!(!budget.allows(at(499), 1000));
        assert!(budget.allows(at(501), 1000));
        assert!(budget.allows(at(60_000), 1000));
        budget.spent = 1500;
        assert!(
            !budget.allows(at(60_400), 1000),
            "a minute of rest counts as a second"
        );
        assert!(budget.allows(at(60_501), 1000));
    }
}
