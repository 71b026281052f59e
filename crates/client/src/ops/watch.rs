//! What all watchers have in common: a task that looks at a consumer now and then, and a handle that owns it.
//!
//! Dropping the handle ends the task. Events go to the callback first, then to whoever listens; a listener that is more
//! than 16 behind misses the oldest.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::jetstream::consumer::Info;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::consumer::{PullConsumer, Subscription, Vitals};
use crate::error::Result;
use crate::observe::Metrics;

const EVENTS: usize = 16;

/// What a watcher wants to know from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probe {
    /// Messages waiting for the consumer.
    pub pending: u64,
    /// Deliveries that are not settled.
    pub ack_pending: u64,
    /// Most of them; 0 for any number.
    pub max_ack_pending: u64,
    /// The stream sequence delivered last.
    pub delivered: u64,
}

type Probing<'a> = Pin<Box<dyn Future<Output = Result<Probe>> + Send + 'a>>;

/// A consumer that can be watched.
pub trait Watched: Send + Sync + 'static {
    /// Asks the server.
    fn probe(&self) -> Probing<'_>;

    /// What can be seen without asking.
    fn vitals(&self) -> Arc<Vitals>;

    /// The names of stream and consumer.
    fn names(&self) -> (String, String);

    /// Where to count what a watcher sees. Nowhere.
    fn metrics(&self) -> Metrics {
        Metrics::default()
    }
}

impl Watched for PullConsumer {
    fn probe(&self) -> Probing<'_> {
        Box::pin(async move { Ok(Probe::of(&self.info().await?)) })
    }

    fn vitals(&self) -> Arc<Vitals> {
        Arc::clone(PullConsumer::vitals(self))
    }

    fn names(&self) -> (String, String) {
        (
            self.target().stream().to_owned(),
            self.target().consumer().to_owned(),
        )
    }

    fn metrics(&self) -> Metrics {
        PullConsumer::metrics(self).clone()
    }
}

impl Watched for Subscription {
    fn probe(&self) -> Probing<'_> {
        Box::pin(async move { Ok(Probe::of(&self.consumer_info().await?)) })
    }

    fn vitals(&self) -> Arc<Vitals> {
        Arc::clone(Subscription::vitals(self))
    }

    fn names(&self) -> (String, String) {
        let (stream, consumer) = Subscription::names(self);
        (stream.to_owned(), consumer.to_owned())
    }

    fn metrics(&self) -> Metrics {
        Subscription::metrics(self).clone()
    }
}

impl Probe {
    fn of(info: &Info) -> Self {
        Self {
            pending: info.num_pending,
            ack_pending: info.num_ack_pending as u64,
            max_ack_pending: u64::try_from(info.config.max_ack_pending).unwrap_or(0),
            delivered: info.delivered.stream_sequence,
        }
    }
}

/// A running watcher.
#[derive(Debug)]
pub struct Watch<E> {
    shared: Arc<Shared<E>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
pub(crate) struct Shared<E> {
    pub(crate) stop: CancellationToken,
    events: broadcast::Sender<E>,
    now: AtomicBool,
    ever: AtomicBool,
}

impl<E: Clone + Send + 'static> Watch<E> {
    /// Starts a watcher; must be called in a runtime.
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        run: impl FnOnce(Arc<Shared<E>>) -> F,
    ) -> Self {
        let shared = Arc::new(Shared {
            stop: CancellationToken::new(),
            events: broadcast::Sender::new(EVENTS),
            now: AtomicBool::new(false),
            ever: AtomicBool::new(false),
        });
        let (work, stop) = (run(Arc::clone(&shared)), shared.stop.clone());
        let task = tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
        Self { shared, task }
    }

    /// Events from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<E> {
        self.shared.events.subscribe()
    }

    /// Whether what it watches for is so now.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.shared.now.load(Ordering::Acquire)
    }

    /// Whether it ever was.
    #[must_use]
    pub fn was_raised(&self) -> bool {
        self.shared.ever.load(Ordering::Acquire)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it.
    ///
    /// # Cancel safety
    /// Dropped early, it ends all the same.
    pub async fn stop(mut self) {
        self.shared.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl<E> Drop for Watch<E> {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl<E: Clone> Shared<E> {
    pub(crate) fn tell(&self, event: E) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }

    pub(crate) fn raise(&self) {
        self.ever.store(true, Ordering::Release);
        self.now.store(true, Ordering::Release);
    }

    pub(crate) fn lower(&self) {
        self.now.store(false, Ordering::Release);
    }
}
