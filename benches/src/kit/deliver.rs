//! Deliveries, pushed and pulled, each acknowledged; and a worker's layers.
//!
//! A round makes a consumer, reads the whole stream, and deletes the consumer. The time goes from the first message that a handler
//! sees to the last.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use async_nats::jetstream::consumer::{PullConsumer, PushConsumer, pull, push};
use futures_util::StreamExt as _;
use tokio::{sync::Notify, time::timeout};
use windjet_client::consumer::PushOptions;
use windjet_client::handler::{BoxHandler, Handler, HandlerError, Stack};
use windjet_client::ops::dlq::Dlq;
use windjet_client::ops::idempotency::{Idempotency, MemoryStore};
use windjet_client::ops::incidents::{AutoConfig, CapsuleAuto};
use windjet_client::ops::schema::{SchemaCheck, SchemaExpectation};
use windjet_client::ops::shadow::Shadow;
use windjet_client::{Client, Delivery, ProcessOptions};

use super::{Case, Ground};
use crate::session::PATIENCE;

const STREAM: &str = "READ";
const CONSUMER: &str = "bench";
/// Messages asked for and not handled, at most. The official stream asks for another whole batch when half of one is left, the kit
/// for half of one: theirs is two thirds of the kit's, so that both have as much under way.
const UNDER_WAY: usize = 300;
const OFFICIAL_BATCH: usize = UNDER_WAY * 2 / 3;

pub(super) fn cases() -> Vec<Case> {
    let layer = |name, about, other| Case {
        name,
        about,
        base: |ground| Box::pin(kit_pull(ground)),
        other,
    };
    vec![
        Case {
            name: "plain/push",
            about: "messages pushed to a durable, each acknowledged",
            base: |ground| Box::pin(plain_push(ground)),
            other: |ground| Box::pin(kit_push(ground)),
        },
        Case {
            name: "plain/pull",
            about: "messages pulled, 300 under way at most, each acknowledged",
            base: |ground| Box::pin(plain_pull(ground)),
            other: |ground| Box::pin(kit_pull(ground)),
        },
        layer("layer/stack", "the empty stack: a panic guard", |ground| {
            Box::pin(worker(ground, &ground.kit, one_by_one(), |handler| {
                Stack::new().around(handler)
            }))
        }),
        layer(
            "layer/dlq",
            "a dead-letter queue, with nothing to route",
            |ground| {
                Box::pin(worker(ground, &ground.kit, one_by_one(), |handler| {
                    Stack::new()
                        .dlq(Dlq::new(ground.kit.publisher(), "dead").max_deliver(5))
                        .around(handler)
                }))
            },
        ),
        layer(
            "layer/idempotency",
            "idempotency in memory, each id once",
            |ground| {
                Box::pin(worker(ground, &ground.kit, one_by_one(), |handler| {
                    let store = MemoryStore::new(2 * ground.messages, Duration::from_secs(60));
                    let id = |delivery: &Delivery| Some(delivery.metadata()?.stream_sequence.to_string());
                    Stack::new()
                        .idempotency(Idempotency::new(store).id(id))
                        .around(handler)
                }))
            },
        ),
        layer(
            "layer/schema",
            "a schema check, on messages that name none",
            |ground| {
                Box::pin(worker(ground, &ground.kit, one_by_one(), |handler| {
                    Stack::new()
                        .schema(SchemaCheck::new(SchemaExpectation::default()))
                        .around(handler)
                }))
            },
        ),
        layer("layer/shadow", "a shadow for each message", |ground| {
            Box::pin(worker(ground, &ground.kit, one_by_one(), |handler| {
                let second = |_: Arc<Delivery>| async { Ok::<_, HandlerError>(()) };
                Stack::new().shadow(Shadow::new(second)).around(handler)
            }))
        }),
        layer(
            "layer/incidents",
            "incident capsules, with no failure",
            |ground| {
                Box::pin(worker(ground, &ground.kit, one_by_one(), |handler| {
                    let config = AutoConfig {
                        enabled: true,
                        ..AutoConfig::default()
                    };
                    let auto = CapsuleAuto::new(ground.kit.incidents(), STREAM, CONSUMER, config);
                    Stack::new().incidents(auto).around(handler)
                }))
            },
        ),
        layer(
            "layer/eight-at-a-time",
            "handlers in tasks of their own, eight at a time",
            |ground| {
                Box::pin(worker(
                    ground,
                    &ground.kit,
                    one_by_one().concurrency(8),
                    |handler| handler,
                ))
            },
        ),
        layer(
            "layer/metrics",
            "measurements for Prometheus; spans are on, and nobody records them",
            |ground| Box::pin(worker(ground, &ground.measuring, one_by_one(), |handler| handler)),
        ),
    ]
}

