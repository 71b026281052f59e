//! Bit rot and truncation, byte by byte: what is lost is what was hit, it is reported, and all else reads back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windjet_store::{
    Append, Compression, Disk, Found, Op, SeqRange, SimClock, SimDisk, Step, Store, StoreOptions,
    StreamOptions, Why, verify,
};

const NOW: i64 = 1_000_000_000;
const STREAMS: [&str; 3] = ["A", "B", "C"];

fn options() -> StoreOptions {
    StoreOptions {
        journal_first: 16 << 10,
        journal_file_max: 16 << 10,
        journal_max: 64 << 10,
        frame_max: 6 << 10,
        fragment: 3 << 10,
        own_segment_min: 3 << 10,
        step: 2 << 10,
        block: 1 << 10,
        ballast: false,
        ..StoreOptions::default()
    }
}

fn open(disk: &SimDisk) -> Result<(Store, windjet_store::RecoveryReport), windjet_store::OpenError> {
    open_at(disk, Arc::new(SimClock::new(NOW)))
}

fn open_at(
    disk: &SimDisk,
    clock: Arc<SimClock>,
) -> Result<(Store, windjet_store::RecoveryReport), windjet_store::OpenError> {
    Store::open(options(), Arc::new(disk.clone()), clock)
}

type Contents = BTreeMap<(String, u64), Vec<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    /// Closed while no segment could be written, so that the journal keeps what it had.
    ClosedWithJournal,
    /// Killed when nothing had been written for a while.
    KilledQuiet,
    Killed,
}

/// A store with messages in the journal, in a segment of their own and in a shared one.
fn store(end: End, compression: Compression) -> (SimDisk, Contents) {
    let disk = SimDisk::new(1);
    let clock = Arc::new(SimClock::new(NOW));
    let (store, _) = open_at(&disk, clock.clone()).unwrap();
    let mut writers: Vec<_> = STREAMS
        .iter()
        .map(|n| {
            store
                .create_stream(StreamOptions {
                    name: (*n).into(),
                    compression,
                    ..StreamOptions::default()
                })
                .unwrap()
        })
        .collect();
    let mut contents = Contents::new();
    for i in 0..60u64 {
        for (n, w) in writers.iter_mut().enumerate() {
            if n > 0 && i % 6 != 0 {
                continue;
            }
            let payload = format!("{n} {i} {}", "x".repeat((i as usize * 13) % 150)).into_bytes();
            let t = w
                .stage(Op::Append(Append {
                    subject: b"s.1",
                    payload: &payload,
                    ..Append::default()
                }))
                .unwrap();
            contents.insert((STREAMS[n].to_owned(), t.seq), payload);
            w.submit();
        }
        while store.write_step().unwrap() == Step::Worked {}
        store.sync_step().unwrap();
        for w in &mut writers {
            w.commit().unwrap();
        }
        if i == 40 {
            while store.materialise_step(true).unwrap() == Step::Worked {}
        }
        while store.materialise_step(false).unwrap() == Step::Worked {}
    }
    store.idle_step().unwrap();
    if end == End::KilledQuiet {
        assert_eq!(store.materialise_step(false).unwrap(), Step::Idle);
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.materialise_step(false).unwrap(), Step::Worked);
        assert_eq!(store.materialise_step(false).unwrap(), Step::Idle, "once");
    } else if end != End::Killed {
        drop(writers);
        if end == End::ClosedWithJournal {
            disk.fail_writes(Some(("seg", std::io::ErrorKind::Other)));
        }
        store.close().unwrap();
        disk.fail_writes(None);
    } else {
        store.sync_step().unwrap();
    }
    disk.kill();
    (disk, contents)
}

/// Opens and reads everything; answers what is missing or wrong.
fn missing(disk: &SimDisk, contents: &Contents) -> (Vec<(String, u64)>, windjet_store::RecoveryReport) {
    let (store, report) = open(disk).unwrap();
    let mut lost = Vec::new();
    for ((name, seq), payload) in contents {
        let found = match store.reader(name).map(|r| r.read(*seq)) {
            Some(Found::InMemory(m)) => Some(m),
            Some(Found::NeedsDisk(t)) => t.read().unwrap_or_default(),
            Some(Found::Absent) | None => None,
        };
        match found {
            Some(m) => assert_eq!(&m.payload()[..], &payload[..], "{name} {seq} reads back wrong"),
            None => lost.push((name.clone(), *seq)),
        }
    }
    (lost, report)
}

