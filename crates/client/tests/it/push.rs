//! Push subscriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::AckPolicy;
use async_nats::jetstream::consumer::push::Config as PushConfig;
use async_nats::jetstream::stream::Config as StreamConfig;
use tokio::sync::Semaphore;
use windjet_client::admin::DurableConfig;
use windjet_client::consumer::{Bind, EndReason, PushOptions, RetryDelay, SubscriptionKind, WorkerSetup};
use windjet_client::ops::supervise::{EventKind, Supervisor};
use windjet_client::{
    Client, Config, Delivery, ErrorKind, Handler, HandlerError, ProcessOptions, async_nats,
};

use crate::harness::{Seen, World, noting, seen as count, settled, soon, text, until};
use crate::jetstream_tests;

/// A handler that waits for a permit of `gate` before it acknowledges.
fn gated(seen: &Seen, gate: &Arc<Semaphore>) -> impl Handler + use<> {
    let (seen, gate) = (Arc::clone(seen), Arc::clone(gate));
    move |delivery: Arc<Delivery>| {
        let (seen, gate) = (Arc::clone(&seen), Arc::clone(&gate));
        async move {
            gate.acquire().await.unwrap().forget();
            seen.lock().unwrap().push(text(&delivery));
            Ok::<_, HandlerError>(())
        }
    }
}

fn missing() -> PushOptions {
    PushOptions::default().bind(Bind::CreateIfMissing(Box::default()))
}

/// Settings with heartbeats so short that a test can wait for them.
fn lively(world: &World) -> Config {
    let mut config = world.config();
    config.consumer.idle_heartbeat = Duration::from_millis(200);
    config
}

async fn push_durable(world: &World, durable: &str, change: impl FnOnce(&mut PushConfig)) {
    let mut config = PushConfig {
        durable_name: Some(durable.to_owned()),
        deliver_subject: format!("deliver.{durable}"),
        filter_subject: "s.>".to_owned(),
        ..PushConfig::default()
    };
    change(&mut config);
    world.js.create_consumer_on_stream(config, "S").await.unwrap();
}

async fn kit(world: &World) -> (Client, Seen) {
    world.stream("S").await;
    (world.kit().await, Seen::default())
}

jetstream_tests! {

async fn a_subscription_of_its_own_gets_everything_and_leaves_nothing(world: World) {
    let (client, seen) = kit(&world).await;
    world.publish("s.a", 3).await;
    let subscription = client.consumer().subscribe("s.>", noting(&seen), PushOptions::default()).await.unwrap();
    world.publish("s.b", 1).await;
    assert_eq!(count(&seen, 4).await, ["0", "1", "2", "0"]);
    assert_eq!((subscription.subject(), subscription.kind()), ("s.>", SubscriptionKind::Push));
    let info = subscription.consumer_info().await.unwrap();
    assert!(info.config.flow_control && info.config.idle_heartbeat == Duration::from_secs(5));
    until("the acks", || async {
        (subscription.consumer_info().await.unwrap().num_ack_pending == 0).then_some(())
    }).await;
    assert_eq!(subscription.vitals().succeeded(), 4);
    subscription.unsubscribe().await;
    assert_eq!(subscription.end_reason(), Some(EndReason::Stopped));
    let refused = subscription.set_pending_limits(1, 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidSubscription);
    assert_eq!(subscription.consumer_info().await.unwrap_err().kind(), ErrorKind::InvalidSubscription);
    assert_eq!(client.consumers().names("S").await.unwrap(), Vec::<String>::new());
}

async fn a_subject_that_no_stream_stores_is_an_error(world: World) {
    let (client, seen) = kit(&world).await;
    let error = client.consumer().subscribe("nobody.>", noting(&seen), PushOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StreamNotFound);
}

async fn a_missing_durable_is_an_error_unless_it_may_be_made(world: World) {
    let (client, seen) = kit(&world).await;
    let consumers = client.consumer();
    let error = consumers.subscribe_bound("S", "d", "s.>", noting(&seen), PushOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConsumerNotFound);
    let bind = Bind::CreateIfMissing(Box::new(DurableConfig { max_deliver: Some(7), ..DurableConfig::default() }));
    let options = PushOptions::default().bind(bind);
    let subscription = consumers.subscribe_bound("S", "d", "s.>", noting(&seen), options).await.unwrap();
    let info = subscription.consumer_info().await.unwrap();
    assert_eq!((info.config.max_deliver, info.config.ack_wait), (7, Duration::from_secs(30)));
    assert_eq!((info.config.max_ack_pending, info.config.flow_control), (1000, true));
    subscription.drain().await;
    // Heartbeats and flow control are not for queue groups.
    let queue = consumers.queue_subscribe_bound("S", "q", "workers", "s.>", noting(&seen), missing()).await.unwrap();
    let info = queue.consumer_info().await.unwrap();
    assert_eq!((info.config.idle_heartbeat, info.config.flow_control), (Duration::ZERO, false));
    assert_eq!(queue.kind(), SubscriptionKind::Queue);
}

async fn a_durable_of_operations_is_taken_as_it_is_and_stays(world: World) {
    let (client, seen) = kit(&world).await;
    push_durable(&world, "ops", |config| config.ack_wait = Duration::from_secs(45)).await;
    world.publish("s.a", 2).await;
    let consumers = client.consumer();
    let bound = consumers.subscribe_bound("S", "ops", "s.>", noting(&seen), PushOptions::default()).await.unwrap();
    count(&seen, 2).await;
    settled(&world, "ops").await;
    // Somebody else is bound: a second one would get half.
    until("the binding to be seen", || async { world.info("S", "ops").await.push_bound.then_some(()) }).await;
    let second = consumers.subscribe_bound("S", "ops", "s.>", noting(&seen), PushOptions::default()).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::InvalidSubscription);
    bound.unsubscribe().await;
    assert_eq!(world.info("S", "ops").await.config.ack_wait, Duration::from_secs(45));
    let again = consumers.subscribe_bound("S", "ops", "s.>", noting(&seen), PushOptions::default()).await.unwrap();
    again.drain().await;
    client.close().await;
    world.info("S", "ops").await;
}

