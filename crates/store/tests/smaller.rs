//! A store that is opened with smaller bounds than it was written with, and a small budget for all of its files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use windjet_store::{
    Append, BudgetDisk, Disk, Found, Op, SeqRange, SimClock, SimDisk, StageError, Step, Store, StoreOptions,
    StreamOptions, StreamWriter,
};

fn large() -> StoreOptions {
    StoreOptions {
        journal_first: 256 << 10,
        journal_file_max: 1 << 20,
        journal_max: 4 << 20,
        ..StoreOptions::default()
    }
}

fn small() -> StoreOptions {
    StoreOptions {
        journal_first: 32 << 10,
        journal_file_max: 32 << 10,
        journal_max: 256 << 10,
        frame_max: 16 << 10,
        fragment: 8 << 10,
        segment_max: 128 << 10,
        manifest_max: 16 << 10,
        record_max: 128 << 10,
        ..StoreOptions::default()
    }
}

fn open(options: StoreOptions, disk: &Arc<dyn Disk>, clock: &Arc<SimClock>) -> Store {
    let (store, report) = Store::open(options, disk.clone(), clock.clone()).unwrap();
    assert!(report.is_intact(), "{report:?}");
    store
}

/// Lets the store do all that it has to do; a full disk is no failure.
fn settle(store: &Store, writer: &mut StreamWriter) {
    writer.submit();
    while store.write_step().unwrap() == Step::Worked {}
    store.sync_step().unwrap();
    writer.commit().unwrap();
    while matches!(store.materialise_step(false), Ok(Step::Worked)) {}
}

fn append(writer: &mut StreamWriter, payload: &[u8]) -> Result<u64, StageError> {
    let append = Append {
        subject: b"s",
        payload,
        ..Append::default()
    };
    writer.stage(Op::Append(append)).map(|t| t.seq)
}

fn read(writer: &StreamWriter, seq: u64) -> bool {
    match writer.reader().read(seq) {
        Found::InMemory(_) => true,
        Found::NeedsDisk(ticket) => ticket.read().unwrap().is_some(),
        Found::Absent => false,
    }
}

fn bytes_of(disk: &dyn Disk, prefix: &str) -> u64 {
    let names = disk.list().unwrap();
    let of = names.iter().filter(|name| name.starts_with(prefix));
    of.map(|name| disk.open(name).unwrap().len().unwrap()).sum()
}

/// A journal and a ballast made under larger bounds are given back, after a clean end and after a kill, and nothing is lost.
#[test]
fn the_bounds_of_an_opening_bring_a_larger_journal_down() {
    for clean in [true, false] {
        let sim = SimDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let clock = Arc::new(SimClock::new(1));
        let store = open(large(), &disk, &clock);
        let options = StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        };
        let mut writer = store.create_stream(options).unwrap();
        for _ in 0..2500 {
            append(&mut writer, &[7; 1000]).unwrap();
            settle(&store, &mut writer);
        }
        assert!(bytes_of(&*disk, "journal") > 1 << 20 && bytes_of(&*disk, "ballast") > 4 << 20);
        drop(writer);
        if clean {
            store.close().unwrap();
        } else {
            drop(store);
            sim.kill();
        }

        let store = open(small(), &disk, &clock);
        let mut writer = store.writer("S").unwrap();
        for _ in 0..5 {
            settle(&store, &mut writer);
        }
        let journal = bytes_of(&*disk, "journal");
        assert!(
            journal <= small().journal_max,
            "{journal} bytes of journal, clean: {clean}"
        );
        let ballast = bytes_of(&*disk, "ballast");
        assert!(
            ballast <= small().journal_max / 10 * 11,
            "{ballast} bytes of ballast"
        );
        for _ in 0..500 {
            append(&mut writer, &[8; 1000]).unwrap();
            settle(&store, &mut writer);
        }
        assert!((1..=3000).all(|seq| read(&writer, seq)), "clean: {clean}");
        drop(writer);
        store.close().unwrap();
        let store = open(small(), &disk, &clock);
        let writer = store.writer("S").unwrap();
        assert!((1..=3000).all(|seq| read(&writer, seq)), "clean: {clean}");
    }
}

/// A folder from before there was a budget opens under one that it is far over, keeps everything, and is brought down; what is
/// appended and removed afterwards stays within it.
#[test]
fn a_folder_over_its_budget_opens_and_comes_down_to_it() {
    const BUDGET: u64 = 2 << 20;
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let clock = Arc::new(SimClock::new(1));
    let store = open(large(), &disk, &clock);
    let options = StreamOptions {
        name: "S".into(),
        ..StreamOptions::default()
    };
    let mut writer = store.create_stream(options).unwrap();
    for _ in 0..800 {
        append(&mut writer, &[7; 1000]).unwrap();
        settle(&store, &mut writer);
    }
    drop(writer);
    drop(store);
    sim.kill();
    assert!(sim.used() > 3 * BUDGET, "{} bytes", sim.used());

    let budget = BudgetDisk::new(Arc::new(sim), Some(BUDGET)).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(budget.clone());
    let store = open(small(), &disk, &clock);
    let mut writer = store.writer("S").unwrap();
    for _ in 0..5 {
        settle(&store, &mut writer);
    }
    assert!(budget.used() <= BUDGET, "{} bytes", budget.used());
    assert!((1..=800).all(|seq| read(&writer, seq)));
    // The oldest makes room for the newest, as in a stream with a bound of its own.
    for _ in 0..6000 {
        let seq = append(&mut writer, &[8; 1000]).unwrap();
        writer.stage(Op::Remove(&[SeqRange::one(seq - 800)])).unwrap();
        settle(&store, &mut writer);
        clock.advance(Duration::from_millis(20));
        assert!(budget.used() <= BUDGET, "{} bytes at {seq}", budget.used());
    }
    assert!((6001..=6800).all(|seq| read(&writer, seq)));
}

/// Sizes that are not of whole pages, as shares of a budget are, are no smaller journal.
#[test]
fn a_journal_of_uneven_bounds_grows_up_to_them() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let clock = Arc::new(SimClock::new(1));
    let options = StoreOptions {
        journal_first: (32 << 10) + 1000,
        journal_file_max: (32 << 10) + 1000,
        journal_max: (256 << 10) + 5000,
        ..small()
    };
    let store = open(options, &disk, &clock);
    let options = StreamOptions {
        name: "S".into(),
        ..StreamOptions::default()
    };
    let mut writer = store.create_stream(options).unwrap();
    for _ in 0..500 {
        append(&mut writer, &[8; 1000]).unwrap();
        settle(&store, &mut writer);
    }
    assert!((1..=500).all(|seq| read(&writer, seq)));
    let journal = bytes_of(&*disk, "journal");
    assert!(
        journal > 32 << 10 && journal <= (256 << 10) + 5000,
        "{journal} bytes"
    );
}
