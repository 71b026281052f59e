//! Publishing.

use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Config as StreamConfig;
use futures_util::StreamExt as _;
use windjet_client::publisher::Progress;
use windjet_client::{Client, Compression, ErrorKind, Fate, Message, async_nats};

use crate::harness::{soon, until};
use crate::jetstream_tests;

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    value: String,
}

jetstream_tests! {

async fn a_publish_is_stored_when_it_returns(world: World) {
    world.stream("S").await;
    let publisher = world.kit().await.publisher();
    let ack = publisher.publish_json("s.a", &serde_json::json!({"id": 1})).await.unwrap();
    assert_eq!((ack.stream.as_str(), ack.sequence, ack.duplicate), ("S", 1, false));
    publisher.publish_msgpack("s.a", "x").await.unwrap();
    publisher.publish_proto("s.a", &Text { value: "x".into() }).await.unwrap();
    publisher.publish_bytes("s.a", &b"raw"[..]).await.unwrap();
    let stored = world.stored("S").await;
    assert_eq!(&stored[0].payload[..], br#"{"id":1}"#);
    let types: Vec<_> = stored.iter().map(|m| m.headers.get("Nats-Content-Type").map(|v| v.as_str().to_owned())).collect();
    assert_eq!(types, [None, Some("msgpack".into()), Some("protobuf".into()), None]);
    assert!(stored[0].headers.is_empty() && stored[3].headers.is_empty());
}

async fn the_same_id_is_stored_once(world: World) {
    world.stream("S").await;
    let publisher = world.kit().await.publisher();
    let first = publisher.publish_bytes_with_msg_id("s.a", "pay-1", "x").await.unwrap();
    let second = publisher.publish_with_msg_id("s.a", "pay-1", Message::raw("x")).await.unwrap();
    assert!(!first.duplicate && second.duplicate);
    assert_eq!(first.sequence, second.sequence);
    assert_eq!(world.stored("S").await.len(), 1);
}

async fn expectations_are_held_and_zero_means_empty(world: World) {
    world.stream("S").await;
    let publisher = world.kit().await.publisher();
    let empty = || Message::raw("x").with_expected_last_seq(0);
    publisher.publish("s.a", empty()).await.unwrap();
    let error = publisher.publish("s.a", empty()).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::WrongLastSequence, Fate::NotStored));
    assert_eq!(&error.into_message().unwrap().payload()[..], b"x");
    publisher.publish("s.b", Message::raw("x").with_expected_last_seq_per_subject(0)).await.unwrap();
    let error = publisher.publish("s.b", Message::raw("x").with_expected_last_seq_per_subject(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongLastSequence);
    let error = publisher.publish("s.b", Message::raw("x").with_expected_last_msg_id("no")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongLastMessageId);
    let error = publisher.publish("s.b", Message::raw("x").with_expected_stream("OTHER")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongStream);
    publisher.publish("s.b", Message::raw("x").with_expected_stream("S")).await.unwrap();
}

/// "It works, but nothing is stored": a subject that no stream has.
async fn a_subject_without_a_stream_is_an_error_of_its_own(world: World) {
    let error = world.kit().await.publisher().publish_bytes("nowhere", "x").await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::StreamNotFound, Fate::NotStored));
    assert!(error.into_message().is_some());
}

async fn what_cannot_be_sent_is_refused_before_anything_is(world: World) {
    world.stream("S").await;
    let mut heard = world.listen().await;
    let client = world.kit().await;
    let publisher = client.publisher();
    let refused = async |subject: &str, message: Message| publisher.publish(subject, message).await.unwrap_err().kind();
    assert_eq!(refused("", Message::raw("x")).await, ErrorKind::EmptySubject);
    assert_eq!(refused("s.*", Message::raw("x")).await, ErrorKind::InvalidSubject);
    assert_eq!(refused("s.>", Message::raw("x")).await, ErrorKind::InvalidSubject);
    assert_eq!(refused("s. a", Message::raw("x")).await, ErrorKind::InvalidSubject);
    assert_eq!(refused("s.a", Message::raw("x").with_msg_id("a\nb")).await, ErrorKind::InvalidHeader);
    assert_eq!(refused("s.a", Message::raw(vec![0; 2 << 20])).await, ErrorKind::PayloadTooLarge);
    publisher.publish_bytes("s.last", "x").await.unwrap();
    // The server's own event of the stream's creation may come late.
    let first = loop {
        let subject = soon("the last", heard.next()).await.unwrap().subject;
        if !subject.starts_with("$JS.EVENT.") {
            break subject;
        }
    };
    assert_eq!(first.as_str(), "s.last");
}

async fn compression_shrinks_what_is_stored(world: World) {
    world.stream("S").await;
    let mut config = world.config();
    config.publisher.compression = Compression::Auto;
    let publisher = world.kit_with(config).await.publisher();
    publisher.publish_bytes("s.a", vec![b'a'; 32_768]).await.unwrap();
    publisher.publish_bytes("s.a", vec![b'a'; 32_769]).await.unwrap();
    let stored = world.stored("S").await;
    assert_eq!((stored[0].payload.len(), stored[0].headers.is_empty()), (32_768, true));
    assert!(stored[1].payload.len() < 20_000);
    assert_eq!(stored[1].headers.get("Content-Encoding").unwrap().as_str(), "br");
}

