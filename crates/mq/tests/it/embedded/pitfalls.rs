//! What must never happen, by the numbers of the specification's list.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use windjet_mq::mqtest::{self, DURABLE};
use windjet_mq::{
    Broker as _, ConsumerConfig, Ctx, DeadLetterStats as _, DeadLetterer as _, ErrorKind, PublishOptions,
    Publisher as _, Purger as _, Topic,
};

use super::suite::fresh;
use super::{MIB, Store, next, publish, tenant, topic, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_1_a_topic_without_a_tenant_lands_nowhere() {
    let store = Store::start().await;
    store.budget("0", MIB).await;
    let nobodys = Topic {
        tenant: None,
        ..topic("0", "events")
    };
    let refused = store
        .broker()
        .publish(&Ctx::new(), &nobodys, "x".into(), PublishOptions::new())
        .await;
    assert!(refused.unwrap_err().is(ErrorKind::Invalid));
    assert_eq!(
        store.js().stream_info("INGEST_0").await.unwrap().state.messages,
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_2_a_delivered_key_is_parked_byte_for_byte() {
    let store = Store::start().await;
    store.budget("a", MIB).await;
    let (mut messages, _consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    // Foreign, and in an encoding that ours would not write.
    for key in ["a.b.c.d", "a.table%2Dwith%2Ddashes.org%2d1"] {
        let published = store
            .js()
            .publish("INGEST_a", &format!("ingest.{key}"), "x")
            .unwrap();
        published.await.unwrap();
        let message = next(&mut messages).await;
        assert_eq!(message.topic_key(), key);
        store
            .broker()
            .dead_letter(&Ctx::new(), &message, PublishOptions::new())
            .await
            .unwrap();
        message.double_ack(&Ctx::new()).await.unwrap();
        let parked = store
            .js()
            .last_message("DLQ_a", &format!("dlq.{key}"))
            .await
            .unwrap();
        assert_eq!(parked.unwrap().payload, "x");
    }
    let counts = store
        .broker()
        .dead_letter_counts(&Ctx::new(), &tenant("a"), None)
        .await
        .unwrap();
    let tables: Vec<_> = counts.tables.into_iter().collect();
    assert_eq!(
        tables,
        [("a.b.c.d".to_owned(), 1), ("table-with-dashes".to_owned(), 1)]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_3_an_undone_resize_restores_what_the_stream_really_had() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    store.js().delete_stream("DLQ_acme").await.unwrap();
    let broker = store.restart().await;
    assert_eq!(
        broker.max_bytes(&tenant("acme")),
        0,
        "half a pair is at no budget"
    );
    store.rogue("dlq.acme.>").await;
    let error = broker
        .set_max_bytes(&Ctx::new(), &tenant("acme"), 2 * MIB)
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("restored to the previous limit"),
        "{error:#}"
    );
    assert_eq!(store.cap("INGEST_acme").await, i64::try_from(MIB).unwrap());
    assert_eq!(broker.max_bytes(&tenant("acme")), 0);
    store.js().delete_stream("ROGUE").await.unwrap();
    store.budget("acme", 2 * MIB).await;
    assert_eq!(store.cap("INGEST_acme").await, i64::try_from(2 * MIB).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_4_a_dead_letter_queue_is_never_made_smaller_than_what_it_holds() {
    let store = Store::start().await;
    store.budget("acme", 10 * MIB).await;
    let (mut messages, _consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    publish(&store.broker(), "acme", &"x".repeat(1024)).await;
    let message = next(&mut messages).await;
    for _ in 0..200 {
        store
            .broker()
            .dead_letter(&Ctx::new(), &message, PublishOptions::new())
            .await
            .unwrap();
    }
    let held = store.js().stream_info("DLQ_acme").await.unwrap().state.bytes;
    store.budget("acme", MIB).await;
    assert_eq!(store.broker().max_bytes(&tenant("acme")), MIB);
    assert_eq!(store.cap("DLQ_acme").await, i64::try_from(held).unwrap());
    assert_eq!(
        store.js().stream_info("DLQ_acme").await.unwrap().state.messages,
        200
    );
    let broker = store.restart().await;
    assert_eq!(broker.max_bytes(&tenant("acme")), MIB, "it counts as applied");
    store.budget("acme", 4 * MIB).await;
    assert_eq!(store.cap("DLQ_acme").await, i64::try_from(4 * MIB / 10).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_5_no_ingest_stream_is_opened_before_its_dead_letter_stream() {
    let store = Store::start().await;
    store.rogue("dlq.acme.>").await;
    let refused = store
        .broker()
        .set_max_bytes(&Ctx::new(), &tenant("acme"), MIB)
        .await;
    assert!(refused.unwrap_err().to_string().contains("acme"));
    assert_eq!(store.js().stream_names(), ["ROGUE"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_6_a_stream_that_answers_is_no_open_queue() {
    let store = Store::start().await;
    let (mut messages, _consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    // As an open that ran out of time leaves it: there, and nobody consumes it.
    let config = windjet_server::jetstream::StreamConfig {
        name: "INGEST_acme".to_owned(),
        subjects: vec!["ingest.acme.>".to_owned()],
        ..Default::default()
    };
    store.js().create_stream(config).await.unwrap();
    let lost = store
        .broker()
        .publish(
            &Ctx::new(),
            &topic("acme", "events"),
            "lost".into(),
            PublishOptions::new(),
        )
        .await;
    assert!(lost.unwrap_err().is(ErrorKind::QueueFull));
    assert_eq!(
        store
            .js()
            .stream_info("INGEST_acme")
            .await
            .unwrap()
            .state
            .messages,
        0
    );
    store.budget("acme", MIB).await;
    publish(&store.broker(), "acme", "kept").await;
    assert_eq!(next(&mut messages).await.data().as_ref(), b"kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_7_a_client_that_goes_away_leaves_no_half_open_queue() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    let (mut messages, mut consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    for stream in ["INGEST_acme", "DLQ_acme"] {
        store.js().delete_stream(stream).await.unwrap();
    }
    consuming.failed().await;
    let (broker, ctx) = (store.broker(), Ctx::new());
    let topic = topic("acme", "events");
    let mut published = Box::pin(broker.publish(&ctx, &topic, "x".into(), PublishOptions::new()));
    // Begun, and dropped in the middle.
    let _ = published.as_mut().now_or_never();
    drop(published);
    until("the queue to be open and consumed", || async {
        store.js().consumer_info("INGEST_acme", DURABLE).await.ok()
    })
    .await;
    publish(&broker, "acme", "y").await;
    while next(&mut messages).await.data().as_ref() != b"y" {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_8_a_broken_queue_is_tried_once_in_a_while_and_costs_others_nothing() {
    let store = Store::start().await;
    store.budget("globex", MIB).await;
    store.rogue("ingest.acme.>").await;
    let broker = store.broker();
    assert!(
        broker
            .set_max_bytes(&Ctx::new(), &tenant("acme"), MIB)
            .await
            .is_err()
    );
    let topic = topic("acme", "events");
    let attempt = || async {
        let published = broker
            .publish(&Ctx::new(), &topic, "x".into(), PublishOptions::new())
            .await;
        published.map_err(|error| {
            assert!(error.is(ErrorKind::QueueFull), "{error:#}");
            format!("{error:#}")
        })
    };
    let failed = std::time::Instant::now();
    let first = attempt().await.unwrap_err();
    store.js().delete_stream("ROGUE").await.unwrap();
    // Nothing is in the way any more, and still the failure stands.
    assert_eq!(attempt().await.unwrap_err(), first);
    publish(&broker, "globex", "x").await;
    until("the next try", || async { attempt().await.ok() }).await;
    assert!(
        failed.elapsed() >= Duration::from_secs(4),
        "{:?}",
        failed.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_9_a_sweep_takes_no_unacked_and_no_young_row_and_goes_on_after_a_failure() {
    let store = Store::start().await;
    let ids = ["acme", "globex", "hooli", "initech"];
    for id in ids {
        store.budget(id, MIB).await;
    }
    let broker = store.broker();
    let (mut messages, consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    for id in ids {
        for row in ["acked", "left", "acked"] {
            publish(&broker, id, row).await;
        }
    }
    for _ in 0..12 {
        let message = next(&mut messages).await;
        if message.data().as_ref() == b"acked" {
            message.double_ack(&Ctx::new()).await.unwrap();
        }
    }
    consuming.stop();
    store
        .js()
        .delete_consumer("INGEST_globex", DURABLE)
        .await
        .unwrap();
    store.js().delete_stream("INGEST_hooli").await.unwrap();
    let keeps = BTreeMap::from([(tenant("initech"), SystemTime::now() - Duration::from_secs(3600))]);
    let swept = broker.purge_acked(&Ctx::new(), DURABLE, &keeps).await;
    assert!(swept.purged);
    let error = swept.error.unwrap();
    assert!(error.is(ErrorKind::ConsumerNotFound), "{error:#}");
    let text = format!("{error:#}");
    assert!(text.contains("globex") && text.contains("hooli"), "{text}");
    assert!(!text.contains("acme") && !text.contains("initech"), "{text}");
    for (id, left) in [("acme", 2), ("initech", 3)] {
        let info = store.js().stream_info(&format!("INGEST_{id}")).await.unwrap();
        assert_eq!(info.state.messages, left, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_10_a_real_end_is_reported_once_and_a_stop_or_close_never() {
    for case in [
        "delivery_that_ends_by_itself_is_reported_once",
        "nothing_is_reported_after_a_stop",
        "nothing_is_reported_for_a_close",
    ] {
        mqtest::run(case, &fresh().await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_11_a_lost_broker_is_neither_caught_up_nor_empty() {
    mqtest::run("a_replay_that_loses_its_broker_fails", &fresh().await).await;
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    store.broker().close().await.unwrap();
    let counted = store
        .broker()
        .dead_letter_counts(&Ctx::new(), &tenant("acme"), None)
        .await;
    assert!(!counted.unwrap_err().is(ErrorKind::NoDeadLetterQueue));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_12_parking_does_not_acknowledge() {
    mqtest::run("a_parked_event_keeps_its_topic_and_is_not_acked", &fresh().await).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_23_no_signal_handler_is_installed() {
    let handled = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .unwrap();
        // SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM: bit n - 1 for signal n.
        u64::from_str_radix(caught.trim(), 16).unwrap()
            & [1, 2, 3, 10, 12, 15].iter().map(|n| 1 << (n - 1)).sum::<u64>()
    };
    let before = handled();
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    publish(&store.broker(), "acme", "x").await;
    assert_eq!(handled(), before);
    store.broker().close().await.unwrap();
    assert_eq!(handled(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pitfall_25_every_queue_syncs_before_it_confirms() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    for stream in ["INGEST_acme", "DLQ_acme"] {
        let info = store.js().stream_info(stream).await.unwrap();
        // A stream that confirms before it syncs says so here.
        let weaker: Vec<_> = info
            .config
            .metadata
            .keys()
            .filter(|key| key.contains("durability"))
            .collect();
        assert!(weaker.is_empty(), "{stream}: {weaker:?}");
    }
}
