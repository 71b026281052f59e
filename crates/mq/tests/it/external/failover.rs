//! The broker on three servers, of which leaders are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;
use windjet_mq::nats::{ExternalNats, Topology};
use windjet_mq::{ConsumerConfig, ConsumerManager as _, Ctx, Handler, PublishOptions, Publisher as _, Topic};

use super::three::Three;
use super::{PATIENCE, topic, topology, until};

const PUBLISHERS: u64 = 4;

fn small() -> Topology {
    Topology {
        shards: 2,
        partitions: 1,
        publish_timeout: Duration::from_secs(1),
        ack_wait: Duration::from_secs(5),
        ..topology()
    }
}

/// Publishers that send their numbers in turn, each until it is stored.
struct Load {
    stored: Arc<AtomicU64>,
    room: Arc<Semaphore>,
    tasks: Vec<tokio::task::JoinHandle<(u64, u64)>>,
}

fn table(publisher: u64) -> Topic {
    topic("acme", &format!("t{publisher}"))
}

impl Load {
    /// Publishers that store as many rows as there is room for.
    fn start(broker: &ExternalNats, room: &Arc<Semaphore>) -> Self {
        let stored = Arc::<AtomicU64>::default();
        let task = |publisher| {
            let (broker, stored, room) = (broker.clone(), Arc::clone(&stored), Arc::clone(room));
            tokio::spawn(async move {
                let (mut number, mut errors) = (0, 0);
                while let Ok(place) = room.acquire().await {
                    let key = format!("{publisher}-{number}");
                    let options = PublishOptions::new().idempotency_key(&key);
                    match broker
                        .publish(&Ctx::new(), &table(publisher), key.into(), options)
                        .await
                    {
                        Ok(()) => {
                            place.forget();
                            number += 1;
                            stored.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(error.is_retryable(), "{error:?}");
                            errors += 1;
                        }
                    }
                }
                (number, errors)
            })
        };
        Self {
            tasks: (0..PUBLISHERS).map(task).collect(),
            stored,
            room: Arc::clone(room),
        }
    }

    /// Waits for so many more rows, through elections too.
    async fn grow(&self, by: u64) {
        let enough = self.stored.load(Ordering::Relaxed) + by;
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        let grown = tokio::time::timeout(PATIENCE * 3, async {
            while self.stored.load(Ordering::Relaxed) < enough {
                looks.tick().await;
            }
        });
        grown.await.expect("waited in vain for more rows");
    }

    /// How many each publisher stored, and how many errors they met.
    async fn end(self) -> (Vec<u64>, u64) {
        self.room.close();
        let (mut stored, mut errors) = (Vec::new(), 0);
        for task in self.tasks {
            let (number, met) = task.await.unwrap();
            stored.push(number);
            errors += met;
        }
        (stored, errors)
    }
}

/// Every row of the partition, by its publisher.
fn rows(three: &Three) -> BTreeMap<u64, Vec<u64>> {
    let mut rows = BTreeMap::<u64, Vec<u64>>::new();
    three.operate(|cluster| {
        let state = cluster
            .eventually("the partition", |operator| operator.stream("WH_INGEST_0"))
            .unwrap()["state"]
            .take();
        let (first, last) = (
            state["first_seq"].as_u64().unwrap(),
            state["last_seq"].as_u64().unwrap(),
        );
        for seq in first..=last {
            let message = cluster
                .eventually("a row", |operator| {
                    operator.api("STREAM.MSG.GET.WH_INGEST_0", &json!({ "seq": seq }))
                })
                .unwrap();
            let data = super::behaviour::base64(message["message"]["data"].as_str().unwrap());
            let (publisher, number) = read(&data);
            rows.entry(publisher).or_default().push(number);
        }
    });
    rows
}

