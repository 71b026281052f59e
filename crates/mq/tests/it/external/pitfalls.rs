//! Pitfalls of an outside broker that take a disturbed connection, or time, to show.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windjet_mq::coord::Coordinator as _;
use windjet_mq::nats::{ExternalNats, LeaseTimings, Topology};
use windjet_mq::{
    Consumer, ConsumerConfig, ConsumerManager as _, Consuming, Ctx, ErrorKind, Handler, Message,
    PublishOptions, Publisher as _,
};
use windjet_testkit::Way;

use super::behaviour::{base64, handler, next, one_shard, pinned};
use super::{Cluster, PATIENCE, topic, topology, until};

async fn publish(broker: &ExternalNats, data: impl Into<String>) {
    let topic = topic("acme", "events");
    broker
        .publish(&Ctx::new(), &topic, data.into().into(), PublishOptions::new())
        .await
        .unwrap();
}

async fn consume(broker: &ExternalNats, handler: Handler, prefetch: usize) -> (Box<dyn Consumer>, Consuming) {
    let config = ConsumerConfig::new("buffer-consumer").units(["WH_INGEST_0/wh-ingest-0"]);
    let consumer = broker.create_consumer(&Ctx::new(), config).await.unwrap();
    let consuming = consumer.consume(handler, prefetch).await.unwrap();
    (consumer, consuming)
}

fn text(message: &Message) -> String {
    String::from_utf8(message.data().to_vec()).unwrap()
}

fn stored(cluster: &Cluster) -> u64 {
    let info = cluster.operate(|operator| operator.stream("WH_INGEST_0").unwrap());
    info["state"]["messages"].as_u64().unwrap()
}

