//! Connecting, watching the connection, closing.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windjet_client::connector::Event;
use windjet_client::consumer::OrderedConfig;
use windjet_client::ops::liveness;
use windjet_client::rpc::{Call, RespondOptions};
use windjet_client::{Client, Config, Delivery, ErrorKind, HandlerError, ProcessOptions};
use windjet_testkit::ServerUnderTest;
use windjet_testkit::tls::certificates;

use crate::harness::{PATIENCE, soon, until};
use crate::jetstream_tests;

jetstream_tests! {

async fn a_client_connects_and_shows_its_state(world: World) {
    let client = world.kit().await;
    let connector = client.connector();
    assert!(connector.is_connected());
    let status = connector.status();
    assert!(status.connected && !status.closed && !status.in_lame_duck);
    assert_eq!((status.reconnects, status.last_error), (0, None));
    assert!(status.server_url.unwrap().starts_with("nats://"));
    connector.health_check().await.unwrap();
    assert_eq!(connector.account_info().await.unwrap().streams, 0);
    assert!(client.close().await.is_clean());
}

/// With the defaults a client is there before its server is.
async fn building_a_client_needs_no_server(world: World) {
    world.server.kill().unwrap();
    let client = soon("the client", Client::connect(world.config())).await.unwrap();
    assert!(!client.connector().is_connected());
    assert_eq!(client.connector().health_check().await.unwrap_err().kind(), ErrorKind::NotConnected);
    let connector = client.connector();
    let waiting = tokio::spawn(async move { connector.wait_connected().await });
    world.restart();
    soon("a connection", waiting).await.unwrap().unwrap();
}

async fn without_the_background_a_missing_server_is_an_error_after_the_tries(world: World) {
    world.server.kill().unwrap();
    let mut config = world.config();
    config.connection.retry_on_failed_connect = false;
    config.connection.initial_retry_attempts = 3;
    config.connection.initial_retry_wait = Duration::from_millis(10);
    let error = soon("the end", Client::connect(config)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectFailed);
    assert!(error.to_string().contains("3 tries"), "{error}");
}

async fn a_reconnect_is_counted_and_told(world: World) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut config = world.config();
    let heard = Arc::clone(&events);
    config.connection.on_event = Some(Arc::new(move |event: &Event| heard.lock().unwrap().push(event.clone())));
    let client = world.kit_with(config).await;
    world.restart();
    until("the reconnect", || async { (client.connector().status().reconnects == 1).then_some(()) }).await;
    assert!(client.connector().status().last_disconnect.is_some());
    soon("a connection", client.connector().wait_connected()).await.unwrap();
    until("the events", || async {
        let events = events.lock().unwrap();
        (events.first() == Some(&Event::Connected) && events.contains(&Event::Reconnected)).then_some(())
    }).await;
}

async fn no_wait_for_a_connection_misses_it(world: World) {
    let client = Client::connect(world.config()).await.unwrap();
    let waits: Vec<_> = (0..1000).map(|_| {
        let connector = client.connector();
        tokio::spawn(async move { connector.wait_connected().await })
    }).collect();
    for wait in waits {
        soon("a connection", wait).await.unwrap().unwrap();
    }
}

