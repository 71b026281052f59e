//! `kill -9` under load: what was acknowledged is there, what was not acknowledged by its receiver comes again.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use super::{ACK_WAIT, connect, create, drain, number, plain, run, server, unique};

const PUBLISHERS: u64 = 4;
/// Publishes in flight of each.
const WINDOW: usize = 64;

/// Kills in a row: `WINDJET_KILLS`, or a few.
fn rounds() -> u64 {
    std::env::var("WINDJET_KILLS").map_or(2, |text| text.parse().unwrap())
}

#[derive(Default)]
struct Seen {
    /// Publishes that were acknowledged.
    stored: BTreeSet<u64>,
    /// Publishes that were begun.
    begun: u64,
    /// Messages whose acknowledgement the server confirmed.
    settled: BTreeSet<u64>,
    /// Messages whose acknowledgement was begun: one that the kill left without an answer may count or not.
    asked: BTreeSet<u64>,
    /// Messages that were received, and settled or not.
    received: u64,
}

#[test]
fn after_a_kill_under_load_all_that_was_acknowledged_is_there_and_the_rest_comes_again() {
    let mut server = server();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let durable = pull::Config {
        durable_name: Some("C".to_owned()),
        ack_wait: ACK_WAIT,
        max_ack_pending: 100_000,
        ..pull::Config::default()
    };
    run(async {
        let context = connect(&server).await;
        create(&context, plain("ALL")).await;
        let queue = Config {
            retention: RetentionPolicy::WorkQueue,
            ..plain("QUEUE")
        };
        let queue = create(&context, queue).await;
        queue.create_consumer(durable.clone()).await.unwrap();
    });
    for round in 0..rounds() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let wanted = {
            let seen = seen.lock();
            (seen.stored.len() as u64 + 2000, seen.received + 500)
        };
        let url = server.url().unwrap();
        for publisher in 0..PUBLISHERS {
            let stream = if publisher % 2 == 0 { "ALL" } else { "QUEUE" };
            runtime.spawn(publish_until_the_end(url.clone(), stream, seen.clone()));
        }
        runtime.spawn(receive_until_the_end(url, seen.clone()));
        windjet_testkit::deadline::until("some load", super::LIMIT, || {
            let seen = seen.lock();
            seen.stored.len() as u64 >= wanted.0 && seen.received >= wanted.1
        })
        .unwrap();
        server.kill().unwrap();
        // Nothing that is heard later is of this life of the server.
        drop(runtime);
        server.launch().unwrap();
        server.wait_until_ready().unwrap();
        run(check(&server, &seen, round));
    }
}

async fn publish_until_the_end(url: String, stream: &'static str, seen: Arc<Mutex<Seen>>) {
    let context = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let mut waiting = std::collections::VecDeque::new();
    loop {
        let number = {
            let mut seen = seen.lock();
            seen.begun += 1;
            // Odd numbers go to the queue.
            seen.begun * 2 + u64::from(stream == "QUEUE")
        };
        match context
            .publish(format!("{stream}.x"), number.to_string().into())
            .await
        {
            Ok(ack) => waiting.push_back((number, ack)),
            Err(_) => return,
        }
        if waiting.len() == WINDOW
            && let Some((number, ack)) = waiting.pop_front()
        {
            match ack.await {
                Ok(_) => drop(seen.lock().stored.insert(number)),
                Err(_) => return,
            }
        }
    }
}

/// Takes messages from the queue; confirms two of three and leaves the third.
async fn receive_until_the_end(url: String, seen: Arc<Mutex<Seen>>) {
    let context = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        context.get_consumer_from_stream("C", "QUEUE").await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    while let Some(Ok(message)) = messages.next().await {
        let number = number(&message.payload);
        let position = message.info().unwrap().stream_sequence;
        seen.lock().received += 1;
        if position % 3 == 0 {
            continue;
        }
        // From here on until the answer it is open whether the ack counts.
        seen.lock().asked.insert(number);
        if message.double_ack().await.is_err() {
            return;
        }
        assert!(
            seen.lock().settled.insert(number),
            "{number} was delivered again after its confirmed ack"
        );
    }
}

async fn check(server: &windjet_testkit::server::ServerUnderTest, seen: &Mutex<Seen>, round: u64) {
    let context = connect(server).await;
    let mut all = context.get_stream("ALL").await.unwrap();
    let held = all.info().await.unwrap().state.messages;
    let ordered = async_nats::jetstream::consumer::pull::OrderedConfig::default();
    let messages = all
        .create_consumer(ordered)
        .await
        .unwrap()
        .messages()
        .await
        .unwrap();
    let there: Vec<u64> = messages
        .take(usize::try_from(held).unwrap())
        .map(|message| number(&message.unwrap().payload))
        .collect()
        .await;
    let there = unique(&there);
    let rest = {
        let seen = seen.lock();
        for number in seen.stored.iter().filter(|number| *number % 2 == 0) {
            assert!(
                there.contains(number),
                "round {round}: {number} was acknowledged and is gone"
            );
        }
        let due: Vec<u64> = seen
            .stored
            .iter()
            .copied()
            .filter(|number| number % 2 == 1)
            .collect();
        due.into_iter()
            .filter(|number| !seen.settled.contains(number) && !seen.asked.contains(number))
            .collect::<Vec<_>>()
    };
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        context.get_consumer_from_stream("C", "QUEUE").await.unwrap();
    let again = unique(&drain(&consumer).await);
    let mut seen = seen.lock();
    for number in rest {
        assert!(
            again.contains(&number),
            "round {round}: {number} was not acknowledged and does not come again"
        );
    }
    for number in &again {
        assert!(
            !seen.settled.contains(number),
            "round {round}: {number} comes again after its confirmed ack"
        );
    }
    seen.settled.extend(again);
    let asked = std::mem::take(&mut seen.asked);
    seen.settled.extend(asked);
}