/// The ids of the messages that a client has sent.
fn message_ids(sent: &[u8]) -> Vec<String> {
    let sent = String::from_utf8_lossy(sent);
    let ids = sent
        .split("Nats-Msg-Id: ")
        .skip(1)
        .filter_map(|rest| rest.split_once("\r\n"));
    ids.map(|(id, _)| id.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_14_every_attempt_of_a_publish_has_the_same_message_id() {
    let cluster = Cluster::start(Topology {
        publish_timeout: Duration::from_secs(1),
        ..one_shard()
    })
    .await;
    let (relay, broker) = cluster.relayed().await;
    let events = topic("acme", "events");
    relay.hold(Way::ToClient, true);
    let lost = broker
        .publish(&Ctx::new(), &events, "1".into(), PublishOptions::new())
        .await
        .unwrap_err();
    assert!(
        lost.is(ErrorKind::Unavailable) && lost.outcome_unknown(),
        "{lost:?}"
    );
    let ids = message_ids(&relay.sent());
    assert_eq!(ids, vec![ids[0].clone(); 3]);
    assert_eq!(stored(&cluster), 1);
    relay.hold(Way::ToClient, false);

    // Two answers are lost, and the third comes.
    relay.hold(Way::ToClient, true);
    let publishing = {
        let (broker, events) = (broker.clone(), events.clone());
        tokio::spawn(async move {
            broker
                .publish(&Ctx::new(), &events, "2".into(), PublishOptions::new())
                .await
        })
    };
    let ids = until("the third attempt", || async {
        Some(message_ids(&relay.sent())).filter(|ids| ids.len() == 6)
    })
    .await;
    relay.hold(Way::ToClient, false);
    publishing.await.unwrap().unwrap();
    assert_ne!(ids[3], ids[0]);
    assert_eq!(ids[3..], vec![ids[3].clone(); 3]);
    assert_eq!(stored(&cluster), 2);
    broker.close().await.unwrap();
}

/// Gives the pins of the only durable another time to live.
fn pins_live(cluster: &Cluster, ttl: Duration) {
    cluster.operate(|operator| {
        let change =
            |config: &mut Value| config["priority_timeout"] = json!(u64::try_from(ttl.as_nanos()).unwrap());
        operator
            .update_consumer("WH_INGEST_0", "wh-ingest-0", change)
            .unwrap();
    });
}

/// Watches for longer than a pin lives without its holder, whether the holder still has it.
async fn keeps_its_pin(cluster: &Cluster, ttl: Duration, others: &mut mpsc::UnboundedReceiver<Message>) {
    let pin = pinned(cluster);
    assert!(pin.is_some());
    let end = Instant::now() + ttl + Duration::from_secs(2);
    while Instant::now() < end {
        assert_eq!(pinned(cluster), pin);
        let stolen = tokio::time::timeout(Duration::from_millis(200), others.recv()).await;
        assert!(stolen.is_err(), "the other process got {stolen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_15_a_blocked_handler_does_not_cost_the_pin() {
    let cluster = Cluster::start(one_shard()).await;
    let (holder, other) = (cluster.broker().await, cluster.broker().await);
    // Longer than the time between two renewals, which is what is left when nothing may be fetched.
    let ttl = Duration::from_secs(7);
    pins_live(&cluster, ttl);
    let gate = CancellationToken::new();
    let (sender, mut received) = mpsc::unbounded_channel();
    let blocked = gate.clone();
    let handler_of_holder = Handler::new(move |message: Message| {
        let (gate, sender) = (blocked.clone(), sender.clone());
        async move {
            sender.send(text(&message)).unwrap();
            gate.cancelled().await;
            message.double_ack(message.ctx()).await.unwrap();
        }
    });
    let (_first, consuming) = consume(&holder, handler_of_holder, 1).await;
    for row in ["1", "2", "3"] {
        publish(&holder, row).await;
    }
    assert_eq!(received.recv().await.unwrap(), "1");
    let (mut others, handler) = handler();
    let (_second, waiting) = consume(&other, handler, 16).await;
    keeps_its_pin(&cluster, ttl, &mut others).await;
    gate.cancel();
    assert_eq!(received.recv().await.unwrap(), "2");
    assert_eq!(received.recv().await.unwrap(), "3");
    consuming.stop();
    waiting.stop();
    holder.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_19_an_idle_holder_keeps_its_pin() {
    let cluster = Cluster::start(one_shard()).await;
    let (holder, other) = (cluster.broker().await, cluster.broker().await);
    let ttl = Duration::from_secs(3);
    pins_live(&cluster, ttl);
    let (mut received, handler_of_holder) = handler();
    let (_first, consuming) = consume(&holder, handler_of_holder, 16).await;
    publish(&holder, "1").await;
    let message = next(&mut received).await;
    message.double_ack(message.ctx()).await.unwrap();
    let (mut others, handler) = handler();
    let (_second, waiting) = consume(&other, handler, 16).await;
    keeps_its_pin(&cluster, ttl, &mut others).await;
    publish(&holder, "2").await;
    assert_eq!(text(&next(&mut received).await), "2");
    consuming.stop();
    waiting.stop();
    holder.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_17_a_halt_hands_on_everything_that_was_fetched() {
    let cluster = Cluster::start(one_shard()).await;
    let (holder, other) = (cluster.broker().await, cluster.broker().await);
    let collecting = || {
        let (sender, rows) = mpsc::unbounded_channel();
        let handler = Handler::new(move |message: Message| {
            let sender = sender.clone();
            async move {
                message.double_ack(message.ctx()).await.unwrap();
                sender.send(text(&message)).unwrap();
            }
        });
        (rows, handler)
    };
    let (mut first_rows, handler) = collecting();
    let (first, consuming) = consume(&holder, handler, 500).await;
    let (publisher, enough) = (holder.clone(), CancellationToken::new());
    let ending = enough.clone();
    let publishing = tokio::spawn(async move {
        let mut count = 0;
        while !ending.is_cancelled() {
            publish(&publisher, count.to_string()).await;
            count += 1;
        }
        count
    });
    // Rows are on their way all the time, so a fetch is under way when the halt comes.
    let mut rows = Vec::new();
    while rows.len() < 20 {
        rows.push(first_rows.recv().await.unwrap());
    }
    first.as_halter().unwrap().halt().await;
    consuming.stop();
    while let Ok(row) = first_rows.try_recv() {
        rows.push(row);
    }
    let info = cluster.operate(|operator| operator.consumer("WH_INGEST_0", "wh-ingest-0").unwrap());
    assert_eq!(
        info["num_ack_pending"], 0,
        "rows were fetched that no handler got: {info}"
    );
    first.as_releaser().unwrap().release(&Ctx::new()).await.unwrap();
    enough.cancel();
    let count = publishing.await.unwrap();

    let (mut second_rows, handler) = collecting();
    let (_second, consuming) = consume(&other, handler, 500).await;
    while rows.len() < count {
        let row = tokio::time::timeout(PATIENCE, second_rows.recv()).await;
        rows.push(row.expect("the rest of the rows").unwrap());
    }
    let expected: Vec<_> = (0..count).map(|row| row.to_string()).collect();
    assert_eq!(rows, expected);
    consuming.stop();
    holder.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_18_rows_due_again_keep_their_order_at_the_cap() {
    let cluster = Cluster::start(one_shard()).await;
    let broker = cluster.broker().await;
    for row in ["0", "1", "2", "3"] {
        publish(&broker, row).await;
    }
    let cap = Arc::new(AtomicUsize::new(4));
    let allowed = Arc::clone(&cap);
    let config = ConsumerConfig::new("buffer-consumer").max_held(move || allowed.load(Ordering::Relaxed));
    let consumer = broker.create_consumer(&Ctx::new(), config).await.unwrap();
    let (mut received, handler) = handler();
    let consuming = consumer.consume(handler, 16).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(next(&mut received).await);
    }
    // From here on nothing may be fetched, and the time comes when the pin must be renewed.
    cap.store(0, Ordering::Relaxed);
    for message in &held {
        message.nak().await.unwrap();
    }
    let mut rows = vec![next(&mut received).await];
    cap.store(16, Ordering::Relaxed);
    rows[0].double_ack(rows[0].ctx()).await.unwrap();
    for _ in 0..3 {
        rows.push(next(&mut received).await);
    }
    let rows: Vec<_> = rows.iter().map(text).collect();
    assert_eq!(rows, ["0", "1", "2", "3"]);
    consuming.stop();
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_21_a_holder_steps_down_before_anyone_takes_over_by_clocks_of_their_own() {
    const TIMINGS: LeaseTimings = LeaseTimings {
        duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        renew_every: Duration::from_millis(100),
    };
    let cluster = Cluster::start(topology()).await;
    let ctx = Ctx::new();
    let (relay, broker) = cluster.relayed().await;
    let leases = broker.leases("wh_coord", "a", TIMINGS).await.unwrap();
    let term = leases.try_acquire(&ctx, "sweeper").await.unwrap();
    let last = |operator: &mut windjet_testkit::natstest::Operator| {
        let last = json!({ "last_by_subj": "$KV.wh_coord.lease.sweeper" });
        operator.api("STREAM.MSG.GET.KV_wh_coord", &last).unwrap()["message"].take()
    };
    let first = cluster.operate(last);

    // A renewal is stored whose answer is on its way, and the answer comes only long after.
    relay.hold(Way::ToClient, true);
    let held = cluster.operate(last)["seq"].as_u64().unwrap();
    let renewed = until("a renewal", || async {
        Some(cluster.operate(last)).filter(|last| last["seq"].as_u64().unwrap() > held)
    })
    .await;
    relay.hold(Way::ToServer, true);
    let sent = Instant::now();
    // The same bytes each time, without a time of day or a time to live in them.
    assert_eq!(renewed["data"], first["data"]);
    assert_eq!(renewed["hdrs"], {
        let expects = format!("NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {held}\r\n\r\n");
        json!(data_encoding::BASE64.encode(expects.as_bytes()))
    });
    let record: serde_json::Map<String, Value> =
        serde_json::from_slice(&base64(first["data"].as_str().unwrap())).unwrap();
    assert_eq!(record.len(), 3);
    assert_eq!(
        (&record["holder"], &record["duration_ms"]),
        (&json!("a"), &json!(3000))
    );
    assert!(record["session"].is_string());

    let candidate = cluster.broker().await;
    let candidate_leases = candidate.leases("wh_coord", "b", TIMINGS).await.unwrap();
    let taking_over = tokio::spawn(async move {
        let next = until("the takeover", || async {
            candidate_leases.try_acquire(&Ctx::new(), "sweeper").await.ok()
        })
        .await;
        (next.token(), Instant::now())
    });
    tokio::time::sleep_until(sent + TIMINGS.renew_deadline * 3 / 4).await;
    assert!(!taking_over.is_finished());
    relay.hold(Way::ToClient, false);
    tokio::time::timeout(PATIENCE, term.done()).await.unwrap();
    let stepped_down = Instant::now();
    assert!(term.error().unwrap().is(ErrorKind::LeaseLost));
    let (token, taken_over) = taking_over.await.unwrap();
    assert!(
        stepped_down < taken_over,
        "two held the lease for {:?}",
        stepped_down - taken_over
    );
    assert!(taken_over - sent >= TIMINGS.duration - TIMINGS.renew_every);
    assert!(token > term.token());
    relay.hold(Way::ToServer, false);
    broker.close().await.unwrap();
    candidate.close().await.unwrap();
}
