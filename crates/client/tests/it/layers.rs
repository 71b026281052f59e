//! Dead-letter queue and idempotency.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config as PullConfig;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::Config as StreamConfig;
use windjet_client::consumer::RetryDelay;
use windjet_client::handler::Stack;
use windjet_client::ops::dlq::{Autopsy, Dlq};
use windjet_client::ops::idempotency::{Claim, ClaimStore, DedupStore, Idempotency, KvStore, MemoryStore};
use windjet_client::ops::recorder::FlightRecorder;
use windjet_client::ops::schema::{SchemaCheck, SchemaExpectation};
use windjet_client::{
    Client, Compression, Delivery, Handler, HandlerError, Message, ProcessOptions, async_nats,
};

use crate::harness::{World, soon, until};
use crate::jetstream_tests;

fn quick() -> ProcessOptions {
    ProcessOptions::default().retry_delay(RetryDelay::None)
}

fn header(message: &StreamMessage, name: &str) -> Option<String> {
    message.headers.get(name).map(|value| value.as_str().to_owned())
}

/// A stream S, a durable c, a stream DLQ on `dlq.>`.
async fn with_dlq(world: &World) -> Client {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.stream("DLQ").await;
    world.kit().await
}

async fn dead(world: &World, count: usize) -> Vec<StreamMessage> {
    until("dead letters", || async {
        let stored = world.stored("DLQ").await;
        (stored.len() >= count).then_some(stored)
    })
    .await
}

async fn settled(world: &World, stream: &str) {
    until("all to be settled", || async {
        let info = world.info(stream, "c").await;
        (info.num_ack_pending == 0 && info.num_pending == 0).then_some(())
    })
    .await;
}

fn counting<E: Into<HandlerError>>(
    calls: &Arc<AtomicUsize>,
    answer: impl Fn() -> Result<(), E> + Send + Sync + 'static,
) -> impl Handler {
    let calls = Arc::clone(calls);
    move |_: Arc<Delivery>| {
        calls.fetch_add(1, Ordering::AcqRel);
        let answer = answer().map_err(Into::into);
        async move { answer }
    }
}

fn number(calls: &AtomicUsize) -> usize {
    calls.load(Ordering::Acquire)
}

async fn bucket(world: &World) -> async_nats::jetstream::kv::Store {
    let config = async_nats::jetstream::kv::Config {
        bucket: "ids".into(),
        ..Default::default()
    };
    world.js.create_key_value(config).await.unwrap()
}