async fn what_cannot_be_bound_is_refused(world: World) {
    let (client, seen) = kit(&world).await;
    world.durable("S", "puller").await;
    push_durable(&world, "ops", |_| {}).await;
    push_durable(&world, "group", |config| config.deliver_group = Some("workers".into())).await;
    let consumers = client.consumer();
    for (durable, queue, subject) in [
        ("puller", None, "s.>"),
        ("ops", None, "s.other"),
        ("ops", Some("workers"), "s.>"),
        ("group", None, "s.>"),
        ("group", Some("others"), "s.>"),
    ] {
        let options = PushOptions::default();
        let error = match queue {
            None => consumers.subscribe_bound("S", durable, subject, noting(&seen), options).await,
            Some(queue) => consumers.queue_subscribe_bound("S", durable, queue, subject, noting(&seen), options).await,
        }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSubscription, "{durable}: {error}");
    }
}

async fn members_of_a_queue_group_share_the_work(world: World) {
    let (client, _) = kit(&world).await;
    let (first, second) = (Seen::default(), Seen::default());
    let consumers = client.consumer();
    let one = consumers.queue_subscribe("workers", "s.>", noting(&first), PushOptions::default()).await.unwrap();
    let two = consumers.queue_subscribe("workers", "s.>", noting(&second), PushOptions::default()).await.unwrap();
    assert_eq!(one.names(), ("S", "workers"));
    // Which member is chosen is the server's business, and the second may have come after the first messages.
    let mut sent = 0;
    while first.lock().unwrap().is_empty() || second.lock().unwrap().is_empty() {
        world.publish("s.a", 20).await;
        sent += 20;
        assert!(sent < 20_000, "one member gets everything");
    }
    settled(&world, "workers").await;
    assert_eq!(first.lock().unwrap().len() + second.lock().unwrap().len(), sent);
    one.unsubscribe().await;
    two.unsubscribe().await;
    assert_eq!(client.consumers().names("S").await.unwrap(), ["workers"]);
}

async fn a_failed_push_message_comes_again(world: World) {
    let (client, _) = kit(&world).await;
    world.publish("s.a", 1).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let note = Arc::clone(&tries);
    let handler = move |_: Arc<Delivery>| {
        let number = note.fetch_add(1, Ordering::AcqRel);
        async move {
            assert!(number != 1, "on purpose");
            if number < 3 { Err(HandlerError::failed("not yet")) } else { Ok(()) }
        }
    };
    let handling = ProcessOptions::default().retry_delay(RetryDelay::None);
    let options = missing().handling(handling);
    let _bound = client.consumer().subscribe_bound("S", "d", "s.>", handler, options).await.unwrap();
    settled(&world, "d").await;
    assert_eq!(tries.load(Ordering::Acquire), 4);
}

async fn flow_control_keeps_a_slow_handler_alive(world: World) {
    world.stream("S").await;
    let client = world.kit_with(lively(&world)).await;
    let seen = Seen::default();
    let payload = "x".repeat(8 * 1024);
    for _ in 0..2000 {
        world.js.publish("s.a", payload.clone().into()).await.unwrap();
    }
    until("all to be stored", || async {
        let mut stream = world.js.get_stream("S").await.unwrap();
        (stream.info().await.unwrap().state.messages == 2000).then_some(())
    }).await;
    let subscription = client.consumer().subscribe("s.>", noting(&seen), PushOptions::default()).await.unwrap();
    count(&seen, 2000).await;
    assert!(subscription.is_valid());
}

