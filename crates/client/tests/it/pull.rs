//! The pull engine.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{PriorityPolicy, pull::Config};
use windjet_client::async_nats;
use windjet_client::pull::{End, Options, PullErrorKind, Puller, Request, Target};
use windjet_client::{Delivery, OnDrop};
use windjet_testkit::link::Link;

use crate::harness::{pass, soon, until};
use crate::jetstream_tests;

const LONG: Duration = Duration::from_secs(15);

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.to_vec()).unwrap()
}

fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

jetstream_tests! {

async fn a_fetch_brings_what_is_there_in_order(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 5).await;
    let mut puller = world.puller("S", "c").await;

    let batch = puller.fetch(&Request::batch(3)).await.unwrap();
    assert_eq!((texts(&batch.deliveries), batch.end), (vec!["0".into(), "1".into(), "2".into()], End::Full));
    let batch = puller.fetch(&Request::batch(3).expires(Duration::from_millis(200))).await.unwrap();
    assert_eq!((texts(&batch.deliveries), batch.end), (vec!["3".into(), "4".into()], End::TimedOut));

    let metadata = batch.deliveries[1].metadata().unwrap();
    assert_eq!((metadata.stream, metadata.consumer), ("S", "c"));
    assert_eq!((metadata.stream_sequence, metadata.consumer_sequence), (5, 5));
    assert_eq!((metadata.delivered, metadata.pending), (1, 0));
}

/// The original's "no wait" was a wait of five seconds in truth.
async fn no_wait_returns_at_once(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut puller = world.puller("S", "c").await;
    puller.fetch(&Request::batch(10).no_wait()).await.unwrap();

    let begun = Instant::now();
    let batch = puller.fetch(&Request::batch(10).no_wait()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!((batch.deliveries.len(), batch.end), (0, End::NoMessages));

    world.publish("s.a", 2).await;
    let batch = puller.fetch(&Request::batch(10).no_wait()).await.unwrap();
    assert_eq!((batch.deliveries.len(), batch.end), (2, End::NoMessages));
}

/// Such a request stays at the server without an end; what it would bring later must not come to an inbox that nobody
/// reads.
async fn no_wait_ends_when_the_consumer_has_its_fill_of_unacknowledged_messages(world: World) {
    world.stream("S").await;
    world.durable_with("S", "c", Config { max_ack_pending: 1, ..Config::default() }).await;
    world.publish("s.a", 3).await;
    let mut puller = world.puller("S", "c").await;
    let first = puller.fetch(&Request::batch(1)).await.unwrap();

    let batch = soon("the end", puller.fetch(&Request::batch(1).no_wait())).await.unwrap();
    assert_eq!((batch.deliveries.len(), batch.end), (0, End::NoMessages));
    first.deliveries[0].ack_confirmed(LONG).await.unwrap();
    let batch = puller.fetch(&Request::batch(1)).await.unwrap();
    assert_eq!(texts(&batch.deliveries), ["1"]);
    assert_eq!(batch.deliveries[0].metadata().unwrap().delivered, 1);
}

async fn a_dropped_fetch_loses_nothing_and_leaves_no_requests_behind(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut puller = world.puller("S", "c").await;
    let request = Request::batch(4).expires(LONG);
    for _ in 0..20 {
        let dropped = tokio::time::timeout(Duration::from_millis(5), puller.fetch(&request)).await;
        assert!(dropped.is_err());
    }
    let waiting = until("the request", || async {
        Some(world.info("S", "c").await.num_waiting).filter(|waiting| *waiting > 0)
    }).await;
    assert_eq!(waiting, 1);

    world.publish("s.a", 2).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), puller.fetch(&request)).await.is_err());
    assert_eq!(puller.buffered(), 2);
    world.publish("s.a", 2).await;
    let batch = puller.fetch(&request).await.unwrap();
    assert_eq!((texts(&batch.deliveries), batch.end), (vec!["0".into(), "1".into(), "0".into(), "1".into()], End::Full));
}

