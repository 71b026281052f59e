//! Opening a store: manifest, segments, dedup ids, journal; then a new generation, durable before anything else happens.
//!
//! [`load`] only reads, and `verify` is no more than that. [`open`] goes on: it syncs the journal it read (after a kill its
//! end may be in the kernel alone), keeps a copy of a torn tail, writes a new manifest with the new generation, and only
//! then serves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use super::keeper::Keeper;
use super::pump::Pump;
use super::replay::{End, JournalImage, Replay};
use super::{Core, Listed, Registry, ids};
use crate::clock::Clock;
use crate::consumer::ConsumerChange;
use crate::disk::{Disk, read_all};
use crate::error::OpenError;
use crate::fault::Fault;
use crate::index::{Adding, ConsumerRecord, Erasing, Id, SPAN, Settled, StreamIndex, locate};
use crate::journal::{Journal, JournalFile, fill, journal_name, journal_slot, make_file, next_size};
use crate::manifest::{
    self, Found, Identity, Image, Manifest, Opening, SegmentEntry, StreamEntry, manifest_pair,
};
use crate::options::{Durability, StoreOptions};
use crate::record::SeqRange;
use crate::report::{Finding, RecoveryReport, Why};
use crate::segment::{FooterPart, Part, Segment, Segments, read_footer, segment_name};
use crate::stream::shared::{Queue, StreamShared};

/// A store as it was read, nothing changed yet.
pub(crate) struct Loaded {
    found: Option<Found>,
    names: Vec<String>,
    journal: Vec<JournalImage>,
    pub(crate) indexes: BTreeMap<u64, StreamIndex>,
    segments: BTreeMap<u64, Arc<Segment>>,
    tail: u64,
    end: End,
    pub(crate) report: RecoveryReport,
}

/// Reads everything that recovery needs.
pub(crate) fn load(options: &StoreOptions, disk: &dyn Disk, now_ns: i64) -> Result<Loaded, OpenError> {
    let names = disk.list()?;
    let mut report = RecoveryReport::default();
    let data = |n: &String| journal_slot(n).is_some() || n.starts_with("seg-") || n.starts_with("ids-");
    let found = match manifest::find(disk, &names) {
        // The very first opening was interrupted: nothing can have been acknowledged.
        Err(OpenError::ManifestUnreadable)
            if !names.iter().any(data) && names.iter().filter_map(|n| manifest_pair(n)).all(|p| p == 1) =>
        {
            None
        }
        other => other?,
    };
    if found.is_none() && names.iter().any(data) {
        return Err(OpenError::ManifestUnreadable);
    }
    let default_image = Image {
        next_incarnation: 1,
        next_file: 1,
        ..Image::default()
    };
    let image = found.as_ref().map_or(&default_image, |f| &f.image);
    if let Some(f) = &found {
        for file in &f.repaired {
            report.findings.push(finding(file, Why::ManifestRepaired));
        }
        if f.damaged {
            report.findings.push(finding("manifest", Why::ManifestDamaged));
        }
        report.clean = image.clean;
    }
    let mut segments = BTreeMap::new();
    let mut indexes = load_streams(disk, image, &mut segments, &mut report)?;
    load_ids(disk, image, &mut indexes, now_ns, options, &mut report)?;
    // A clean end leaves nothing in the journal that segments do not have, if all went well.
    let settled = image.clean && image.end == Some(image.trim);
    let mut journal = Vec::new();
    for name in &names {
        if let Some(slot) = journal_slot(name) {
            let file = disk.open(name)?;
            let bytes = if settled {
                Bytes::new()
            } else {
                Bytes::from(read_all(&*file)?)
            };
            journal.push(JournalImage {
                name: name.clone(),
                slot,
                len: file.len()?,
                bytes,
            });
        }
    }
    journal.sort_by_key(|j| j.slot);
    let identity = found.as_ref().map_or(0, |f| f.identity.store_id);
    let (mut indexes, tail, end) = Replay::new(options, image, &journal, indexes, &mut report).run(identity);
    settle_names(&mut indexes);
    let lost_power = !image.clean && (image.boot.is_none() || image.boot != disk.boot_id());
    for index in indexes.values_mut() {
        keep_last_sequence(index, image, lost_power, &mut report);
        if options.fault(Fault::SequenceReused) {
            index.last_seq = index
                .prev_match(&crate::index::Matching::All, u64::MAX - SPAN as u64)
                .unwrap_or(0);
        }
    }
    report.streams = indexes.values().filter(|i| !i.deleted).count() as u64;
    Ok(Loaded {
        found,
        names,
        journal,
        indexes,
        segments,
        tail,
        end,
        report,
    })
}

