//! Requests that end all the time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use super::{ACK_WAIT, connect, create, plain, publish, run, server};

const PULLERS: u64 = 16;
const MESSAGES: u64 = 2000;

/// A request that ends just when a message is on its way to it must not lead to the message being given to a second
/// puller before its time is over.
#[test]
fn two_deliveries_of_a_message_never_overlap_within_its_ack_wait() {
    let server = server();
    run(async {
        let context = connect(&server).await;
        let queue = Config {
            retention: RetentionPolicy::WorkQueue,
            ..plain("Q")
        };
        let mut queue = create(&context, queue).await;
        let durable = pull::Config {
            durable_name: Some("W".to_owned()),
            ack_wait: ACK_WAIT,
            ..pull::Config::default()
        };
        queue.create_consumer(durable).await.unwrap();
        let deliveries = Arc::new(Mutex::new(HashMap::<u64, Vec<Instant>>::new()));
        let pullers: Vec<_> = (0..PULLERS)
            .map(|puller| {
                let (deliveries, url) = (deliveries.clone(), server.url().unwrap());
                tokio::spawn(async move {
                    let context = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
                    let consumer: PullConsumer = context.get_consumer_from_stream("W", "Q").await.unwrap();
                    while deliveries.lock().len() < MESSAGES as usize {
                        let fetch = consumer
                            .fetch()
                            .max_messages(2)
                            .expires(Duration::from_millis(10));
                        let mut messages = fetch.messages().await.unwrap();
                        while let Some(Ok(message)) = messages.next().await {
                            let sequence = message.info().unwrap().stream_sequence;
                            deliveries
                                .lock()
                                .entry(sequence)
                                .or_default()
                                .push(Instant::now());
                            // Some hold a message for longer than their requests last.
                            let held = Duration::from_millis(sequence * 7 % 30 * (puller % 3));
                            tokio::time::sleep(held).await;
                            message.double_ack().await.unwrap();
                        }
                    }
                })
            })
            .collect();
        publish(&context, "Q.x", 0..MESSAGES).await;
        for puller in pullers {
            puller.await.unwrap();
        }
        for (sequence, times) in &*deliveries.lock() {
            for pair in times.windows(2) {
                // The client looks at its clock a little after the server did.
                let between = pair[1] - pair[0] + Duration::from_millis(200);
                assert!(
                    between >= ACK_WAIT,
                    "message {sequence} came again after {between:?}"
                );
            }
        }
        assert_eq!(queue.info().await.unwrap().state.last_sequence, MESSAGES);
    });
}
