//! The facade for programs without a runtime: plain tests, none around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windjet_client::async_nats::jetstream::{consumer, stream};
use windjet_client::blocking::{Call, Client, Delivery};
use windjet_client::consumer::FetchOptions;
use windjet_client::rpc::RespondOptions;
use windjet_client::{Config, ErrorKind, Fate, HandlerError, Message, ProcessOptions};
use windjet_testkit::server::ServerUnderTest;

use crate::harness::{Backend, PATIENCE};

struct World {
    client: Client,
    _server: ServerUnderTest,
}

/// A server with a stream `S` on `s.>` and a durable `d`, and a client.
fn start(backend: Backend) -> World {
    let server = backend.setup().flags(["-js", "-sd", "store"]).start().unwrap();
    let mut config = Config::new(server.url().unwrap());
    config.connection.drain_timeout = PATIENCE;
    let client = Client::connect(config).unwrap();
    client.wait_connected().unwrap();
    let made = client.run(|kit| async move {
        let config = stream::Config {
            name: "S".into(),
            subjects: vec!["s.>".into()],
            ..Default::default()
        };
        kit.jetstream().create_stream(config).await.unwrap();
        let config = consumer::pull::Config {
            durable_name: Some("d".into()),
            ..Default::default()
        };
        kit.jetstream()
            .create_consumer_on_stream(config, "S")
            .await
            .unwrap();
    });
    made.unwrap();
    World {
        client,
        _server: server,
    }
}

fn until(what: &str, condition: impl FnMut() -> bool) {
    windjet_testkit::until(what, PATIENCE, condition).unwrap();
}

fn messages_are_published_and_fetched_without_a_runtime(backend: Backend) {
    let world = start(backend);
    let publisher = world.client.publisher();
    assert_eq!(publisher.publish_json("s.a", &1).unwrap().sequence, 1);
    let pending = publisher
        .publish_async("s.a", Message::json(&2).unwrap())
        .unwrap();
    assert_eq!(pending.wait().unwrap().sequence, 2);
    drop(publisher.publish_async("nowhere", Message::raw("x")).unwrap());
    assert_eq!(
        publisher.publish_async_complete().unwrap_err().kind(),
        ErrorKind::StreamNotFound
    );
    let error = publisher.publish_bytes("nowhere", "x").unwrap_err();
    assert_eq!(
        (error.kind(), error.fate()),
        (ErrorKind::StreamNotFound, Fate::NotStored)
    );
    let consumer = world.client.pull("S", "d").unwrap();
    let batch = consumer.fetch(2, FetchOptions::default()).unwrap();
    let values: Vec<u32> = batch
        .deliveries
        .iter()
        .map(|delivery| delivery.decode().unwrap())
        .collect();
    assert_eq!(values, [1, 2]);
    batch.deliveries[0].ack_confirmed(PATIENCE).unwrap();
    batch.deliveries[1].progress().unwrap();
    // Dropped unsettled, it comes again.
    drop(batch);
    let again = consumer.fetch(1, FetchOptions::default()).unwrap();
    assert_eq!(again.deliveries[0].metadata().unwrap().delivered, 2);
    again.deliveries[0].term_with_reason("enough").unwrap();
    assert!(again.deliveries[0].ack().is_err());
    assert_eq!(consumer.fetch_no_wait(1).unwrap().deliveries.len(), 0);
    consumer.close();
    let error = consumer.fetch_no_wait(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSubscription);
    assert_eq!(
        world.client.pull("S", "nobody").unwrap_err().kind(),
        ErrorKind::ConsumerNotFound
    );
    assert!(world.client.close().is_clean());
}

fn plain_functions_handle_messages_and_may_block(backend: Backend) {
    let world = start(backend);
    for number in 0..6 {
        world.client.publisher().publish_json("s.a", &number).unwrap();
    }
    let (calls, client) = (Arc::new(AtomicUsize::new(0)), world.client.clone());
    let count = Arc::clone(&calls);
    let handler = move |delivery: &Delivery| {
        count.fetch_add(1, Ordering::AcqRel);
        let number: u32 = delivery.decode()?;
        if delivery.metadata().is_some_and(|found| found.delivered == 1) {
            match number {
                3 => return Err(HandlerError::failed("once")),
                4 => panic!("once"),
                // A handler may wait, for the client too.
                5 => client.publisher().publish_json("s.b", &6).map(drop)?,
                _ => {}
            }
        }
        Ok(())
    };
    let consumer = world.client.pull("S", "d").unwrap();
    let worker = consumer.start(handler, ProcessOptions::default().concurrency(2));
    until("all to be done", || consumer.kit().vitals().succeeded() == 7);
    assert!(!worker.is_finished());
    worker.stop().unwrap();
    assert_eq!(calls.load(Ordering::Acquire), 9);
    let info = world
        .client
        .run(|kit| async move { kit.consumers().info("S", "d").await });
    assert_eq!(info.unwrap().unwrap().num_pending, 0);
    assert!(world.client.close().consumers_ended);
}

fn requests_are_answered_by_plain_functions(backend: Backend) {
    let world = start(backend);
    let answer = |call: &Call| {
        let number: u32 = call.decode()?;
        assert!(number != 13, "on purpose");
        call.respond_json(&(number + 1)).map_err(HandlerError::from)
    };
    let options = RespondOptions::default().error_replies();
    let serving = world.client.respond("next", options, answer).unwrap();
    let requester = world.client.requester();
    assert_eq!(requester.request_json_into::<_, u32>("next", &41).unwrap(), 42);
    assert_eq!(
        requester
            .request_json_into::<_, u32>("next", &13)
            .unwrap_err()
            .kind(),
        ErrorKind::Handler
    );
    assert!(serving.is_valid() && serving.drain(PATIENCE));
    assert_eq!(
        requester.request_bytes("next", "1").unwrap_err().kind(),
        ErrorKind::NoResponders
    );
}

/// The official client's means of waiting would panic here.
fn calls_from_the_threads_of_another_runtime_wait_too(backend: Backend) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = start(backend);
        assert_eq!(
            world
                .client
                .publisher()
                .publish_bytes("s.a", "x")
                .unwrap()
                .sequence,
            1
        );
        // The last clone goes here, and its runtime with it.
    });
}

macro_rules! both {
    ($($name:ident)*) => {
        mod real { $(#[test] fn $name() { super::$name(super::Backend::Real); })* }
        mod windjet { $(#[test] fn $name() { super::$name(super::Backend::Windjet); })* }
    };
}

both! {
    messages_are_published_and_fetched_without_a_runtime
    plain_functions_handle_messages_and_may_block
    requests_are_answered_by_plain_functions
    calls_from_the_threads_of_another_runtime_wait_too
}

#[test]
fn settings_that_cannot_be_used_are_an_error() {
    let error = Client::connect(Config::new("")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EmptyAddress);
    let mut config = Config::new("nats://127.0.0.1:1");
    config.connection.retry_on_failed_connect = false;
    config.connection.initial_retry_attempts = 1;
    config.connection.connect_timeout = Duration::from_secs(5);
    assert_eq!(
        Client::connect(config).unwrap_err().kind(),
        ErrorKind::ConnectFailed
    );
}
