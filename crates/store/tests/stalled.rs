//! A disk that does not answer: health says so while a sync hangs, and no longer when it returned.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use windjet_store::{
    Append, Disk, DiskFile, DiskLock, Health, LockError, Op, ProbeError, SimClock, SimDisk, Step, Store,
    StoreOptions, StreamOptions,
};

/// A gate that syncs of files with a prefix wait at while it is closed.
#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<Option<String>>,
    opened: Condvar,
    waiting: AtomicBool,
}

impl Gate {
    fn pass(&self, name: &str) {
        let mut closed = self.closed.lock().unwrap();
        while closed.as_ref().is_some_and(|prefix| name.starts_with(prefix)) {
            self.waiting.store(true, Ordering::Release);
            closed = self.opened.wait(closed).unwrap();
        }
        self.waiting.store(false, Ordering::Release);
    }

    fn close(&self, prefix: &str) {
        *self.closed.lock().unwrap() = Some(prefix.to_owned());
    }

    fn open(&self) {
        *self.closed.lock().unwrap() = None;
        self.opened.notify_all();
    }
}

#[derive(Debug)]
struct Slow {
    disk: SimDisk,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn DiskFile>,
    name: String,
    gate: Arc<Gate>,
}

impl Slow {
    fn wrap(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let (name, gate) = (name.to_owned(), self.gate.clone());
        Arc::new(SlowFile { file, name, gate })
    }
}

impl Disk for Slow {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(name, self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(name, self.disk.open(name)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }

    fn lock(&self, holder: &str) -> Result<Box<dyn DiskLock>, LockError> {
        self.disk.lock(holder)
    }

    fn boot_id(&self) -> Option<u128> {
        self.disk.boot_id()
    }
}

impl DiskFile for SlowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass(&self.name);
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[test]
fn health_is_red_while_a_sync_has_run_for_ten_seconds() {
    for file in ["journal", "seg"] {
        let (gate, clock) = (Arc::new(Gate::default()), Arc::new(SimClock::new(1)));
        let disk = Arc::new(Slow {
            disk: SimDisk::new(1),
            gate: gate.clone(),
        });
        let options = StoreOptions {
            ballast: false,
            ..StoreOptions::default()
        };
        let (store, _) = Store::open(options, disk, clock.clone()).unwrap();
        let mut w = store
            .create_stream(StreamOptions {
                name: "S".into(),
                ..StreamOptions::default()
            })
            .unwrap();
        w.stage(Op::Append(Append {
            subject: b"s",
            payload: b"p",
            ..Append::default()
        }))
        .unwrap();
        w.submit();
        store.write_step().unwrap();
        if file == "seg" {
            store.sync_step().unwrap();
            w.commit().unwrap();
        }
        gate.close(file);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                if file == "seg" {
                    while store.materialise_step(true).unwrap() == Step::Worked {}
                } else {
                    store.sync_step().unwrap();
                }
            });
            let deadline = std::time::Instant::now() + Duration::from_secs(30);
            while !gate.waiting.load(Ordering::Acquire) {
                assert!(std::time::Instant::now() < deadline, "nothing was synced");
                std::thread::yield_now();
            }
            clock.advance(Duration::from_millis(9_999));
            assert_eq!(store.health(), Health::Good, "{file}");
            clock.advance(Duration::from_millis(1));
            assert_eq!(store.health(), Health::Stalled, "{file}");
            gate.open();
            work.join().unwrap();
        });
        assert_eq!(store.health(), Health::Good, "{file}");
    }
}

fn started(gate: &Arc<Gate>) -> Store {
    let disk = Arc::new(Slow {
        disk: SimDisk::new(1),
        gate: gate.clone(),
    });
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let (mut store, _) = Store::open(options, disk, Arc::new(SimClock::new(1))).unwrap();
    store.start().unwrap();
    store
}

/// An idle store notices nothing by itself: health stays good however dead the disk is.
#[test]
fn a_probe_of_a_disk_that_hangs_ends_by_its_time_and_goes_through_when_it_returned() {
    let gate = Arc::new(Gate::default());
    let store = started(&gate);
    let probe = store.probe();
    assert_eq!(probe.run(Duration::from_secs(30)), Ok(()));
    gate.close("journal");
    let short = Duration::from_millis(20);
    assert_eq!(probe.run(short), Err(ProbeError::TimedOut(short)));
    gate.open();
    assert_eq!(probe.run(Duration::from_secs(30)), Ok(()));
    store.close().unwrap();
    assert_eq!(probe.run(Duration::from_secs(30)), Err(ProbeError::Closed));
}

#[test]
fn a_probe_is_a_sync_of_the_journal_and_no_operation_of_a_stream() {
    let store = started(&Arc::default());
    let before = store.metrics().syncs;
    for n in 1..=3 {
        store.probe().run(Duration::from_secs(30)).unwrap();
        assert!(store.metrics().syncs >= before + n);
    }
    store.close().unwrap();
}

#[test]
fn a_probe_without_threads_says_so_at_once() {
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let disk = Arc::new(SimDisk::new(1));
    let (store, _) = Store::open(options, disk, Arc::new(SimClock::new(1))).unwrap();
    let asked = store.probe().run(Duration::from_secs(30));
    assert_eq!(asked, Err(ProbeError::Closed));
}

#[test]
fn a_probe_finds_the_failure_that_nobody_has_met_yet() {
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let disk = Arc::new(SimDisk::new(1));
    let (mut store, _) = Store::open(options, disk.clone(), Arc::new(SimClock::new(1))).unwrap();
    store.start().unwrap();
    let probe = store.probe();
    probe.run(Duration::from_secs(30)).unwrap();
    disk.fail_syncs(Some(("journal", io::ErrorKind::Other)));
    assert_eq!(store.health(), Health::Good);
    assert_eq!(probe.run(Duration::from_secs(30)), Err(ProbeError::Failed));
    assert_eq!(store.health(), Health::Failed);
}
