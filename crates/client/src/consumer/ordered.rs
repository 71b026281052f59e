//! Ordered consumers: every message of a stream in its order, once for each run, with nothing to acknowledge.
//!
//! The consumer on the server is the kit's own: in memory, without acknowledgements, removed by the server when it is not
//! used. When deliveries have a gap, when heartbeats stop, when the consumer or the connection is lost, it is made anew
//! behind the last message handled. "Only new messages" means new since the start, also after that.
//!
//! A handler that fails or panics is logged and counted; the message is not repeated and nothing stops.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy, ReplayPolicy};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::Vitals;
use crate::admin::{ConsumerManager, StreamManager};
use crate::client::Inner;
use crate::delivery::{Delivery, OnDrop};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{BoxHandler, Handler as _, guarded};
use crate::names::{is_name, validate_stream_name, validate_subjects};
use crate::observe::{Meters, Spans, failed};
use crate::pull::{Options, Puller, Request, Target};

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
const BATCH: usize = 256;

/// What an ordered consumer reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedConfig {
    /// Only these subjects; all when empty.
    pub filter_subjects: Vec<String>,
    /// Where it begins. At the first message there is.
    pub deliver_policy: DeliverPolicy,
    /// How fast. As fast as possible.
    pub replay_policy: ReplayPolicy,
    /// After how long without use the server removes it. 5 min.
    pub inactive_threshold: Duration,
    /// The beginning of its name; made up when empty.
    pub name_prefix: String,
    /// Headers without payloads. Off.
    pub headers_only: bool,
}

impl Default for OrderedConfig {
    fn default() -> Self {
        Self {
            filter_subjects: Vec::new(),
            deliver_policy: DeliverPolicy::All,
            replay_policy: ReplayPolicy::Instant,
            inactive_threshold: Duration::from_secs(300),
            name_prefix: String::new(),
            headers_only: false,
        }
    }
}

/// A running ordered consumer. Dropped, it goes on until the client is closed.
#[derive(Debug)]
pub struct OrderedSubscription {
    stop: CancellationToken,
    vitals: Arc<Vitals>,
    task: JoinHandle<()>,
}

impl OrderedSubscription {
    /// Stops it; returns at once.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until it has ended: because it was stopped, the client closed, or the stream deleted.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn stopped(&mut self) {
        if !self.task.is_finished() {
            let _ = (&mut self.task).await;
        }
    }

    /// Its counters.
    #[must_use]
    pub fn vitals(&self) -> &Arc<Vitals> {
        &self.vitals
    }
}

pub(super) async fn subscribe(
    inner: &Arc<Inner>,
    stream: &str,
    mut config: OrderedConfig,
    handler: BoxHandler,
) -> Result<OrderedSubscription> {
    validate_stream_name(stream)?;
    validate_subjects(&config.filter_subjects)?;
    if config.name_prefix.is_empty() {
        config.name_prefix = format!("ordered-{:016x}", rand::random::<u64>());
    }
    // With a number behind it, it must still be a name.
    if !is_name(&format!("{}_{}", config.name_prefix, u64::MAX)) {
        return Err(Error::new(
            ErrorKind::InvalidDurableName,
            "naming an ordered consumer",
        ));
    }
    let streams = StreamManager::new(Arc::clone(inner));
    let info = streams.info(stream).await?;
    if config.deliver_policy == DeliverPolicy::New {
        let start_sequence = info.state.last_sequence + 1;
        config.deliver_policy = DeliverPolicy::ByStartSequence { start_sequence };
    }
    let (stop, vitals) = (inner.intake.child_token(), Arc::<Vitals>::default());
    let mut run = Run {
        consumers: ConsumerManager::new(Arc::clone(inner)),
        inner: Arc::clone(inner),
        expand: inner.config.consumer.decompression,
        observed: inner.observed.consumer.clone(),
        stream: stream.to_owned(),
        config,
        handler,
        vitals: Arc::clone(&vitals),
        serial: 0,
        last: 0,
    };
    let stopped = stop.clone();
    let task = inner.workers.spawn(async move {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = run.work() => {}
        }
    });
    Ok(OrderedSubscription { stop, vitals, task })
}

struct Run {
    consumers: ConsumerManager,
    inner: Arc<Inner>,
    expand: bool,
    observed: (Option<Arc<Meters>>, Spans),
    stream: String,
    config: OrderedConfig,
    handler: BoxHandler,
    vitals: Arc<Vitals>,
    serial: u64,
    /// The stream sequence handled last.
    last: u64,
}

