//! What the broker in the process does beyond the suite: boots, budgets, foreign rows.

use std::time::Duration;

use bytes::Bytes;
use windjet_mq::mqtest::DURABLE;
use windjet_mq::{
    Broker as _, ConsumerConfig, ConsumerManager as _, Ctx, DeadLetterStats as _, DeadLetterer as _,
    EmbeddedNats, ErrorKind, PublishOptions, Publisher as _,
};
use windjet_server::jetstream::StreamConfig;

use super::{MIB, Store, next, publish, tenant, topic, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_gets_no_budget_any_more_is_still_delivered_and_publishes_at_its_old_one() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    publish(&store.broker(), "acme", "queued").await;
    let broker = store.restart().await;
    assert_eq!(broker.max_bytes(&tenant("acme")), MIB);
    let (mut messages, _consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    assert_eq!(next(&mut messages).await.data().as_ref(), b"queued");
    publish(&broker, "acme", "more").await;
    assert_eq!(next(&mut messages).await.data().as_ref(), b"more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_pair_reports_no_budget_until_it_is_applied_again() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    store.js().delete_stream("DLQ_acme").await.unwrap();
    let broker = store.restart().await;
    assert_eq!(broker.max_bytes(&tenant("acme")), 0);
    store.budget("acme", MIB).await;
    assert_eq!(broker.max_bytes(&tenant("acme")), MIB);
    assert_eq!(store.cap("DLQ_acme").await, i64::try_from(MIB / 10).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_an_earlier_layout_are_deleted() {
    let store = Store::start().await;
    for (name, subject) in [("WAVEHOUSE", "ingest.>"), ("WAVEHOUSE_DLQ", "dlq.>")] {
        let config = StreamConfig {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            ..StreamConfig::default()
        };
        store.js().create_stream(config).await.unwrap();
    }
    store
        .js()
        .publish("WAVEHOUSE", "ingest.events", "old")
        .unwrap()
        .await
        .unwrap();
    store.restart().await;
    assert!(store.js().stream_names().is_empty());
    store.budget("acme", MIB).await;
    publish(&store.broker(), "acme", "new").await;
}

#[tokio::test]
async fn a_folder_that_is_a_file_is_refused_at_once() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("queue");
    std::fs::write(&path, b"no folder").unwrap();
    let error = EmbeddedNats::open(&path).await.unwrap_err();
    assert!(
        error.to_string().contains("the folder cannot be made"),
        "{error:#}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_broker_at_a_time_has_a_folder() {
    let store = Store::start().await;
    let error = EmbeddedNats::open(store.folder.path()).await.unwrap_err();
    assert!(error.to_string().contains("did not start"), "{error:#}");
    store.budget("acme", MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_are_stored_as_they_are_given() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    let options = PublishOptions::new()
        .header("X-One", "1, 2")
        .header("X-One", " 3")
        .header("x-one", "4");
    let published = store
        .broker()
        .publish(&Ctx::new(), &topic("acme", "events"), "x".into(), options)
        .await;
    published.unwrap();
    let stored = store.js().get_message("INGEST_acme", 1).await.unwrap().unwrap();
    let block = String::from_utf8(stored.headers.to_vec()).unwrap();
    let lines: Vec<&str> = block
        .lines()
        .filter(|line| line.to_lowercase().starts_with("x-"))
        .collect();
    assert_eq!(lines.len(), 3, "{block:?}");
    assert_eq!(stored.header("X-One"), Some("1, 2"));
    assert_eq!(stored.header("x-one"), Some("4"));
    assert_eq!(stored.subject_str(), "ingest.acme.events");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_vanish_come_back_at_the_last_budget() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    for stream in ["INGEST_acme", "DLQ_acme"] {
        store.js().delete_stream(stream).await.unwrap();
    }
    publish(&store.broker(), "acme", "x").await;
    assert_eq!(store.cap("INGEST_acme").await, i64::try_from(MIB).unwrap());
    assert_eq!(store.cap("DLQ_acme").await, i64::try_from(MIB / 10).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_a_budget_is_named_and_gets_nothing() {
    let store = Store::start().await;
    let published = store
        .broker()
        .publish(
            &Ctx::new(),
            &topic("acme", "events"),
            "x".into(),
            PublishOptions::new(),
        )
        .await;
    let error = published.unwrap_err();
    assert!(
        error.is(ErrorKind::QueueFull) && error.to_string().contains("acme"),
        "{error:#}"
    );
    assert!(store.js().stream_names().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_window_is_brought_to_two_minutes() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    let mut config = store.js().stream_info("INGEST_acme").await.unwrap().config;
    config.duplicate_window = windjet_server::jetstream::Nanos::from_secs(30);
    store.js().update_stream(config).await.unwrap();
    store.budget("acme", 2 * MIB).await;
    let config = store.js().stream_info("INGEST_acme").await.unwrap().config;
    assert_eq!(
        config.duplicate_window,
        windjet_server::jetstream::Nanos::from_secs(120)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_does_not_settle_and_one_that_is_blocked_cost_others_nothing() {
    let store = Store::start().await;
    for id in ["acme", "globex", "hooli"] {
        store.budget(id, MIB).await;
        for row in 0..5 {
            publish(&store.broker(), id, &row.to_string()).await;
        }
    }
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
    let handler = windjet_mq::Handler::new(move |message: windjet_mq::Message| {
        let sender = sender.clone();
        async move {
            let id = message.topic().tenant.unwrap().to_string();
            sender.send((id.clone(), message.data().clone())).unwrap();
            match id.as_str() {
                "globex" => message.double_ack(&Ctx::new()).await.unwrap(),
                "hooli" => std::future::pending().await,
                _ => {}
            }
        }
    });
    let config = ConsumerConfig::new(DURABLE).max_ack_pending(2);
    let consumer = store.broker().create_consumer(&Ctx::new(), config).await.unwrap();
    let _consuming = consumer.consume(handler, 16).await.unwrap();
    let mut got = std::collections::BTreeMap::<String, Vec<Bytes>>::new();
    for _ in 0..8 {
        let (id, data) = tokio::time::timeout(Duration::from_secs(20), messages.recv())
            .await
            .unwrap()
            .unwrap();
        got.entry(id).or_default().push(data);
    }
    let rows = |rows: &[&'static str]| {
        rows.iter()
            .map(|row| Bytes::from_static(row.as_bytes()))
            .collect::<Vec<_>>()
    };
    assert_eq!(got["acme"], rows(&["0", "1"]));
    assert_eq!(got["globex"], rows(&["0", "1", "2", "3", "4"]));
    assert_eq!(got["hooli"], rows(&["0"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_below_what_is_queued_refuses_until_it_was_purged() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    let broker = store.broker();
    for _ in 0..8 {
        publish(&broker, "acme", &"x".repeat(8192)).await;
    }
    let (mut messages, _consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    store.budget("acme", 32 * 1024).await;
    assert_eq!(
        store
            .js()
            .stream_info("INGEST_acme")
            .await
            .unwrap()
            .state
            .messages,
        8
    );
    let full = broker
        .publish(
            &Ctx::new(),
            &topic("acme", "events"),
            "x".into(),
            PublishOptions::new(),
        )
        .await;
    assert!(full.unwrap_err().is(ErrorKind::QueueFull));
    for _ in 0..8 {
        next(&mut messages).await.double_ack(&Ctx::new()).await.unwrap();
    }
    let purged = store.purge().await;
    assert!(purged.purged && purged.error.is_none(), "{purged:?}");
    publish(&broker, "acme", "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_of_a_tenant_that_is_gone_are_still_counted() {
    let store = Store::start().await;
    store.budget("acme", MIB).await;
    let (mut messages, _consuming) = store.consume(ConsumerConfig::new(DURABLE)).await;
    publish(&store.broker(), "acme", "x").await;
    let message = next(&mut messages).await;
    store
        .broker()
        .dead_letter(&Ctx::new(), &message, PublishOptions::new())
        .await
        .unwrap();
    let broker = store.restart().await;
    let counts = broker
        .dead_letter_counts(&Ctx::new(), &tenant("acme"), None)
        .await
        .unwrap();
    assert_eq!((counts.total, counts.tables["events"]), (1, 1));
    let missing = broker
        .dead_letter_counts(&Ctx::new(), &tenant("nobody"), None)
        .await
        .unwrap_err();
    assert!(missing.is(ErrorKind::NoDeadLetterQueue));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_handle_that_goes_gives_the_folder_back() {
    let folder = tempfile::TempDir::new().unwrap();
    let broker = EmbeddedNats::open(folder.path()).await.unwrap();
    let acme = tenant("acme");
    broker.set_max_bytes(&Ctx::new(), &acme, MIB).await.unwrap();
    publish(&broker, "acme", "kept").await;
    let second = broker.clone();
    let consumer = broker
        .create_consumer(&Ctx::new(), ConsumerConfig::new(DURABLE))
        .await
        .unwrap();
    drop(broker);
    publish(&second, "acme", "the other still has it").await;
    // The consumer is no handle: it does not keep the folder.
    drop(second);
    let again = until("the folder", || async {
        EmbeddedNats::open(folder.path()).await.ok()
    });
    assert_eq!(again.await.max_bytes(&acme), MIB);
    drop(consumer);
}