fn one_by_one() -> ProcessOptions {
    ProcessOptions::default().batch(UNDER_WAY)
}

/// Takes the time from the first message to the last.
#[derive(Debug)]
struct Clock {
    wanted: usize,
    seen: AtomicUsize,
    begun: Mutex<Option<Instant>>,
    took: Mutex<Option<Duration>>,
    over: Notify,
}

impl Clock {
    fn new(wanted: usize) -> Arc<Self> {
        Arc::new(Self {
            wanted,
            seen: AtomicUsize::new(0),
            begun: Mutex::new(None),
            took: Mutex::new(None),
            over: Notify::new(),
        })
    }

    fn tick(&self) {
        let seen = self.seen.fetch_add(1, Ordering::AcqRel) + 1;
        if seen == 1 {
            *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        if seen == self.wanted {
            let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            *self.took.lock().unwrap_or_else(PoisonError::into_inner) = begun.map(|begun| begun.elapsed());
            self.over.notify_one();
        }
    }

    /// A handler that does nothing else.
    fn handler(self: &Arc<Self>) -> impl Handler + use<> {
        let clock = Arc::clone(self);
        move |_: Arc<Delivery>| {
            clock.tick();
            async { Ok::<_, HandlerError>(()) }
        }
    }

    /// Nanoseconds of a message, once all have been seen.
    async fn each(&self) -> Result<f64> {
        timeout(PATIENCE, self.over.notified())
            .await
            .context("messages are missing")?;
        let took = self
            .took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .context("no time was taken")?;
        Ok(took.as_nanos() as f64 / self.wanted as f64)
    }
}

async fn delete(ground: &Ground) -> Result<()> {
    ground.js.delete_consumer_from_stream(CONSUMER, STREAM).await?;
    Ok(())
}

async fn push_consumer(ground: &Ground) -> Result<PushConsumer> {
    let config = push::Config {
        durable_name: Some(CONSUMER.into()),
        deliver_subject: ground.plain.new_inbox(),
        ..push::Config::default()
    };
    Ok(ground.js.create_consumer_on_stream(config, STREAM).await?)
}

async fn pull_consumer(ground: &Ground) -> Result<PullConsumer> {
    let config = pull::Config {
        durable_name: Some(CONSUMER.into()),
        ..pull::Config::default()
    };
    Ok(ground.js.create_consumer_on_stream(config, STREAM).await?)
}

async fn plain_push(ground: &Ground) -> Result<f64> {
    let mut messages = push_consumer(ground).await?.messages().await?;
    let clock = Clock::new(ground.messages);
    for _ in 0..ground.messages {
        let message = messages.next().await.context("the messages ended")??;
        clock.tick();
        message.ack().await.map_err(|error| anyhow::anyhow!(error))?;
    }
    drop(messages);
    delete(ground).await?;
    clock.each().await
}

async fn kit_push(ground: &Ground) -> Result<f64> {
    push_consumer(ground).await?;
    let clock = Clock::new(ground.messages);
    let consumers = ground.kit.consumer();
    let options = PushOptions::default();
    let subscription = consumers
        .subscribe_bound(STREAM, CONSUMER, "read.>", clock.handler(), options)
        .await?;
    let each = clock.each().await?;
    subscription.drain().await;
    delete(ground).await?;
    Ok(each)
}

async fn plain_pull(ground: &Ground) -> Result<f64> {
    let consumer = pull_consumer(ground).await?;
    let mut messages = consumer
        .stream()
        .max_messages_per_batch(OFFICIAL_BATCH)
        .messages()
        .await?;
    let clock = Clock::new(ground.messages);
    for _ in 0..ground.messages {
        let message = messages.next().await.context("the messages ended")??;
        clock.tick();
        message.ack().await.map_err(|error| anyhow::anyhow!(error))?;
    }
    drop(messages);
    delete(ground).await?;
    clock.each().await
}

async fn kit_pull(ground: &Ground) -> Result<f64> {
    worker(ground, &ground.kit, one_by_one(), |handler| handler).await
}

/// Reads the stream with a worker of `client` whose handler `wrap` has made.
async fn worker<W, H>(ground: &Ground, client: &Client, options: ProcessOptions, wrap: W) -> Result<f64>
where
    W: FnOnce(BoxHandler) -> H,
    H: Handler,
{
    pull_consumer(ground).await?;
    let clock = Clock::new(ground.messages);
    let handler = wrap(BoxHandler::new(clock.handler()));
    let worker = client
        .consumer()
        .pull(STREAM, CONSUMER)
        .await?
        .start(handler, options);
    let each = clock.each().await?;
    worker.stop().await?;
    delete(ground).await?;
    Ok(each)
}
