//! The broker in the process, over a folder of its own for each test.

mod behaviour;
mod compat;
mod pitfalls;
mod suite;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::mpsc;
use windjet_mq::mqtest::DURABLE;
use windjet_mq::{
    Broker as _, ConsumerConfig, ConsumerManager as _, Consuming, Ctx, EmbeddedNats, Handler, Message,
    PublishOptions, Publisher as _, PurgeOutcome, Purger as _, TenantId, Topic,
};
use windjet_server::jetstream::{JetStreamContext, StreamConfig};

/// Long enough for anything that should happen; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A store and the broker over it.
struct Store {
    folder: TempDir,
    broker: Mutex<EmbeddedNats>,
}

impl Store {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let broker = EmbeddedNats::open(folder.path()).await.unwrap();
        Self {
            folder,
            broker: Mutex::new(broker),
        }
    }

    fn broker(&self) -> EmbeddedNats {
        self.broker.lock().clone()
    }

    /// Ends the broker and starts one over the same folder.
    async fn restart(&self) -> EmbeddedNats {
        self.broker().close().await.unwrap();
        let broker = EmbeddedNats::open(self.folder.path()).await.unwrap();
        *self.broker.lock() = broker.clone();
        broker
    }

    /// What the broker stands on, as an operator's tool reaches it.
    fn js(&self) -> JetStreamContext {
        self.broker().server().jetstream().unwrap()
    }

    async fn budget(&self, id: &str, bytes: u64) {
        let applied = self.broker().set_max_bytes(&Ctx::new(), &tenant(id), bytes).await;
        applied.unwrap_or_else(|error| panic!("{id}: {error:#}"));
    }

    /// What a stream is limited to.
    async fn cap(&self, stream: &str) -> i64 {
        self.js().stream_info(stream).await.unwrap().config.max_bytes
    }

    /// Makes a stream that takes subjects of a queue's, which then cannot be made.
    async fn rogue(&self, subjects: &str) {
        let config = StreamConfig {
            name: "ROGUE".to_owned(),
            subjects: vec![subjects.to_owned()],
            ..StreamConfig::default()
        };
        self.js().create_stream(config).await.unwrap();
    }

    async fn consume(&self, config: ConsumerConfig) -> (mpsc::UnboundedReceiver<Message>, Consuming) {
        let consumer = self.broker().create_consumer(&Ctx::new(), config).await.unwrap();
        let (messages, handler) = inbox();
        let consuming = consumer.consume(handler, 16).await.unwrap();
        (messages, consuming)
    }

    /// Purges what the suite's durable has acknowledged, however young.
    async fn purge(&self) -> PurgeOutcome {
        self.broker()
            .purge_acked(&Ctx::new(), DURABLE, &BTreeMap::new())
            .await
    }
}

fn tenant(id: &str) -> TenantId {
    TenantId::parse(id).unwrap()
}

fn topic(id: &str, table: &str) -> Topic {
    Topic::new(tenant(id), table)
}

async fn publish(broker: &EmbeddedNats, id: &str, data: &str) {
    let data = data.to_owned().into();
    let published = broker
        .publish(&Ctx::new(), &topic(id, "events"), data, PublishOptions::new())
        .await;
    published.unwrap_or_else(|error| panic!("{id}: {error:#}"));
}

/// A handler that settles nothing, and what it was given.
fn inbox() -> (mpsc::UnboundedReceiver<Message>, Handler) {
    let (sender, messages) = mpsc::unbounded_channel();
    let handler = Handler::new(move |message| {
        // Nobody looks any more once the test is over.
        let _ = sender.send(message);
        async {}
    });
    (messages, handler)
}

async fn next(messages: &mut mpsc::UnboundedReceiver<Message>) -> Message {
    let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
    message.expect("waited in vain for a message").unwrap()
}

/// Looks until `condition` gives something.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let look = async {
        loop {
            if let Some(found) = condition().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, look).await;
    found.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