async fn asynchronous_publishes_are_bounded_and_become_acks(world: World) {
    world.stream("S").await;
    let mut config = world.config();
    config.publisher.max_async_pending = Some(3);
    let publisher = world.kit_with(config).await.publisher();
    world.signal("STOP");
    let mut pending = Vec::new();
    for _ in 0..3 {
        pending.push(publisher.publish_async_bytes("s.a", "x").await.unwrap());
    }
    assert_eq!(pending[0].progress(), Progress::Sent);
    assert_eq!(publisher.pending(), 3);
    let error = publisher.publish_async_bytes("s.a", "fourth").await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::AsyncPublishPendingLimit, Fate::NotStored));
    assert_eq!(&error.into_message().unwrap().payload()[..], b"fourth");
    world.signal("CONT");
    let mut sequences = Vec::new();
    for one in pending {
        sequences.push(one.await.unwrap().sequence);
    }
    assert_eq!(sequences, [1, 2, 3]);
    soon("the end", publisher.publish_async_complete()).await.unwrap();
    assert_eq!(publisher.pending(), 0);
}

/// The original looked first and sent then, so that a burst got past the limit.
async fn a_burst_never_exceeds_the_limit(world: World) {
    world.stream("S").await;
    let mut config = world.config();
    config.publisher.max_async_pending = Some(8);
    let publisher = world.kit_with(config).await.publisher();
    world.signal("STOP");
    let tries: Vec<_> = (0..64).map(|_| {
        let publisher = publisher.clone();
        tokio::spawn(async move { publisher.publish_async_bytes("s.a", "x").await })
    }).collect();
    let mut held = Vec::new();
    for one in tries {
        held.extend(one.await.unwrap().ok());
    }
    world.signal("CONT");
    assert_eq!(held.len(), 8);
    for one in held {
        one.await.unwrap();
    }
    assert_eq!(world.stored("S").await.len(), 8);
}

/// The official client forgets the failure of an acknowledgement that nobody waits for.
async fn the_failure_of_a_dropped_publish_is_reported_once(world: World) {
    world.stream_with("S", StreamConfig { max_messages: 1, discard: async_nats::jetstream::stream::DiscardPolicy::New, ..Default::default() }).await;
    let publisher = world.kit().await.publisher();
    for _ in 0..3 {
        drop(publisher.publish_async_bytes("s.a", "x").await.unwrap());
    }
    let error = soon("the end", publisher.publish_async_complete()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Api);
    assert_eq!(error.api_code(), Some(10_077));
    publisher.publish_async_complete().await.unwrap();
}

async fn a_pending_publish_that_is_dropped_while_it_waits_is_still_counted(world: World) {
    world.stream("S").await;
    let publisher = world.kit().await.publisher();
    world.signal("STOP");
    let pending = publisher.publish_async_bytes("s.a", "x").await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(20), pending.into_future()).await.is_err());
    assert_eq!(publisher.pending(), 1);
    world.signal("CONT");
    soon("the end", publisher.publish_async_complete()).await.unwrap();
    assert_eq!(world.stored("S").await.len(), 1);
}

async fn without_an_answer_the_fate_is_unknown_and_no_slot_stays(world: World) {
    world.stream("S").await;
    let client = world.kit().await;
    let publisher = client.publisher();
    world.signal("STOP");
    let error = publisher.publish_within("s.a", Message::raw("x"), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::TimedOut, Fate::Unknown));
    assert!(error.outcome_unknown() && error.is_retryable());
    assert!(format!("{client:?}").contains("waiting: 0"), "{client:?}");
    world.signal("CONT");
    until("the message", || async { (world.stored("S").await.len() == 1).then_some(()) }).await;
}

async fn a_publish_that_may_not_queue_is_refused_while_disconnected(world: World) {
    world.stream("S").await;
    let mut config = world.config();
    config.connection.refuse_while_disconnected = true;
    let client = world.kit_with(config).await;
    world.server.kill().unwrap();
    until("the loss", || async { (!client.connector().is_connected()).then_some(()) }).await;
    let begun = Instant::now();
    let error = client.publisher().publish_bytes("s.a", "x").await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::NotConnected, Fate::NotStored));
    // Not by waiting for an answer.
    assert!(begun.elapsed() < Duration::from_secs(3));
}

async fn a_publish_while_disconnected_is_queued_and_stored_later(world: World) {
    world.stream("S").await;
    let client = world.kit().await;
    world.server.kill().unwrap();
    until("the loss", || async { (!client.connector().is_connected()).then_some(()) }).await;
    let pending = client.publisher().publish_async_bytes("s.a", "x").await.unwrap();
    assert_eq!(pending.progress(), Progress::Queued);
    world.restart();
    soon("the ack", pending.into_future()).await.unwrap();
}

async fn close_waits_for_asynchronous_publishes(world: World) {
    world.stream("S").await;
    let client: Client = world.kit().await;
    for _ in 0..100 {
        drop(client.publisher().publish_async_bytes("s.a", "x").await.unwrap());
    }
    let report = client.close().await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(world.stored("S").await.len(), 100);
}

}
