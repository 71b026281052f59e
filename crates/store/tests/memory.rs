//! What the index of a stream takes in memory, bounded: 2 bytes a message, 64 and the key a subject, 2 bits a delete.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::sync::Arc;

use windjet_store::{
    Append, Op, SeqRange, SimClock, SimDisk, Storage, Store, StoreOptions, StreamOptions, StreamWriter,
};

/// The newest span, which is not packed yet.
const OPEN_SPAN: usize = 16_384 * 8 * 2;

fn writer() -> StreamWriter {
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let disk = Arc::new(SimDisk::new(1));
    let (store, _) = Store::open(options, disk, Arc::new(SimClock::new(1))).unwrap();
    let stream = StreamOptions {
        name: "M".into(),
        storage: Storage::Memory,
        ..StreamOptions::default()
    };
    store.create_stream(stream).unwrap()
}

fn fill(w: &mut StreamWriter, messages: u64, subjects: u64) {
    for i in 0..messages {
        let subject = format!("orders.{:08}", i % subjects);
        w.stage(Op::Append(Append {
            subject: subject.as_bytes(),
            payload: &[1; 16],
            ..Append::default()
        }))
        .unwrap();
        if i % 1024 == 0 {
            w.submit();
            w.commit().unwrap();
        }
    }
    w.submit();
    w.commit().unwrap();
}

const KEY: usize = "orders.00000000".len();

#[test]
fn a_message_takes_two_bytes_and_a_delete_two_bits() {
    const MESSAGES: usize = 1_000_000;
    let mut w = writer();
    fill(&mut w, MESSAGES as u64, 1000);
    let full = w.reader().index_memory();
    println!("{:.2} B a message", full as f64 / MESSAGES as f64);
    assert!(full <= MESSAGES * 2 + 1000 * (64 + KEY) + OPEN_SPAN, "{full}");
    let mut deleted = 0;
    for seq in (2..MESSAGES as u64).filter(|s| s % 3 > 0) {
        w.stage(Op::Remove(&[SeqRange::one(seq)])).unwrap();
        deleted += 1;
        if deleted % 1024 == 0 {
            w.submit();
            w.commit().unwrap();
        }
    }
    w.submit();
    w.commit().unwrap();
    assert_eq!(w.reader().state().messages, (MESSAGES - deleted) as u64);
    let after = w.reader().index_memory();
    assert!(
        after <= full + deleted / 4,
        "{after} after {deleted} deletes, {full} before"
    );
}

#[test]
fn a_subject_takes_sixty_four_bytes_and_its_key() {
    for subjects in [10_000usize, 70_000, 140_000] {
        let mut w = writer();
        fill(&mut w, subjects as u64, subjects as u64);
        let memory = w.reader().index_memory();
        // The dictionary of a span in which every message has a subject of its own is part of the subjects' share.
        println!(
            "{subjects}: {:.1} B",
            memory as f64 / subjects as f64 - KEY as f64
        );
        assert!(
            memory <= subjects * (64 + KEY + 2) + OPEN_SPAN,
            "{subjects}: {memory}"
        );
    }
}
