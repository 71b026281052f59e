//! Incident capsules.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windjet_client::consumer::RetryDelay;
use windjet_client::handler::Stack;
use windjet_client::ops::dlq::Dlq;
use windjet_client::ops::incidents::{
    AutoConfig, CapsuleAuto, Capture, DEFAULT_CAPSULE_BUCKET, DEFAULT_INDEX_BUCKET, Trigger, attach,
};
use windjet_client::ops::recorder::{FlightRecorder, Incident, IncidentKind};
use windjet_client::{Compression, Delivery, ErrorKind, HandlerError, Message, ProcessOptions};

use crate::harness::until;
use crate::jetstream_tests;

type Ready = Arc<Mutex<Vec<windjet_client::ops::incidents::Capsule>>>;

/// On, with every capsule noted.
fn on(ready: &Ready) -> AutoConfig {
    let note = Arc::clone(ready);
    AutoConfig {
        enabled: true,
        window: 4,
        on_ready: Some(Arc::new(move |capsule| {
            note.lock().unwrap().push(capsule.clone());
        })),
        ..AutoConfig::default()
    }
}

async fn first(ready: &Ready) -> windjet_client::ops::incidents::Capsule {
    until("a capsule", || async { ready.lock().unwrap().first().cloned() }).await
}

jetstream_tests! {

async fn a_capsule_is_captured_found_and_replayed(world: World) {
    world.stream("S").await;
    world.publish("s.a", 120).await;
    let client = world.kit().await;
    let recorder = FlightRecorder::default();
    recorder.record(Incident::new(IncidentKind::Stall, "stood still"));
    let incidents = client.incidents();
    let capsule = incidents.capture(Capture {
        failing_seq: 60,
        reason: "looking".into(),
        flight_recorder: Some(recorder),
        ..Capture::new("S", "worker")
    }).await.unwrap();
    let sequences: Vec<u64> = capsule.messages.iter().map(|message| message.sequence).collect();
    assert_eq!(sequences, (35..=84).collect::<Vec<_>>());
    assert_eq!((capsule.id.len(), capsule.trigger, capsule.schema_version), (22, Trigger::Manual, 1));
    let found = incidents.list("S", "worker", "").await.unwrap();
    assert_eq!(found, [capsule.id.as_str()]);
    let read = incidents.load("", &capsule.id).await.unwrap();
    assert_eq!(read, capsule);
    assert_eq!(read.flight_timeline[0].detail, "stood still");
    // The buckets are those that other tools look into.
    client.objects().get(DEFAULT_CAPSULE_BUCKET, &capsule.id).await.unwrap();
    let key = format!("S/worker/{}", capsule.id);
    assert_eq!(client.kv_keys().get(DEFAULT_INDEX_BUCKET, &key).await.unwrap().value, capsule.id.as_bytes());

    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let handler = move |delivery: Arc<Delivery>| {
        let note = Arc::clone(&note);
        async move {
            // Settling goes nowhere here.
            delivery.ack().await.unwrap();
            delivery.progress().await.unwrap();
            delivery.ack_confirmed(Duration::from_secs(1)).await.unwrap();
            let number: u64 = String::from_utf8(delivery.payload.to_vec()).unwrap().parse().unwrap();
            note.lock().unwrap().push(number);
            if number == 40 { Err(HandlerError::failed("at forty")) } else { Ok(()) }
        }
    };
    let error = incidents.replay_local(&read, &handler).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Handler);
    assert!(error.to_string().contains("message 41 of s.a"), "{error}");
    assert_eq!(*seen.lock().unwrap(), (34..=40).collect::<Vec<_>>());
}

async fn an_empty_stream_gives_an_empty_capsule_and_bad_names_none(world: World) {
    world.stream("S").await;
    let incidents = world.kit().await.incidents();
    assert!(incidents.capture(Capture::new("S", "c")).await.unwrap().messages.is_empty());
    for (what, kind) in [
        (Capture::new("a.b", "c"), ErrorKind::InvalidStreamName),
        (Capture::new("S", ""), ErrorKind::InvalidDurableName),
        (Capture::new("NONE", "c"), ErrorKind::StreamNotFound),
    ] {
        assert_eq!(incidents.capture(what).await.unwrap_err().kind(), kind);
    }
    assert_eq!(incidents.load("", "nothing").await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn compressed_messages_are_replayed_expanded(world: World) {
    world.stream("S").await;
    let mut config = world.config();
    config.publisher.compression = Compression::Auto;
    let client = world.kit_with(config).await;
    let text = "abc".repeat(20_000);
    client.publisher().publish("s.a", Message::raw(text.clone())).await.unwrap();
    let capsule = client.incidents().capture(Capture::new("S", "c")).await.unwrap();
    assert!(capsule.messages[0].data.len() < 1000);
    let handler = move |delivery: Arc<Delivery>| {
        let same = delivery.payload == text.as_bytes();
        async move { if same { Ok(()) } else { Err(HandlerError::failed("still compressed")) } }
    };
    client.incidents().replay_local(&capsule, &handler).await.unwrap();
}

async fn a_failing_handler_makes_a_capsule_and_keeps_its_result(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 3).await;
    let client = world.kit().await;
    let ready = Ready::default();
    let handler = |delivery: Arc<Delivery>| async move {
        let bad = delivery.payload == "1" && delivery.metadata().unwrap().delivered == 1;
        assert!(!bad, "on purpose");
        Ok::<_, HandlerError>(())
    };
    let handler = attach(client.incidents(), "S", "c", on(&ready), handler);
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let worker = consumer.start(handler, ProcessOptions::default().retry_delay(RetryDelay::None));
    let capsule = first(&ready).await;
    assert_eq!((capsule.failing_seq, capsule.subject.as_str()), (2, "s.a"));
    assert_eq!(capsule.reason, "handler_error: handler panic: on purpose");
    // The message comes again, as it would have without.
    until("the acks", || async { (consumer.vitals().succeeded() == 3).then_some(()) }).await;
    worker.stop().await.unwrap();
}

async fn a_dead_letter_of_a_work_queue_makes_a_capsule_with_what_the_handler_saw(world: World) {
    use windjet_client::async_nats::jetstream::stream::{Config, RetentionPolicy};
    world.stream_with("S", Config { retention: RetentionPolicy::WorkQueue, ..Config::default() }).await;
    world.stream("DLQ").await;
    world.durable("S", "c").await;
    world.publish("s.a", 1).await;
    let client = world.kit().await;
    let ready = Ready::default();
    let auto = CapsuleAuto::new(client.incidents(), "S", "c", on(&ready));
    let stack = Stack::new().incidents(auto).dlq(Dlq::new(client.publisher(), "dlq.s"));
    assert_eq!(stack.order(), ["incidents", "dlq", "panic guard"]);
    let handler = stack.around(|_: Arc<Delivery>| async { Err::<(), _>(HandlerError::send_to_dlq("poison")) });
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let _worker = consumer.start(handler, ProcessOptions::default());
    let capsule = first(&ready).await;
    assert_eq!((capsule.trigger, capsule.failing_seq), (Trigger::Dlq, 1));
    // The queue has let it go, or is about to.
    assert_eq!(capsule.messages.len(), 1);
    assert_eq!(capsule.messages[0].data, "0");
}

}