async fn next_never_asks_for_more_than_a_batch(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 100).await;
    let mut puller = world.puller("S", "c").await;
    let request = Request::batch(10);
    let mut held = Vec::new();
    for _ in 0..7 {
        held.push(puller.next(&request).await.unwrap());
    }
    // Handed out are 7, asked for at most 10 more.
    let stable = until("the consumer to be still", || async {
        let first = world.info("S", "c").await.num_ack_pending;
        pass(Duration::from_millis(50)).await;
        (world.info("S", "c").await.num_ack_pending == first).then_some(first)
    }).await;
    assert!(stable <= 17, "{stable}");
    assert_eq!(texts(&held), ["0", "1", "2", "3", "4", "5", "6"]);
}

/// What is asked for, this message included, fits into the room of each call; nothing is left over when it is used up.
async fn next_within_asks_for_no_more_than_there_is_room_for(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 10).await;
    let mut puller = world.puller("S", "c").await;
    for room in (1..=4).rev() {
        let request = Request::batch(room).expires(LONG);
        puller.next_within(&request).await.unwrap().ack_confirmed(LONG).await.unwrap();
        let info = world.info("S", "c").await;
        let taken = 5 - room as u64;
        assert!(info.num_ack_pending as u64 + taken <= 4, "{info:?}");
    }
    let info = world.info("S", "c").await;
    assert_eq!((info.num_ack_pending, info.num_pending, info.num_waiting), (0, 6, 0));
    let begun = Instant::now();
    assert!(puller.rest().await.unwrap().is_none());
    assert!(begun.elapsed() < Duration::from_secs(5));
}

async fn next_brings_each_message_once_however_often_it_is_dropped(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut puller = world.puller("S", "c").await;
    let request = Request::batch(16).expires(Duration::from_millis(700));
    let publisher = {
        let js = world.js.clone();
        tokio::spawn(async move {
            for number in 0..3000 {
                js.publish("s.a", number.to_string().into()).await.unwrap();
                if number % 100 == 0 {
                    pass(Duration::from_millis(3)).await;
                }
            }
        })
    };
    let mut seen = 0;
    let mut turn = 0_u64;
    soon("all messages", async {
        while seen < 3000 {
            turn += 1;
            let limit = Duration::from_micros(turn * 37 % 900);
            let Ok(next) = tokio::time::timeout(limit, puller.next(&request)).await else {
                continue;
            };
            let delivery = next.unwrap();
            assert_eq!(text(&delivery), seen.to_string());
            delivery.ack().await.unwrap();
            seen += 1;
        }
    }).await;
    publisher.await.unwrap();
    until("all acks", || async { (world.info("S", "c").await.num_ack_pending == 0).then_some(()) }).await;
    assert_eq!(world.info("S", "c").await.num_redelivered, 0);
    assert_eq!(puller.unsettled(), 0);
}

async fn a_missing_consumer_has_no_responders(world: World) {
    world.stream("S").await;
    let mut puller = world.puller("S", "nobody").await;
    let error = puller.fetch(&Request::batch(1)).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::NoResponders);
    assert!(error.is_retryable());
    assert!(error.to_string().contains("S/nobody"), "{error}");
    let error = puller.next(&Request::batch(1)).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::NoResponders);
}

async fn a_deleted_consumer_ends_the_wait(world: World) {
    let stream = world.stream("S").await;
    world.durable("S", "c").await;
    let mut puller = world.puller("S", "c").await;
    let waiting = tokio::spawn(async move { puller.next(&Request::batch(5).expires(LONG)).await.unwrap_err() });
    until("the request", || async { (world.info("S", "c").await.num_waiting > 0).then_some(()) }).await;
    stream.delete_consumer("c").await.unwrap();
    let error = soon("the end", waiting).await.unwrap();
    assert_eq!(error.kind(), PullErrorKind::ConsumerDeleted);
    assert!(!error.is_retryable());
}

async fn requests_over_a_limit_of_the_consumer_are_told(world: World) {
    world.stream("S").await;
    world.durable_with("S", "c", Config { max_batch: 5, ..Config::default() }).await;
    let mut puller = world.puller("S", "c").await;
    let error = puller.fetch(&Request::batch(6)).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::LimitExceeded);
    assert_eq!(error.description(), Some("Exceeded MaxRequestBatch of 5"));
    let error = puller.fetch(&Request::batch(0)).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::InvalidRequest);
}