async fn a_subscription_notices_that_its_consumer_is_gone(world: World) {
    world.stream("S").await;
    let client = world.kit_with(lively(&world)).await;
    let (consumers, seen) = (client.consumer(), Seen::default());
    let beating = consumers.subscribe_bound("S", "d", "s.>", noting(&seen), missing()).await.unwrap();
    let options = missing().probe_every(Duration::from_millis(100));
    let queue = consumers.queue_subscribe_bound("S", "q", "workers", "s.>", noting(&seen), options).await.unwrap();
    world.publish("s.a", 1).await;
    count(&seen, 2).await;
    for durable in ["d", "q"] {
        client.consumers().delete("S", durable).await.unwrap();
    }
    let reason = soon("the first to notice", beating.invalidated()).await;
    assert!(matches!(reason, EndReason::HeartbeatsMissed | EndReason::ConsumerDeleted), "{reason:?}");
    assert_eq!(soon("the second to notice", queue.invalidated()).await, EndReason::ConsumerDeleted);
    assert!(!beating.is_valid() && !queue.is_valid());
}

async fn a_push_subscription_outlives_a_restart_of_the_server(world: World) {
    world.stream("S").await;
    let client = world.kit_with(lively(&world)).await;
    let seen = Seen::default();
    let bound = client.consumer().subscribe_bound("S", "d", "s.>", noting(&seen), missing()).await.unwrap();
    world.publish("s.a", 1).await;
    count(&seen, 1).await;
    world.restart();
    until("a publish", || async { world.js.publish("s.a", "again".into()).await.ok()?.await.ok() }).await;
    until("the message", || async { seen.lock().unwrap().iter().any(|text| text == "again").then_some(()) }).await;
    assert!(bound.is_valid(), "{:?}", bound.end_reason());
}

/// A client that is closed hands back what it had received and not begun.
async fn a_close_hands_back_what_had_not_begun(world: World) {
    let (client, seen) = kit(&world).await;
    push_durable(&world, "q", |config| {
        config.deliver_group = Some("workers".into());
        config.ack_wait = Duration::from_secs(60);
    }).await;
    let gate = Arc::new(Semaphore::new(0));
    let options = PushOptions::default();
    let _stuck = client.consumer()
        .queue_subscribe_bound("S", "q", "workers", "s.>", gated(&seen, &gate), options).await.unwrap();
    world.publish("s.a", 100).await;
    until("all to be delivered", || async {
        (world.info("S", "q").await.num_ack_pending == 100).then_some(())
    }).await;
    let other = world.kit().await;
    let _healthy = other.consumer()
        .queue_subscribe_bound("S", "q", "workers", "s.>", noting(&seen), PushOptions::default()).await.unwrap();
    let closing = tokio::spawn(async move { client.close().await });
    // Handlers in hand are waited for; more than one may begin before the close does.
    until("the close", || async {
        gate.add_permits(1);
        closing.is_finished().then_some(())
    }).await;
    let report = closing.await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    settled(&world, "q").await;
    let mut numbers = seen.lock().unwrap().clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((numbers.len(), seen.lock().unwrap().len()), (100, 100));
}

async fn a_drain_handles_what_has_arrived(world: World) {
    let (client, seen) = kit(&world).await;
    let gate = Arc::new(Semaphore::new(0));
    let bound = client.consumer()
        .subscribe_bound("S", "d", "s.>", gated(&seen, &gate), missing()).await.unwrap();
    world.publish("s.a", 20).await;
    until("all to be delivered", || async {
        (world.info("S", "d").await.num_ack_pending == 20).then_some(())
    }).await;
    let draining = tokio::spawn(async move { bound.drain().await });
    gate.add_permits(20);
    soon("the drain", draining).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 20);
    settled(&world, "d").await;
}

async fn what_is_over_the_limit_is_handed_back_and_comes_again(world: World) {
    let (client, seen) = kit(&world).await;
    let gate = Arc::new(Semaphore::new(0));
    let handling = ProcessOptions::default().retry_delay(RetryDelay::Fixed(Duration::from_millis(20)));
    let options = missing().handling(handling).pending_limits(2, 0);
    let bound = client.consumer().subscribe_bound("S", "d", "s.>", gated(&seen, &gate), options).await.unwrap();
    world.publish("s.a", 10).await;
    until("some to be handed back", || async { (bound.vitals().backpressured() >= 7).then_some(()) }).await;
    bound.set_pending_limits(0, 0).unwrap();
    gate.add_permits(10);
    settled(&world, "d").await;
    let mut numbers = count(&seen, 10).await;
    numbers.sort_unstable();
    assert_eq!(numbers.len(), 10);
}

