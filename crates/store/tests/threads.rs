//! A running store on a real directory: threads, wake-ups, two openers, memory streams, clean restart.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Wake, Waker};
use std::time::Duration;

use windjet_store::{
    Append, Disk, Found, LockError, Matcher, Op, OpenError, RealDisk, StageError, Storage, Store,
    StoreOptions, StreamOptions, StreamWriter, SystemClock,
};

struct Bell(SyncSender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A bell that rings already needs no second ring.
        let _ = self.0.try_send(());
    }
}

fn bell(writer: &StreamWriter) -> Receiver<()> {
    let (tx, rx) = sync_channel(1);
    writer.set_waker(Waker::from(Arc::new(Bell(tx))));
    rx
}

fn open(dir: &std::path::Path) -> Result<(Store, windjet_store::RecoveryReport), OpenError> {
    let options = StoreOptions {
        journal_max: 4 << 20,
        ballast: false,
        ..StoreOptions::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir).unwrap());
    Store::open(options, disk, Arc::new(SystemClock::new()))
}

fn wait(writer: &mut StreamWriter, bell: &Receiver<()>, op: u64) {
    while writer.commit().unwrap() < op {
        bell.recv_timeout(Duration::from_secs(30))
            .expect("woken within 30 s");
    }
}

#[test]
fn several_owners_store_through_one_journal_many_times_its_size() {
    const EACH: u64 = 30_000;
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path()).unwrap();
    store.start().unwrap();
    std::thread::scope(|scope| {
        for n in 0..3 {
            let mut w = store
                .create_stream(StreamOptions {
                    name: format!("S{n}"),
                    ..StreamOptions::default()
                })
                .unwrap();
            scope.spawn(move || {
                let bell = bell(&w);
                let mut i = 0u64;
                while i < EACH {
                    let subject = format!("s.{}", i % 50);
                    let payload = i.to_le_bytes().repeat(16);
                    let a = Append {
                        subject: subject.as_bytes(),
                        payload: &payload,
                        ..Append::default()
                    };
                    match w.stage(Op::Append(a)) {
                        Ok(_) => i += 1,
                        Err(StageError::Busy) => {
                            w.submit();
                            let _ = bell.recv_timeout(Duration::from_millis(50));
                            w.commit().unwrap();
                        }
                        Err(e) => panic!("{e}"),
                    }
                    if i.is_multiple_of(100) {
                        w.submit();
                        w.commit().unwrap();
                    }
                }
                w.submit();
                let op = w.staged_op();
                wait(&mut w, &bell, op);
                assert_eq!(w.reader().state().messages, EACH);
            });
        }
    });
    store.close().unwrap();
    let (store, report) = open(dir.path()).unwrap();
    assert!(report.clean && report.findings.is_empty(), "{report:?}");
    for n in 0..3 {
        let reader = store.reader(&format!("S{n}")).unwrap();
        assert_eq!(reader.state().messages, EACH);
        let mut matcher = Matcher::new(["s.7"]);
        assert_eq!(reader.count(&mut matcher, 0), EACH / 50);
        for seq in [1, EACH / 2, EACH] {
            let message = match reader.read(seq) {
                Found::InMemory(m) => m,
                Found::NeedsDisk(t) => t.read().unwrap().unwrap(),
                Found::Absent => panic!("{seq} is absent"),
            };
            assert_eq!(&message.payload()[..8], (seq - 1).to_le_bytes());
        }
    }
}

#[test]
fn a_second_opener_is_refused_also_in_the_same_process() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).unwrap();
    assert!(matches!(
        open(dir.path()),
        Err(OpenError::Lock(LockError::Held { .. }))
    ));
    store.close().unwrap();
    open(dir.path()).unwrap();
}

#[test]
fn a_memory_stream_commits_at_once_gives_memory_back_and_is_gone_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).unwrap();
    let options = StreamOptions {
        name: "M".into(),
        storage: Storage::Memory,
        ..StreamOptions::default()
    };
    let mut w = store.create_stream(options).unwrap();
    for i in 0..50_000u64 {
        let remove = [windjet_store::SeqRange::one(i.saturating_sub(9))];
        let a = Append {
            subject: b"m",
            payload: &[1; 200],
            remove: &remove,
            ..Append::default()
        };
        let t = w.stage(Op::Append(a)).unwrap();
        w.submit();
        assert!(w.commit().unwrap() >= t.op);
    }
    let state = w.reader().state();
    assert_eq!(
        (state.messages, state.first_seq, state.last_seq),
        (10, 49_991, 50_000)
    );
    assert!(matches!(w.reader().read(49_995), Found::InMemory(_)));
    drop(w);
    store.close().unwrap();
    let (store, _) = open(dir.path()).unwrap();
    assert!(store.reader("M").is_none());
}

#[test]
fn an_interval_stream_commits_when_written_and_is_synced_soon_after() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path()).unwrap();
    store.start().unwrap();
    let options = StreamOptions {
        name: "I".into(),
        durability: windjet_store::Durability::Interval(Duration::from_millis(20)),
        ..StreamOptions::default()
    };
    let mut w = store.create_stream(options).unwrap();
    let bell = bell(&w);
    let t = w
        .stage(Op::Append(Append {
            subject: b"i",
            payload: b"p",
            ..Append::default()
        }))
        .unwrap();
    w.submit();
    wait(&mut w, &bell, t.op);
    let before = store.metrics().syncs;
    let t = w
        .stage(Op::Append(Append {
            subject: b"i",
            payload: b"q",
            ..Append::default()
        }))
        .unwrap();
    w.submit();
    wait(&mut w, &bell, t.op);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while store.metrics().syncs == before {
        assert!(std::time::Instant::now() < deadline, "never synced");
        std::thread::yield_now();
    }
}