/// `most` messages may go with one byte.
fn flip_every_byte(end: End, compression: Compression, most: usize) {
    let (disk, contents) = store(end, compression);
    let (lost, report) = missing(&disk.fork(2), &contents);
    assert!(lost.is_empty() && report.is_intact(), "{lost:?} {report:?}");
    let (mut hit, mut many) = (0, 0);
    for name in disk.list().unwrap() {
        let good = disk.contents(&name).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            let copy = disk.fork(at as u64);
            copy.set_contents(&name, bad);
            let found = verify(&copy, NOW).unwrap();
            let (lost, _) = missing(&copy, &contents);
            assert!(lost.len() <= most, "{name} byte {at}: {lost:?}");
            hit += usize::from(!lost.is_empty());
            many += usize::from(lost.len() > 1);
            for (_, seq) in &lost {
                let told = found.findings.iter().any(|f| {
                    f.seqs.is_some_and(|s| s.contains(*seq))
                        || (f.seqs.is_none() && f.why == Why::DamagedRecord)
                });
                assert!(
                    told,
                    "{name} byte {at}: {lost:?} not reported in {:?}",
                    found.findings
                );
            }
        }
    }
    assert!(hit > 1000, "the flips hardly hit a record: {hit}");
    assert_eq!(many > 0, most > 1, "compressed blocks were hit: {many}");
}

#[test]
fn a_flipped_byte_in_a_closed_store_costs_at_most_its_record() {
    flip_every_byte(End::Closed, Compression::None, 1);
}

#[test]
fn a_flipped_byte_in_a_killed_store_costs_at_most_its_record() {
    flip_every_byte(End::Killed, Compression::None, 1);
}

#[test]
fn a_flipped_byte_in_a_compressed_store_costs_at_most_its_block() {
    // A block has 4 KiB of records here, of 60 bytes and more each.
    flip_every_byte(End::Closed, Compression::Snappy, 4096 / 60);
}

#[test]
fn a_journal_file_cut_or_zeroed_after_a_clean_end_costs_what_was_in_the_range_and_keeps_the_last_sequence() {
    let (disk, contents) = store(End::ClosedWithJournal, Compression::None);
    let journals: Vec<String> = disk
        .list()
        .unwrap()
        .into_iter()
        .filter(|n| n.starts_with("journal"))
        .collect();
    let last = |name: &str| {
        contents
            .keys()
            .filter(|k| k.0 == name)
            .map(|k| k.1)
            .max()
            .unwrap()
    };
    let mut hit = 0;
    for name in &journals {
        let good = disk.contents(name).unwrap();
        for at in (0..good.len()).step_by(257) {
            for zero in [false, true] {
                let copy = disk.fork(at as u64);
                let mut bad = good[..at].to_vec();
                if zero {
                    bad.resize(good.len(), 0);
                }
                copy.set_contents(name, bad);
                let (lost, report) = missing(&copy, &contents);
                let (store, _) = {
                    copy.kill();
                    open(&copy).unwrap()
                };
                for stream in STREAMS {
                    let state = store.reader(stream).unwrap().state();
                    assert!(
                        state.last_seq >= last(stream),
                        "{name} cut at {at}: {stream} went back"
                    );
                }
                hit += lost.len();
                for (stream, seq) in lost {
                    let told = report.findings.iter().any(|f| {
                        f.stream.as_deref() == Some(stream.as_str())
                            && f.seqs.is_some_and(|s| s.contains(seq))
                    });
                    assert!(
                        told,
                        "{name} cut at {at} zero {zero}: {stream} {seq} not in {:?}",
                        report.findings
                    );
                }
            }
        }
    }
    assert!(hit > 100, "the cuts hardly hit a record: {hit}");
}

#[test]
fn no_file_with_messages_is_removed_when_the_manifest_is_gone() {
    let (disk, _) = store(End::Closed, Compression::None);
    let names = disk.list().unwrap();
    for n in names.iter().filter(|n| n.starts_with("manifest")) {
        disk.set_contents(n, b"rubbish".to_vec());
    }
    assert!(matches!(
        open(&disk),
        Err(windjet_store::OpenError::ManifestUnreadable)
    ));
    assert_eq!(disk.list().unwrap(), names);
}