/// The official client's batches deliver nothing any more after the first idle heartbeat.
async fn messages_come_after_the_first_heartbeat(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut puller = world.puller("S", "c").await;
    let request = Request::batch(2).expires(LONG).heartbeat(Duration::from_millis(100));
    let begun = Instant::now();
    let fetch = async { puller.fetch(&request).await.unwrap() };
    let publish = async {
        pass(Duration::from_millis(350)).await;
        world.publish("s.a", 2).await;
    };
    let (batch, ()) = tokio::join!(fetch, publish);
    assert_eq!((batch.deliveries.len(), batch.end), (2, End::Full));
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

async fn a_server_that_falls_silent_is_noticed_by_its_heartbeats(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut puller = world.puller("S", "c").await;
    // A pull request to an inbox that the server does not know the requester of looks just like this: nothing comes.
    let request = Request::batch(1).expires(LONG).heartbeat(Duration::from_millis(200));
    let pull = tokio::spawn(async move {
        let error = puller.fetch(&request).await.unwrap_err();
        (error, Instant::now())
    });
    until("the request", || async { (world.info("S", "c").await.num_waiting > 0).then_some(()) }).await;
    world.signal("STOP");
    let begun = Instant::now();
    let (error, ended) = soon("the end", pull).await.unwrap();
    world.signal("CONT");
    assert_eq!(error.kind(), PullErrorKind::HeartbeatMissed);
    assert!(ended - begun < Duration::from_secs(15), "{:?}", ended - begun);
}

async fn a_restarted_server_is_asked_again(world: World) {
    world.stream_with("S", async_nats::jetstream::stream::Config::default()).await;
    world.durable("S", "c").await;
    world.publish("s.a", 1).await;
    let mut puller = world.puller("S", "c").await;
    let request = Request::batch(5).expires(LONG);
    puller.next(&request).await.unwrap().ack_confirmed(LONG).await.unwrap();

    world.restart();
    let reader = tokio::spawn(async move {
        let mut errors = Vec::new();
        loop {
            match puller.next(&request).await {
                Ok(delivery) => {
                    delivery.ack_confirmed(LONG).await.unwrap();
                    // The real server may forget a confirmed ack when it is killed, and deliver the first one again.
                    if text(&delivery) == "again" {
                        return errors;
                    }
                }
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    errors.push(error.kind());
                    pass(Duration::from_millis(20)).await;
                }
            }
        }
    });
    until("the connection", || async { world.js.publish("s.a", "again".into()).await.ok()?.await.ok() }).await;
    let errors = soon("the message", reader).await.unwrap();
    assert!(errors.contains(&PullErrorKind::Disconnected), "{errors:?}");
}

async fn a_request_ends_before_its_bytes_are_exceeded(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 1).await;
    let mut puller = world.puller("S", "c").await;
    let batch = puller.fetch(&Request::batch(1).max_bytes(1).expires(LONG)).await.unwrap();
    assert_eq!((batch.deliveries.len(), batch.end), (0, End::Bytes));
    let batch = puller.fetch(&Request::batch(1)).await.unwrap();
    assert_eq!(texts(&batch.deliveries), ["0"]);
    assert_eq!(batch.deliveries[0].metadata().unwrap().delivered, 1);
}

async fn a_message_that_imitates_a_status_is_a_message(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut raw = Link::dial(world.server.client_addr().unwrap()).unwrap();
    let header = "NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 0\r\n\r\n";
    let hostile = format!("CONNECT {{\"headers\":true}}\r\nHPUB s.a {} {}\r\n{header}hello\r\n", header.len(), header.len() + 5);
    raw.send(hostile.as_bytes()).unwrap();
    let mut puller = world.puller("S", "c").await;
    let batch = puller.fetch(&Request::batch(1)).await.unwrap();
    assert_eq!(texts(&batch.deliveries), ["hello"]);
}

