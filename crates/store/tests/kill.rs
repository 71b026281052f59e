//! Real processes killed at random moments: what a child said is acknowledged is there afterwards.
//!
//! The child is this test binary itself, started again with an environment variable.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use windjet_store::{
    Append, Disk, Found, Op, RealDisk, SeqRange, Store, StoreOptions, StreamOptions, SystemClock,
};

const DIR: &str = "WINDJET_KILL_DIR";

fn open(dir: &std::path::Path) -> Store {
    let options = StoreOptions {
        journal_max: 2 << 20,
        ballast: false,
        ..StoreOptions::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir).unwrap());
    let (mut store, report) = Store::open(options, disk, Arc::new(SystemClock::new())).unwrap();
    assert!(report.is_intact(), "{:?}", report.findings);
    store.start().unwrap();
    store
}

/// Appends and removes until killed, and says what is acknowledged (`+seq`, `-seq`) and what it is about to remove (`?seq`).
#[test]
fn child_of_the_kill_test() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let store = open(dir.as_ref());
    let mut w = match store.writer("K") {
        Some(w) => w,
        None => store
            .create_stream(StreamOptions {
                name: "K".into(),
                ..StreamOptions::default()
            })
            .unwrap(),
    };
    let mut out = std::io::stdout();
    let mut said = Vec::new();
    // The harness has begun a line of its own.
    writeln!(out).unwrap();
    loop {
        let last = w.last_seq();
        let payload = (last + 1).to_le_bytes().repeat(1 + (last as usize * 7) % 60);
        if let Ok(t) = w.stage(Op::Append(Append {
            subject: b"k",
            payload: &payload,
            ..Append::default()
        })) {
            said.push((t.op, format!("+{}", t.seq)));
        }
        if last.is_multiple_of(3) && last > 20 {
            let gone = last - 15;
            writeln!(out, "?{gone}").unwrap();
            out.flush().unwrap();
            if let Ok(t) = w.stage(Op::Remove(&[SeqRange::one(gone)])) {
                said.push((t.op, format!("-{gone}")));
            }
        }
        w.submit();
        let op = w.commit().unwrap();
        let n = said.partition_point(|(o, _)| *o <= op);
        for (_, line) in said.drain(..n) {
            writeln!(out, "{line}").unwrap();
        }
        out.flush().unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn nothing_a_killed_process_acknowledged_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let loops: u64 = std::env::var("WINDJET_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(25);
    let (mut live, mut gone, mut doomed, mut highest) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), 0);
    for round in 0..loops {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_of_the_kill_test", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let wanted = 10 + (round * 37) % 400;
        for (i, line) in lines.lines().enumerate() {
            let Ok(line) = line else { break };
            if let Some(seq) = line.strip_prefix('+').and_then(|s| s.parse::<u64>().ok()) {
                live.insert(seq);
                highest = highest.max(seq);
            } else if let Some(seq) = line.strip_prefix('-').and_then(|s| s.parse::<u64>().ok()) {
                gone.insert(seq);
            } else if let Some(seq) = line.strip_prefix('?').and_then(|s| s.parse::<u64>().ok()) {
                doomed.insert(seq);
            }
            if i as u64 == wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let store = open(dir.path());
        let Some(reader) = store.reader("K") else {
            assert!(
                live.is_empty(),
                "round {round}: the stream is gone, {live:?} were acknowledged"
            );
            continue;
        };
        assert!(
            reader.state().last_seq >= highest,
            "round {round}: the last sequence went back"
        );
        for seq in &live {
            let found = match reader.read(*seq) {
                Found::InMemory(m) => Some(m),
                Found::NeedsDisk(t) => t.read().unwrap(),
                Found::Absent => None,
            };
            match found {
                Some(m) => {
                    assert!(!gone.contains(seq), "round {round}: {seq} came back");
                    assert_eq!(m.payload()[..8], seq.to_le_bytes());
                }
                None => assert!(doomed.contains(seq), "round {round}: {seq} is lost"),
            }
        }
        drop(store);
    }
}