impl Run {
    async fn work(&mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let before = self.last;
            match self.round().await {
                Err(error) if error.kind() == ErrorKind::StreamNotFound => {
                    tracing::warn!(stream = self.stream, "the stream of an ordered consumer is gone");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, stream = self.stream, "an ordered consumer is made anew");
                }
                Ok(()) => tracing::debug!(
                    stream = self.stream,
                    "an ordered consumer has a gap and is made anew"
                ),
            }
            if self.last > before {
                backoff = BACKOFF_MIN;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// One consumer, until something is wrong with it.
    async fn round(&mut self) -> Result<()> {
        self.serial += 1;
        let name = format!("{}_{}", self.config.name_prefix, self.serial);
        let deliver_policy = if self.last > 0 {
            DeliverPolicy::ByStartSequence {
                start_sequence: self.last + 1,
            }
        } else {
            self.config.deliver_policy
        };
        let mut config = Config {
            name: Some(name.clone()),
            deliver_policy,
            ack_policy: AckPolicy::None,
            replay_policy: self.config.replay_policy,
            max_deliver: 1,
            memory_storage: true,
            num_replicas: 1,
            headers_only: self.config.headers_only,
            inactive_threshold: self.config.inactive_threshold,
            ..Config::default()
        };
        match self.config.filter_subjects.as_slice() {
            [one] => config.filter_subject.clone_from(one),
            many => config.filter_subjects = many.to_vec(),
        }
        let what = format!("making and removing {}/{name}", self.stream);
        let put = self.consumers.put(&self.stream, &name, &config, "create");
        self.inner.on_this_connection(&what, put).await?;
        let result = self.read(&name).await;
        // The server would remove it too, later.
        let delete = self.consumers.delete(&self.stream, &name);
        let _ = self.inner.on_this_connection(&what, delete).await;
        result
    }

    async fn read(&mut self, name: &str) -> Result<()> {
        let what = || format!("reading {} in order", self.stream);
        let target = Target::new(self.stream.clone(), name)
            .map_err(|error| Error::new(ErrorKind::InvalidDurableName, what()).because(error))?
            .domain(&self.inner.config.connection.domain);
        let options = Options::default().on_drop(OnDrop::Settled);
        let puller = Puller::new(self.inner.nats.clone(), target, options).await;
        let mut puller = puller.map_err(|error| Error::new(ErrorKind::Pull, what()).because(error))?;
        let request = Request::batch(BATCH)
            .expires(Duration::from_secs(10))
            .heartbeat(Duration::from_secs(1));
        let mut expected = 1;
        loop {
            let next = puller.next(&request).await;
            let delivery = next.map_err(|error| Error::new(ErrorKind::Pull, what()).because(error))?;
            let Some((consumer, stream, pending)) = delivery
                .metadata()
                .map(|found| (found.consumer_sequence, found.stream_sequence, found.pending))
            else {
                continue;
            };
            if consumer != expected {
                return Ok(());
            }
            expected += 1;
            self.vitals.note_received(1, pending);
            self.handle(delivery).await;
            self.last = stream;
        }
    }

    /// Calls the handler, and measures as for any delivery; there is nothing to settle.
    async fn handle(&self, mut delivery: Delivery) {
        let (meters, spans) = &self.observed;
        let (subject, headers) = (delivery.subject.as_str(), delivery.headers.as_ref());
        let span = spans.process(subject, headers, delivery.metadata().as_ref());
        let meters = meters.as_ref().map(|meters| meters.delivering(subject));
        if let Some(meters) = &meters {
            meters.bytes.record(delivery.payload.len() as f64);
            meters.received.increment(1);
        }
        if self.expand {
            delivery.expand();
        }
        let fault = delivery.fault();
        let delivery = Arc::new(delivery);
        let begun = tokio::time::Instant::now();
        let outcome = match fault {
            Some(error) => Err(error.into()),
            None => {
                guarded(|| self.handler.handle(Arc::clone(&delivery)))
                    .instrument(span.clone())
                    .await
            }
        };
        let elapsed = begun.elapsed();
        self.vitals.note_handled(elapsed);
        if let Some(meters) = &meters {
            meters.handling.record(elapsed.as_secs_f64());
        }
        match outcome {
            Ok(_) => self.vitals.note_success(),
            Err(error) => {
                failed(&span, &error);
                if let Some(meters) = &meters {
                    meters.errors.increment(1);
                }
                self.vitals.note_failed();
                tracing::error!(%error, subject = delivery.subject.as_str(), "handling a message failed");
            }
        }
    }
}
