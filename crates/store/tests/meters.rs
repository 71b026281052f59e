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
use windjet_store::{Append, Op, SimClock, SimDisk, StageError, Step, Store, StoreOptions, StreamOptions};

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