fn finding(file: &str, why: Why) -> Finding {
    Finding {
        stream: None,
        seqs: None,
        file: file.to_owned(),
        why,
    }
}

fn load_streams(
    disk: &dyn Disk,
    image: &Image,
    segments: &mut BTreeMap<u64, Arc<Segment>>,
    report: &mut RecoveryReport,
) -> io::Result<BTreeMap<u64, StreamIndex>> {
    let mut indexes: BTreeMap<u64, StreamIndex> = image
        .streams
        .iter()
        .map(|(k, entry)| (*k, StreamIndex::new(*k, entry.options.clone())))
        .collect();
    let mut damaged: Vec<(String, Vec<(u64, SeqRange)>)> = Vec::new();
    // In this order the sequences of every stream ascend.
    let mut ranked: Vec<(u64, u64)> = image.segments.iter().map(|(id, s)| (s.rank, *id)).collect();
    ranked.sort_unstable();
    for (rank, id) in ranked {
        let name = segment_name(id);
        let len = image.segments.get(&id).map_or(0, |s| s.len);
        let segment = Arc::new(Segment { id, len, rank });
        let ((parts, intact), why) = match disk.open(&name) {
            Ok(file) => (read_footer(id, &*file)?, Why::FooterRebuilt),
            Err(e) if e.kind() == io::ErrorKind::NotFound => ((Vec::new(), false), Why::MissingFile),
            Err(e) => return Err(e),
        };
        if !intact {
            let entry = image.segments.get(&id);
            damaged.extend(entry.map(|entry| (name.clone(), missing_of(image, entry, &parts))));
        }
        if !intact {
            report.findings.push(finding(&name, why));
        }
        if why == Why::MissingFile {
            continue;
        }
        segments.insert(id, segment.clone());
        for part in parts {
            if let (Some(index), Some(entry)) = (
                indexes.get_mut(&part.incarnation),
                image.streams.get(&part.incarnation),
            ) {
                add_part(index, image, entry, &segment, part);
            }
        }
    }
    for (incarnation, entry) in &image.streams {
        let Some(index) = indexes.get_mut(incarnation) else {
            continue;
        };
        index.last_seq = entry.settled_seq;
        index.last_time = entry.settled_time;
        index.settled = Settled {
            seq: entry.settled_seq,
            time: entry.settled_time,
        };
        index.settling = entry.settled_seq;
        index.first_seq = index.next_live(0).unwrap_or(entry.settled_seq + 1);
        index.ceiling = entry.ceiling;
        index.lost = entry.lost.iter().copied().collect();
        index.erasing = image.erasing.get(incarnation).map_or_else(Vec::new, |ranges| {
            let erasing = |(first, last): &(u64, u64)| Erasing {
                range: SeqRange {
                    first: *first,
                    last: *last,
                },
                op: 0,
            };
            ranges.iter().map(erasing).collect()
        });
        (index.dirty.stream, index.dirty.settings) = (false, false);
        index.created = true;
        index.dirty.ids_from_seq = entry.settled_seq;
        for ((_, name), c) in image
            .consumers
            .range((*incarnation, String::new())..)
            .take_while(|c| c.0.0 == *incarnation)
        {
            let mut record = ConsumerRecord {
                config: c.config.clone(),
                ..ConsumerRecord::default()
            };
            if let Some(change) = ConsumerChange::decode(&c.state) {
                record.state.apply(&change);
            }
            index.consumers.insert(name.clone(), record);
        }
    }
    for (file, missing) in damaged {
        for (incarnation, range) in missing {
            let Some(index) = indexes.get_mut(&incarnation) else {
                continue;
            };
            index.lose(range);
            report.findings.push(Finding {
                stream: Some(index.options.name.clone()),
                seqs: Some(range),
                file: file.clone(),
                why: Why::LostSequences,
            });
        }
    }
    Ok(indexes)
}

