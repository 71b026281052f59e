//! What only an outside broker does: losing its server, its streams, its pins.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use windjet_mq::nats::Topology;
use windjet_mq::{
    ConsumerConfig, ConsumerManager as _, Ctx, ErrorKind, Handler, Message, PublishOptions, Publisher as _,
    Sharded as _,
};

use super::{Cluster, PATIENCE, topic, topology, until};

pub(super) fn handler() -> (mpsc::UnboundedReceiver<Message>, Handler) {
    let (sender, messages) = mpsc::unbounded_channel();
    let handler = Handler::new(move |message| {
        // Nobody looks any more once the test is over.
        let _ = sender.send(message);
        async {}
    });
    (messages, handler)
}

pub(super) async fn next(messages: &mut mpsc::UnboundedReceiver<Message>) -> Message {
    let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
    message.expect("waited in vain for a message").unwrap()
}

pub(super) fn one_shard() -> Topology {
    Topology {
        partitions: 1,
        shards: 1,
        ..topology()
    }
}

pub(super) fn pinned(cluster: &Cluster) -> Option<Value> {
    let info = cluster.operate(|operator| operator.consumer("WH_INGEST_0", "wh-ingest-0").unwrap());
    let pin = info["priority_groups"][0]["pinned_client_id"].clone();
    (!pin.is_null() && pin != json!("")).then_some(pin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_restart_loses_nothing_and_is_no_failure() {
    let cluster = Cluster::start(Topology {
        publish_timeout: Duration::from_millis(300),
        ..one_shard()
    })
    .await;
    let (broker, ctx) = (cluster.broker().await, Ctx::new());
    let (mut messages, handler) = handler();
    let consumer = broker
        .create_consumer(&ctx, ConsumerConfig::new("buffer-consumer"))
        .await
        .unwrap();
    let mut consuming = consumer.consume(handler, 16).await.unwrap();
    let events = topic("acme", "events");
    broker
        .publish(&ctx, &events, "1".into(), PublishOptions::new())
        .await
        .unwrap();
    next(&mut messages).await.double_ack(&ctx).await.unwrap();

    cluster.deployment().server.kill().unwrap();
    until("the loss to be noticed", || async { broker.ready().err() }).await;
    let lost = broker
        .publish(&ctx, &events, "lost".into(), PublishOptions::new())
        .await
        .unwrap_err();
    assert!(
        lost.is(ErrorKind::Unavailable) && !lost.is(ErrorKind::QueueFull),
        "{lost:?}"
    );
    assert!(lost.outcome_unknown() && lost.is_retryable());

    cluster.deployment().restart().unwrap();
    until("the broker to be ready", || async { broker.ready().ok() }).await;
    broker
        .publish(&ctx, &events, "2".into(), PublishOptions::new())
        .await
        .unwrap();
    let message = next(&mut messages).await;
    assert_eq!(&message.data()[..], b"2");
    let failed = tokio::time::timeout(Duration::from_millis(300), consuming.failed()).await;
    assert!(failed.is_err(), "a reconnect is no failure: {failed:?}");
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_20_a_partition_that_is_gone_is_named_and_never_made_again() {
    let cluster = Cluster::start(Topology {
        publish_timeout: Duration::from_secs(1),
        ..one_shard()
    })
    .await;
    let (broker, ctx) = (cluster.broker().await, Ctx::new());
    cluster.operate(|operator| operator.delete_stream("WH_INGEST_0").unwrap());
    let events = topic("acme", "events");
    let error = broker
        .publish(&ctx, &events, "x".into(), PublishOptions::new())
        .await
        .unwrap_err();
    assert!(
        error.is(ErrorKind::Unavailable) && error.to_string().contains("WH_INGEST_0 does not exist"),
        "{error:?}"
    );
    assert!(broker.ready().unwrap_err().is(ErrorKind::Topology));

    let rogue = json!({ "name": "ROGUE", "subjects": ["wh.ingest.0.>"] });
    cluster.operate(|operator| operator.api("STREAM.CREATE.ROGUE", &rogue).unwrap());
    let error = broker
        .publish(&ctx, &events, "x".into(), PublishOptions::new())
        .await
        .unwrap_err();
    assert!(
        error.is(ErrorKind::Unavailable) && error.to_string().contains("stored by stream ROGUE"),
        "{error:?}"
    );
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_at_its_own_limit_is_full_and_others_are_not() {
    let cluster = Cluster::start(one_shard()).await;
    let (broker, ctx) = (cluster.broker().await, Ctx::new());
    let limit = |config: &mut Value| config["max_msgs_per_subject"] = json!(1);
    cluster.operate(|operator| operator.update_stream("WH_INGEST_0", limit).unwrap());
    let publish = |table: &'static str| {
        let (broker, ctx) = (broker.clone(), ctx.clone());
        async move {
            broker
                .publish(&ctx, &topic("acme", table), "x".into(), PublishOptions::new())
                .await
        }
    };
    publish("a").await.unwrap();
    assert!(publish("a").await.unwrap_err().is(ErrorKind::QueueFull));
    publish("b").await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_13_republished_rows_keep_headers_and_expect_no_stream() {
    let cluster = Cluster::start(one_shard()).await;
    let (broker, ctx) = (cluster.broker().await, Ctx::new());
    let options = PublishOptions::new().header("X-One", "1").header("X-One", "2");
    let events = topic("acme", "events").scope("eu");
    broker.publish(&ctx, &events, "x".into(), options).await.unwrap();
    let history = until("the row in the history", || async {
        let last = json!({ "last_by_subj": "wh.hist.acme.events.eu" });
        cluster.operate(|operator| operator.api("STREAM.MSG.GET.WH_HISTORY", &last).ok())
    })
    .await;
    let headers = history["message"]["hdrs"].as_str().unwrap();
    let headers = String::from_utf8(base64(headers)).unwrap();
    assert!(
        headers.contains("X-One: 1\r\n") && headers.contains("X-One: 2\r\n"),
        "{headers}"
    );
    assert!(!headers.contains("Nats-Expected-Stream"), "{headers}");
    broker.close().await.unwrap();
}

pub(super) fn base64(text: &str) -> Vec<u8> {
    data_encoding::BASE64.decode(text.as_bytes()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_16_a_release_gives_up_ones_own_pin_and_nobody_elses() {
    let cluster = Cluster::start(one_shard()).await;
    let ctx = Ctx::new();
    let (holder, other) = (cluster.broker().await, cluster.broker().await);
    let units = || ConsumerConfig::new("buffer-consumer").units(["WH_INGEST_0/wh-ingest-0"]);
    let events = topic("acme", "events");
    let consume = async |broker: &windjet_mq::nats::ExternalNats| {
        let consumer = broker.create_consumer(&ctx, units()).await.unwrap();
        let (messages, handler) = handler();
        let consuming = consumer.consume(handler, 16).await.unwrap();
        (consumer, messages, consuming)
    };
    let (first, mut received, consuming) = consume(&holder).await;
    holder
        .publish(&ctx, &events, "1".into(), PublishOptions::new())
        .await
        .unwrap();
    next(&mut received).await.double_ack(&ctx).await.unwrap();
    let pin = until("a pin", || async { pinned(&cluster) }).await;

    let (second, mut later, waiting) = consume(&other).await;
    second.as_releaser().unwrap().release(&ctx).await.unwrap();
    assert_eq!(
        pinned(&cluster),
        Some(pin),
        "the pin is not the other's to give up"
    );
    let unit = "WH_INGEST_0/wh-ingest-0";
    let reset = other.reset_orphaned(&ctx, unit).await.unwrap_err();
    assert!(reset.is(ErrorKind::UnitHeld), "{reset:?}");

    first.as_halter().unwrap().halt().await;
    consuming.stop();
    first.as_releaser().unwrap().release(&ctx).await.unwrap();
    let handed_over = tokio::time::Instant::now();
    holder
        .publish(&ctx, &events, "2".into(), PublishOptions::new())
        .await
        .unwrap();
    assert_eq!(&next(&mut later).await.data()[..], b"2");
    assert!(
        handed_over.elapsed() < Duration::from_secs(5),
        "{:?}",
        handed_over.elapsed()
    );
    waiting.stop();
    holder.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capped_consumer_takes_no_more_than_it_may_hold() {
    let cluster = Cluster::start(one_shard()).await;
    let (broker, ctx) = (cluster.broker().await, Ctx::new());
    let config = ConsumerConfig::new("buffer-consumer").max_held(|| 3);
    let consumer = broker.create_consumer(&ctx, config).await.unwrap();
    let (mut messages, handler) = handler();
    let consuming = consumer.consume(handler, 100).await.unwrap();
    for number in 0..10 {
        let data = number.to_string().into();
        broker
            .publish(&ctx, &topic("acme", "events"), data, PublishOptions::new())
            .await
            .unwrap();
    }
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(next(&mut messages).await);
    }
    let more = tokio::time::timeout(Duration::from_secs(1), messages.recv()).await;
    assert!(more.is_err(), "a fourth came");
    let info = cluster.operate(|operator| operator.consumer("WH_INGEST_0", "wh-ingest-0").unwrap());
    assert_eq!(
        (&info["num_ack_pending"], &info["num_pending"]),
        (&json!(3), &json!(7)),
        "rows were fetched that may not be held"
    );
    for number in 0..10 {
        let message = if held.is_empty() {
            next(&mut messages).await
        } else {
            held.remove(0)
        };
        assert_eq!(&message.data()[..], number.to_string().as_bytes());
        message.double_ack(&ctx).await.unwrap();
    }
    consuming.stop();
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_named_in_order_and_a_removed_partition_is_drained() {
    let mut cluster = Cluster::start(topology()).await;
    let (broker, ctx) = (cluster.broker().await, Ctx::new());
    let units = broker.ingest_units();
    let names: Vec<_> = cluster
        .units()
        .iter()
        .map(|(stream, durable)| format!("{stream}/{durable}"))
        .collect();
    assert_eq!((units.configured, units.extra), (names.clone(), Vec::new()));
    // Enough tables that some are in the second partition.
    for table in 0..8 {
        let row = topic("acme", &format!("t{table}"));
        broker
            .publish(&ctx, &row, table.to_string().into(), PublishOptions::new())
            .await
            .unwrap();
    }
    assert_eq!(broker.duplicate_window().await.unwrap(), Duration::from_secs(120));
    broker.close().await.unwrap();

    cluster.topology.partitions = 1;
    cluster.operate(|operator| {
        let lower = |config: &mut Value| config["metadata"]["wavehouse.dev/partitions"] = json!("1");
        operator.update_stream("WH_INGEST_0", lower).unwrap();
    });
    let broker = cluster.broker().await;
    let units = broker.ingest_units();
    assert_eq!(
        (units.configured, units.extra),
        (names[..2].to_vec(), names[2..].to_vec())
    );
    let consumer = broker
        .create_consumer(&ctx, ConsumerConfig::new("buffer-consumer"))
        .await
        .unwrap();
    let (mut messages, handler) = handler();
    let consuming = consumer.consume(handler, 16).await.unwrap();
    let mut rows = Vec::new();
    for _ in 0..8 {
        let message = next(&mut messages).await;
        message.double_ack(&ctx).await.unwrap();
        rows.push(String::from_utf8(message.data().to_vec()).unwrap());
    }
    rows.sort();
    assert_eq!(rows, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    consuming.stop();
    broker.close().await.unwrap();
}
