//! Full and failing disks: what is refused, what goes on, and that it ends by itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use windjet_store::{
    Append, Found, Health, Op, Purge, SeqRange, SimClock, SimDisk, StageError, Step, Store, StoreOptions,
    StreamOptions, StreamWriter,
};

fn options() -> StoreOptions {
    StoreOptions {
        journal_first: 64 << 10,
        journal_file_max: 64 << 10,
        journal_max: 256 << 10,
        tail_max: 128 << 10,
        stream_staged_max: 64 << 10,
        own_segment_min: 16 << 10,
        ..StoreOptions::default()
    }
}

fn setup() -> (SimDisk, Arc<SimClock>, Store, StreamWriter) {
    let disk = SimDisk::new(1);
    let clock = Arc::new(SimClock::new(1));
    let (store, _) = Store::open(options(), Arc::new(disk.clone()), clock.clone()).unwrap();
    let writer = store
        .create_stream(StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        })
        .unwrap();
    (disk, clock, store, writer)
}

fn turn(store: &Store, writer: &mut StreamWriter) {
    writer.submit();
    while store.write_step().unwrap() == Step::Worked {}
    store.sync_step().unwrap();
    writer.commit().unwrap();
    // A full disk shows here; nothing acknowledged depends on it.
    while matches!(store.materialise_step(false), Ok(Step::Worked)) {}
}

fn append(writer: &mut StreamWriter) -> Result<u64, StageError> {
    let append = Append {
        subject: b"s",
        payload: &[7; 1000],
        ..Append::default()
    };
    writer.stage(Op::Append(append)).map(|t| t.seq)
}

fn read(writer: &StreamWriter, seq: u64) -> bool {
    match writer.reader().read(seq) {
        Found::InMemory(_) => true,
        Found::NeedsDisk(t) => t.read().unwrap().is_some(),
        Found::Absent => false,
    }
}

