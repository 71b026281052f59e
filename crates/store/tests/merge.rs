//! Small segments of living messages are joined, and each message is written anew only a few times.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::sync::Arc;

use windjet_store::{Append, Disk, Found, Op, SimClock, SimDisk, Step, Store, StoreOptions, StreamOptions};

const ROUNDS: u64 = 500;
const PAYLOAD: usize = 500;

#[test]
fn many_small_segments_become_few_and_no_message_is_written_often() {
    let options = StoreOptions {
        journal_first: 64 << 10,
        journal_file_max: 64 << 10,
        journal_max: 256 << 10,
        ballast: false,
        ..StoreOptions::default()
    };
    let disk = SimDisk::new(1);
    let (store, _) = Store::open(options, Arc::new(disk.clone()), Arc::new(SimClock::new(1))).unwrap();
    let mut w = store
        .create_stream(StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        })
        .unwrap();
    for _ in 0..ROUNDS {
        let payload = [7; PAYLOAD];
        w.stage(Op::Append(Append {
            subject: b"s",
            payload: &payload,
            ..Append::default()
        }))
        .unwrap();
        w.submit();
        store.write_step().unwrap();
        store.sync_step().unwrap();
        w.commit().unwrap();
        // Each round leaves a segment with one message.
        while store.materialise_step(true).unwrap() == Step::Worked {}
    }
    let segments = disk
        .list()
        .unwrap()
        .iter()
        .filter(|n| n.starts_with("seg-"))
        .count();
    assert!(segments < 30, "{segments} segments are left");
    let reader = w.reader();
    assert!((1..=ROUNDS).all(|seq| match reader.read(seq) {
        Found::InMemory(_) => true,
        Found::NeedsDisk(t) => t.read().unwrap().is_some(),
        Found::Absent => false,
    }));
    let once = ROUNDS * (PAYLOAD as u64 + 300);
    let written = store.metrics().segment_written_bytes;
    assert!(written < once * 5, "{written} bytes for {once}");
}