/// Messages that a segment should have, by what the manifest says, and that were not found in it.
fn missing_of(image: &Image, entry: &SegmentEntry, found: &[FooterPart]) -> Vec<(u64, SeqRange)> {
    let mut missing = Vec::new();
    for ((incarnation, first, last), count) in entry.parts.iter().zip(&entry.counts) {
        let Some(stream) = image.streams.get(incarnation) else {
            continue;
        };
        let parts = found.iter().filter(|p| p.incarnation == *incarnation);
        let here: BTreeSet<u64> = parts.flat_map(|p| p.seqs.iter()).collect();
        if here.len() as u64 == *count {
            continue;
        }
        let mut run: Option<SeqRange> = None;
        for seq in (*first).max(stream.floor)..=*last {
            let said = image.live.get(&(*incarnation, locate(seq).0));
            let known = stream
                .lost
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&seq));
            if here.contains(&seq) || known || said.is_some_and(|live| !live.is_live(seq)) {
                continue;
            }
            match &mut run {
                Some(range) if range.last + 1 == seq => range.last = seq,
                run => missing.extend(run.replace(SeqRange::one(seq)).map(|range| (*incarnation, range))),
            }
        }
        missing.extend(run.map(|range| (*incarnation, range)));
    }
    missing
}

/// Adds what of a segment's part is live.
fn add_part(
    index: &mut StreamIndex,
    image: &Image,
    entry: &StreamEntry,
    segment: &Arc<Segment>,
    part: FooterPart,
) {
    let (Some(first_seq), Some(last_seq)) = (part.seqs.first(), part.seqs.last()) else {
        return;
    };
    let mut adding = Adding::new(part);
    let (mut at, count) = (0, adding.part.seqs.len());
    while let Some(seq) = adding.part.seqs.get(at) {
        let (number, _) = locate(seq);
        let inside = adding.part.seqs.below(at, (number + 1) * SPAN as u64);
        let said = image.live.get(&(index.incarnation, number));
        let all = said.is_none() && seq >= entry.floor;
        adding.span(index, at..at + inside, all, |seq| {
            seq >= entry.floor && said.is_none_or(|live| live.is_live(seq))
        });
        at += inside;
    }
    let blocks = adding.finish(index);
    index.parts.insert(
        first_seq,
        Arc::new(Part {
            segment: segment.clone(),
            first_seq,
            last_seq,
            count: count as u64,
            blocks: blocks.into_boxed_slice(),
        }),
    );
}

fn load_ids(
    disk: &dyn Disk,
    image: &Image,
    indexes: &mut BTreeMap<u64, StreamIndex>,
    now_ns: i64,
    options: &StoreOptions,
    report: &mut RecoveryReport,
) -> io::Result<()> {
    let mut found: BTreeMap<u64, Vec<Id>> = BTreeMap::new();
    for (file, entry) in &image.ids {
        let name = ids::ids_name(*file);
        let (entries, damaged) = match ids::read(disk, *file, entry.bucket.map(|b| b.len)) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                report.findings.push(finding(&name, Why::MissingFile));
                continue;
            }
            Err(e) => return Err(e),
        };
        if damaged > 0 {
            report.findings.push(finding(&name, Why::DamagedRecord));
        }
        for (incarnation, id) in entries {
            found.entry(incarnation).or_default().push(id);
        }
    }
    for (incarnation, mut entries) in found {
        let Some(index) = indexes.get_mut(&incarnation) else {
            continue;
        };
        let window = i64::try_from(index.options.dedup_window.as_nanos()).unwrap_or(i64::MAX);
        entries.retain(|id| id.time.saturating_add(window) > now_ns);
        // Files are of stretches of time whose length may have changed.
        entries.sort_by_key(|id| id.seq);
        for id in entries {
            index.ids.insert(id, options.dedup_max);
        }
    }
    Ok(())
}

/// A re-created stream may be durable while the end of its namesake is not; the younger one then counts.
fn settle_names(indexes: &mut BTreeMap<u64, StreamIndex>) {
    let mut youngest: BTreeMap<String, u64> = BTreeMap::new();
    for (incarnation, index) in indexes.iter() {
        youngest.insert(index.options.name.clone(), *incarnation);
    }
    for (incarnation, index) in indexes.iter_mut() {
        if youngest.get(&index.options.name) != Some(incarnation) {
            index.deleted = true;
            index.dirty.stream = true;
        }
    }
}

