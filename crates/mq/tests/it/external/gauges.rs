//! What the broker tells to a recorder of the `metrics` facade.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use serde_json::{Value, json};
use windjet_mq::nats::{ExternalNats, Topology};
use windjet_mq::{Ctx, ErrorKind, PublishOptions, Publisher as _};

use super::behaviour::one_shard;
use super::{Cluster, topic, until};

/// Keeps the newest value of each gauge, by its name and connection.
#[derive(Default)]
struct Table(Mutex<BTreeMap<[String; 2], Arc<AtomicU64>>>);

impl Table {
    fn of(&self, connection: &str, name: &str) -> f64 {
        let key = [name.to_owned(), connection.to_owned()];
        f64::from_bits(self.0.lock()[&key].load(Ordering::Relaxed))
    }

    fn get(&self, name: &str) -> f64 {
        self.of("windjet-mq", name)
    }

    fn all(&self) -> [f64; 3] {
        ["connected", "topology_ok", "history_behind_seconds"]
            .map(|name| self.get(&format!("wavehouse_mq_{name}")))
    }
}

impl Recorder for Table {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        let [("connection", connection)] = labels[..] else {
            panic!("labels {labels:?}");
        };
        let key = [key.name().to_owned(), connection.to_owned()];
        Gauge::from_arc(self.0.lock().entry(key).or_default().clone())
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs a test whose brokers tell their gauges to a table. They are made on the test's own thread, where it is installed.
fn measured(test: impl AsyncFnOnce(&Table)) {
    let table = Table::default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&table, || runtime.block_on(test(&table)));
}

#[test]
fn gauges_tell_of_the_connection_the_topology_and_the_history() {
    measured(async |table| {
        let cluster = Cluster::start(Topology {
            publish_timeout: Duration::from_secs(1),
            ..one_shard()
        })
        .await;
        let mut config = cluster.config();
        config.history_every = Duration::from_millis(50);
        let broker = ExternalNats::connect(config).await.unwrap();
        assert_eq!(table.all(), [1.0, 1.0, 0.0]);

        let events = topic("acme", "events");
        let publish = || async {
            broker
                .publish(&Ctx::new(), &events, "x".into(), PublishOptions::new())
                .await
        };
        publish().await.unwrap();
        cluster.operate(|operator| {
            let unset = |config: &mut Value| config["republish"] = Value::Null;
            operator.update_stream("WH_INGEST_0", unset).unwrap();
        });
        publish().await.unwrap();
        until("the history to be behind", || async {
            (table.get("wavehouse_mq_history_behind_seconds") > 0.0).then_some(())
        })
        .await;
        assert!(broker.history_behind().unwrap() > Duration::ZERO);

        cluster.operate(|operator| operator.delete_stream("WH_INGEST_0").unwrap());
        publish().await.unwrap_err();
        assert_eq!(table.all()[..2], [1.0, 0.0]);
        cluster.deployment().server.kill().unwrap();
        until("the loss of the connection", || async {
            (table.get("wavehouse_mq_connected") == 0.0).then_some(())
        })
        .await;
        broker.close().await.unwrap();
        let [connected, ok, behind] = table.all();
        assert!(connected == 0.0 && ok.is_nan() && behind.is_nan());
    });
}

#[test]
fn brokers_with_names_of_their_own_have_gauges_of_their_own() {
    measured(async |table| {
        let cluster = Cluster::start(one_shard()).await;
        let connect = async |name: &str| {
            let mut config = cluster.config();
            config.name = name.to_owned();
            ExternalNats::connect(config).await.unwrap()
        };
        let (writer, api) = (connect("writer").await, connect("api").await);
        writer.close().await.unwrap();
        let connected = |name| table.of(name, "wavehouse_mq_connected");
        assert_eq!([connected("writer"), connected("api")], [0.0, 1.0]);
        api.close().await.unwrap();
        assert_eq!(connected("api"), 0.0);
    });
}

#[test]
fn pitfall_24_a_lost_connection_is_no_fault_of_the_topology() {
    measured(async |table| {
        let cluster = Cluster::start(one_shard()).await;
        let mut config = cluster.config();
        config.check_every = Duration::from_millis(20);
        let broker = ExternalNats::connect(config).await.unwrap();
        cluster.deployment().server.kill().unwrap();
        let unavailable = until("the loss of the connection", || async { broker.ready().err() }).await;
        assert!(unavailable.is(ErrorKind::Unavailable), "{unavailable:?}");
        let ok = || table.get("wavehouse_mq_topology_ok");
        // Many checks come due without a connection.
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..25 {
            ticks.tick().await;
            assert_eq!(ok(), 1.0);
            assert!(!broker.ready().unwrap_err().is(ErrorKind::Topology));
        }
        cluster.deployment().restart().unwrap();
        until("the connection", || async {
            assert_eq!(ok(), 1.0);
            broker.ready().ok()
        })
        .await;
        // And the check itself works: a fault is found soon.
        cluster.operate(|operator| {
            let age = |config: &mut Value| config["max_age"] = json!(3_600_000_000_000_u64);
            operator.update_stream("WH_INGEST_0", age).unwrap();
        });
        until("the fault", || async { (ok() == 0.0).then_some(()) }).await;
        assert!(broker.ready().unwrap_err().is(ErrorKind::Topology));
        broker.close().await.unwrap();
    });
}
