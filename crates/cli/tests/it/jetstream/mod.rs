//! JetStream of the program under load: many streams, consumers and keys, clients that stop, kills.
//!
//! The clients are the official one. What takes long has a short form here; `scripts/long` runs more rounds of the same.

mod crowd;
mod keys;
mod kill;
mod overlap;
mod stopped;

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{self, Stream};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use windjet_testkit::server::ServerUnderTest;

use crate::dropin;

const CONFIG: &str = "jetstream { store_dir: js }\n";
/// How long anything may take, on a machine that does other work too.
const LIMIT: Duration = Duration::from_secs(120);

fn server() -> ServerUnderTest {
    dropin().config(CONFIG).start().unwrap()
}

/// Runs a test's clients, and fails when they take too long.
fn run<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, what).await.unwrap() })
}

async fn connect(server: &ServerUnderTest) -> Context {
    let options = async_nats::ConnectOptions::new().request_timeout(Some(LIMIT));
    let mut context = jetstream::new(options.connect(server.url().unwrap()).await.unwrap());
    context.set_timeout(LIMIT);
    context
}

async fn create(context: &Context, config: stream::Config) -> Stream {
    context.create_stream(config).await.unwrap()
}

/// A limits stream `name` with all subjects below `<name>.`.
fn plain(name: &str) -> stream::Config {
    stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        ..stream::Config::default()
    }
}

/// Publishes numbers to a subject, pipelined, and waits for all acknowledgements.
async fn publish(context: &Context, subject: &str, numbers: std::ops::Range<u64>) {
    let mut acks = Vec::new();
    for number in numbers {
        let ack = context.publish(subject.to_owned(), number.to_string().into());
        acks.push(ack.await.unwrap());
        if acks.len() == 1000 {
            for ack in acks.drain(..) {
                ack.await.unwrap();
            }
        }
    }
    for ack in acks {
        ack.await.unwrap();
    }
}

fn number(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

/// How long messages stay with their receiver in these tests.
const ACK_WAIT: Duration = Duration::from_secs(3);

/// Takes messages and acknowledges each, confirmed, until none came for longer than the ack wait; the numbers in them.
async fn drain(consumer: &jetstream::consumer::Consumer<pull::Config>) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let fetch = consumer.fetch().max_messages(200).expires(2 * ACK_WAIT);
        let batch: Vec<_> = fetch
            .messages()
            .await
            .unwrap()
            .map(Result::unwrap)
            .collect()
            .await;
        if batch.is_empty() {
            return numbers;
        }
        for done in join_all(batch.iter().map(async_nats::jetstream::Message::double_ack)).await {
            done.unwrap();
        }
        numbers.extend(batch.iter().map(|message| number(&message.payload)));
    }
}

fn unique(numbers: &[u64]) -> BTreeSet<u64> {
    let set: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(set.len(), numbers.len(), "something came twice");
    set
}