/// The last sequence never goes back, whatever became of the records.
fn keep_last_sequence(index: &mut StreamIndex, image: &Image, lost_power: bool, report: &mut RecoveryReport) {
    let weak = index.options.durability != Durability::Sync;
    let known = image
        .streams
        .get(&index.incarnation)
        .map_or((0, 0), |e| (e.last_seq, e.last_time));
    let mut last = known.0;
    if weak && lost_power {
        last = last.max(index.ceiling);
    }
    if last > index.last_seq {
        let range = SeqRange {
            first: index.last_seq + 1,
            last,
        };
        if !weak {
            index.lose(range);
            report.findings.push(Finding {
                stream: Some(index.options.name.clone()),
                seqs: Some(range),
                file: "journal".to_owned(),
                why: Why::LostSequences,
            });
        }
        index.last_seq = last;
        if index.messages == 0 {
            index.first_seq = last + 1;
        }
        index.dirty.stream = true;
    }
    index.last_time = index.last_time.max(known.1);
}

/// Opens a store.
pub(crate) fn open(
    options: StoreOptions,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
) -> Result<(Core, RecoveryReport), OpenError> {
    let since = clock.wall_ns() / 1_000_000_000;
    let holder = format!("process {}, since Unix time {since}", std::process::id());
    let lock = disk.lock(&holder)?;
    let options = options.in_pages();
    let mut loaded = load(&options, &*disk, clock.wall_ns())?;
    let mut image = match &loaded.found {
        Some(f) => f.image.clone(),
        None => Image {
            next_incarnation: 1,
            next_file: 1,
            ..Image::default()
        },
    };
    let identity = loaded.found.as_ref().map_or_else(
        || Identity {
            store_id: rand::random(),
            key: (rand::random(), rand::random()),
        },
        |f| f.identity,
    );
    let first_frame = loaded.end.last_frame + 1;
    let generation = image.openings.last().map_or(0, |o| o.generation) + 1;
    let mut journal = Journal::new(
        identity.store_id,
        generation,
        first_frame,
        next_slot(&loaded.journal),
    );
    adopt_files(&mut journal, &*disk, &loaded)?;
    if !loaded.end.torn.iter().all(|b| *b == 0) {
        keep_torn(&*disk, generation, &loaded.end.torn)?;
    }
    let known = loaded
        .names
        .iter()
        .filter_map(|n| n.rsplit_once('-')?.1.parse::<u64>().ok())
        .max()
        .unwrap_or(0);
    image.next_file = image.next_file.max(known + 1);
    let newest = loaded.indexes.keys().next_back().map_or(0, |i| i + 1);
    image.next_incarnation = image.next_incarnation.max(newest);
    image.boot = disk.boot_id();
    image.clean = false;
    for (incarnation, index) in &loaded.indexes {
        if let Some(entry) = image.streams.get_mut(incarnation) {
            entry.last_seq = entry.last_seq.max(index.last_seq);
            entry.last_time = entry.last_time.max(index.last_time);
        } else if index.last_seq > index.settled.seq {
            image
                .streams
                .insert(*incarnation, super::keeper::stream_entry(index, index.settled));
        }
    }
    image.fold(manifest::Entry::Opening(Opening {
        generation,
        first_frame,
    }));
    let pair = loaded
        .names
        .iter()
        .filter_map(|n| manifest_pair(n))
        .max()
        .unwrap_or(0)
        + 1;
    let manifest = Manifest::begin(&*disk, identity, pair, image, &loaded.names)?;
    if journal.size() == 0 {
        let slot = journal.take_slot();
        let size = next_size(
            options.journal_first,
            options.journal_file_max,
            options.journal_max,
            0,
        )
        .unwrap_or(options.journal_first);
        let file = make_file(&*disk, &journal_name(slot), size)?;
        disk.sync_dir()?;
        journal.free.push_back(JournalFile::new(slot, file, size));
    }
    let damaged = loaded.found.as_ref().is_some_and(|f| f.damaged);
    set_aside(
        &*disk,
        &loaded.names,
        &manifest.image,
        damaged,
        &mut loaded.report,
    )?;
    let segments = Arc::new(Segments::new(
        disk.clone(),
        options.open_files_max,
        options.cache_max,
    ));
    let mut registry = Registry {
        next_incarnation: manifest.image.next_incarnation,
        ..Registry::default()
    };
    for (incarnation, index) in std::mem::take(&mut loaded.indexes) {
        let name = index.options.name.clone();
        let living = !index.deleted;
        let shared = Arc::new(StreamShared {
            incarnation,
            name: name.clone(),
            storage: index.options.storage,
            meters: super::meters::StreamMeters::new(&index),
            index: RwLock::new(index),
            queue: Mutex::new(Queue::default()),
            purging: Mutex::new(None),
            staged: AtomicU64::new(0),
        });
        if living {
            registry.by_name.insert(name, shared.clone());
        }
        registry.all.insert(incarnation, shared);
    }
    let used = journal.size() - journal.room();
    let erasing = registry.all.values().any(|s| !s.index.read().erasing.is_empty());
    let keeper = Keeper::new(manifest, std::mem::take(&mut loaded.segments));
    let core = Core {
        pump: Mutex::new(Pump::new(journal)),
        keeper: Mutex::new(keeper),
        registry: Mutex::new(registry),
        staged: AtomicU64::new(0),
        tail: AtomicU64::new(loaded.tail),
        journal_used: AtomicU64::new(used),
        counters: super::Counters::default(),
        meters: super::meters::Meters::new(),
        failed: AtomicBool::new(false),
        disk_full: AtomicBool::new(false),
        erasing: AtomicBool::new(erasing),
        keeper_thread: Mutex::new(None),
        waiting: Mutex::new(Vec::new()),
        list: Mutex::new(Listed::default()),
        wakeup: Condvar::new(),
        probed: Condvar::new(),
        _lock: lock,
        options,
        disk,
        clock,
        identity,
        segments,
    };
    Ok((core, loaded.report))
}

