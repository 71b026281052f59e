//! Supervised push subscriptions: when one becomes invalid, another takes its place.
//!
//! The task of a [`SupervisedSubscription`] waits for the current subscription to end. When nobody wanted that, it waits,
//! subscribes anew, and tries again when that fails; after [`Supervisor::max_retries`] tries in a row it gives up. A
//! subscription that lived as long as the longest back-off was a healthy one, and tries begin anew.

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};

use async_nats::jetstream::consumer::Info;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::supervise::{Event, EventKind, Supervisor};
use crate::consumer::{Subscription, SubscriptionKind};
use crate::error::{Error, ErrorKind, Result};

/// How many events may wait for a listener.
const EVENTS: usize = 16;

/// A push subscription that is made anew when it ends by itself. Dropped, it goes on until its client is closed.
#[derive(Debug)]
pub struct SupervisedSubscription {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    current: RwLock<Option<Subscription>>,
    events: broadcast::Sender<Event>,
    stop: CancellationToken,
}

impl Shared {
    fn current(&self) -> Option<Subscription> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn put(&self, subscription: Option<Subscription>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = subscription;
    }
}

impl Supervisor {
    /// Subscribes, and again whenever the subscription ends without having been asked to.
    ///
    /// # Errors
    /// That of the first call of `subscribe`.
    ///
    /// # Cancel safety
    /// As the first call of `subscribe`.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn subscribe<F, Fut>(self, mut subscribe: F) -> Result<SupervisedSubscription>
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Subscription>> + Send,
    {
        let first = subscribe().await?;
        let shared = Arc::new(Shared {
            current: RwLock::new(Some(first.clone())),
            events: broadcast::Sender::new(EVENTS),
            stop: CancellationToken::new(),
        });
        let watching = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            tokio::select! {
                () = watching.stop.cancelled() => {}
                () = self.keep(&watching, first, subscribe) => {}
            }
            // Whatever was current when it ended, one that was being made included: a dropped `subscribe` leaves none.
            if let Some(last) = watching.current() {
                last.unsubscribe().await;
            }
            watching.put(None);
        });
        Ok(SupervisedSubscription { shared, task })
    }

    async fn keep<F, Fut>(&self, shared: &Shared, first: Subscription, mut subscribe: F)
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<Subscription>> + Send,
    {
        let (mut attempt, mut backoff) = (0, self.initial_backoff);
        let mut current = first;
        loop {
            let begun = Instant::now();
            let reason = current.invalidated().await;
            if !reason.is_trouble() {
                return;
            }
            if begun.elapsed() >= self.max_backoff {
                (attempt, backoff) = (0, self.initial_backoff);
            }
            let mut why = format!("{reason:?}");
            self.say(shared, EventKind::Invalid, attempt, &why);
            current = loop {
                if self.max_retries.is_some_and(|most| attempt >= most) {
                    self.say(shared, EventKind::GiveUp, attempt, &why);
                    return;
                }
                attempt += 1;
                Self::pause(backoff).await;
                match subscribe().await {
                    Ok(subscription) => break subscription,
                    Err(error) if error.kind() == ErrorKind::Closed => return,
                    Err(error) => {
                        tracing::warn!(%error, attempt, "subscribing again failed");
                        why = error.to_string();
                        backoff = (backoff * 2).min(self.max_backoff);
                    }
                }
            };
            shared.put(Some(current.clone()));
            self.say(shared, EventKind::Resubscribed, attempt, &why);
            backoff = self.initial_backoff;
        }
    }

    fn say(&self, shared: &Shared, kind: EventKind, attempt: u32, error: &str) {
        let event = Event {
            kind,
            attempt,
            error: error.to_owned(),
        };
        self.tell_event(&event);
        // Nobody may be listening.
        let _ = shared.events.send(event);
    }
}

impl SupervisedSubscription {
    /// Events from now on; a listener that is more than 16 behind misses the oldest.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }

    /// The subscription in force; `None` after the end.
    #[must_use]
    pub fn current(&self) -> Option<Subscription> {
        self.shared.current()
    }

    /// Whether messages can be expected now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.current().is_some_and(|current| current.is_valid())
    }

    /// The subject; empty after the end.
    #[must_use]
    pub fn subject(&self) -> String {
        self.current()
            .map(|current| current.subject().to_owned())
            .unwrap_or_default()
    }

    /// What it is bound to; `None` after the end.
    #[must_use]
    pub fn kind(&self) -> Option<SubscriptionKind> {
        self.current().map(|current| current.kind())
    }

    /// As [`Subscription::set_pending_limits`], for the subscription in force; one made later has its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSubscription`] when there is none.
    pub fn set_pending_limits(&self, messages: usize, bytes: usize) -> Result<()> {
        self.valid()?.set_pending_limits(messages, bytes)
    }

    /// The server's word on the consumer.
    ///
    /// # Errors
    /// As [`Subscription::consumer_info`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn consumer_info(&self) -> Result<Info> {
        self.valid()?.consumer_info().await
    }

    /// Whether it has ended: stopped, given up, or its client closed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends supervision and the subscription; what has not begun is handed back. May be called again.
    ///
    /// # Cancel safety
    /// Dropped early, it ends all the same.
    pub async fn stop(&mut self) {
        self.shared.stop.cancel();
        if !self.task.is_finished() {
            let _ = (&mut self.task).await;
        }
    }

    fn valid(&self) -> Result<Subscription> {
        self.current()
            .ok_or_else(|| Error::new(ErrorKind::InvalidSubscription, "using a supervised subscription"))
    }
}