#[test]
fn on_a_full_disk_appends_are_refused_and_everything_else_goes_on_until_space_returns() {
    let (disk, clock, store, mut writer) = setup();
    turn(&store, &mut writer);
    disk.set_capacity(Some(disk.used() + (300 << 10)));
    let mut stored = Vec::new();
    let mut refused = None;
    for _ in 0..5000 {
        match append(&mut writer) {
            Ok(seq) => stored.push(seq),
            Err(StageError::Busy) => {}
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
        turn(&store, &mut writer);
    }
    assert_eq!(
        (refused, store.health()),
        (Some(StageError::DiskFull), Health::DiskFull)
    );
    let last = writer.last_seq();
    assert_eq!(Some(&last), stored.last(), "a refused append used no sequence");
    assert!(stored.iter().all(|seq| read(&writer, *seq)));
    // What frees space goes on, as often as needed.
    let half = stored.len() / 2;
    for seq in &stored[..half] {
        writer.stage(Op::Remove(&[SeqRange::one(*seq)])).unwrap();
        turn(&store, &mut writer);
    }
    assert!(!read(&writer, stored[0]) && read(&writer, last));
    assert_eq!(append(&mut writer), Err(StageError::DiskFull));
    disk.set_capacity(None);
    clock.advance(Duration::from_secs(2));
    turn(&store, &mut writer);
    assert_eq!(store.health(), Health::Good);
    assert_eq!(append(&mut writer), Ok(last + 1));
    turn(&store, &mut writer);
    assert!(read(&writer, last + 1));
}

#[test]
fn a_failed_sync_of_the_journal_stops_all_writes_and_reads_go_on() {
    let (disk, clock, store, mut writer) = setup();
    let first = append(&mut writer).unwrap();
    turn(&store, &mut writer);
    let second = append(&mut writer).unwrap();
    writer.submit();
    disk.fail_syncs(Some(("journal", ErrorKind::Other)));
    store.write_step().unwrap();
    store.sync_step().unwrap_err();
    disk.fail_syncs(None);
    assert_eq!(store.health(), Health::Failed);
    assert!(writer.commit().is_err(), "the outcome is unknown and said to be");
    assert_eq!(append(&mut writer), Err(StageError::Failed));
    assert_eq!(
        store.sync_step().unwrap(),
        Step::Idle,
        "the sync is not tried again"
    );
    assert!(read(&writer, first) && !read(&writer, second));
    drop(writer);
    drop(store);
    let (store, _) = Store::open(options(), Arc::new(disk), clock).unwrap();
    let mut writer = store.writer("S").unwrap();
    assert!(read(&writer, first));
    assert!(append(&mut writer).unwrap() > first);
}

/// Appends until the materialiser has something to do; its steps are the caller's.
fn fill(store: &Store, writer: &mut StreamWriter, stored: &mut Vec<u64>) {
    for _ in 0..40 {
        stored.push(append(writer).unwrap());
        writer.submit();
        while store.write_step().unwrap() == Step::Worked {}
        store.sync_step().unwrap();
        writer.commit().unwrap();
    }
}

/// Makes steps until one fails; whether one did.
fn fails(store: &Store) -> bool {
    loop {
        match store.materialise_step(true) {
            Ok(Step::Worked) => {}
            Ok(_) => return false,
            Err(_) => return true,
        }
    }
}

#[test]
fn a_failed_segment_write_loses_nothing_and_is_done_again() {
    let (disk, _, store, mut writer) = setup();
    let mut stored = Vec::new();
    fill(&store, &mut writer, &mut stored);
    for name in ["seg", "ids", "manifest"] {
        disk.fail_writes(Some((name, ErrorKind::Other)));
        assert_eq!(fails(&store), name != "ids", "{name}");
        disk.fail_writes(None);
        assert!(!fails(&store), "after a failure of {name} all is done again");
        fill(&store, &mut writer, &mut stored);
    }
    assert_eq!(store.health(), Health::Good);
    assert!(stored.iter().all(|seq| read(&writer, *seq)));
}

#[test]
fn when_segments_cannot_be_written_three_times_appends_are_refused_until_one_was() {
    let (disk, clock, store, mut writer) = setup();
    let mut stored = Vec::new();
    fill(&store, &mut writer, &mut stored);
    disk.fail_syncs(Some(("seg", ErrorKind::Other)));
    for n in 1..=3 {
        assert_eq!(store.health(), Health::Good, "before failure {n}");
        assert!(fails(&store));
    }
    assert_eq!(store.health(), Health::DiskFull);
    assert_eq!(append(&mut writer), Err(StageError::DiskFull));
    clock.advance(Duration::from_secs(2));
    assert!(fails(&store));
    assert_eq!(
        append(&mut writer),
        Err(StageError::DiskFull),
        "time alone heals nothing"
    );
    writer.stage(Op::Remove(&[SeqRange::one(stored[0])])).unwrap();
    writer.submit();
    store.write_step().unwrap();
    store.sync_step().unwrap();
    writer.commit().unwrap();
    assert!(!read(&writer, stored[0]), "what frees space goes on");
    disk.fail_syncs(None);
    assert!(!fails(&store));
    clock.advance(Duration::from_secs(2));
    assert!(!fails(&store));
    assert_eq!(store.health(), Health::Good);
    append(&mut writer).unwrap();
    assert!(stored[1..].iter().all(|seq| read(&writer, *seq)));
}

#[test]
fn on_a_full_disk_files_without_live_messages_go_and_make_room() {
    let (disk, clock, store, mut writer) = setup();
    turn(&store, &mut writer);
    disk.set_capacity(Some(disk.used() + (600 << 10)));
    for _ in 0..5000 {
        if append(&mut writer) == Err(StageError::DiskFull) {
            break;
        }
        turn(&store, &mut writer);
    }
    assert_eq!(store.health(), Health::DiskFull);
    let below = writer.last_seq() + 1;
    writer.stage(Op::Purge(Purge { filter: b"", below })).unwrap();
    turn(&store, &mut writer);
    for _ in 0..5 {
        clock.advance(Duration::from_secs(2));
        turn(&store, &mut writer);
    }
    assert_eq!(store.health(), Health::Good, "the segments were dead");
    append(&mut writer).unwrap();
}

#[test]
fn a_read_error_is_that_reads_error() {
    let (disk, _, store, mut writer) = setup();
    for _ in 0..200 {
        append(&mut writer).unwrap();
        turn(&store, &mut writer);
    }
    let ticket = |seq| match writer.reader().read(seq) {
        Found::NeedsDisk(t) => t,
        other => panic!("{other:?}"),
    };
    disk.fail_reads(Some(("seg", ErrorKind::Other)));
    assert!(matches!(ticket(1).read(), Err(windjet_store::ReadError::Io(_))));
    disk.fail_reads(None);
    assert!(ticket(1).read().unwrap().is_some());
    assert_eq!(store.health(), Health::Good);
}