fn next_slot(journal: &[JournalImage]) -> u32 {
    journal.iter().map(|j| j.slot + 1).max().unwrap_or(1)
}

/// Opens the journal's files for writing. Those with frames that count are synced, since after a kill their end may not be.
fn adopt_files(journal: &mut Journal, disk: &dyn Disk, loaded: &Loaded) -> io::Result<()> {
    let mut used = Vec::new();
    for image in &loaded.journal {
        let file = disk.open(&image.name)?;
        let len = image.len;
        let size = len.next_multiple_of(crate::journal::frame::PAGE as u64);
        if size == 0 {
            continue;
        }
        if size > len {
            fill(&*file, len, size)?;
        }
        let mut adopted = JournalFile::adopted(image.slot, file, size);
        match loaded.end.files.get(&image.slot) {
            Some(end) => {
                adopted.file.sync()?;
                adopted.at = end.at.min(size);
                adopted.last_frame = end.last_frame;
                used.push((end.first_frame, adopted));
            }
            None => journal.free.push_back(adopted),
        }
    }
    used.sort_by_key(|(first, _)| *first);
    journal.used.extend(used.into_iter().map(|(_, f)| f));
    Ok(())
}

fn keep_torn(disk: &dyn Disk, generation: u32, torn: &[u8]) -> io::Result<()> {
    let name = format!("aside-{generation}");
    let file = match disk.create(&name) {
        Ok(file) => file,
        // An opening that was itself interrupted has left it.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => disk.open(&name)?,
        Err(e) => return Err(e),
    };
    file.write_at(torn, 0)?;
    file.sync()
}

/// Removes files that an interrupted step left; whatever else is not known is left alone and reported.
fn set_aside(
    disk: &dyn Disk,
    names: &[String],
    image: &Image,
    damaged: bool,
    report: &mut RecoveryReport,
) -> io::Result<()> {
    let number = |name: &str, prefix: &str| name.strip_prefix(prefix).and_then(|n| n.parse::<u64>().ok());
    for name in names {
        let leftover = match (number(name, "seg-"), number(name, "ids-")) {
            (Some(id), _) => !image.segments.contains_key(&id),
            (_, Some(id)) => !image.ids.contains_key(&id),
            _ => {
                let known = journal_slot(name).is_some()
                    || manifest_pair(name).is_some()
                    || name.starts_with("aside-")
                    || name == super::keeper::BALLAST;
                if !known {
                    report.findings.push(finding(name, Why::UnknownFile));
                }
                false
            }
        };
        if leftover {
            // A file is named by the manifest before the journal lets go of what is in it, so it is a copy.
            if damaged {
                report.findings.push(finding(name, Why::UnknownFile));
            } else {
                disk.remove(name)?;
            }
        }
    }
    Ok(())
}
