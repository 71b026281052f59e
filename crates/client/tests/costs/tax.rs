//! What the kit allocates for a message, over what the official client does for the same one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use windjet_client::async_nats::jetstream::consumer::{pull, push};
use windjet_client::consumer::PushOptions;
use windjet_client::rpc::{Call, RespondOptions};
use windjet_client::{Client, Config, Delivery, Handler, HandlerError, Message, ProcessOptions};

use crate::harness::{Backend, PATIENCE, World, soon};
use crate::{allocated, alone};

const MESSAGES: usize = 500;
const ROUNDS: usize = 5;
/// Messages in two streams. What reading one costs more than reading the other is the messages' own; what a consumer costs is in both.
const FEW: (&str, usize) = ("FEW", 200);
const MANY: (&str, usize) = ("MANY", 1200);

fn since(before: usize) -> usize {
    (allocated().allocations - before) / MESSAGES
}

/// Settings with nothing measured and nothing traced.
fn quiet(world: &World) -> Config {
    let mut config = world.config();
    config.metrics.allow_metrics = false;
    config.connection.allow_metrics = false;
    config.publisher.allow_metrics = false;
    config.publisher.allow_tracing = false;
    config.consumer.allow_metrics = false;
    config.consumer.allow_tracing = false;
    config.requester.allow_metrics = false;
    config.requester.allow_tracing = false;
    config.responder.allow_metrics = false;
    config.responder.allow_tracing = false;
    config
}

