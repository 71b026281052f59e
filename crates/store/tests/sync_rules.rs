//! The rules of what is synced when, checked on the sequence of disk operations of a run that does everything.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::HashSet;
use std::sync::Arc;

use windjet_store::{
    Append, DiskEvent, DiskOp, Op, SeqRange, SimClock, SimDisk, Step, Store, StoreOptions, StreamOptions,
};

fn options() -> StoreOptions {
    StoreOptions {
        journal_first: 16 << 10,
        journal_file_max: 16 << 10,
        journal_max: 64 << 10,
        frame_max: 6 << 10,
        own_segment_min: 2 << 10,
        segment_max: 64 << 10,
        ballast: false,
        ..StoreOptions::default()
    }
}

/// Appends, removals, materialising, compaction; the recorded operations of all of it.
fn everything() -> Vec<DiskEvent> {
    let disk = SimDisk::new(3);
    disk.record();
    let (store, _) = Store::open(options(), Arc::new(disk.clone()), Arc::new(SimClock::new(1))).unwrap();
    let mut w = store
        .create_stream(StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        })
        .unwrap();
    for i in 0..400u64 {
        w.stage(Op::Append(Append {
            subject: b"s",
            payload: &[1; 300],
            ..Append::default()
        }))
        .unwrap();
        if i > 50 && !i.is_multiple_of(3) {
            w.stage(Op::Remove(&[SeqRange::one(i - 40)])).unwrap();
        }
        w.submit();
        while store.write_step().unwrap() == Step::Worked {}
        store.sync_step().unwrap();
        w.commit().unwrap();
        while store.materialise_step(false).unwrap() == Step::Worked {}
    }
    disk.take_events()
}

#[test]
fn segments_are_synced_with_their_names_before_the_manifest_and_removed_after_it() {
    let events = everything();
    let (mut unsynced, mut unnamed) = (HashSet::new(), HashSet::new());
    let mut manifest_syncs = 0;
    let mut removed = 0;
    let mut gone = HashSet::new();
    for e in &events {
        let segment = e.name.starts_with("seg-") || e.name.starts_with("ids-");
        match e.op {
            DiskOp::Create if segment => {
                unnamed.insert(e.name.clone());
            }
            DiskOp::Write if segment => {
                unsynced.insert(e.name.clone());
            }
            DiskOp::Sync => {
                unsynced.remove(&e.name);
                if e.name.starts_with("manifest") {
                    manifest_syncs += 1;
                }
            }
            DiskOp::SyncDir => unnamed.clear(),
            DiskOp::Write if e.name.starts_with("manifest") => {
                // A job writes its files and then the manifest; compaction and materialising do not overlap here.
                assert!(
                    unsynced.is_empty(),
                    "the manifest is written while {unsynced:?} are not synced"
                );
                assert!(
                    unnamed.is_empty(),
                    "the manifest is written while the names {unnamed:?} are not synced"
                );
            }
            DiskOp::Remove if segment => {
                removed += 1;
                assert!(
                    manifest_syncs > 0,
                    "a file is removed before any manifest forgot it"
                );
                assert!(gone.insert(e.name.clone()), "a name is removed once");
            }
            _ => {}
        }
    }
    assert!(removed > 3, "nothing was compacted: {removed}");
}

#[test]
fn a_name_is_never_used_twice_for_a_segment() {
    let mut seen = HashSet::new();
    for e in everything()
        .into_iter()
        .filter(|e| e.op == DiskOp::Create && e.name.starts_with("seg-"))
    {
        assert!(seen.insert(e.name.clone()), "{} twice", e.name);
    }
    assert!(seen.len() > 3);
}

#[test]
fn one_sync_serves_all_streams_that_wait_and_commits_no_metadata() {
    let disk = SimDisk::new(3);
    let (store, _) = Store::open(
        StoreOptions {
            ballast: false,
            ..StoreOptions::default()
        },
        Arc::new(disk.clone()),
        Arc::new(SimClock::new(1)),
    )
    .unwrap();
    let names = (0..100).map(|i| StreamOptions {
        name: format!("S{i}"),
        ..StreamOptions::default()
    });
    let mut writers: Vec<_> = names.map(|o| store.create_stream(o).unwrap()).collect();
    for w in &mut writers {
        w.stage(Op::Append(Append {
            subject: b"s",
            payload: b"p",
            ..Append::default()
        }))
        .unwrap();
        w.submit();
    }
    disk.record();
    let used = disk.used();
    while store.write_step().unwrap() == Step::Worked {}
    assert!(
        writers.iter_mut().all(|w| w.commit().unwrap() == 0),
        "nothing counts before the sync"
    );
    store.sync_step().unwrap();
    assert!(
        writers.iter_mut().all(|w| w.commit().unwrap() == 2),
        "everything counts after it"
    );
    let events = disk.take_events();
    let count = |op| events.iter().filter(|e| e.op == op).count();
    assert_eq!(
        (count(DiskOp::Sync), count(DiskOp::Create), count(DiskOp::SyncDir)),
        (1, 0, 0)
    );
    assert_eq!(disk.used(), used, "frames go into zeros that are there already");
}
