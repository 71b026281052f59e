//! Stores of every format version must open for good: a small one of each is kept in `fixtures/`.
//!
//! A new version gets its fixture from this test: `WINDJET_FIXTURE=DIR cargo test -p windjet-store --test format` writes
//! one to `DIR/format-N` (an empty folder), to be checked in beside the others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use windjet_store::{
    Append, Compression, ConsumerChange, Durability, Found, Op, Pending, Position, Purge, RealDisk, SeqRange,
    SimClock, Step, Store, StoreOptions, StreamOptions, StreamReader, StreamWriter, verify,
};

const NOW: i64 = 1_700_000_000_000_000_000;
const WINDOW: Duration = Duration::from_secs(3600);

fn options() -> StoreOptions {
    StoreOptions {
        journal_first: 16 << 10,
        journal_file_max: 16 << 10,
        journal_max: 64 << 10,
        frame_max: 8 << 10,
        fragment: 4 << 10,
        own_segment_min: 6 << 10,
        step: 4 << 10,
        block: 2 << 10,
        ballast: false,
        ..StoreOptions::default()
    }
}

fn open(dir: &Path) -> (Store, windjet_store::RecoveryReport) {
    let disk = Arc::new(RealDisk::new(dir).unwrap());
    Store::open(options(), disk, Arc::new(SimClock::new(NOW))).unwrap()
}

fn settle(store: &Store, writers: &mut [StreamWriter]) {
    loop {
        writers.iter_mut().for_each(StreamWriter::submit);
        let wrote = store.write_step().unwrap();
        store.sync_step().unwrap();
        for w in writers.iter_mut() {
            w.commit().unwrap();
        }
        while store.materialise_step(false).unwrap() == Step::Worked {}
        if wrote == Step::Idle && writers.iter().all(|w| w.committed_op() == w.staged_op()) {
            return;
        }
    }
}

fn payload(stream: usize, seq: u64) -> Vec<u8> {
    // One message is longer than a frame, so that it lies in the journal in fragments.
    let len = if seq == 40 {
        9000
    } else {
        (seq * 37 + stream as u64 * 11) % 180
    };
    (0..len).map(|i| (i * 7 + seq + stream as u64) as u8).collect()
}

fn subject(seq: u64) -> String {
    format!("s.{}.x", seq % 7)
}

const STREAMS: [&str; 3] = ["A", "B", "WEAK"];
const MESSAGES: u64 = 120;
const REMOVED: [u64; 3] = [3, 50, 119];
/// Erased from format 2 on, which also has stream B compressed.
const ERASED: SeqRange = SeqRange { first: 60, last: 61 };

/// Writes everything a store can hold, in segments and in the journal.
fn write(dir: &Path) {
    let (store, _) = open(dir);
    let mut writers: Vec<StreamWriter> = STREAMS
        .iter()
        .map(|name| {
            let durability = if *name == "WEAK" {
                Durability::Os
            } else {
                Durability::Sync
            };
            store
                .create_stream(StreamOptions {
                    name: (*name).into(),
                    durability,
                    compression: if *name == "B" {
                        Compression::Snappy
                    } else {
                        Compression::None
                    },
                    dedup_window: WINDOW,
                    config: format!("config of {name}").into_bytes().into(),
                    ..StreamOptions::default()
                })
                .unwrap()
        })
        .collect();
    for seq in 1..=MESSAGES {
        for (n, w) in writers.iter_mut().enumerate() {
            let (subject, payload, id) = (subject(seq), payload(n, seq), format!("id{seq}"));
            let t = w
                .stage(Op::Append(Append {
                    subject: subject.as_bytes(),
                    headers: if seq % 5 == 0 { b"K: v" } else { b"" },
                    payload: &payload,
                    time: Some(NOW + seq as i64),
                    id: Some(id.as_bytes()),
                    ..Append::default()
                }))
                .unwrap();
            assert_eq!(t.seq, seq);
        }
        settle(&store, &mut writers);
    }
    let a = &mut writers[0];
    a.stage(Op::Remove(&REMOVED.map(SeqRange::one))).unwrap();
    a.stage(Op::ConsumerPut {
        name: "c",
        config: b"consumer",
    })
    .unwrap();
    let change = ConsumerChange {
        delivered: Some(Position {
            stream_seq: 9,
            consumer_seq: 9,
        }),
        floor: Some(Position {
            stream_seq: 7,
            consumer_seq: 7,
        }),
        pending_set: vec![(
            9,
            Pending {
                consumer_seq: 9,
                time_ns: NOW,
            },
        )],
        ..ConsumerChange::default()
    };
    a.stage(Op::ConsumerChange {
        name: "c",
        change: &change,
        remove: &[],
    })
    .unwrap();
    writers[1]
        .stage(Op::Purge(Purge {
            filter: b"s.2.*",
            below: 100,
        }))
        .unwrap();
    settle(&store, &mut writers);
    writers[0].stage(Op::Erase(&[ERASED])).unwrap();
    settle(&store, &mut writers);
    // A re-created stream, whose dead namesake is in the files too.
    let mut gone = store
        .create_stream(StreamOptions {
            name: "GONE".into(),
            ..StreamOptions::default()
        })
        .unwrap();
    gone.stage(Op::Delete).unwrap();
    settle(&store, std::slice::from_mut(&mut gone));
    let mut again = store
        .create_stream(StreamOptions {
            name: "GONE".into(),
            first_seq: 1000,
            ..StreamOptions::default()
        })
        .unwrap();
    again
        .stage(Op::Append(Append {
            subject: b"g",
            payload: b"again",
            ..Append::default()
        }))
        .unwrap();
    settle(&store, std::slice::from_mut(&mut again));
    store.close().unwrap();
}

