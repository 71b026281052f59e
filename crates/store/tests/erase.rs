//! Secure erase: when it is acknowledged, the bytes are nowhere in the store's files, and nothing else changed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::io::ErrorKind;
use std::sync::Arc;

use windjet_store::{
    Append, Compression, Found, Op, SeqRange, SimClock, SimDisk, Step, Storage, Store, StoreOptions,
    StreamOptions, StreamWriter, verify,
};

fn options() -> StoreOptions {
    StoreOptions {
        journal_first: 64 << 10,
        journal_file_max: 64 << 10,
        journal_max: 256 << 10,
        tail_max: 128 << 10,
        ballast: false,
        ..StoreOptions::default()
    }
}

fn open(disk: &SimDisk) -> Store {
    let (store, report) = Store::open(options(), Arc::new(disk.clone()), Arc::new(SimClock::new(1))).unwrap();
    assert!(report.is_intact(), "{report:?}");
    store
}

fn stream(store: &Store, compression: Compression) -> StreamWriter {
    store
        .create_stream(StreamOptions {
            name: "S".into(),
            compression,
            ..StreamOptions::default()
        })
        .unwrap()
}

/// Steps the journal only.
fn turn(store: &Store, writer: &mut StreamWriter) -> u64 {
    writer.submit();
    while store.write_step().unwrap() == Step::Worked {}
    store.sync_step().unwrap();
    writer.commit().unwrap()
}

fn secret(n: u64) -> Vec<u8> {
    format!("secret number {n:06}").into_bytes()
}

fn append(store: &Store, writer: &mut StreamWriter, n: u64) {
    for _ in 0..n {
        let payload = secret(writer.last_seq() + 1);
        writer
            .stage(Op::Append(Append {
                subject: b"s",
                headers: b"H: v",
                payload: &payload,
                ..Append::default()
            }))
            .unwrap();
    }
    turn(store, writer);
}

fn background(store: &Store, force: bool) {
    while matches!(store.materialise_step(force), Ok(Step::Worked)) {}
}

fn is_there(writer: &StreamWriter, seq: u64) -> bool {
    match writer.reader().read(seq) {
        Found::InMemory(m) => m.payload() == secret(seq),
        Found::NeedsDisk(t) => t.read().unwrap().is_some_and(|m| m.payload() == secret(seq)),
        Found::Absent => false,
    }
}

#[test]
fn an_erased_message_is_in_no_file_and_its_neighbours_are_untouched() {
    let codecs = [Compression::None, Compression::Snappy];
    for (compression, materialised) in codecs.into_iter().flat_map(|c| [(c, false), (c, true)]) {
        let disk = SimDisk::new(1);
        let store = open(&disk);
        let mut w = stream(&store, compression);
        append(&store, &mut w, 100);
        if materialised {
            background(&store, true);
        }
        let t = w.stage(Op::Erase(&[SeqRange { first: 40, last: 41 }])).unwrap();
        let next = w
            .stage(Op::Append(Append {
                subject: b"s",
                payload: &secret(101),
                ..Append::default()
            }))
            .unwrap();
        assert!(
            turn(&store, &mut w) < t.op,
            "not answered before the bytes are gone"
        );
        // What is compressed is not found by its bytes; whether it is stored so shows in the size.
        let packed = compression == Compression::Snappy && materialised;
        assert!(packed || disk.holds(&secret(40)).is_some());
        assert!(!is_there(&w, 40), "readers do not see it any more");
        background(&store, false);
        assert_eq!(w.commit().unwrap(), next.op);
        assert_eq!((disk.holds(&secret(40)), disk.holds(&secret(41))), (None, None));
        assert!((1..=101).all(|seq| is_there(&w, seq) != (40..=41).contains(&seq)));
        drop(w);
        store.close().unwrap();
        disk.kill();
        assert_eq!(verify(&disk, 1).unwrap().findings, []);
        let w = open(&disk).writer("S").unwrap();
        assert!((1..=101).all(|seq| is_there(&w, seq) != (40..=41).contains(&seq)));
    }
}

#[test]
fn an_erasure_that_a_crash_interrupts_is_finished_after_it() {
    let codecs = [Compression::None, Compression::Snappy];
    for (compression, ops) in codecs.into_iter().flat_map(|c| (1..60).map(move |ops| (c, ops))) {
        let disk = SimDisk::new(ops);
        let store = open(&disk);
        let mut w = stream(&store, compression);
        append(&store, &mut w, 50);
        background(&store, true);
        append(&store, &mut w, 50);
        w.stage(Op::Erase(&[SeqRange::one(7), SeqRange::one(70)]))
            .unwrap();
        turn(&store, &mut w);
        disk.stop_after(ops);
        background(&store, false);
        drop(w);
        drop(store);
        disk.power_cut(windjet_store::Survival::Sampled);
        let store = open(&disk);
        background(&store, false);
        assert_eq!(
            (disk.holds(&secret(7)), disk.holds(&secret(70))),
            (None, None),
            "died at {ops}"
        );
        let w = store.writer("S").unwrap();
        assert!(
            (1..=100).all(|seq| is_there(&w, seq) != (seq == 7 || seq == 70)),
            "died at {ops}"
        );
    }
}

#[test]
fn while_overwriting_fails_the_answer_waits() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let mut w = stream(&store, Compression::None);
    append(&store, &mut w, 100);
    background(&store, true);
    disk.fail_writes(Some(("seg", ErrorKind::Other)));
    let t = w.stage(Op::Erase(&[SeqRange::one(9)])).unwrap();
    turn(&store, &mut w);
    for _ in 0..20 {
        let _ = store.materialise_step(false);
    }
    assert!(w.commit().unwrap() < t.op);
    disk.fail_writes(None);
    background(&store, false);
    assert_eq!(w.commit().unwrap(), t.op);
    assert_eq!(disk.holds(&secret(9)), None);
}

#[test]
fn a_stream_that_ends_while_it_erases_gets_both_answers() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let mut w = stream(&store, Compression::None);
    append(&store, &mut w, 100);
    w.stage(Op::Erase(&[SeqRange::one(9)])).unwrap();
    let t = w.stage(Op::Delete).unwrap();
    turn(&store, &mut w);
    background(&store, false);
    assert_eq!(w.commit().unwrap(), t.op);
    assert_eq!(disk.holds(&secret(9)), None);
}

#[test]
fn a_memory_stream_answers_at_once() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let mut w = store
        .create_stream(StreamOptions {
            name: "M".into(),
            storage: Storage::Memory,
            ..StreamOptions::default()
        })
        .unwrap();
    append(&store, &mut w, 3);
    let t = w.stage(Op::Erase(&[SeqRange::one(2)])).unwrap();
    assert_eq!(w.commit().unwrap(), t.op);
    assert!(!is_there(&w, 2) && is_there(&w, 3));
}
