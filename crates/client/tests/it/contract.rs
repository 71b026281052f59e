//! Sentences of the kit's contract that belong to no other page.

use std::sync::Arc;

use async_nats::jetstream::stream::{Config as StreamConfig, Source};
use futures_util::StreamExt as _;
use windjet_client::ops::adaptive::{AdaptivePressure, Config as PressureConfig};
use windjet_client::{Message, ProcessOptions, async_nats};

use crate::harness::{Seen, noting, seen, soon, until};
use crate::jetstream_tests;

jetstream_tests! {

/// What is asked for is what was told, also when pressure would decide otherwise.
async fn a_batch_that_was_told_is_what_is_asked_for(world: World) {
    world.stream("S").await;
    world.durable("S", "c").await;
    let mut heard = world.listen().await;
    let consumer = world.kit().await.consumer().pull("S", "c").await.unwrap();
    let pressure = Arc::new(AdaptivePressure::new(PressureConfig { enabled: true, ..Default::default() }));
    let seen_by = Seen::default();
    let worker = consumer.start(noting(&seen_by), ProcessOptions::default().batch(3).pressure(pressure));
    let request = soon("a request", async {
        loop {
            let message = heard.next().await.unwrap();
            if message.subject.starts_with("$JS.API.CONSUMER.MSG.NEXT.S.c") {
                break message;
            }
        }
    })
    .await;
    let request: serde_json::Value = serde_json::from_slice(&request.payload).unwrap();
    assert_eq!(request["batch"], 3);
    world.publish("s.a", 10).await;
    seen(&seen_by, 10).await;
    worker.stop().await.unwrap();
}

async fn a_stream_takes_from_another(world: World) {
    world.stream("A").await;
    let client = world.kit().await;
    let sources = Some(vec![Source { name: "A".into(), ..Source::default() }]);
    client.streams().create_or_update(StreamConfig { name: "B".into(), sources, ..StreamConfig::default() }).await.unwrap();
    client.publisher().publish_bytes("a.x", "taken").await.unwrap();
    let taken = until("the message", || async { client.streams().get_last_message("B", "a.x").await.ok() }).await;
    assert_eq!(&taken.data[..], b"taken");
}

/// Who says that subjects are good is believed.
async fn subjects_are_not_checked_when_told_so(world: World) {
    world.stream("S").await;
    let mut config = world.config();
    config.publisher.skip_subject_validation = true;
    let client = world.kit_with(config).await;
    client.publisher().publish("s.*", Message::raw("x")).await.unwrap();
    assert_eq!(world.stored("S").await[0].subject.as_str(), "s.*");
}

}
