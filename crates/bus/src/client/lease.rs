//! Requests for work: a core request that may wait long for its answer.
//!
//! Whoever serves runs one task for each request, so a long wait holds up nobody. All servers of one bus share a queue group,
//! so that one answers. A request without a reply, of another layout, or over the limit on waiting requests is never handed to
//! the handler: work must not be given to nobody.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::consume::Consuming;
use super::counters::Counters;
use super::{Client, Subscription};
use crate::error::{BusError, ErrorKind};
use crate::link::{Incoming, Link};
use crate::message::{LeaseReply, encode};
use crate::subjects::{Class, Subjects, WILDCARD_QUEUE};
use crate::token::Token;

/// The queue group of those that serve leases.
const GROUP: &str = "sqi-lease";
/// Requests that wait at the same time.
const WAITING_MAX: usize = 8192;
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// A request for work.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LeaseCall {
    /// Who asks, in the identity layout.
    pub worker: Option<Token>,
    /// The queue, or `_any`.
    pub queue: String,
    /// The request's bytes.
    pub data: Bytes,
    /// Whether the asker is still there.
    pub asker: Asker,
    /// Cancelled when the server stops; a handler that waits answers then with nothing.
    pub stopping: CancellationToken,
}

/// Tells whether a request's asker still waits for the answer.
#[derive(Clone)]
pub struct Asker(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Asker").field(&self.is_there()).finish()
    }
}

impl Asker {
    pub(crate) fn new(there: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(there))
    }

    /// Whether the asker waits for the answer. Known in the broker's process; a client over TCP says yes. Ask before work is
    /// given out, so that none goes to nobody.
    #[must_use]
    pub fn is_there(&self) -> bool {
        (self.0)()
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What answers requests for work. It may wait as long as it likes; other requests are not held up.
pub type LeaseHandler = Arc<dyn Fn(LeaseCall) -> BoxFuture<Bytes> + Send + Sync>;

/// Makes a [`LeaseHandler`] of an async closure.
pub fn lease_handler<F, R>(handler: F) -> LeaseHandler
where
    F: Fn(LeaseCall) -> R + Send + Sync + 'static,
    R: Future<Output = Bytes> + Send + 'static,
{
    Arc::new(move |call| Box::pin(handler(call)))
}

/// The answer that means: nothing, because of this; ask again no sooner than after `retry_after`.
#[must_use]
pub fn refusal(reason: &str, retry_after: Duration) -> Bytes {
    let reply = LeaseReply {
        retry_after_ms: i64::try_from(retry_after.as_millis()).unwrap_or(i64::MAX),
        reason: reason.to_owned(),
        ..LeaseReply::default()
    };
    // A reply of plain fields can always be written; an empty body would only be asked again.
    encode(&reply).unwrap_or_default()
}

impl Client {
    pub(super) async fn ask_for_work(
        &self,
        queue: &str,
        data: Bytes,
        limit: Duration,
    ) -> Result<Bytes, BusError> {
        let queue = match queue {
            WILDCARD_QUEUE => Token::new(queue)?,
            _ => Token::queue(queue)?,
        };
        let subject = self
            .subjects
            .build(Class::WorkLease, self.worker.as_ref(), Some(&queue))
            .ok_or_else(|| {
                BusError::new(
                    ErrorKind::BadToken,
                    "request a lease: the identity layout needs a worker; connect with one",
                )
            })?;
        let answer = self.link.ask(&subject, data, limit).await?;
        Ok(answer.payload)
    }

    pub(super) async fn serve(&self, handler: LeaseHandler) -> Result<Subscription, BusError> {
        let mut feed = self
            .link
            .subscribe(self.subjects.all_leases(), Some(GROUP))
            .await?;
        if let Err(error) = self.link.settle(SETTLE_LIMIT).await {
            feed.finish().await;
            return Err(error);
        }
        let running = Consuming::new();
        let desk = Arc::new(Desk {
            subjects: self.subjects,
            link: self.link.clone(),
            counters: self.counters.clone(),
            handler,
            waiting: AtomicUsize::new(0),
            running: running.clone(),
        });
        let (stop, abort) = (running.stop.clone(), running.abort.clone());
        running.tasks.spawn(async move {
            let serving = async {
                loop {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => break,
                        message = feed.next() => match message {
                            Some(message) => desk.accept(message).await,
                            None => break,
                        },
                    }
                }
                feed.finish().await;
                while let Ok(Some(message)) =
                    tokio::time::timeout(Duration::from_millis(20), feed.next()).await
                {
                    desk.accept(message).await;
                }
            };
            abort.run_until_cancelled(serving).await;
        });
        running.tasks.close();
        Ok(Subscription(running))
    }
}

struct Desk {
    subjects: Subjects,
    link: Arc<dyn Link>,
    counters: Arc<Counters>,
    handler: LeaseHandler,
    waiting: AtomicUsize,
    running: Consuming,
}

impl Desk {
    async fn accept(self: &Arc<Self>, message: Incoming) {
        let parsed = self.subjects.parse(&message.subject);
        let (Some(reply), Some(parsed)) = (message.reply, parsed) else {
            Counters::add(&self.counters.leases_dropped);
            tracing::debug!(
                subject = message.subject,
                "a lease request without a reply, or of another layout"
            );
            return;
        };
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            Counters::add(&self.counters.leases_dropped);
            self.answer(&reply, refusal("too many requests wait", Duration::from_secs(5)))
                .await;
            return;
        }
        let (link, subject) = (self.link.clone(), reply.clone());
        let call = LeaseCall {
            worker: parsed.worker,
            queue: parsed.leaf.map(|leaf| leaf.to_string()).unwrap_or_default(),
            data: message.payload,
            asker: Asker::new(move || link.has_listener(&subject).unwrap_or(true)),
            stopping: self.running.stop.clone(),
        };
        let desk = self.clone();
        let abort = self.running.abort.clone();
        self.running.tasks.spawn(async move {
            abort.run_until_cancelled(desk.handle(call, &reply)).await;
            desk.waiting.fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn handle(&self, call: LeaseCall, reply: &str) {
        let queue = call.queue.clone();
        let handled = AssertUnwindSafe(async { (self.handler)(call).await })
            .catch_unwind()
            .await;
        let mut answer = handled.unwrap_or_else(|_| {
            Counters::add(&self.counters.panicked);
            tracing::error!(queue, "the handler of a lease request panicked");
            refusal("the server failed", Duration::from_secs(1))
        });
        let limit = self.link.max_payload();
        if limit > 0 && answer.len() > limit {
            tracing::error!(
                queue,
                bytes = answer.len(),
                limit,
                "a lease reply is too large to be sent"
            );
            answer = refusal("the reply was too large", Duration::from_secs(1));
        }
        Counters::add(&self.counters.leases);
        self.answer(reply, answer).await;
    }

    /// A reply that does not leave is asked for again.
    async fn answer(&self, reply: &str, answer: Bytes) {
        if let Err(error) = self.link.publish(reply, None, None, answer).await {
            tracing::warn!(%error, "the reply to a lease request did not leave");
        }
    }
}