async fn a_supervised_subscription_is_made_anew(world: World) {
    world.stream("S").await;
    let client = world.kit_with(lively(&world)).await;
    let seen = Seen::default();
    let (kit, note) = (client.clone(), Arc::clone(&seen));
    let subscribe = move || {
        let (consumers, handler) = (kit.consumer(), noting(&note));
        async move { consumers.subscribe_bound("S", "d", "s.>", handler, missing()).await }
    };
    let supervisor = Supervisor::new().backoff(Duration::from_millis(10), Duration::from_secs(60));
    let mut supervised = supervisor.subscribe(subscribe).await.unwrap();
    let mut events = supervised.events();
    client.consumers().delete("S", "d").await.unwrap();
    for expected in [EventKind::Invalid, EventKind::Resubscribed] {
        assert_eq!(soon("an event", events.recv()).await.unwrap().kind, expected);
    }
    world.publish("s.a", 1).await;
    count(&seen, 1).await;
    assert!(supervised.is_valid() && supervised.subject() == "s.>");
    supervised.consumer_info().await.unwrap();
    supervised.stop().await;
    supervised.stop().await;
    assert!(!supervised.is_valid() && supervised.is_finished());
    assert_eq!(supervised.set_pending_limits(1, 0).unwrap_err().kind(), ErrorKind::InvalidSubscription);
}

async fn a_supervised_subscription_gives_up(world: World) {
    world.stream("S").await;
    let client = world.kit_with(lively(&world)).await;
    let seen = Seen::default();
    push_durable(&world, "d", |config| config.idle_heartbeat = Duration::from_millis(200)).await;
    let kit = client.clone();
    let subscribe = move || {
        let (consumers, handler) = (kit.consumer(), noting(&seen));
        async move { consumers.subscribe_bound("S", "d", "s.>", handler, PushOptions::default()).await }
    };
    let supervisor = Supervisor::new().max_retries(Some(2)).backoff(Duration::from_millis(5), Duration::from_secs(60));
    let supervised = supervisor.subscribe(subscribe).await.unwrap();
    let mut events = supervised.events();
    client.consumers().delete("S", "d").await.unwrap();
    assert_eq!(soon("an event", events.recv()).await.unwrap().kind, EventKind::Invalid);
    let last = soon("the end", events.recv()).await.unwrap();
    assert_eq!((last.kind, last.attempt), (EventKind::GiveUp, 2));
    until("the end", || async { supervised.is_finished().then_some(()) }).await;
}

async fn a_worker_is_set_up_in_one_call(world: World) {
    let client = world.kit().await;
    let seen = Seen::default();
    let setup = WorkerSetup {
        stream: StreamConfig { name: "S".into(), subjects: vec!["s.>".into()], ..StreamConfig::default() },
        consumer: DurableConfig {
            max_ack_pending: Some(42),
            ack_wait: Some(Duration::from_secs(15)),
            max_deliver: Some(7),
            metadata: [("team".to_owned(), "blue".to_owned())].into(),
            ..DurableConfig::new("d")
        },
        queue: "workers".into(),
        subject: "s.>".into(),
    };
    let consumers = client.consumer();
    let worker = consumers.set_up_worker(setup.clone(), noting(&seen), PushOptions::default()).await.unwrap();
    world.publish("s.a", 1).await;
    count(&seen, 1).await;
    let config = worker.consumer_info().await.unwrap().config;
    assert_eq!((config.max_ack_pending, config.ack_wait, config.max_deliver), (42, Duration::from_secs(15), 7));
    assert_eq!(config.metadata.get("team").map(String::as_str), Some("blue"));
    // Again, as a second instance of the service would.
    let second = consumers.set_up_worker(setup.clone(), noting(&seen), PushOptions::default()).await.unwrap();
    second.unsubscribe().await;

    let mut other = setup.clone();
    other.consumer.ack_policy = Some(AckPolicy::All);
    let refused = consumers.set_up_worker(other, noting(&seen), PushOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConsumerRecreateRequired);
    assert_eq!(refused.details(), ["ack_policy"]);

    type Break = fn(&mut WorkerSetup);
    let broken: [(ErrorKind, Break); 5] = [
        (ErrorKind::InvalidStreamName, |setup| setup.stream.name = "a.b".into()),
        (ErrorKind::InvalidDurableName, |setup| setup.consumer.durable.clear()),
        (ErrorKind::InvalidSubject, |setup| setup.subject = "s..a".into()),
        (ErrorKind::InvalidQueueName, |setup| setup.queue.clear()),
        (ErrorKind::InvalidSubject, |setup| setup.consumer.filter_subjects = Some(vec!["s.b".into()])),
    ];
    for (kind, change) in broken {
        let mut setup = setup.clone();
        change(&mut setup);
        let error = consumers.set_up_worker(setup, noting(&seen), PushOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind);
    }
}

}