fn read(reader: &StreamReader, seq: u64) -> Option<windjet_store::Message> {
    match reader.read(seq) {
        Found::InMemory(m) => Some(m),
        Found::NeedsDisk(ticket) => ticket.read().unwrap(),
        Found::Absent => None,
    }
}

fn live(stream: usize, seq: u64, version: u32) -> bool {
    match stream {
        0 => !(REMOVED.contains(&seq) || version >= 2 && ERASED.contains(seq)),
        1 => !(seq % 7 == 2 && seq < 100),
        _ => true,
    }
}

fn check(dir: &Path, version: u32) {
    let found = verify(&RealDisk::new(dir).unwrap(), NOW).unwrap();
    assert_eq!(found.findings, [], "version {version}");
    let (store, report) = open(dir);
    assert!(
        report.clean && report.findings.is_empty(),
        "version {version}: {report:?}"
    );
    for (n, name) in STREAMS.iter().enumerate() {
        let reader = store.reader(name).unwrap();
        assert_eq!(reader.options().config, format!("config of {name}"));
        assert_eq!(reader.state().last_seq, MESSAGES, "{name}");
        for seq in 1..=MESSAGES {
            match (read(&reader, seq), live(n, seq, version)) {
                (Some(m), true) => {
                    assert_eq!(m.payload(), payload(n, seq), "version {version} {name} {seq}");
                    assert_eq!(m.subject(), subject(seq));
                    assert_eq!(m.headers(), if seq % 5 == 0 { &b"K: v"[..] } else { b"" });
                    assert_eq!(m.time(), NOW + seq as i64);
                }
                (None, false) => {}
                (got, _) => panic!("version {version} {name} {seq}: {got:?}"),
            }
        }
    }
    let consumer = store.reader("A").unwrap().consumer("c").unwrap();
    assert_eq!(consumer.config, "consumer");
    assert_eq!(
        consumer.state.floor,
        Position {
            stream_seq: 7,
            consumer_seq: 7
        }
    );
    let again = store.reader("GONE").unwrap();
    assert_eq!(read(&again, 1000).unwrap().payload(), "again");
    // It goes on where it was: the dedup ids count, and sequences are not used twice.
    let mut writers: Vec<_> = STREAMS.iter().map(|n| store.writer(n).unwrap()).collect();
    for w in &mut writers {
        assert_eq!(w.duplicate(b"id77").unwrap().seq, 77);
        let t = w
            .stage(Op::Append(Append {
                subject: b"new",
                payload: b"new",
                ..Append::default()
            }))
            .unwrap();
        assert!(t.seq > MESSAGES);
    }
    settle(&store, &mut writers);
    store.close().unwrap();
}

fn fixtures() -> Vec<(u32, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut all: Vec<_> = std::fs::read_dir(root)
        .unwrap()
        .filter_map(|e| {
            let path = e.unwrap().path();
            let version = path
                .file_name()?
                .to_str()?
                .strip_prefix("format-")?
                .parse()
                .ok()?;
            Some((version, path))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_store_of_every_format_version_opens_and_goes_on() {
    let all = fixtures();
    assert!(!all.is_empty());
    for (i, (version, from)) in all.iter().enumerate() {
        assert_eq!(*version as usize, i + 1, "a fixture is missing");
        let dir = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        check(dir.path(), *version);
    }
}

#[test]
fn what_this_program_writes_has_a_fixture_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let manifest = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.file_name().unwrap().to_str().unwrap().starts_with("manifest-"))
        .unwrap();
    let version = u32::from_le_bytes(std::fs::read(manifest).unwrap()[8..12].try_into().unwrap());
    if let Some(out) = std::env::var_os("WINDJET_FIXTURE") {
        let out = Path::new(&out).join(format!("format-{version}"));
        std::fs::create_dir_all(&out).unwrap();
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            if file.file_name() != "LOCK" {
                std::fs::copy(file.path(), out.join(file.file_name())).unwrap();
            }
        }
    }
    check(dir.path(), version);
    let newest = fixtures().last().map(|f| f.0);
    assert_eq!(newest, Some(version), "check in a fixture of version {version}");
}
