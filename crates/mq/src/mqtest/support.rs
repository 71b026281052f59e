//! What the cases share.

use std::future::Future;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry::Context;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{DURABLE, Instance, SOON, WATCH};
use crate::{
    Consumer, ConsumerConfig, Consuming, Ctx, Error, Handler, Message, PublishOptions, TenantId, Topic,
};

/// Times at which a wait looks again.
const STEP: Duration = Duration::from_millis(10);

pub(super) fn set_propagator() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        opentelemetry::global::set_text_map_propagator(
            opentelemetry_sdk::propagation::TraceContextPropagator::new(),
        );
    });
}

pub(super) fn tenant(id: &str) -> TenantId {
    TenantId::parse(id).unwrap()
}

pub(super) fn topic(id: &str, table: &str) -> Topic {
    Topic::new(tenant(id), table)
}

/// A mark on a context, to find out whether a message came with it.
#[derive(Debug, PartialEq)]
pub(super) struct Mark(pub(super) u64);

pub(super) fn marked(mark: u64) -> Ctx {
    Ctx::new().with_trace(Context::new().with_value(Mark(mark)))
}

pub(super) async fn publish(instance: &dyn Instance, topic: &Topic, data: &str) {
    let published = publish_with(instance, topic, data, PublishOptions::new()).await;
    published.unwrap_or_else(|error| panic!("publish {data}: {error:#}"));
}

pub(super) async fn publish_with(
    instance: &dyn Instance,
    topic: &Topic,
    data: &str,
    options: PublishOptions,
) -> Result<(), Error> {
    let data = Bytes::copy_from_slice(data.as_bytes());
    instance.broker().publish(&Ctx::new(), topic, data, options).await
}

/// Looks until `condition` gives something.
pub(super) async fn until<T, F>(instance: &dyn Instance, what: &str, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let mut waited = Duration::ZERO;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(waited < SOON, "waited in vain for {what}");
        instance.pass(STEP).await;
        waited += STEP;
    }
}

/// What a consumer's handler received, in order; it settles nothing.
pub(super) struct Inbox {
    messages: Mutex<mpsc::UnboundedReceiver<Message>>,
}

impl Inbox {
    /// A handler that puts its messages here.
    pub(super) fn new() -> (Self, Handler) {
        let (sender, messages) = mpsc::unbounded_channel();
        let handler = Handler::new(move |message| {
            // Nobody looks any more once the case is over.
            let _ = sender.send(message);
            async {}
        });
        let messages = Mutex::new(messages);
        (Self { messages }, handler)
    }

    /// The next message.
    pub(super) async fn next(&self, instance: &dyn Instance) -> Message {
        until(instance, "a message", || async {
            self.messages.lock().try_recv().ok()
        })
        .await
    }

    /// The next messages, acknowledged.
    pub(super) async fn acked(&self, instance: &dyn Instance, count: usize) -> Vec<Message> {
        let mut all = Vec::new();
        for _ in 0..count {
            let message = self.next(instance).await;
            message.double_ack(&Ctx::new()).await.unwrap();
            all.push(message);
        }
        all
    }

    /// Nothing comes.
    pub(super) async fn nothing(&self, instance: &dyn Instance) {
        instance.pass(WATCH).await;
        if let Ok(message) = self.messages.lock().try_recv() {
            panic!("{} was delivered: {}", message.topic_key(), text(&message));
        }
    }
}

pub(super) fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.data()).into_owned()
}

pub(super) fn config() -> ConsumerConfig {
    ConsumerConfig::new(DURABLE).max_ack_pending(100)
}

pub(super) async fn create(instance: &dyn Instance, config: ConsumerConfig) -> Box<dyn Consumer> {
    let created = instance.broker().create_consumer(&Ctx::new(), config).await;
    created.unwrap_or_else(|error| panic!("create consumer: {error:#}"))
}

/// A consumer that delivers into an inbox.
pub(super) async fn consume(instance: &dyn Instance, config: ConsumerConfig) -> (Inbox, Consuming) {
    let consumer = create(instance, config).await;
    let (inbox, handler) = Inbox::new();
    let consuming = consumer.consume(handler, 16).await.unwrap();
    (inbox, consuming)
}

/// The failure that delivery reports soon.
pub(super) async fn failure(instance: &dyn Instance, consuming: &mut Consuming) -> Error {
    tokio::select! {
        error = consuming.failed() => error,
        () = instance.pass(SOON) => panic!("waited in vain for the end of delivery to be reported"),
    }
}

/// No failure is reported.
pub(super) async fn no_failure(instance: &dyn Instance, consuming: &mut Consuming) {
    tokio::select! {
        error = consuming.failed() => panic!("reported: {error:#}"),
        () = instance.pass(WATCH) => {}
    }
}

/// A list that closures add to.
#[derive(Debug, Clone, Default)]
pub(super) struct Collected(Arc<Mutex<Vec<String>>>);

impl Collected {
    pub(super) fn push(&self, data: &[u8]) {
        self.0.lock().push(String::from_utf8_lossy(data).into_owned());
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}
