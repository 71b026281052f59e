//! What the store tells to a recorder of the `metrics` facade.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use windjet_store::{
    Append, Disk, Durability, Op, SeqRange, SimClock, SimDisk, StageError, Step, Storage, Store,
    StoreOptions, StreamOptions, StreamWriter,
};

/// Keeps the newest value of each gauge and counter, and how often each histogram was given one.
#[derive(Default)]
struct Table {
    values: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

impl Table {
    fn slot(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
        let name = [&[key.name()][..], &labels].concat().join(" ");
        self.values.lock().unwrap().entry(name).or_default().clone()
    }

    fn get(&self, name: &str) -> u64 {
        let values = self.values.lock().unwrap();
        let slot = values
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", values.keys()));
        slot.load(Ordering::Relaxed)
    }
}

struct Times(Arc<AtomicU64>);

impl HistogramFn for Times {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Table {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Times(self.slot(key))))
    }
}

#[test]
fn a_recorder_hears_of_syncs_streams_refusals_and_segments() {
    let table = Table::default();
    with_local_recorder(&table, || {
        let options = StoreOptions {
            stream_staged_max: 4 << 10,
            ballast: false,
            ..StoreOptions::default()
        };
        let disk = Arc::new(SimDisk::new(1));
        let (store, _) = Store::open(options, disk, Arc::new(SimClock::new(1))).unwrap();
        let mut w = store
            .create_stream(StreamOptions {
                name: "S".into(),
                ..StreamOptions::default()
            })
            .unwrap();
        let append = Append {
            subject: b"s",
            payload: &[1; 1000],
            ..Append::default()
        };
        let mut stored = 0;
        while w.stage(Op::Append(append)) != Err(StageError::Busy) {
            stored += 1;
        }
        w.submit();
        while store.write_step().unwrap() == Step::Worked {}
        store.sync_step().unwrap();
        w.commit().unwrap();
        assert_eq!(table.get("windjet_store_stream_records_total S"), stored);
        assert_eq!(table.get("windjet_store_sync_seconds"), 1);
        assert_eq!(table.get("windjet_store_batch_bytes"), 1);
        assert_eq!(table.get("windjet_store_refused_total busy"), 1);
        assert_eq!(table.get("windjet_store_quarantined_total"), 0);
        let gauge = |name| f64::from_bits(table.get(name));
        assert_eq!(
            gauge("windjet_store_tail_bytes"),
            store.metrics().tail_bytes as f64
        );
        assert_eq!(
            gauge("windjet_store_journal_used_bytes"),
            store.metrics().journal_used_bytes as f64
        );
        while store.materialise_step(true).unwrap() == Step::Worked {}
        assert_eq!(gauge("windjet_store_tail_bytes"), 0.0);
        assert!(table.get("windjet_store_segment_bytes_total") > stored * 1000);
    });
}

fn open(disk: &Arc<SimDisk>) -> Store {
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    Store::open(options, disk.clone(), Arc::new(SimClock::new(1)))
        .unwrap()
        .0
}

fn turn(store: &Store, writer: &mut StreamWriter) {
    writer.submit();
    while store.write_step().unwrap() == Step::Worked {}
    store.sync_step().unwrap();
    writer.commit().unwrap();
}

fn append(writer: &mut StreamWriter) {
    let message = Append {
        subject: b"s",
        payload: b"a payload that is easily found in a file",
        ..Append::default()
    };
    writer.stage(Op::Append(message)).unwrap();
}

#[test]
fn a_recorder_hears_how_a_stream_is_durable_and_what_it_lost() {
    let table = Table::default();
    with_local_recorder(&table, || {
        let gauge = |name| f64::from_bits(table.get(name));
        let store = open(&Arc::new(SimDisk::new(1)));
        let mut options = StreamOptions {
            name: "S".into(),
            ..StreamOptions::default()
        };
        let mut w = store.create_stream(options.clone()).unwrap();
        assert_eq!(gauge("windjet_store_stream_unsynced_seconds S"), 0.0);
        for (durability, seconds) in [
            (Durability::Interval(std::time::Duration::from_millis(250)), 0.25),
            (Durability::Os, f64::INFINITY),
            (Durability::Sync, 0.0),
        ] {
            options.durability = durability;
            w.stage(Op::Update(&options)).unwrap();
            turn(&store, &mut w);
            assert_eq!(gauge("windjet_store_stream_unsynced_seconds S"), seconds);
        }
        for _ in 0..5 {
            append(&mut w);
        }
        turn(&store, &mut w);
        assert_eq!(gauge("windjet_store_stream_lost_records S"), 0.0);
        let lost = SeqRange { first: 2, last: 4 };
        w.stage(Op::Lost(&[lost])).unwrap();
        turn(&store, &mut w);
        assert_eq!(gauge("windjet_store_stream_lost_records S"), 3.0);
        w.stage(Op::Delete).unwrap();
        turn(&store, &mut w);
        assert_eq!(gauge("windjet_store_stream_lost_records S"), 0.0);
        let memory = StreamOptions {
            name: "M".into(),
            storage: Storage::Memory,
            ..StreamOptions::default()
        };
        let _in_memory = store.create_stream(memory).unwrap();
        assert_eq!(gauge("windjet_store_stream_unsynced_seconds M"), f64::INFINITY);
    });
}

#[test]
fn a_recorder_hears_what_of_a_stream_recovery_set_aside() {
    let table = Table::default();
    with_local_recorder(&table, || {
        let disk = Arc::new(SimDisk::new(1));
        let store = open(&disk);
        let options = StreamOptions {
            name: "S".into(),
            durability: Durability::Os,
            ..StreamOptions::default()
        };
        let mut w = store.create_stream(options).unwrap();
        for _ in 0..3 {
            append(&mut w);
        }
        turn(&store, &mut w);
        // A frame that a later one tells of, so that damage to it is not taken for a torn end.
        store.sync_step().unwrap();
        store.idle_step().unwrap();
        drop((w, store));
        disk.kill();
        let needle = b"easily found";
        let file = disk.holds(needle).unwrap();
        let mut bytes = disk.contents(&file).unwrap();
        let at = bytes.windows(needle.len()).position(|w| w == needle).unwrap();
        bytes[at] ^= 1;
        disk.set_contents(&file, bytes);
        let store = open(&disk);
        let gauge = |name| f64::from_bits(table.get(name));
        let lost = gauge("windjet_store_stream_lost_records S");
        assert!(lost >= 1.0, "{lost} of {:?}", disk.list());
        assert_eq!(
            table.get("windjet_store_stream_quarantined_records_total S"),
            lost as u64
        );
        assert_eq!(gauge("windjet_store_stream_unsynced_seconds S"), f64::INFINITY);
        drop(store);
    });
}