jetstream_tests! {

async fn the_last_failed_attempt_is_routed_with_its_error(world: World) {
    let client = with_dlq(&world).await;
    client.publisher().publish_with_msg_id("s.a", "id-1", Message::json(&serde_json::json!({"id":1})).unwrap().with_header("Trace-Id", "abc")).await.unwrap();
    let recorder = FlightRecorder::default();
    let dlq = Dlq::new(client.publisher(), "dlq.orders")
        .max_deliver(3)
        .autopsy(Autopsy { enabled: true, ..Default::default() })
        .recorder(recorder.clone());
    assert!(!dlq.loops_into(&["s.>"]) && dlq.loops_into(&["dlq.>"]));
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = Stack::new().dlq(dlq).around(counting(&calls, || Err(HandlerError::failed("boom\r\non two lines"))));
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let _worker = consumer.start(handler, quick());
    let dead = dead(&world, 1).await;
    assert_eq!(number(&calls), 3);
    let expected = [
        ("X-NATS-Original-Subject", "s.a"),
        ("X-NATS-Stream", "S"),
        ("X-NATS-Stream-Sequence", "1"),
        ("X-NATS-Num-Delivered", "3"),
        ("X-NATS-DLQ-Reason", "max_deliver"),
        ("X-NATS-Consumer", "c"),
        ("X-NATS-Autopsy-Error", "boom  on two lines"),
        ("X-NATS-Autopsy-Hash", "037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4"),
        ("Nats-Msg-Id", "id-1"),
        ("Trace-Id", "abc"),
        ("Nats-Content-Type", "json"),
    ];
    for (name, value) in expected {
        assert_eq!(header(&dead[0], name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(&dead[0].payload[..], br#"{"id":1}"#);
    settled(&world, "S").await;
    until("the record", || async { (recorder.snapshot().len() == 1).then_some(()) }).await;
    let incident = recorder.snapshot().remove(0);
    assert_eq!((incident.detail.as_str(), incident.sequence, incident.err.as_str()), ("autopsy", 1, "boom\r\non two lines"));
    until("the outcome", || async { (consumer.vitals().routed() == 1).then_some(()) }).await;
    assert_eq!(world.stored("DLQ").await.len(), 1);
}

/// When the consumer's own limit is the same, delivery N+1 never comes; the original then routed nothing.
async fn the_layer_works_with_the_same_limit_on_the_consumer(world: World) {
    world.stream("S").await;
    world.durable_with("S", "c", PullConfig { max_deliver: 3, ..Default::default() }).await;
    world.stream("DLQ").await;
    let client = world.kit().await;
    world.publish("s.a", 1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let dlq = Dlq::new(client.publisher(), "dlq.a").max_deliver(3);
    let handler = Stack::new().dlq(dlq).around(counting(&calls, || Err(std::io::Error::other("x"))));
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    dead(&world, 1).await;
    settled(&world, "S").await;
    assert_eq!((number(&calls), world.stored("DLQ").await.len()), (3, 1));
}

async fn a_handler_may_ask_for_it_and_a_panic_counts_as_a_failure(world: World) {
    let client = with_dlq(&world).await;
    world.publish("s.a", 2).await;
    let dlq = Dlq::new(client.publisher(), "dlq.a").max_deliver(2);
    let handler = Stack::new().dlq(dlq).around(|delivery: Arc<Delivery>| async move {
        assert!(&delivery.payload[..] != b"1", "on purpose");
        Err::<(), _>(HandlerError::send_to_dlq("poison"))
    });
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    let dead = dead(&world, 2).await;
    let mut reasons: Vec<_> = dead.iter().map(|m| header(m, "X-NATS-DLQ-Reason").unwrap()).collect();
    reasons.sort();
    assert_eq!(reasons, ["handler_requested", "max_deliver"]);
    // Autopsy was not asked for.
    assert_eq!(header(&dead[0], "X-NATS-Autopsy-Stack"), None);
    assert_eq!(header(&dead[0], "X-NATS-Autopsy-Hash"), None);
    assert_eq!(header(&dead[0], "Nats-Msg-Id").as_deref(), Some("dlq-S-1"));
    settled(&world, "S").await;
}

/// The stack is that of the failure, not of the layer that notices it.
async fn an_autopsy_names_the_place_of_the_failure(world: World) {
    let client = with_dlq(&world).await;
    world.publish("s.a", 3).await;
    let autopsy = Autopsy { enabled: true, include_stack: true, ..Autopsy::default() };
    let dlq = Dlq::new(client.publisher(), "dlq.a").max_deliver(1).autopsy(autopsy);
    let handler = Stack::new().dlq(dlq).around(|delivery: Arc<Delivery>| async move {
        match &delivery.payload[..] {
            b"0" => fails_with_an_error()?,
            b"1" => panics(),
            _ => return fails_by_constructor(),
        }
        Ok(())
    });
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    let dead = dead(&world, 3).await;
    for copy in &dead {
        // An error is seen where it becomes the handler's, which is in the handler itself.
        let place = match &copy.payload[..] {
            b"0" => "",
            b"1" => "panics",
            _ => "fails_by_constructor",
        };
        let stack = header(copy, "X-NATS-Autopsy-Stack").unwrap();
        let first = stack.split("; ").next().unwrap();
        assert!(first.contains(place) && first.contains("layers.rs:"), "{place}: {stack}");
        assert!(stack.len() <= 2048 && !stack.contains("tokio"), "{stack}");
    }
    settled(&world, "S").await;
}

/// A message that takes the process down with it is never seen to fail.
async fn a_message_delivered_too_often_is_routed_without_its_handler(world: World) {
    let client = with_dlq(&world).await;
    world.publish("s.a", 1).await;
    let mut puller = world.puller("S", "c").await;
    for _ in 0..2 {
        // Two workers that died: each delivery is given back unseen.
        let batch = puller.fetch(&windjet_client::pull::Request::batch(1)).await.unwrap();
        drop(batch);
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let dlq = Dlq::new(client.publisher(), "dlq.a").max_deliver(2).reason("poison");
    let handler = Stack::new().dlq(dlq).around(counting(&calls, || Ok::<_, HandlerError>(())));
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    let dead = dead(&world, 1).await;
    assert_eq!(header(&dead[0], "X-NATS-DLQ-Reason").as_deref(), Some("poison"));
    assert_eq!(number(&calls), 0);
    settled(&world, "S").await;
}

async fn when_the_copy_cannot_be_stored_the_message_is_kept(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    world.publish("s.a", 1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let dlq = Dlq::new(client.publisher(), "dlq.nowhere");
    let handler = Stack::new().dlq(dlq).around(counting(&calls, || Err(HandlerError::send_to_dlq("x"))));
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    until("tries", || async { (number(&calls) >= 3).then_some(()) }).await;
    assert_eq!(world.info("S", "c").await.num_ack_pending, 1);
    world.stream("DLQ").await;
    dead(&world, 1).await;
    settled(&world, "S").await;
}

/// The server took the copy for a duplicate of the original, the original was given up, and the message was lost.
async fn a_dead_letter_subject_in_the_same_stream_loses_nothing(world: World) {
    let subjects = vec!["s.>".into(), "dlq.>".into()];
    world.stream_with("S", StreamConfig { subjects, duplicate_window: Duration::from_secs(60), ..Default::default() }).await;
    world.durable_with("S", "c", PullConfig { filter_subject: "s.>".into(), ..Default::default() }).await;
    let client = world.kit().await;
    client.publisher().publish_bytes_with_msg_id("s.a", "id-1", "precious").await.unwrap();
    let dlq = Dlq::new(client.publisher(), "dlq.a");
    let handler = Stack::new().dlq(dlq).around(|_: Arc<Delivery>| async { Err::<(), _>(HandlerError::send_to_dlq("x")) });
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    let stored = until("the copy", || async {
        let stored = world.stored("S").await;
        (stored.len() == 2).then_some(stored)
    }).await;
    assert_eq!((stored[1].subject.as_str(), &stored[1].payload[..]), ("dlq.a", &b"precious"[..]));
    assert_eq!(header(&stored[1], "Nats-Msg-Id").as_deref(), Some("dlq-S-1"));
}

async fn the_copy_is_never_compressed(world: World) {
    with_dlq(&world).await;
    let mut config = world.config();
    config.publisher.compression = Compression::Auto;
    let client = world.kit_with(config).await;
    client.publisher().publish_bytes("s.a", vec![b'x'; 100_000]).await.unwrap();
    assert!(world.stored("S").await[0].payload.len() < 50_000);
    let dlq = Dlq::new(client.publisher(), "dlq.a");
    let handler = Stack::new().dlq(dlq).around(|_: Arc<Delivery>| async { Err::<(), _>(HandlerError::send_to_dlq("x")) });
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    let dead = dead(&world, 1).await;
    assert_eq!((dead[0].payload.len(), header(&dead[0], "Content-Encoding")), (100_000, None));
}

async fn each_id_is_handled_once(world: World) {
    world.stream_with("S", StreamConfig { duplicate_window: Duration::from_millis(100), ..Default::default() }).await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    let store = KvStore::new(bucket(&world).await);
    let ids = ["a", "nats-consol-dlq-retry:X_DLQ:7", "a", "nats-consol-dlq-retry:X_DLQ:7", "", ""];
    for (number, id) in ids.iter().enumerate() {
        let message = Message::raw(number.to_string());
        let message = if id.is_empty() { message } else { message.with_header("X-Id", id) };
        client.publisher().publish("s.a", message).await.unwrap();
    }
    let layer = Idempotency::new(store).id(|delivery| {
        Some(delivery.headers.as_ref()?.get("X-Id")?.as_str().to_owned())
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let handler = Stack::new().idempotency(layer.clone()).around(move |delivery: Arc<Delivery>| {
        note.lock().unwrap().push(String::from_utf8(delivery.payload.to_vec()).unwrap());
        async { Ok::<_, HandlerError>(()) }
    });
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    settled(&world, "S").await;
    assert_eq!(*seen.lock().unwrap(), ["0", "1", "4", "5"]);
    assert_eq!(layer.deduplicated(), 2);
}

async fn a_failure_or_a_panic_gives_the_claim_back(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    client.publisher().publish_bytes_with_msg_id("s.a", "x", "1").await.unwrap();
    let store = bucket(&world).await;
    let layer = Idempotency::new(KvStore::new(store.clone()));
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let handler = Stack::new().idempotency(layer).around(move |_: Arc<Delivery>| {
        let call = count.fetch_add(1, Ordering::AcqRel);
        async move {
            assert!(call != 0, "on purpose");
            if call == 1 { Err(HandlerError::failed("again")) } else { Ok(()) }
        }
    });
    let _worker = client.consumer().pull("S", "c").await.unwrap().start(handler, quick());
    settled(&world, "S").await;
    assert_eq!(number(&calls), 3);
    assert_eq!(&store.get("x").await.unwrap().unwrap()[..], b"d");
}

async fn of_many_claims_one_is_acquired_and_a_dead_one_is_taken_over(world: World) {
    let bucket = bucket(&world).await;
    let store = KvStore::new(bucket.clone()).lease_of(Duration::from_millis(600));
    let claims: Vec<_> = (0..32).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.claim("x").await.unwrap() })
    }).collect();
    let mut acquired = 0;
    for claim in claims {
        match claim.await.unwrap() {
            Claim::Acquired(_) => acquired += 1,
            Claim::InFlight(left) => assert!(left <= Duration::from_millis(600)),
            Claim::Done => panic!("nobody is done"),
        }
    }
    assert_eq!(acquired, 1);
    assert!(!store.seen("x").await.unwrap());
    // Its worker died: nobody renews. Another one takes it when the lease has run out.
    let revision = until("the take-over", || async {
        match store.claim("x").await.unwrap() { Claim::Acquired(revision) => Some(revision), _ => None }
    }).await;
    let renewed = store.renew("x", revision).await.unwrap().unwrap();
    assert_eq!(store.renew("x", revision).await.unwrap(), None);
    store.release("x", revision).await.unwrap();
    assert!(matches!(store.claim("x").await.unwrap(), Claim::InFlight(_)));
    store.release("x", renewed).await.unwrap();
    assert!(matches!(store.claim("x").await.unwrap(), Claim::Acquired(_)));
    store.mark("x").await.unwrap();
    assert_eq!(store.claim("x").await.unwrap(), Claim::Done);
    // What the original wrote: one byte.
    bucket.put("old", vec![1].into()).await.unwrap();
    assert_eq!(store.claim("old").await.unwrap(), Claim::Done);
    bucket.put("pending", "p".into()).await.unwrap();
    assert!(matches!(store.claim("pending").await.unwrap(), Claim::InFlight(_)));
}

async fn a_message_in_another_workers_hand_is_no_failed_attempt(world: World) {
    let client = with_dlq(&world).await;
    client.publisher().publish_bytes_with_msg_id("s.a", "x", "1").await.unwrap();
    let store = Arc::new(MemoryStore::new(100, Duration::from_millis(700)));
    // Another worker has it, and dies.
    assert!(matches!(store.claim("x").await.unwrap(), Claim::Acquired(_)));
    let calls = Arc::new(AtomicUsize::new(0));
    let layer = Idempotency::new(Quick(Arc::clone(&store)));
    let dlq = Dlq::new(client.publisher(), "dlq.a").max_deliver(2);
    let stack = Stack::new().dlq(dlq).idempotency(layer).schema(SchemaCheck::new(SchemaExpectation::default()));
    assert_eq!(stack.order(), ["dlq", "idempotency", "schema", "panic guard"]);
    let handler = stack.around(counting(&calls, || Ok::<_, HandlerError>(())));
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let _worker = consumer.start(handler, quick());
    settled(&world, "S").await;
    assert!(consumer.vitals().redelivered() > 2, "{}", consumer.vitals().redelivered());
    assert_eq!((number(&calls), world.stored("DLQ").await.len()), (1, 0));
}

async fn a_handler_that_outlives_its_lease_keeps_its_claim(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    client.publisher().publish_bytes_with_msg_id("s.a", "x", "1").await.unwrap();
    let store = KvStore::new(bucket(&world).await).lease_of(Duration::from_millis(300));
    let other = store.clone();
    let layer = Idempotency::new(store);
    let handler = Stack::new().idempotency(layer).around(move |_: Arc<Delivery>| {
        let other = other.clone();
        async move {
            for _ in 0..10 {
                crate::harness::pass(Duration::from_millis(100)).await;
                let claim = other.claim("x").await.unwrap();
                assert!(matches!(claim, Claim::InFlight(_)), "{claim:?}");
            }
            Ok::<_, HandlerError>(())
        }
    });
    let consumer = client.consumer().pull("S", "c").await.unwrap();
    let _worker = consumer.start(handler, quick());
    soon("the end", settled(&world, "S")).await;
    assert_eq!(consumer.vitals().failed(), 0);
}

}

/// A store that answers "in flight" with a short wait, so that a message comes again often.
struct Quick(Arc<MemoryStore>);

impl DedupStore for Quick {
    fn seen<'a>(&'a self, id: &'a str) -> windjet_client::ops::idempotency::StoreFuture<'a, bool> {
        self.0.seen(id)
    }

    fn mark<'a>(&'a self, id: &'a str) -> windjet_client::ops::idempotency::StoreFuture<'a, ()> {
        self.0.mark(id)
    }
}

impl ClaimStore for Quick {
    fn claim<'a>(&'a self, id: &'a str) -> windjet_client::ops::idempotency::StoreFuture<'a, Claim> {
        Box::pin(async move {
            Ok(match self.0.claim(id).await? {
                Claim::InFlight(_) => Claim::InFlight(Duration::from_millis(50)),
                other => other,
            })
        })
    }

    fn renew<'a>(
        &'a self,
        id: &'a str,
        revision: u64,
    ) -> windjet_client::ops::idempotency::StoreFuture<'a, Option<u64>> {
        self.0.renew(id, revision)
    }

    fn release<'a>(
        &'a self,
        id: &'a str,
        revision: u64,
    ) -> windjet_client::ops::idempotency::StoreFuture<'a, ()> {
        self.0.release(id, revision)
    }

    fn lease(&self) -> Duration {
        self.0.lease()
    }
}

#[inline(never)]
fn fails_with_an_error() -> std::io::Result<()> {
    Err(std::io::Error::other("disk"))
}

#[inline(never)]
fn panics() {
    panic!("on purpose");
}

#[inline(never)]
fn fails_by_constructor() -> Result<(), HandlerError> {
    Err(HandlerError::failed("poison"))
}