/// The rounds alternate; the smallest of each is what the calls themselves cost.
async fn a_publish_allocates_little_more(backend: Backend) {
    let world = World::start(backend).await;
    world.stream("S").await;
    let client = world.kit_with(quiet(&world)).await;
    let publisher = client.publisher();
    let payload = Bytes::from_static(b"a payload of some bytes");
    let (mut bare, mut kit) = (usize::MAX, usize::MAX);
    let (mut bare_queued, mut kit_queued) = (usize::MAX, usize::MAX);
    for _ in 0..ROUNDS {
        let before = allocated().allocations;
        for _ in 0..MESSAGES {
            let ack = world.js.publish("s.a", payload.clone()).await.unwrap();
            ack.await.unwrap();
        }
        bare = bare.min(since(before));
        let before = allocated().allocations;
        for _ in 0..MESSAGES {
            publisher.publish_bytes("s.a", payload.clone()).await.unwrap();
        }
        kit = kit.min(since(before));
        let before = allocated().allocations;
        let mut acks = Vec::with_capacity(MESSAGES);
        for _ in 0..MESSAGES {
            acks.push(world.js.publish("s.a", payload.clone()).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
        bare_queued = bare_queued.min(since(before));
        let before = allocated().allocations;
        let mut acks = Vec::with_capacity(MESSAGES);
        for _ in 0..MESSAGES {
            let message = Message::raw(payload.clone());
            acks.push(publisher.publish_async("s.a", message).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
        kit_queued = kit_queued.min(since(before));
    }
    println!(
        "{backend:?}, allocations a message: publish {kit} over {bare}, without waiting {kit_queued} over {bare_queued}"
    );
    assert!(kit <= bare + 2, "{kit} over {bare}");
    assert!(kit_queued <= bare_queued + 2, "{kit_queued} over {bare_queued}");
}

/// The smallest cost of reading each of the two streams, as (few, many).
#[derive(Debug, Clone, Copy)]
struct Cost(usize, usize);

impl Cost {
    const NONE: Self = Self(usize::MAX, usize::MAX);

    fn note(&mut self, stream: (&str, usize), allocations: usize) {
        let least = if stream == FEW { &mut self.0 } else { &mut self.1 };
        *least = allocations.min(*least);
    }

    /// Of one message, to a tenth.
    fn each(self) -> f64 {
        let more = self.1.saturating_sub(self.0) as f64;
        (10.0 * more / (MANY.1 - FEW.1) as f64).round() / 10.0
    }
}

async fn plain_push(world: &World, (stream, count): (&str, usize)) {
    let config = push::Config {
        durable_name: Some("plain-push".into()),
        deliver_subject: world.client.new_inbox(),
        ..push::Config::default()
    };
    let consumer: windjet_client::async_nats::jetstream::consumer::PushConsumer =
        world.js.create_consumer_on_stream(config, stream).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    for _ in 0..count {
        let message = messages.next().await.unwrap().unwrap();
        message.ack().await.unwrap();
    }
    drop(messages);
    world
        .js
        .delete_consumer_from_stream("plain-push", stream)
        .await
        .unwrap();
}

async fn plain_pull(world: &World, (stream, count): (&str, usize)) {
    let config = pull::Config {
        durable_name: Some("plain-pull".into()),
        ..pull::Config::default()
    };
    let consumer = world.js.create_consumer_on_stream(config, stream).await.unwrap();
    let mut messages = consumer
        .stream()
        .max_messages_per_batch(100)
        .messages()
        .await
        .unwrap();
    for _ in 0..count {
        let message = messages.next().await.unwrap().unwrap();
        message.ack().await.unwrap();
    }
    drop(messages);
    world
        .js
        .delete_consumer_from_stream("plain-pull", stream)
        .await
        .unwrap();
}

/// A handler that says when it has had so many.
fn counting(count: usize) -> (impl Handler, Arc<Notify>) {
    let (all, seen) = (Arc::new(Notify::new()), AtomicUsize::new(0));
    let told = Arc::clone(&all);
    let handler = move |_: Arc<Delivery>| {
        if seen.fetch_add(1, Ordering::AcqRel) + 1 == count {
            told.notify_one();
        }
        async { Ok::<_, HandlerError>(()) }
    };
    (handler, all)
}

async fn kit_push(world: &World, client: &Client, (stream, count): (&str, usize)) {
    let config = push::Config {
        durable_name: Some("kit-push".into()),
        deliver_subject: world.client.new_inbox(),
        ..push::Config::default()
    };
    world.js.create_consumer_on_stream(config, stream).await.unwrap();
    let (handler, all) = counting(count);
    let subject = format!("{}.>", stream.to_lowercase());
    let subscription = client
        .consumer()
        .subscribe_bound(stream, "kit-push", &subject, handler, PushOptions::default())
        .await
        .unwrap();
    soon("all messages", all.notified()).await;
    subscription.drain().await;
    world
        .js
        .delete_consumer_from_stream("kit-push", stream)
        .await
        .unwrap();
}

async fn kit_pull(world: &World, client: &Client, (stream, count): (&str, usize), concurrency: usize) {
    world.durable(stream, "kit-pull").await;
    let (handler, all) = counting(count);
    let consumer = client.consumer().pull(stream, "kit-pull").await.unwrap();
    let worker = consumer.start(
        handler,
        ProcessOptions::default().batch(100).concurrency(concurrency),
    );
    soon("all messages", all.notified()).await;
    worker.stop().await.unwrap();
    world
        .js
        .delete_consumer_from_stream("kit-pull", stream)
        .await
        .unwrap();
}

async fn a_delivery_allocates_little_more(backend: Backend) {
    let world = World::start(backend).await;
    for (stream, count) in [FEW, MANY] {
        world.stream(stream).await;
        world
            .publish(&format!("{}.a", stream.to_lowercase()), count)
            .await;
    }
    let client = world.kit_with(quiet(&world)).await;
    let [
        mut push,
        mut pull,
        mut kit_push_cost,
        mut kit_pull_cost,
        mut kit_wide,
    ] = [Cost::NONE; 5];
    for _ in 0..ROUNDS {
        for stream in [FEW, MANY] {
            let before = allocated().allocations;
            plain_push(&world, stream).await;
            push.note(stream, allocated().allocations - before);
            let before = allocated().allocations;
            kit_push(&world, &client, stream).await;
            kit_push_cost.note(stream, allocated().allocations - before);
            let before = allocated().allocations;
            plain_pull(&world, stream).await;
            pull.note(stream, allocated().allocations - before);
            let before = allocated().allocations;
            kit_pull(&world, &client, stream, 1).await;
            kit_pull_cost.note(stream, allocated().allocations - before);
            let before = allocated().allocations;
            kit_pull(&world, &client, stream, 8).await;
            kit_wide.note(stream, allocated().allocations - before);
        }
    }
    let (push, pull) = (push.each(), pull.each());
    let (kit_push, kit_pull, kit_wide) = (kit_push_cost.each(), kit_pull_cost.each(), kit_wide.each());
    println!(
        "{backend:?}, allocations a delivery: push {kit_push} over {push}, pull {kit_pull} over {pull}, eight at a time {kit_wide}"
    );
    assert!(kit_push <= push + 2.0, "push: {kit_push} over {push}");
    assert!(kit_pull <= pull + 2.0, "pull: {kit_pull} over {pull}");
    assert!(
        kit_wide <= pull + 2.0,
        "pull, eight at a time: {kit_wide} over {pull}"
    );
}

async fn a_request_allocates_little_more(backend: Backend) {
    let world = World::start(backend).await;
    let client = world.kit_with(quiet(&world)).await;
    let mut requests = world.client.subscribe("plain").await.unwrap();
    let answering = world.client.clone();
    let plain = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = request.reply.unwrap();
            answering.publish(reply, request.payload).await.unwrap();
        }
    });
    let echo = |call: Arc<Call>| async move { call.respond_bytes(call.message().payload.clone()).await };
    let responder = client.responder();
    let responder = responder
        .subscribe("kit", RespondOptions::default(), echo)
        .await
        .unwrap();
    let payload = Bytes::from_static(b"a payload of some bytes");
    let (requester, mut bare, mut kit) = (client.requester(), usize::MAX, usize::MAX);
    for _ in 0..ROUNDS {
        let before = allocated().allocations;
        for _ in 0..MESSAGES {
            world.client.request("plain", payload.clone()).await.unwrap();
        }
        bare = bare.min(since(before));
        let before = allocated().allocations;
        for _ in 0..MESSAGES {
            requester.request_bytes("kit", payload.clone()).await.unwrap();
        }
        kit = kit.min(since(before));
    }
    println!("{backend:?}, allocations a request and its answer: {kit} over {bare}");
    assert!(kit <= bare + 2, "{kit} over {bare}");
    plain.abort();
    assert!(responder.drain(PATIENCE).await);
}

#[tokio::test(flavor = "current_thread")]
async fn a_delivery_allocates_little_more_than_the_official_clients() {
    let _alone = alone().await;
    a_delivery_allocates_little_more(Backend::Real).await;
    a_delivery_allocates_little_more(Backend::Windjet).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_request_allocates_little_more_than_the_official_clients() {
    let _alone = alone().await;
    a_request_allocates_little_more(Backend::Real).await;
    a_request_allocates_little_more(Backend::Windjet).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_publish_allocates_little_more_than_the_official_clients() {
    let _alone = alone().await;
    a_publish_allocates_little_more(Backend::Real).await;
    a_publish_allocates_little_more(Backend::Windjet).await;
}

#[tokio::test]
async fn checking_a_subject_allocates_nothing() {
    use windjet_client::names::validate_publish_subject;
    let _alone = alone().await;
    // Another thread of the test runner may allocate meanwhile, but not each time.
    let allocations = (0..100).map(|_| {
        let before = allocated().allocations;
        validate_publish_subject("orders.created.europe.1").unwrap();
        allocated().allocations - before
    });
    assert_eq!(allocations.min(), Some(0));
}