async fn close_may_be_called_twice_and_ends_everything(world: World) {
    let mut config = world.config();
    config.connection.health_check_interval = Duration::from_millis(1);
    let client = world.kit_with(config).await;
    let report = soon("the end", client.close()).await;
    assert!(report.is_clean(), "{report:?}");
    assert!(report.drained && report.consumers_ended && !report.already_closed);
    let again = client.close().await;
    assert!(again.already_closed && again.is_clean());
    assert!(client.connector().status().closed);
    assert_eq!(client.connector().wait_connected().await.unwrap_err().kind(), ErrorKind::Closed);
    let error = client.publisher().publish_bytes("a", "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

async fn a_client_can_stand_on_a_connection_made_elsewhere(world: World) {
    world.stream("S").await;
    let client = Client::from_connection(world.client.clone(), Config::default()).await.unwrap();
    client.connector().wait_connected().await.unwrap();
    assert_eq!(client.publisher().publish_bytes("s.a", "x").await.unwrap().sequence, 1);
}

/// No task without an owner: whatever ran on a client ends with it, closed or only dropped.
async fn nothing_of_a_client_outlives_it(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 20).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    for close in [true, false] {
        let mut config = world.config();
        config.connection.health_check_interval = Duration::from_millis(10);
        config.connection.on_event = Some(Arc::new(|_: &Event| {}));
        let client = world.kit_with(config).await;
        let done = |_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) };
        let consumer = client.consumer().pull("S", "c").await.unwrap();
        let worker = consumer.start(done, ProcessOptions::default().concurrency(4));
        let ordered = client.consumer().ordered("S", OrderedConfig::default(), done).await.unwrap();
        let subscription = client
            .responder()
            .subscribe("echo", RespondOptions::default(), |call: Arc<Call>| async move { call.respond_bytes("x").await })
            .await
            .unwrap();
        client.requester().request_bytes("echo", "x").await.unwrap();
        let watch = liveness::watch(&consumer, liveness::Config::default(), |_| {});
        drop(client.publisher().publish_async_bytes("s.a", "x").await.unwrap());
        until("the messages", || async { (ordered.vitals().handled() >= 20).then_some(()) }).await;
        if close {
            let report = client.close().await;
            assert!(report.is_clean(), "{report:?}");
        } else {
            consumer.close().await;
            ordered.stop();
            assert!(subscription.drain(PATIENCE).await);
        }
        drop((client, consumer, worker, ordered, watch));
        until("all tasks to end", || async { (alive() <= before).then_some(()) }).await;
    }
}

async fn without_reconnect_a_lost_connection_is_not_made_again(world: World) {
    let mut config = world.config();
    config.connection.allow_reconnect = false;
    let client = world.kit_with(config).await;
    world.server.kill().unwrap();
    until("the end", || async { client.connector().status().closed.then_some(()) }).await;
    assert_eq!(client.connector().wait_connected().await.unwrap_err().kind(), ErrorKind::Closed);
}

}

/// The verification name and the bytes of a CA are the kit's own; the official client takes files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_set_up_from_bytes() {
    let file = |name: &str| {
        let files = certificates().unwrap();
        files
            .iter()
            .find(|(found, _)| found == name)
            .unwrap()
            .1
            .clone()
            .into_bytes()
    };
    let server = ServerUnderTest::real()
        .unwrap()
        .file("ca.pem", file("ca.pem"))
        .file("server.pem", file("server.pem"))
        .file("server-key.pem", file("server-key.pem"))
        .config("tls { cert_file: server.pem, key_file: server-key.pem, ca_file: ca.pem, verify: true }")
        .start()
        .unwrap();
    let mut config = Config::new(format!("tls://127.0.0.1:{}", server.ports().client.unwrap()));
    config.connection.retry_on_failed_connect = false;
    config.connection.initial_retry_attempts = 1;
    let refused = async |config: &Config| Client::connect(config.clone()).await.unwrap_err().kind();

    // Not trusted by default.
    config.connection.tls.cert = file("client.pem");
    config.connection.tls.key = file("client-key.pem");
    assert_eq!(refused(&config).await, ErrorKind::ConnectFailed);

    config.connection.tls.ca = file("ca.pem");
    Client::connect(config.clone()).await.unwrap();
    config.connection.tls.server_name = "localhost".into();
    Client::connect(config.clone()).await.unwrap();
    config.connection.tls.server_name = "elsewhere".into();
    assert_eq!(refused(&config).await, ErrorKind::ConnectFailed);
    config.connection.tls.insecure_skip_verify = true;
    Client::connect(config.clone()).await.unwrap();

    // Without its certificate the client is refused.
    config.connection.tls.cert = Vec::new();
    config.connection.tls.key = Vec::new();
    assert_eq!(refused(&config).await, ErrorKind::ConnectFailed);
}

/// What happens before any dial happens without a server at all.
#[tokio::test]
async fn settings_that_cannot_be_used_fail_before_any_dial() {
    let begun = Instant::now();
    let mut config = Config::new("nats://192.0.2.1:4222");
    config.connection.user = "u".into();
    let error = Client::connect(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IncompleteUserPassword);
    assert!(begun.elapsed() < Duration::from_secs(1));
}
