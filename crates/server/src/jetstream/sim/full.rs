//! A journal that is full under JetStream: an ack that has no room is held, not lost and not confirmed, and goes as soon as
//! there is room.

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::task::Poll;

use windjet_store::{SimDisk, Store};

use super::{World, clock, runtime};
use crate::Server;
use crate::jetstream::{AckPolicy, ConsumerConfig, FetchOptions, RetentionPolicy, StreamConfig};

fn config(padding: usize) -> StreamConfig {
    StreamConfig {
        name: "Q".into(),
        subjects: vec!["q".into()],
        retention: RetentionPolicy::WorkQueue,
        metadata: BTreeMap::from([("padding".to_owned(), "x".repeat(padding))]),
        ..StreamConfig::default()
    }
}

#[test]
fn an_ack_without_room_is_held_until_there_is_room_and_then_durable() {
    runtime().block_on(async {
        let (disk, clock) = (SimDisk::new(1), clock());
        let small = || Server::builder().storage_budget(32 << 20);
        let world = World::start_with(small(), &disk, &clock).await;
        let js = &world.js;
        world.drive(js.create_stream(config(0))).await.unwrap().unwrap();
        let settings = ConsumerConfig {
            durable_name: Some("C".into()),
            ack_policy: AckPolicy::Explicit,
            ..ConsumerConfig::default()
        };
        world
            .drive(js.create_consumer("Q", settings))
            .await
            .unwrap()
            .unwrap();
        for _ in 0..2 {
            let publish = js.publish("Q", "q", "x").unwrap();
            world.drive(publish).await.unwrap().unwrap();
        }
        let consumer = world.drive(js.consumer("Q", "C")).await.unwrap().unwrap();
        let two = FetchOptions::new(2).no_wait();
        let got = world.drive(consumer.fetch_with(&two)).await.unwrap().unwrap();
        assert_eq!(got.len(), 2);

        // Nothing becomes segments here, so the journal fills: with messages, and then with what may go a little further.
        let large = vec![0_u8; 100_000];
        let mut stored = 2;
        let waiting = loop {
            let mut publish = Box::pin(js.publish("Q", "q", large.clone()).unwrap());
            match world.drive(&mut publish).await {
                Some(outcome) => stored = outcome.unwrap().seq,
                None => break publish,
            }
            assert!(stored < 1000, "the journal does not fill");
        };
        for padding in [100_000, 10_000, 1000, 100, 0] {
            // Refused, or waiting for room as everything else.
            let mut updates = 0;
            while let Some(Ok(_)) = world.drive(js.update_stream(config(padding))).await {
                updates += 1;
                assert!(updates < 1000, "the journal does not fill");
            }
        }
        let first = &got[0];
        let mut ack = Box::pin(first.double_ack());
        assert_eq!(world.drive(&mut ack).await, None, "there was room");
        let reader = js.reader("Q").unwrap();
        assert!(reader.subject_of(got[0].stream_sequence).is_some());

        // Room: the keeper writes segments.
        let materialise = async {
            loop {
                if let Some(js) = world.server.shared().jetstream() {
                    js.with_store(|store: &Store| store.materialise_step(true))
                        .unwrap()
                        .unwrap();
                }
                let polled = poll_fn(|cx| Poll::Ready(ack.as_mut().poll(cx))).await;
                if let Poll::Ready(done) = polled {
                    return done;
                }
                world.step().await;
            }
        };
        let patience = std::time::Duration::from_secs(20);
        let confirmed = tokio::time::timeout(patience, materialise).await.unwrap();
        assert_eq!(confirmed, Ok(()));
        assert!(reader.subject_of(got[0].stream_sequence).is_none());
        let late = world.drive(waiting).await.unwrap().unwrap();
        assert_eq!(late.seq, stored + 1);
        disk.stop_after(0);
        drop(ack);
        drop(got);
        drop(world);

        disk.kill();
        let world = World::start_with(small(), &disk, &clock).await;
        let reader = world.js.reader("Q").unwrap();
        assert!(reader.subject_of(1).is_none() && reader.subject_of(2).is_some());
        assert!(reader.subject_of(late.seq).is_some());
        assert!(world.shutdown().await);
    });
}
