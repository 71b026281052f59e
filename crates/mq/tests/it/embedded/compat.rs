//! The early package on the same engine.

use std::collections::BTreeMap;

use tempfile::TempDir;
use tokio::sync::mpsc;
use windjet_mq::compat::{
    Listener, Message, PublishOptions, Publisher as _, SubjectBroker, Subscriber as _, dlq_stream_name,
    stream_name,
};
use windjet_mq::{Broker as _, Ctx, EmbeddedNats, ErrorKind};
use windjet_server::jetstream::DiscardPolicy;

use super::{MIB, PATIENCE, tenant};

/// A listener that settles nothing, and what it was given.
fn inbox() -> (mpsc::UnboundedReceiver<Message>, Listener) {
    let (sender, messages) = mpsc::unbounded_channel();
    let listener = Listener::new(move |message| {
        // Nobody looks any more once the test is over.
        let _ = sender.send(message);
        async { Ok(()) }
    });
    (messages, listener)
}

async fn next(messages: &mut mpsc::UnboundedReceiver<Message>) -> Message {
    let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
    message.expect("waited in vain for a message").unwrap()
}

async fn publish(broker: &SubjectBroker, subject: &str, data: &str) {
    let data = data.to_owned().into();
    let published = broker
        .publish(&Ctx::new(), subject, data, PublishOptions::new())
        .await;
    published.unwrap_or_else(|error| panic!("{subject}: {error:#}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pair_has_the_early_names_and_limits() {
    let folder = TempDir::new().unwrap();
    let broker = SubjectBroker::open(folder.path(), MIB).await.unwrap();
    assert_eq!((stream_name(), dlq_stream_name()), ("WAVEHOUSE", "WAVEHOUSE_DLQ"));
    let mut found = BTreeMap::new();
    for name in broker.jetstream().stream_names() {
        let config = broker.jetstream().stream_info(&name).await.unwrap().config;
        found.insert(name, (config.subjects, config.max_bytes, config.discard));
    }
    let bytes = i64::try_from(MIB).unwrap();
    let expected = [
        ("WAVEHOUSE", "ingest.>", bytes, DiscardPolicy::New),
        ("WAVEHOUSE_DLQ", "dlq.>", bytes / 10, DiscardPolicy::Old),
    ];
    let expected = expected
        .map(|(name, subject, bytes, discard)| (name.to_owned(), (vec![subject.to_owned()], bytes, discard)));
    assert_eq!(found, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_sees_its_subjects_in_order_and_goes_on_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let broker = SubjectBroker::open(folder.path(), MIB).await.unwrap();
    for (subject, data) in [
        ("ingest.orders.eu", "1"),
        ("ingest.clicks.eu", "2"),
        ("ingest.orders.us", "3"),
        ("dlq.orders.eu", "4"),
    ] {
        publish(&broker, subject, data).await;
    }
    let ctx = Ctx::new();
    let (mut messages, listener) = inbox();
    broker
        .subscribe(&ctx, "ingest.orders.*", "worker", listener)
        .await
        .unwrap();
    let first = next(&mut messages).await;
    assert_eq!(
        (first.subject(), first.data().as_ref()),
        ("ingest.orders.eu", &b"1"[..])
    );
    first.double_ack(&ctx).await.unwrap();
    assert_eq!(next(&mut messages).await.data().as_ref(), b"3");
    broker.close().await.unwrap();

    let broker = SubjectBroker::open(folder.path(), MIB).await.unwrap();
    let (mut messages, listener) = inbox();
    broker
        .subscribe(&ctx, "ingest.orders.*", "worker", listener)
        .await
        .unwrap();
    let again = next(&mut messages).await;
    assert_eq!(
        again.data().as_ref(),
        b"3",
        "acknowledged is acknowledged, the rest comes again"
    );
    again.ack().await.unwrap();
    let (mut dead, listener) = inbox();
    broker.subscribe(&ctx, "dlq.>", "parked", listener).await.unwrap();
    assert_eq!(next(&mut dead).await.data().as_ref(), b"4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_or_a_nak_brings_a_message_again_until_the_context_ends() {
    let folder = TempDir::new().unwrap();
    let broker = SubjectBroker::open(folder.path(), MIB).await.unwrap();
    let ctx = Ctx::new();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let listener = Listener::new(move |message: Message| {
        let sender = sender.clone();
        async move {
            let data = String::from_utf8(message.data().to_vec())?;
            sender.send(data.clone())?;
            match data.as_str() {
                "refused" => Err("not now".into()),
                "naked" => Ok(message.nak().await?),
                _ => Ok(message.ack().await?),
            }
        }
    });
    broker
        .subscribe(&ctx, "ingest.>", "worker", listener)
        .await
        .unwrap();
    for data in ["refused", "naked"] {
        publish(&broker, "ingest.x", data).await;
        for _ in 0..2 {
            let wanted = async { while seen.recv().await.unwrap() != data {} };
            tokio::time::timeout(PATIENCE, wanted).await.unwrap();
        }
    }
    ctx.cancel();
    // The listener is dropped with its subscription, and the channel ends.
    let ended = async { while seen.recv().await.is_some() {} };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_and_a_foreign_subject_are_refused() {
    let folder = TempDir::new().unwrap();
    let broker = SubjectBroker::open(folder.path(), 4096).await.unwrap();
    let big = vec![b'x'; 3000];
    let ctx = Ctx::new();
    let published = broker
        .publish(&ctx, "ingest.x", big.clone().into(), PublishOptions::new())
        .await;
    published.unwrap();
    let full = broker
        .publish(&ctx, "ingest.x", big.clone().into(), PublishOptions::new())
        .await;
    assert!(full.unwrap_err().is(ErrorKind::QueueFull));
    for subject in ["orders", "other.x", "ingest.*", "ingest..x", ""] {
        let refused = broker
            .publish(&ctx, subject, "x".into(), PublishOptions::new())
            .await;
        assert!(refused.unwrap_err().is(ErrorKind::Invalid), "{subject}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_has_one_layout() {
    let folder = TempDir::new().unwrap();
    let broker = EmbeddedNats::open(folder.path()).await.unwrap();
    broker
        .set_max_bytes(&Ctx::new(), &tenant("acme"), MIB)
        .await
        .unwrap();
    windjet_mq::Publisher::close(&broker).await.unwrap();
    let error = SubjectBroker::open(folder.path(), MIB).await.unwrap_err();
    assert!(
        error.is(ErrorKind::Invalid) && error.to_string().contains("EmbeddedNats"),
        "{error:#}"
    );
    let broker = EmbeddedNats::open(folder.path()).await.unwrap();
    assert_eq!(broker.max_bytes(&tenant("acme")), MIB, "nothing was changed");
}