fn read(data: &[u8]) -> (u64, u64) {
    let text = std::str::from_utf8(data).unwrap();
    let (publisher, number) = text.split_once('-').unwrap();
    (publisher.parse().unwrap(), number.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_cost_publishers_only_errors_that_may_be_retried() {
    let three = Three::start(small()).await;
    let broker = ExternalNats::connect(three.config()).await.unwrap();
    let load = Load::start(&broker, &Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)));
    for _ in 0..3 {
        load.grow(50).await;
        let leader = three.operate(|cluster| {
            let leader = cluster.leader("WH_INGEST_0").unwrap();
            cluster.kill(leader).unwrap();
            leader
        });
        // Two of three go on.
        load.grow(50).await;
        three.operate(|cluster| cluster.restart(leader).unwrap());
    }
    load.grow(50).await;
    let (stored, errors) = load.end().await;
    let rows = rows(&three);
    for (publisher, stored) in (0..).zip(&stored) {
        let found = &rows[&publisher];
        let expected: Vec<u64> = (0..found.len() as u64).collect();
        assert_eq!(*found, expected, "publisher {publisher}");
        // The one that was under way at the end may be there too.
        let more = expected.len() as u64 - stored;
        assert!(
            more <= 1,
            "publisher {publisher}: {more} rows more than were stored"
        );
    }
    let total: usize = rows.values().map(Vec::len).sum();
    println!("3 leaders killed, {total} rows stored once, {errors} errors to retry");
    until("a broker that is ready", || async { broker.ready().ok() }).await;
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_cost_consumers_no_row_and_bring_no_confirmed_one_back() {
    let three = Three::start(small()).await;
    let (broker, ctx) = (ExternalNats::connect(three.config()).await.unwrap(), Ctx::new());
    let config = ConsumerConfig::new("buffer-consumer").ack_wait(Duration::from_secs(5));
    let consumer = broker.create_consumer(&ctx, config).await.unwrap();
    let delivered = Arc::<Mutex<BTreeSet<(u64, u64)>>>::default();
    // When each confirmation was there: a row that was sent again before it came rightly, and may have waited in the client
    // when the confirmation was read. One whose acknowledgement was lost comes after the wait of five seconds.
    let confirmed = Arc::<Mutex<BTreeMap<(u64, u64), SystemTime>>>::default();
    let again = Arc::<Mutex<Vec<(u64, u64)>>>::default();
    // What is not delivered yet is bounded, so that nothing is late only because it stands in a queue.
    let room = Arc::new(Semaphore::new(200));
    let handler = {
        let (delivered, confirmed) = (Arc::clone(&delivered), Arc::clone(&confirmed));
        let (again, room) = (Arc::clone(&again), Arc::clone(&room));
        Handler::new(move |message| {
            let (delivered, confirmed) = (Arc::clone(&delivered), Arc::clone(&confirmed));
            let (again, room) = (Arc::clone(&again), Arc::clone(&room));
            async move {
                let row = read(message.data());
                if delivered.lock().insert(row) {
                    room.add_permits(1);
                }
                if confirmed
                    .lock()
                    .get(&row)
                    .is_some_and(|at| message.received() > *at + Duration::from_secs(2))
                {
                    again.lock().push(row);
                }
                // Without a confirmation the row may come again, or the server has taken it and could not say so.
                if message.double_ack(message.ctx()).await.is_ok() {
                    confirmed.lock().entry(row).or_insert_with(SystemTime::now);
                }
            }
        })
    };
    let mut consuming = consumer.consume(handler, 64).await.unwrap();
    let load = Load::start(&broker, &room);
    for round in 0..3 {
        load.grow(50).await;
        let leader = three.operate(|cluster| {
            let leader = match round {
                0 => cluster.leader("WH_INGEST_0"),
                shard => cluster.consumer_leader("WH_INGEST_0", &format!("wh-ingest-{}", shard - 1)),
            };
            let leader = leader.unwrap();
            cluster.kill(leader).unwrap();
            leader
        });
        load.grow(50).await;
        three.operate(|cluster| cluster.restart(leader).unwrap());
    }
    let (stored, errors) = load.end().await;
    let expected: BTreeSet<(u64, u64)> = (0..)
        .zip(&stored)
        .flat_map(|(publisher, stored)| (0..*stored).map(move |number| (publisher, number)))
        .collect();
    until("every row", || async {
        expected.is_subset(&delivered.lock()).then_some(())
    })
    .await;
    assert_eq!(*again.lock(), [], "confirmed rows came again");
    let failed = tokio::time::timeout(Duration::from_millis(300), consuming.failed()).await;
    assert!(failed.is_err(), "a change of leaders is no failure: {failed:?}");
    println!(
        "3 leaders killed, {} of {} rows confirmed, {errors} errors to retry",
        confirmed.lock().len(),
        expected.len(),
    );
    consuming.stop();
    broker.close().await.unwrap();
}
