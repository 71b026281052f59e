//! A file system that really is full: a mounted one of 8 MiB, shared with a file that grows.
//!
//! Where the system does not let this test mount one, the same story is told by the simulated disk in `full_disk.rs`
//! alone; this test then says so and ends.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windjet_store::{
    Append, Found, Health, Op, RealDisk, SeqRange, StageError, Store, StoreOptions, StreamOptions,
    StreamWriter, SystemClock,
};

/// A mounted file system, unmounted at the end.
struct Mount {
    at: tempfile::TempDir,
}

impl Mount {
    fn new() -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(at.path())
            .output()
            .ok()?
            .status;
        status.success().then_some(Self { at })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at.path()).output();
    }
}

fn open(dir: &Path) -> Store {
    let options = StoreOptions {
        journal_first: 256 << 10,
        journal_file_max: 256 << 10,
        journal_max: 1 << 20,
        tail_max: 512 << 10,
        stream_staged_max: 256 << 10,
        ..StoreOptions::default()
    };
    let disk = Arc::new(RealDisk::new(dir).unwrap());
    let (mut store, report) = Store::open(options, disk, Arc::new(SystemClock::new())).unwrap();
    assert!(report.is_intact(), "{report:?}");
    store.start().unwrap();
    store
}

/// Appends until it is refused for another reason than patience, at most for a while. Answers what was acknowledged.
fn append_until_refused(w: &mut StreamWriter) -> (Vec<u64>, Option<StageError>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut stored, mut waiting) = (Vec::new(), std::collections::VecDeque::new());
    let mut refused = None;
    while Instant::now() < deadline {
        let append = Append {
            subject: b"s",
            payload: &[7; 4000],
            ..Append::default()
        };
        match w.stage(Op::Append(append)) {
            Ok(t) => waiting.push_back((t.op, t.seq)),
            Err(StageError::Busy) => std::thread::yield_now(),
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
        w.submit();
        let op = w.commit().unwrap();
        while let Some((_, seq)) = waiting.pop_front_if(|(o, _)| *o <= op) {
            stored.push(seq);
        }
    }
    while w.commit().unwrap() < w.staged_op() {
        assert!(Instant::now() < deadline, "what was staged is never committed");
        std::thread::yield_now();
    }
    stored.extend(waiting.into_iter().map(|(_, seq)| seq));
    (stored, refused)
}

fn read(w: &StreamWriter, seq: u64) -> bool {
    match w.reader().read(seq) {
        Found::InMemory(_) => true,
        Found::NeedsDisk(t) => t.read().unwrap().is_some(),
        Found::Absent => false,
    }
}

#[test]
fn a_full_file_system_refuses_appends_and_is_good_again_when_space_returns() {
    let Some(mount) = Mount::new() else {
        println!("no file system can be mounted here; full_disk.rs tells the story on the simulated disk");
        return;
    };
    let store_dir = mount.path("store");
    std::fs::create_dir(&store_dir).unwrap();
    std::fs::write(mount.path("other"), vec![1; 2 << 20]).unwrap();
    let store = open(&store_dir);
    let mut w = store
        .create_stream(StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        })
        .unwrap();
    let (stored, refused) = append_until_refused(&mut w);
    assert_eq!(
        (refused, store.health()),
        (Some(StageError::DiskFull), Health::DiskFull)
    );
    assert!(stored.len() > 100 && stored.iter().all(|seq| read(&w, *seq)));
    // What frees space is taken.
    w.stage(Op::Remove(&[SeqRange::one(stored[0])])).unwrap();
    w.submit();
    let deadline = Instant::now() + Duration::from_secs(60);
    while w.commit().unwrap() < w.staged_op() {
        assert!(Instant::now() < deadline, "the removal is never committed");
        std::thread::yield_now();
    }
    assert!(!read(&w, stored[0]));
    std::fs::remove_file(mount.path("other")).unwrap();
    while store.health() != Health::Good {
        assert!(Instant::now() < deadline, "never good again");
        std::thread::yield_now();
    }
    w.stage(Op::Append(Append {
        subject: b"s",
        payload: b"again",
        ..Append::default()
    }))
    .unwrap();
    w.submit();
    while w.commit().unwrap() < w.staged_op() {
        assert!(Instant::now() < deadline, "the append is never committed");
        std::thread::yield_now();
    }
    let last = w.last_seq();
    drop(w);
    store.close().unwrap();
    let w = open(&store_dir).writer("S").unwrap();
    assert!(read(&w, last) && stored[1..].iter().all(|seq| read(&w, *seq)));
}
