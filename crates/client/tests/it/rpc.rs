//! Requests and replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use windjet_client::rpc::{Call, RespondOptions};
use windjet_client::{Compression, ErrorKind, HandlerError, Message};

use crate::harness::{soon, until};
use crate::jetstream_tests;

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    value: String,
}

/// Answers with what it was sent, as it was sent.
async fn echo(call: Arc<Call>) -> Result<(), HandlerError> {
    let kind = call
        .message()
        .headers
        .as_ref()
        .and_then(|h| h.get("Nats-Content-Type"))
        .map(|v| v.as_str().to_owned());
    let payload = call.message().payload.clone();
    match kind.as_deref() {
        Some("protobuf") => {
            call.respond_proto(&<Text as prost::Message>::decode(payload)?)
                .await?;
        }
        Some("msgpack") => call.respond_msgpack(&call.decode::<String>()?).await?,
        _ => match call.decode::<serde_json::Value>() {
            Ok(value) => call.respond_json(&value).await?,
            Err(_) => call.respond_bytes(payload).await?,
        },
    }
    Ok(())
}

jetstream_tests! {

async fn every_codec_makes_the_round_trip(world: World) {
    let client = world.kit().await;
    let subscription = client.responder().subscribe("echo", RespondOptions::default(), echo).await.unwrap();
    assert_eq!((subscription.subject(), subscription.is_valid()), ("echo", true));
    let requester = client.requester();
    let reply = requester.request_bytes("echo", "not json").await.unwrap();
    assert_eq!((&reply.payload[..], reply.headers.is_none()), (&b"not json"[..], true));
    let value = serde_json::json!({"ping": 1});
    assert_eq!(requester.request_json_into::<_, serde_json::Value>("echo", &value).await.unwrap(), value);
    assert_eq!(requester.request_msgpack_into::<_, String>("echo", "hi").await.unwrap(), "hi");
    let text = Text { value: "hi".into() };
    assert_eq!(requester.request_proto_into::<_, Text>("echo", &text).await.unwrap(), text);
    let reply = requester.request_json("echo", &value).await.unwrap();
    assert_eq!(reply.headers.unwrap().get("Nats-Content-Type").unwrap().as_str(), "json");
    assert!(subscription.drain(Duration::from_secs(5)).await);
    assert_eq!(requester.request_bytes("echo", "x").await.unwrap_err().kind(), ErrorKind::NoResponders);
}

async fn failures_have_their_kinds(world: World) {
    let client = world.kit().await;
    let requester = client.requester();
    let kind = async |subject: &str| requester.request_bytes(subject, "x").await.unwrap_err().kind();
    assert_eq!(kind("nobody").await, ErrorKind::NoResponders);
    assert_eq!(kind("").await, ErrorKind::EmptySubject);
    assert_eq!(kind("a.*").await, ErrorKind::InvalidSubject);
    let error = requester.request("a", Message::raw("x").with_header("a", "b\nc")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidHeader);

    // A handler that fails or panics sends nothing; its caller runs into the timeout.
    let responder = client.responder();
    let failing = async |_: Arc<Call>| Err::<(), _>(HandlerError::failed("boom"));
    let _quiet = responder.subscribe("quiet", RespondOptions::default(), failing).await.unwrap();
    let begun = Instant::now();
    let error = requester.request_within("quiet", Message::raw("x"), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // Its own limit, not the configured one.
    assert!(begun.elapsed() < Duration::from_millis(1_800));
    assert!(error.is_retryable() && error.outcome_unknown());
    let panicking = |_: Arc<Call>| async { if true { panic!("on purpose") } else { Ok::<_, HandlerError>(()) } };
    let options = RespondOptions::default().error_replies();
    let _loud = responder.subscribe("loud", options, panicking).await.unwrap();
    for _ in 0..2 {
        let error = requester.request_bytes("loud", "x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Handler);
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains("500 handler panic: on purpose"), "{text}");
    }
    assert!(format!("{client:?}").contains("waiting: 0"), "{client:?}");
}

/// The acknowledgement of a stream comes back as the reply.
async fn a_request_to_a_subject_of_a_stream_is_explained(world: World) {
    world.stream("S").await;
    let requester = world.kit().await.requester();
    let error = requester.request_json_into::<_, Vec<u8>>("s.a", "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Decode);
    assert!(error.to_string().contains("a stream stores this subject"), "{error}");
}

async fn a_queue_group_answers_once(world: World) {
    let client = world.kit().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let mut subscriptions = Vec::new();
    for _ in 0..3 {
        let count = Arc::clone(&calls);
        let handler = move |call: Arc<Call>| {
            count.fetch_add(1, Ordering::AcqRel);
            async move { call.respond_bytes("ok").await }
        };
        subscriptions.push(client.responder().queue_subscribe("q", "work", RespondOptions::default(), handler).await.unwrap());
    }
    for _ in 0..20 {
        client.requester().request_bytes("work", "x").await.unwrap();
    }
    assert_eq!(calls.load(Ordering::Acquire), 20);
    let error = client.responder().queue_subscribe("a b", "work", RespondOptions::default(), echo).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidQueueName);
}

async fn payloads_are_compressed_both_ways_and_small_ones_are_not(world: World) {
    let mut config = world.config();
    config.requester.compression = Compression::Brotli;
    config.responder.compression = Compression::Gzip;
    let client = world.kit_with(config.clone()).await;
    let _echo = client.responder().subscribe("echo", RespondOptions::default(), echo).await.unwrap();
    let mut raw = world.listen().await;
    let large = serde_json::Value::String("y".repeat(100_000));
    assert_eq!(client.requester().request_json_into::<_, serde_json::Value>("echo", &large).await.unwrap(), large);
    let request = soon("the request", raw.next()).await.unwrap();
    let reply = soon("the reply", raw.next()).await.unwrap();
    let encoding = |m: &async_nats::Message| m.headers.as_ref().and_then(|h| h.get("Content-Encoding")).map(|v| v.as_str().to_owned());
    assert_eq!((encoding(&request).as_deref(), encoding(&reply).as_deref()), (Some("br"), Some("gzip")));
    assert!(request.payload.len() < 50_000 && reply.payload.len() < 50_000);
    client.requester().request_json("echo", &1).await.unwrap();
    assert_eq!(encoding(&soon("the small one", raw.next()).await.unwrap()), None);

    config.requester.decompression = false;
    let plain = world.kit_with(config).await;
    let reply = plain.requester().request_json("echo", &large).await.unwrap();
    assert_eq!(encoding(&reply).as_deref(), Some("gzip"));
}

async fn requests_are_handled_at_the_same_time_when_that_is_asked_for(world: World) {
    let client = world.kit().await;
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let handler = move |call: Arc<Call>| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            call.respond_bytes("ok").await
        }
    };
    let _three = client.responder().subscribe("three", RespondOptions::default().concurrency(3), handler).await.unwrap();
    let asks: Vec<_> = (0..3).map(|_| {
        let requester = client.requester();
        tokio::spawn(async move { requester.request_bytes("three", "x").await })
    }).collect();
    for ask in asks {
        ask.await.unwrap().unwrap();
    }
}

async fn close_answers_what_has_arrived(world: World) {
    let client = world.kit().await;
    let (gate, entered) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (wait, count) = (Arc::clone(&gate), Arc::clone(&entered));
    let handler = move |call: Arc<Call>| {
        let (wait, count) = (Arc::clone(&wait), Arc::clone(&count));
        async move {
            count.fetch_add(1, Ordering::AcqRel);
            wait.notified().await;
            call.respond_bytes("ok").await
        }
    };
    let _slow = client.responder().subscribe("slow", RespondOptions::default(), handler).await.unwrap();
    let asking = tokio::spawn({
        let nats = world.client.clone();
        async move { nats.request("slow", "x".into()).await }
    });
    until("the request", || async { (entered.load(Ordering::Acquire) == 1).then_some(()) }).await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    gate.notify_one();
    assert_eq!(&soon("the reply", asking).await.unwrap().unwrap().payload[..], b"ok");
    assert!(soon("the end", closing).await.unwrap().is_clean());
}

}
