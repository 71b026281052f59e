//! Settling a delivery.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull::Config;
use futures_util::StreamExt as _;
use windjet_client::pull::Request;
use windjet_client::{Delivery, SettleErrorKind, async_nats};

use crate::harness::{World, soon, until};
use crate::jetstream_tests;

const LONG: Duration = Duration::from_secs(15);

/// One delivered message of a fresh stream, with an ack wait of `ack_wait`.
async fn one(world: &World, ack_wait: Duration) -> (Delivery, windjet_client::Puller) {
    world.stream("S").await;
    let config = Config {
        ack_wait,
        ..Config::default()
    };
    world.durable_with("S", "c", config).await;
    world.publish("s.a", 1).await;
    let mut puller = world.puller("S", "c").await;
    let mut batch = puller.fetch(&Request::batch(1)).await.unwrap();
    (batch.deliveries.remove(0), puller)
}

/// The next delivery of the message, which must come well before the ack wait.
async fn again(puller: &mut windjet_client::Puller) -> Delivery {
    let batch = soon("redelivery", puller.fetch(&Request::batch(1)))
        .await
        .unwrap();
    batch.deliveries.into_iter().next().expect("redelivered")
}

jetstream_tests! {

async fn the_first_settlement_wins(world: World) {
    let (delivery, puller) = one(&world, LONG).await;
    assert_eq!(puller.unsettled(), 1);
    assert!(!delivery.is_settled());
    delivery.ack().await.unwrap();
    assert!(delivery.is_settled());
    assert_eq!(puller.unsettled(), 0);
    for error in [
        delivery.ack().await.unwrap_err(),
        delivery.nak().await.unwrap_err(),
        delivery.nak_after(LONG).await.unwrap_err(),
        delivery.term().await.unwrap_err(),
        delivery.progress().await.unwrap_err(),
        delivery.ack_confirmed(LONG).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), SettleErrorKind::AlreadySettled);
        assert!(!error.is_retryable() && !error.outcome_unknown());
    }
    until("the ack", || async { (world.info("S", "c").await.ack_floor.stream_sequence == 1).then_some(()) }).await;
    drop(delivery);
    assert_eq!(puller.unsettled(), 0);
}

async fn many_settle_at_once_and_one_wins(world: World) {
    let (delivery, puller) = one(&world, LONG).await;
    let delivery = std::sync::Arc::new(delivery);
    let tries: Vec<_> = (0..32).map(|_| {
        let delivery = std::sync::Arc::clone(&delivery);
        tokio::spawn(async move { delivery.ack().await.is_ok() })
    }).collect();
    let mut won = 0;
    for one in tries {
        won += usize::from(one.await.unwrap());
    }
    assert_eq!(won, 1);
    assert_eq!(puller.unsettled(), 0);
}

async fn a_confirmed_ack_has_taken_effect(world: World) {
    let (delivery, _puller) = one(&world, LONG).await;
    delivery.ack_confirmed(LONG).await.unwrap();
    assert_eq!(world.info("S", "c").await.num_ack_pending, 0);
}

async fn an_ack_that_was_not_confirmed_can_only_be_confirmed(world: World) {
    let (delivery, mut puller) = one(&world, LONG).await;
    world.signal("STOP");
    let error = delivery.ack_confirmed(Duration::from_millis(100)).await.unwrap_err();
    world.signal("CONT");
    assert_eq!(error.kind(), SettleErrorKind::NotConfirmed);
    assert!(error.outcome_unknown() && error.is_retryable());
    let error = delivery.nak().await.unwrap_err();
    assert_eq!(error.kind(), SettleErrorKind::AlreadySettled);
    delivery.ack_confirmed(LONG).await.unwrap();
    assert_eq!(puller.unsettled(), 0);
    let batch = puller.fetch(&Request::batch(1).expires(Duration::from_millis(200))).await.unwrap();
    assert!(batch.deliveries.is_empty());
}

async fn confirming_to_a_consumer_that_is_gone_says_so(world: World) {
    let (delivery, _puller) = one(&world, LONG).await;
    world.js.get_stream("S").await.unwrap().delete_consumer("c").await.unwrap();
    let error = delivery.ack_confirmed(LONG).await.unwrap_err();
    assert_eq!(error.kind(), SettleErrorKind::NoResponders);
}

async fn a_nak_brings_the_message_back_at_once(world: World) {
    let (delivery, mut puller) = one(&world, Duration::from_secs(60)).await;
    delivery.nak().await.unwrap();
    let second = again(&mut puller).await;
    assert_eq!(second.metadata().unwrap().delivered, 2);
    assert!(second.metadata().unwrap().is_redelivery());
}

async fn a_nak_with_delay_brings_it_back_after_the_delay(world: World) {
    let (delivery, mut puller) = one(&world, Duration::from_secs(60)).await;
    let begun = Instant::now();
    delivery.nak_after(Duration::from_millis(400)).await.unwrap();
    let _second = again(&mut puller).await;
    assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

async fn a_terminated_message_does_not_come_again_and_its_reason_is_told(world: World) {
    let mut advisories = world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>").await.unwrap();
    let (delivery, mut puller) = one(&world, Duration::from_millis(500)).await;
    delivery.term_with_reason("bad\r\ninput").await.unwrap();
    let advisory = soon("the advisory", advisories.next()).await.unwrap();
    let advisory = String::from_utf8(advisory.payload.to_vec()).unwrap();
    assert!(advisory.contains("bad  input"), "{advisory}");
    let batch = puller.fetch(&Request::batch(1).expires(Duration::from_millis(900))).await.unwrap();
    assert!(batch.deliveries.is_empty());
}

async fn progress_keeps_the_ack_wait_from_passing(world: World) {
    let (delivery, mut puller) = one(&world, Duration::from_millis(600)).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        delivery.progress().await.unwrap();
        let batch = puller.fetch(&Request::batch(1).expires(Duration::from_millis(200))).await.unwrap();
        assert!(batch.deliveries.is_empty());
    }
    delivery.ack_confirmed(LONG).await.unwrap();
    assert_eq!(world.info("S", "c").await.num_ack_pending, 0);
}

async fn a_dropped_delivery_is_handed_back_at_once(world: World) {
    let (delivery, mut puller) = one(&world, Duration::from_secs(60)).await;
    drop(delivery);
    assert_eq!(puller.dropped().returned, 1);
    assert_eq!(puller.unsettled(), 0);
    let _second = again(&mut puller).await;
}

async fn a_message_taken_out_of_its_delivery_is_the_callers_own(world: World) {
    let (delivery, mut puller) = one(&world, Duration::from_secs(60)).await;
    let message = delivery.into_message();
    assert_eq!(puller.unsettled(), 0);
    let batch = puller.fetch(&Request::batch(1).expires(Duration::from_millis(200))).await.unwrap();
    assert!(batch.deliveries.is_empty());
    world.client.publish(message.reply.unwrap(), "+ACK".into()).await.unwrap();
    until("the ack", || async { (world.info("S", "c").await.num_ack_pending == 0).then_some(()) }).await;
}

}
