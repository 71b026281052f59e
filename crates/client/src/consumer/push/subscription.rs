//! The handle of a push subscription, and how it begins.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use async_nats::Subscriber;
use async_nats::jetstream::consumer::{AckPolicy, Config, Info};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::binding::{self, Wanted};
use super::run::{Run, Waiting};
use super::{Bind, Limits, PushOptions};
use crate::admin::ConsumerManager;
use crate::client::Inner;
use crate::consumer::Vitals;
use crate::consumer::dispatch::Dispatcher;
use crate::delivery::{OnDrop, Settler};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::BoxHandler;
use crate::names::{validate_durable_name, validate_queue_name, validate_stream_name, validate_subject};
use crate::observe::Metrics;

/// Why a subscription has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// It was unsubscribed or drained.
    Stopped,
    /// The client was closed, or its connection is gone for good.
    ClientClosed,
    /// No heartbeat came for twice its interval.
    HeartbeatsMissed,
    /// The consumer is gone.
    ConsumerDeleted,
    /// The stream is gone.
    StreamDeleted,
    /// The server said that it ends it.
    Status {
        /// Its number.
        code: u16,
        /// Its words.
        text: String,
    },
}

impl EndReason {
    /// Whether nobody here wanted it.
    #[must_use]
    pub fn is_trouble(&self) -> bool {
        !matches!(self, Self::Stopped | Self::ClientClosed)
    }
}

/// What a subscription is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SubscriptionKind {
    /// A consumer of its own.
    Push,
    /// A queue group.
    Queue,
}

/// How to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stop {
    HandBack = 0,
    Drain = 1,
}

/// A running push subscription. Clones share it; dropped, it goes on until the client is closed.
#[derive(Debug, Clone)]
pub struct Subscription {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) inner: Arc<Inner>,
    pub(super) stream: String,
    pub(super) consumer: String,
    subject: String,
    kind: SubscriptionKind,
    /// Whether the consumer is the subscription's own.
    ephemeral: bool,
    pub(super) vitals: Arc<Vitals>,
    pending_messages: AtomicUsize,
    pending_bytes: AtomicUsize,
    stop: CancellationToken,
    stop_kind: AtomicU8,
    ended: watch::Sender<Option<EndReason>>,
    /// Cancelled when the task has done everything.
    pub(super) gone: CancellationToken,
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.stream, self.consumer, self.subject)
    }
}

impl Shared {
    /// Waits for a stop, and says whose it was.
    pub(super) async fn stopped(&self) -> EndReason {
        self.stop.cancelled().await;
        if self.inner.intake.is_cancelled() {
            EndReason::ClientClosed
        } else {
            EndReason::Stopped
        }
    }

    pub(super) fn stop_kind(&self) -> Stop {
        if self.stop_kind.load(Ordering::Acquire) == Stop::Drain as u8 {
            Stop::Drain
        } else {
            Stop::HandBack
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            messages: self.pending_messages.load(Ordering::Relaxed),
            bytes: self.pending_bytes.load(Ordering::Relaxed),
        }
    }

    pub(super) fn end(&self, reason: EndReason) {
        self.ended.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                *now = Some(reason);
            }
            first
        });
    }
}

impl Subscription {
    /// Whether messages can be expected from it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.shared.ended.borrow().is_none()
    }

    /// Why it has ended, if it has.
    #[must_use]
    pub fn end_reason(&self) -> Option<EndReason> {
        self.shared.ended.borrow().clone()
    }

    /// Waits until it is not valid any more, and says why.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn invalidated(&self) -> EndReason {
        let mut ended = self.shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(EndReason::ClientClosed),
            // The sender lives in `shared`, which is here.
            Err(_) => EndReason::ClientClosed,
        }
    }

    /// The subject it was made for.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.shared.subject
    }

    /// Stream and consumer.
    #[must_use]
    pub fn names(&self) -> (&str, &str) {
        (&self.shared.stream, &self.shared.consumer)
    }

    /// What it is bound to.
    #[must_use]
    pub fn kind(&self) -> SubscriptionKind {
        self.shared.kind
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.inner.metrics
    }

    /// Its counters.
    #[must_use]
    pub fn vitals(&self) -> &Arc<Vitals> {
        &self.shared.vitals
    }

    /// Changes how much may wait for a handler; see [`PushOptions::pending_limits`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSubscription`] when it has ended.
    pub fn set_pending_limits(&self, messages: usize, bytes: usize) -> Result<()> {
        self.usable("setting limits of")?;
        self.shared.pending_messages.store(messages, Ordering::Relaxed);
        self.shared.pending_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The server's word on its consumer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSubscription`] when it has ended; when the server does not answer.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn consumer_info(&self) -> Result<Info> {
        self.usable("looking up the consumer of")?;
        let shared = &self.shared;
        shared.inner.consumer_info(&shared.stream, &shared.consumer).await
    }

    /// Ends it: handlers finish what they have in hand, the rest is handed back. A durable stays. Calling it again waits
    /// for the same end. Not for the subscription's own handler to await: it would wait for itself.
    ///
    /// # Cancel safety
    /// Dropped early, it ends all the same.
    pub async fn unsubscribe(&self) {
        self.stop_as(Stop::HandBack).await;
    }

    /// Ends it after everything that has arrived is handled. A durable stays. As [`Subscription::unsubscribe`], not for its own
    /// handler to await.
    ///
    /// # Cancel safety
    /// Dropped early, it ends all the same.
    pub async fn drain(&self) {
        self.stop_as(Stop::Drain).await;
    }

    async fn stop_as(&self, how: Stop) {
        let shared = &self.shared;
        if !shared.stop.is_cancelled() {
            shared.stop_kind.store(how as u8, Ordering::Release);
        }
        shared.stop.cancel();
        shared.gone.cancelled().await;
        if shared.ephemeral && !shared.inner.is_closed() {
            // Nobody can bind to it again. If this fails, the server removes it when it has been unused for a while.
            let manager = ConsumerManager::new(Arc::clone(&shared.inner));
            let _ = manager.delete(&shared.stream, &shared.consumer).await;
        }
    }

    fn usable(&self, doing: &str) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidSubscription,
            format!("{doing} {}", self.shared),
        ))
    }
}