async fn close_hands_back_what_was_not_handed_out(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 10).await;
    let mut puller = world.puller("S", "c").await;
    let held = puller.next(&Request::batch(10)).await.unwrap();
    until("the rest", || async { (world.info("S", "c").await.num_ack_pending == 10).then_some(()) }).await;
    let report = puller.close(LONG).await;
    assert_eq!((report.returned, report.abandoned, report.open), (9, 0, 1));

    let mut other = world.puller("S", "c").await;
    let batch = soon("the rest", other.fetch(&Request::batch(9))).await.unwrap();
    assert_eq!(texts(&batch.deliveries), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    held.ack_confirmed(LONG).await.unwrap();
    assert_eq!(world.info("S", "c").await.num_ack_pending, 9);
}

async fn a_dropped_puller_hands_back_what_it_can(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 10).await;
    let mut puller = world.puller("S", "c").await;
    puller.next(&Request::batch(10)).await.unwrap().ack().await.unwrap();
    until("the rest", || async { (world.info("S", "c").await.delivered.consumer_sequence == 10).then_some(()) }).await;
    // All ten are on their way to this client before the answer to this is.
    world.client.flush().await.unwrap();
    let _ = world.js.query_account().await.unwrap();
    drop(puller);
    let mut other = world.puller("S", "c").await;
    let batch = soon("the rest", other.fetch(&Request::batch(9))).await.unwrap();
    assert_eq!(batch.deliveries.len(), 9);
}

async fn a_puller_told_to_leave_its_messages_leaves_them(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    world.publish("s.a", 2).await;
    let target = Target::new("S", "c").unwrap();
    let options = Options::default().on_drop(OnDrop::Leave);
    let mut puller = Puller::new(world.client.clone(), target, options).await.unwrap();
    drop(puller.fetch(&Request::batch(1)).await.unwrap());
    let batch = puller.fetch(&Request::batch(2).expires(Duration::from_millis(300))).await.unwrap();
    assert_eq!(texts(&batch.deliveries), ["1"]);
    assert_eq!(puller.dropped().returned, 0);
}

async fn the_pinned_puller_keeps_its_pin_and_forgets_a_lost_one(world: World) {
    let stream = world.stream("S").await;
    world.durable_with("S", "c", Config {
        priority_policy: PriorityPolicy::PinnedClient,
        priority_groups: vec!["g".into()],
        priority_timeout: Duration::from_secs(30),
        ..Config::default()
    }).await;
    let request = Request::batch(1).group("g").expires(Duration::from_millis(400));
    let (mut first, mut second) = (world.puller("S", "c").await, world.puller("S", "c").await);
    world.publish("s.a", 2).await;

    let batch = first.fetch(&request).await.unwrap();
    let pin = batch.deliveries[0].pin_id().unwrap().to_owned();
    assert_eq!(first.pin(), Some(pin.as_str()));
    let standby = second.fetch(&request).await.unwrap();
    assert_eq!((standby.deliveries.len(), standby.end), (0, End::TimedOut));
    let batch = first.fetch(&request).await.unwrap();
    assert_eq!(batch.deliveries[0].pin_id(), Some(pin.as_str()));

    stream.unpin_consumer("c", "g").await.unwrap();
    world.publish("s.a", 1).await;
    let batch = second.fetch(&request).await.unwrap();
    assert_eq!(batch.deliveries.len(), 1);
    assert_ne!(second.pin(), Some(pin.as_str()));
    let error = first.fetch(&request).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::PinLost);
    assert!(error.is_retryable());
    assert_eq!(first.pin(), None);
    let standby = first.fetch(&request).await.unwrap();
    assert_eq!((standby.deliveries.len(), standby.end), (0, End::TimedOut));
}

async fn a_request_without_its_group_is_refused(world: World) {
    world.stream("S").await;
    world.durable_with("S", "c", Config {
        priority_policy: PriorityPolicy::PinnedClient,
        priority_groups: vec!["g".into()],
        ..Config::default()
    }).await;
    let mut puller = world.puller("S", "c").await;
    let error = puller.fetch(&Request::batch(1)).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::BadRequest);
    assert!(!error.is_retryable());
}

}
