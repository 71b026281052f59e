//! A thousand consumers, a thousand streams, and the end of a stream that many pull from.

use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{connect, create, number, plain, publish, run, server};

const THOUSAND: usize = 1000;
const PULLERS: usize = 200;
/// Requests of a test on their way at once.
const AT_ONCE: usize = 50;

fn durable(name: usize, filter: &str) -> pull::Config {
    pull::Config {
        durable_name: Some(format!("C{name}")),
        filter_subject: filter.to_owned(),
        ..pull::Config::default()
    }
}

#[test]
fn a_thousand_consumers_of_one_stream_get_their_messages_and_keep_their_places() {
    let mut server = server();
    run(async {
        let context = connect(&server).await;
        let one = create(&context, plain("S")).await;
        let one = &one;
        stream::iter(0..THOUSAND)
            .for_each_concurrent(AT_ONCE, |n| async move {
                one.create_consumer(durable(n, &format!("S.{n}"))).await.unwrap();
            })
            .await;
        for n in 0..THOUSAND as u64 {
            publish(&context, &format!("S.{n}"), n..n + 1).await;
        }
        let context = &context;
        stream::iter(0..THOUSAND)
            .for_each_concurrent(AT_ONCE, |n| async move {
                let consumer: PullConsumer = context
                    .get_consumer_from_stream(format!("C{n}"), "S")
                    .await
                    .unwrap();
                let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
                let message = messages.next().await.unwrap().unwrap();
                assert_eq!(number(&message.payload), n as u64);
                message.double_ack().await.unwrap();
            })
            .await;
    });
    server.kill().unwrap();
    server.launch().unwrap();
    server.wait_until_ready().unwrap();
    run(async {
        let context = connect(&server).await;
        let one = context.get_stream("S").await.unwrap();
        let infos: Vec<_> = one.consumers().try_collect().await.unwrap();
        assert_eq!(infos.len(), THOUSAND);
        for info in infos {
            let left = (
                info.num_pending,
                info.num_ack_pending,
                info.delivered.consumer_sequence,
            );
            assert_eq!(left, (0, 0, 1), "{}", info.name);
        }
    });
}

#[test]
fn a_thousand_streams_are_there_after_a_kill() {
    let mut server = server();
    run(async {
        let context = &connect(&server).await;
        stream::iter(0..THOUSAND)
            .for_each_concurrent(AT_ONCE, |n| async move {
                create(context, plain(&format!("S{n}"))).await;
                publish(context, &format!("S{n}.x"), 0..2).await;
            })
            .await;
    });
    server.kill().unwrap();
    server.launch().unwrap();
    server.wait_until_ready().unwrap();
    run(async {
        let context = &connect(&server).await;
        let names: Vec<String> = context.stream_names().try_collect().await.unwrap();
        assert_eq!(names.len(), THOUSAND);
        let infos: Vec<_> = context.streams().try_collect().await.unwrap();
        assert_eq!(infos.len(), THOUSAND);
        assert!(infos.iter().all(|info| info.state.messages == 2));
        publish(context, "S7.x", 2..3).await;
        let mut seventh = context.get_stream("S7").await.unwrap();
        assert_eq!(seventh.info().await.unwrap().state.last_sequence, 3);
    });
}

#[test]
fn deleting_a_stream_ends_the_requests_of_all_who_pull_from_it() {
    let server = server();
    run(async {
        let context = &connect(&server).await;
        let doomed = &create(context, plain("S")).await;
        let mut pulling = Vec::new();
        for n in 0..PULLERS {
            // Each has received a message when the stream goes, and waits for the next.
            let consumer = doomed.create_consumer(durable(n, "")).await.unwrap();
            let mut messages = consumer
                .stream()
                .max_messages_per_batch(10)
                .expires(Duration::from_secs(60))
                .messages()
                .await
                .unwrap();
            let (first, seen) = tokio::sync::oneshot::channel();
            let task = tokio::spawn(async move {
                let mut first = Some(first);
                loop {
                    match messages.next().await {
                        Some(Ok(message)) => {
                            // The stream may be gone already.
                            let _gone = message.ack().await;
                            if let Some(first) = first.take() {
                                first.send(()).unwrap();
                            }
                        }
                        Some(Err(error)) => return Some(error.to_string()),
                        None => return None,
                    }
                }
            });
            pulling.push((task, seen));
        }
        let publishing = tokio::spawn({
            let context = context.clone();
            async move {
                for n in 0_u64.. {
                    let Ok(ack) = context.publish("S.x", n.to_string().into()).await else {
                        return n;
                    };
                    if ack.await.is_err() {
                        return n;
                    }
                }
                0
            }
        });
        let mut tasks = Vec::new();
        for (task, seen) in pulling {
            seen.await.unwrap();
            tasks.push(task);
        }
        context.delete_stream("S").await.unwrap();
        for task in tasks {
            let end = task.await.unwrap();
            assert!(end.is_some(), "a puller heard of no reason");
        }
        assert!(publishing.await.unwrap() > 0);
        let mut again = create(context, plain("S")).await;
        publish(context, "S.x", 0..10).await;
        let info = again.info().await.unwrap();
        let state = (
            info.state.messages,
            info.state.first_sequence,
            info.state.consumer_count,
        );
        assert_eq!(state, (10, 1, 0));
    });
}