/// How a subscription is to be, with everything checked.
struct Plan<'a> {
    stream: &'a str,
    subject: &'a str,
    queue: Option<&'a str>,
    ephemeral: bool,
    handler: BoxHandler,
    options: PushOptions,
}

/// Binds a durable.
pub(in crate::consumer) async fn subscribe_bound(
    inner: &Arc<Inner>,
    stream: &str,
    durable: &str,
    queue: Option<&str>,
    subject: &str,
    handler: BoxHandler,
    options: PushOptions,
) -> Result<Subscription> {
    validate_stream_name(stream)?;
    validate_durable_name(durable)?;
    validate_subject(subject)?;
    if let Some(queue) = queue {
        validate_queue_name(queue)?;
    }
    open(inner, subject)?;
    let info = match inner.consumer_info(stream, durable).await {
        Err(error) if error.kind() == ErrorKind::ConsumerNotFound => match &options.bind {
            Bind::MustExist => return Err(error),
            Bind::CreateIfMissing(_) => create(inner, stream, durable, queue, subject, &options.bind).await?,
        },
        found => found?,
    };
    let wanted = Wanted {
        stream,
        durable,
        queue,
        subject,
    };
    binding::check(wanted, &info)?;
    for difference in binding::differences(queue, &inner.config.consumer, &info.config) {
        tracing::warn!(
            stream,
            durable,
            difference,
            "a durable has settings of its own, which hold"
        );
    }
    let deliver = info.config.deliver_subject.clone().unwrap_or_default();
    let subscriber = listen(inner, &deliver, queue).await?;
    let plan = Plan {
        stream,
        subject,
        queue,
        ephemeral: false,
        handler,
        options,
    };
    Ok(start(inner, plan, &info, subscriber))
}

/// Makes a consumer of its own on the stream that stores `subject`; with a queue group, binds the durable of its name.
pub(in crate::consumer) async fn subscribe(
    inner: &Arc<Inner>,
    queue: Option<&str>,
    subject: &str,
    handler: BoxHandler,
    mut options: PushOptions,
) -> Result<Subscription> {
    validate_subject(subject)?;
    open(inner, subject)?;
    if let Some(queue) = queue {
        validate_queue_name(queue)?;
        let stream = stream_of(inner, subject).await?;
        if options.bind == Bind::MustExist {
            options.bind = Bind::CreateIfMissing(Box::default());
        }
        // Members of a group share one consumer, and the only name that all of them know is the group's.
        return subscribe_bound(inner, &stream, queue, Some(queue), subject, handler, options).await;
    }
    let stream = stream_of(inner, subject).await?;
    let deliver = inner.nats.new_inbox();
    let subscriber = listen(inner, &deliver, None).await?;
    let base = match &options.bind {
        Bind::CreateIfMissing(config) => config.over(None),
        Bind::MustExist => Config::default(),
    };
    let name = format!("push-{:016x}", rand::random::<u64>());
    let mut config = push_config(inner, base, deliver, None, subject);
    config.name = Some(name.clone());
    config.durable_name = None;
    let manager = ConsumerManager::new(Arc::clone(inner));
    let info = manager.put(&stream, &name, &config, "create").await?;
    let plan = Plan {
        stream: &stream,
        subject,
        queue: None,
        ephemeral: true,
        handler,
        options,
    };
    Ok(start(inner, plan, &info, subscriber))
}

