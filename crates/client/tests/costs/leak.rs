//! Consumers, subscriptions and managers come and go, and the server with them: tasks and memory are as at the start.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use windjet_client::async_nats::HeaderMap;
use windjet_client::consumer::{Bind, OrderedConfig, PushOptions};
use windjet_client::rpc::{Call, RespondOptions};
use windjet_client::{Client, Delivery, HandlerError, Message, ProcessOptions};

use crate::harness::{Backend, PATIENCE, World, soon, until};
use crate::{alone, held};

/// Rounds that fill what is filled once: buffers, caches, names in tables.
const WARM: usize = 20;
const ROUNDS: usize = 40;
/// The server is killed and started again every so many rounds.
const RESTART_EVERY: usize = 5;
/// What memory may differ by after [`ROUNDS`] rounds. A round that kept but one kilobyte would be over it.
const SLACK: usize = 40 << 10;

type Numbers = Arc<Mutex<HashSet<String>>>;

fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn noting(numbers: &Numbers) -> impl windjet_client::Handler + use<> {
    let numbers = Arc::clone(numbers);
    move |delivery: Arc<Delivery>| {
        let text = String::from_utf8_lossy(&delivery.payload).into_owned();
        numbers.lock().unwrap().insert(text);
        async { Ok::<_, HandlerError>(()) }
    }
}

/// Publishes until it is known to be stored, under an id, whatever becomes of the server meanwhile.
async fn publish(client: &Client, number: &str) {
    let id = format!("id-{number}");
    until("a publish", || async {
        let message = Message::raw(number.to_owned());
        client
            .publisher()
            .publish_with_msg_id("s.a", &id, message)
            .await
            .ok()
    })
    .await;
}

async fn round(world: &mut World, client: &Client, number: usize) {
    let (pulled, pushed, read) = (Numbers::default(), Numbers::default(), Numbers::default());
    let consumer = soon("the durable", client.consumer().pull("S", "c"))
        .await
        .unwrap();
    let worker = consumer.start(noting(&pulled), ProcessOptions::default().concurrency(4));
    let missing = || PushOptions::default().bind(Bind::CreateIfMissing(Box::default()));
    let consumers = client.consumer();
    let subscription = consumers.subscribe_bound("S", "p", "s.>", noting(&pushed), missing());
    let subscription = soon("a subscription", subscription).await.unwrap();
    let ordered = consumers.ordered("S", OrderedConfig::default(), noting(&read));
    let mut ordered = soon("an ordered consumer", ordered).await.unwrap();
    let echo = |call: Arc<Call>| async move { call.respond_bytes("x").await };
    let responders = client.responder();
    let responder = responders.subscribe("echo", RespondOptions::default(), echo);
    let responder = soon("a responder", responder).await.unwrap();

    let names: Vec<String> = (0..4).map(|part| format!("{number}-{part}")).collect();
    for (part, name) in names.iter().enumerate() {
        if part == 2 && number.is_multiple_of(RESTART_EVERY) {
            world.restart();
        }
        publish(client, name).await;
    }
    // What was acknowledged reaches everyone.
    for numbers in [&pulled, &pushed, &read] {
        until("all that was stored", || async {
            let numbers = numbers.lock().unwrap();
            names.iter().all(|name| numbers.contains(name)).then_some(())
        })
        .await;
    }
    until("an answer", || async {
        client.requester().request_bytes("echo", "x").await.ok()
    })
    .await;
    until("the stream's state", || async {
        client.streams().info("S").await.ok()
    })
    .await;

    soon("the worker's end", worker.stop()).await.unwrap();
    soon("the subscription's end", subscription.drain()).await;
    ordered.stop();
    soon("the ordered consumer's end", ordered.stopped()).await;
    assert!(responder.drain(PATIENCE).await);
}

async fn rest(tasks: usize) {
    until("all tasks to end", || async { (alive() <= tasks).then_some(()) }).await;
}

async fn many_rounds_leave_nothing(backend: Backend) {
    let mut world = World::start(backend).await;
    world.stream("S").await;
    world.durable("S", "c").await;
    let client = world.kit().await;
    // Requests of both sides have begun their one subscription each.
    client.publisher().publish_bytes("s.a", "first").await.unwrap();
    client.streams().info("S").await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("A", "b");
    world
        .js
        .publish_with_headers("s.a", headers, "second".into())
        .await
        .unwrap()
        .await
        .unwrap();
    for number in 1..=2 {
        round(&mut world, &client, number).await;
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // The ordered consumer's last deletion is in a task that ends by itself.
    let mut tasks = alive();
    while tokio::time::Instant::now() < deadline && tasks > 8 {
        tokio::task::yield_now().await;
        tasks = alive();
    }
    assert!(tasks <= 8, "{tasks} tasks of an idle client");
    for number in 3..WARM {
        round(&mut world, &client, number).await;
    }
    rest(tasks).await;
    let before = held();
    for number in WARM..WARM + ROUNDS {
        round(&mut world, &client, number).await;
    }
    rest(tasks).await;
    let grown = held().saturating_sub(before);
    println!("{backend:?}: {tasks} tasks, {grown} bytes more after {ROUNDS} rounds");
    assert!(
        grown < SLACK,
        "{backend:?}: {grown} bytes more after {ROUNDS} rounds"
    );
    let report = client.close().await;
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coming_and_going_leaves_nothing_on_the_real_server() {
    let _alone = alone().await;
    many_rounds_leave_nothing(Backend::Real).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coming_and_going_leaves_nothing_on_windjet() {
    let _alone = alone().await;
    many_rounds_leave_nothing(Backend::Windjet).await;
}