/// Every file cut off and zeroed from every length on (every so many; `WINDJET_CUT_STEP=1` takes all).
fn cut_every_file(end: End) {
    let step = std::env::var("WINDJET_CUT_STEP")
        .ok()
        .and_then(|s| s.parse().ok());
    let (disk, contents) = store(end, Compression::None);
    let last = |name: &str| contents.keys().filter(|k| k.0 == name).map(|k| k.1).max();
    let holds = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
    let (mut hit, mut silent) = (0, 0);
    for name in disk.list().unwrap() {
        let good = disk.contents(&name).unwrap();
        for at in (0..good.len()).step_by(step.unwrap_or(7)) {
            for zero in [false, true] {
                let copy = disk.fork(at as u64);
                let mut bad = good[..at].to_vec();
                if zero {
                    bad.resize(good.len(), 0);
                }
                copy.set_contents(&name, bad);
                let (lost, report) = missing(&copy, &contents);
                copy.kill();
                let (store, _) = open(&copy).unwrap();
                let what = format!("{name} from {at} on, zeroed {zero}");
                for (stream, seq) in &lost {
                    let told = report.findings.iter().any(|f| {
                        f.stream.as_deref() == Some(stream.as_str())
                            && f.seqs.is_some_and(|s| s.contains(*seq))
                    });
                    // The newest frames of a killed store, with nothing later that tells of them, are as if never written.
                    let newest = end == End::Killed
                        && name.starts_with("journal")
                        && store.reader(stream).is_none_or(|r| r.state().last_seq < *seq);
                    assert!(
                        told || newest,
                        "{what}: {stream} {seq} not in {:?}",
                        report.findings
                    );
                    silent += usize::from(!told);
                    let payload = &contents[&(stream.clone(), *seq)];
                    assert!(
                        !holds(&good[..at], payload),
                        "{what}: {stream} {seq} stands before that and is lost"
                    );
                }
                if !(end == End::Killed && name.starts_with("journal")) {
                    for stream in STREAMS {
                        let state = store.reader(stream).map(|r| r.state());
                        let seq = state.as_ref().map(|s| s.last_seq);
                        assert_eq!(seq, last(stream), "{what}: {stream} went back");
                        let gone = lost.iter().filter(|(name, _)| name == stream).count() as u64;
                        assert_eq!(state.map(|s| s.lost), Some(gone), "{what}: {stream}");
                    }
                }
                hit += lost.len();
            }
        }
    }
    assert!(hit > 100, "the cuts hardly hit a record: {hit}");
    println!("{hit} records hit, {silent} of them in the newest frames of a killed store");
    assert!(end == End::Killed || silent == 0);
}

#[test]
fn a_file_of_a_closed_store_cut_or_zeroed_costs_what_was_in_the_range_and_says_so() {
    cut_every_file(End::Closed);
}

#[test]
fn a_file_of_a_store_killed_when_it_was_quiet_cut_or_zeroed_costs_what_was_in_the_range_and_says_so() {
    cut_every_file(End::KilledQuiet);
}

#[test]
fn a_file_of_a_killed_store_cut_or_zeroed_costs_what_was_in_the_range_and_says_so() {
    cut_every_file(End::Killed);
}

/// Stages removals of these sequences and has them in the journal.
fn remove(store: &Store, w: &mut windjet_store::StreamWriter, seqs: impl Iterator<Item = u64>) {
    let ranges: Vec<SeqRange> = seqs.map(SeqRange::one).collect();
    w.stage(Op::Remove(&ranges)).unwrap();
    w.submit();
    while store.write_step().unwrap() == Step::Worked {}
    store.sync_step().unwrap();
    w.commit().unwrap();
}

#[test]
fn of_a_segment_that_is_gone_every_live_message_is_reported_and_no_removed_one() {
    let disk = SimDisk::new(1);
    let (store, _) = open(&disk).unwrap();
    let mut w = store
        .create_stream(StreamOptions {
            name: "A".into(),
            ..StreamOptions::default()
        })
        .unwrap();
    for _ in 0..90 {
        w.stage(Op::Append(Append {
            subject: b"s",
            payload: &[7; 200],
            ..Append::default()
        }))
        .unwrap();
        w.submit();
        while store.write_step().unwrap() == Step::Worked {}
        store.sync_step().unwrap();
        w.commit().unwrap();
    }
    // Some before their segment is made, so that it leaves them out, some after.
    remove(&store, &mut w, (1..=90).filter(|seq| seq % 3 == 0));
    while store.materialise_step(true).unwrap() == Step::Worked {}
    remove(&store, &mut w, (1..=90).filter(|seq| seq % 10 == 4));
    let live: Vec<u64> = (1..=90).filter(|seq| seq % 3 != 0 && seq % 10 != 4).collect();
    drop(w);
    store.close().unwrap();
    disk.kill();
    let mut all = Vec::new();
    for name in disk.list().unwrap().into_iter().filter(|n| n.starts_with("seg-")) {
        let copy = disk.fork(3);
        copy.remove(&name).unwrap();
        for _ in 0..2 {
            let (store, report) = open(&copy).unwrap();
            let told: Vec<u64> = report
                .findings
                .iter()
                .filter_map(|f| f.seqs)
                .flat_map(|range| range.first..=range.last)
                .collect();
            let state = store.reader("A").unwrap().state();
            let lost = live.len() as u64 - state.messages;
            assert!(
                lost > 0 && state.lost == lost && state.last_seq == 90,
                "{state:?}"
            );
            if all.iter().all(|seq| !told.contains(seq)) && !told.is_empty() {
                assert_eq!(told.len() as u64, lost, "{told:?}");
                all.extend(told);
            }
            // The next opening knows it already, and counts it once.
            store.close().unwrap();
            copy.kill();
        }
    }
    all.sort_unstable();
    assert_eq!(all, live, "together the segments have every live message");
}