fn open(inner: &Inner, subject: &str) -> Result<()> {
    if inner.is_closed() {
        return Err(Error::new(ErrorKind::Closed, format!("subscribing to {subject}")));
    }
    Ok(())
}

async fn listen(inner: &Inner, deliver: &str, queue: Option<&str>) -> Result<Subscriber> {
    let subject = deliver.to_owned();
    let subscriber = match queue {
        Some(queue) => inner.nats.queue_subscribe(subject, queue.to_owned()).await,
        None => inner.nats.subscribe(subject).await,
    };
    subscriber
        .map_err(|error| Error::new(ErrorKind::Closed, format!("subscribing to {deliver}")).because(error))
}

async fn create(
    inner: &Arc<Inner>,
    stream: &str,
    durable: &str,
    queue: Option<&str>,
    subject: &str,
    bind: &Bind,
) -> Result<Info> {
    let base = match bind {
        Bind::CreateIfMissing(config) => config.over(None),
        Bind::MustExist => Config::default(),
    };
    let mut config = push_config(inner, base, inner.nats.new_inbox(), queue, subject);
    config.name = Some(durable.to_owned());
    config.durable_name = Some(durable.to_owned());
    let manager = ConsumerManager::new(Arc::clone(inner));
    match manager.put(stream, durable, &config, "create").await {
        // Somebody was faster; theirs may do as well.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => inner.consumer_info(stream, durable).await,
        other => other,
    }
}

/// The settings of a new consumer: what is not set in `config` is the client's.
fn push_config(
    inner: &Inner,
    mut config: Config,
    deliver: String,
    queue: Option<&str>,
    subject: &str,
) -> Config {
    let settings = &inner.config.consumer;
    config.deliver_subject.get_or_insert(deliver);
    config.deliver_group = queue.map(ToOwned::to_owned);
    config.filter_subject = subject.to_owned();
    config.filter_subjects.clear();
    if config.ack_wait.is_zero() {
        config.ack_wait = settings.ack_wait;
    }
    if config.max_ack_pending == 0 {
        config.max_ack_pending = i64::try_from(inner.config.backpressure.max_ack_pending).unwrap_or(i64::MAX);
    }
    if queue.is_none() && !settings.idle_heartbeat.is_zero() {
        if config.idle_heartbeat.is_zero() {
            config.idle_heartbeat = settings.idle_heartbeat;
        }
        config.flow_control = settings.flow_control;
    }
    config
}

/// The stream that stores a subject.
async fn stream_of(inner: &Inner, subject: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct Names {
        streams: Option<Vec<String>>,
    }
    let what = format!("looking for the stream of {subject}");
    let names: Names = inner
        .api(&what, "STREAM.NAMES".to_owned(), &json!({"subject": subject}))
        .await?;
    let mut names = names.streams.unwrap_or_default();
    if names.len() > 1 {
        let what = format!("{what}: there are several, {}", names.join(", "));
        return Err(Error::new(ErrorKind::InvalidSubscription, what).with_details(names));
    }
    names
        .pop()
        .ok_or_else(|| Error::new(ErrorKind::StreamNotFound, what))
}

fn start(inner: &Arc<Inner>, plan: Plan<'_>, info: &Info, subscriber: Subscriber) -> Subscription {
    let options = plan.options;
    let shared = Arc::new(Shared {
        inner: Arc::clone(inner),
        stream: plan.stream.to_owned(),
        consumer: info.name.clone(),
        subject: plan.subject.to_owned(),
        kind: if plan.queue.is_some() {
            SubscriptionKind::Queue
        } else {
            SubscriptionKind::Push
        },
        ephemeral: plan.ephemeral,
        vitals: Arc::default(),
        pending_messages: AtomicUsize::new(options.pending.messages),
        pending_bytes: AtomicUsize::new(options.pending.bytes),
        stop: inner.intake.child_token(),
        stop_kind: AtomicU8::new(Stop::HandBack as u8),
        ended: watch::Sender::new(None),
        gone: CancellationToken::new(),
    });
    let on_drop = if info.config.ack_policy == AckPolicy::None {
        OnDrop::Settled
    } else {
        OnDrop::Return
    };
    let run = Run {
        subscriber,
        settler: Arc::new(Settler::new(inner.nats.clone(), on_drop)),
        over_limit: options.handling.retry.after(1),
        work: Dispatcher::new(
            inner,
            plan.handler,
            options.handling,
            info.config.ack_wait,
            &shared.vitals,
        ),
        heartbeat: info.config.idle_heartbeat,
        probe: options.probe,
        queue: Waiting::default(),
        shared: Arc::clone(&shared),
    };
    inner.workers.spawn(run.run());
    Subscription { shared }
}
