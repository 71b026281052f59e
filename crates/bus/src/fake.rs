//! A bus in memory for unit tests of code that uses [`Bus`]: no broker, no disk, no clock.
//!
//! It keeps the contract's rules: order, ids stored once, deliveries up to the consumer's maximum, dead letters, answers to
//! leases, cancels that were sent before anybody listened. It leaves out what only a broker has: pauses between deliveries
//! (they come at once), ages, limits, other processes. What was published can be looked at, and publishes can be made to fail.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use windjet_protocol::HeaderMap;
use windjet_protocol::jetstream::Timestamp;

use crate::client::{
    Asker, Bus, CancelHandler, ConsumeOptions, ConsumerKind, Consuming, Delivery, DiagHandler, Handler,
    LeaseCall, LeaseHandler, Outcome, Publication, Published, Subscription, To,
};
use crate::error::{BusError, ErrorKind};
use crate::link::{closed, no_responders, timed_out};
use crate::streams::{STREAM_CANCEL, STREAM_LOGS, STREAM_TASK, STREAM_WORKER};
use crate::subjects::{Layout, Subjects, WILDCARD_QUEUE, worker_diag_subject};
use crate::token::Token;

/// A bus in memory. Clones are the same bus, as the clients of one broker are.
#[derive(Clone)]
pub struct FakeBus {
    subjects: Subjects,
    worker: Option<Token>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Numbers given so far, by stream.
    last: HashMap<&'static str, u64>,
    ids: HashMap<(&'static str, String), u64>,
    waiting: VecDeque<Waiting>,
    /// Messages with a handler.
    handled_now: usize,
    published: Vec<FakeMessage>,
    dead: Vec<DeadLetter>,
    failures: VecDeque<ErrorKind>,
    running: Vec<Consuming>,
    leases: Option<LeaseHandler>,
    diagnostics: Vec<DiagHandler>,
    cancels: Vec<(Token, Consuming, CancelHandler)>,
}

struct Waiting {
    stream: &'static str,
    subject: String,
    payload: Bytes,
    seq: u64,
    deliveries: u64,
}

/// A message that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeMessage {
    /// Where to.
    pub to: To,
    /// The subject this made.
    pub subject: String,
    /// The bytes.
    pub payload: Bytes,
    /// The id, if it had one.
    pub id: Option<String>,
}

/// A message that nothing could handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The subject it was published on.
    pub subject: String,
    /// The bytes.
    pub payload: Bytes,
    /// Why.
    pub reason: String,
    /// How often it was delivered.
    pub deliveries: u64,
}

impl fmt::Debug for FakeBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBus")
            .field("layout", &self.subjects.layout())
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

impl Default for FakeBus {
    fn default() -> Self {
        Self::new(Layout::Plain)
    }
}

fn stream_of(to: &To) -> &'static str {
    match to {
        To::TaskStatus(_) => STREAM_TASK,
        To::TaskLogs(_) => STREAM_LOGS,
        To::TaskCancel(_) => STREAM_CANCEL,
        To::Register | To::Heartbeat | To::Deregister => STREAM_WORKER,
    }
}

impl FakeBus {
    /// An empty bus.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            subjects: Subjects::new(layout),
            worker: None,
            shared: Arc::default(),
        }
    }

    /// The same bus as a worker sees it.
    #[must_use]
    pub fn of_worker(&self, worker: Token) -> Self {
        Self {
            worker: Some(worker),
            ..self.clone()
        }
    }

    /// Everything published so far, duplicates left out.
    #[must_use]
    pub fn published(&self) -> Vec<FakeMessage> {
        self.shared.state.lock().published.clone()
    }

    /// What nothing could handle.
    #[must_use]
    pub fn dead(&self) -> Vec<DeadLetter> {
        self.shared.state.lock().dead.clone()
    }

    /// Makes the next publishes fail, one with each kind. [`ErrorKind::Unknown`] stores the message all the same.
    pub fn fail_publishes(&self, kinds: impl IntoIterator<Item = ErrorKind>) {
        self.shared.state.lock().failures.extend(kinds);
    }

    /// Waits until the consumers that run have handled what there is for them.
    pub async fn settled(&self, kind: ConsumerKind) {
        loop {
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.state.lock();
                if state.handled_now == 0 && !state.waiting.iter().any(|one| one.stream == kind.stream()) {
                    return;
                }
            }
            changed.await;
        }
    }

    fn open(&self, operation: &str) -> Result<parking_lot::MutexGuard<'_, State>, BusError> {
        let state = self.shared.state.lock();
        if state.closed {
            return Err(closed(operation, ""));
        }
        Ok(state)
    }

    /// Stores a message, or finds its duplicate.
    fn store(&self, state: &mut State, publication: Publication, subject: String) -> Published {
        let stream = stream_of(&publication.to);
        if let Some(id) = &publication.id
            && let Some(seq) = state.ids.get(&(stream, id.clone()))
        {
            return Published::new(stream, *seq, true);
        }
        let last = state.last.entry(stream).or_default();
        *last += 1;
        let seq = *last;
        if let Some(id) = &publication.id {
            state.ids.insert((stream, id.clone()), seq);
        }
        if stream != STREAM_CANCEL {
            state.waiting.push_back(Waiting {
                stream,
                subject: subject.clone(),
                payload: publication.payload.clone(),
                seq,
                deliveries: 0,
            });
        }
        state.published.push(FakeMessage {
            to: publication.to,
            subject,
            payload: publication.payload,
            id: publication.id,
        });
        Published::new(stream, seq, false)
    }

    async fn run(self, kind: ConsumerKind, max: u64, handler: Arc<dyn Handler>, consuming: Consuming) {
        while !consuming.stop.is_cancelled() {
            let changed = self.shared.changed.notified();
            let next = {
                let mut state = self.shared.state.lock();
                let place = state.waiting.iter().position(|one| one.stream == kind.stream());
                let next = place.and_then(|place| state.waiting.remove(place));
                state.handled_now += usize::from(next.is_some());
                next
            };
            let Some(mut message) = next else {
                tokio::select! {
                    () = changed => {}
                    () = consuming.stop.cancelled() => {}
                }
                continue;
            };
            message.deliveries += 1;
            let delivery = Arc::new(Delivery {
                subject: message.subject.clone(),
                payload: message.payload.clone(),
                headers: HeaderMap::default(),
                stream: message.stream.to_owned(),
                seq: message.seq,
                deliveries: message.deliveries,
                stored_at: Timestamp::from(SystemTime::now()),
            });
            let outcome = AssertUnwindSafe(handler.handle(delivery)).catch_unwind().await;
            self.settle(
                message,
                outcome.unwrap_or_else(|_| Outcome::nak("the handler panicked")),
                max,
            );
        }
    }

    fn settle(&self, message: Waiting, outcome: Outcome, max: u64) {
        {
            let mut state = self.shared.state.lock();
            state.handled_now -= 1;
            let reason = match outcome {
                Outcome::Ack => None,
                Outcome::Nak { reason, .. } if message.deliveries >= max => Some(reason),
                Outcome::Nak { .. } => {
                    let place = state
                        .waiting
                        .iter()
                        .position(|one| one.stream == message.stream && one.seq > message.seq);
                    let place = place.unwrap_or(state.waiting.len());
                    state.waiting.insert(place, message);
                    self.shared.changed.notify_waiters();
                    return;
                }
                Outcome::Term { reason } => Some(reason),
            };
            if let Some(reason) = reason {
                state.dead.push(DeadLetter {
                    subject: message.subject,
                    payload: message.payload,
                    reason,
                    deliveries: message.deliveries,
                });
            }
        }
        self.shared.changed.notify_waiters();
    }
}

#[async_trait]
impl Bus for FakeBus {
    fn layout(&self) -> Layout {
        self.subjects.layout()
    }

    async fn publish(&self, publication: Publication) -> crate::Result<Published> {
        let worker = publication.worker.as_ref().or(self.worker.as_ref());
        let subject = crate::client::subject_of(self.subjects, &publication.to, worker)?;
        let (published, hearers) = {
            let mut state = self.open("publish")?;
            let failure = state.failures.pop_front();
            if let Some(kind) = failure.clone().filter(|kind| *kind != ErrorKind::Unknown) {
                return Err(BusError::new(kind, format!("publish {subject:?}: told to fail")));
            }
            let (to, payload) = (publication.to.clone(), publication.payload.clone());
            let published = self.store(&mut state, publication, subject.clone());
            if failure.is_some() {
                drop(state);
                self.shared.changed.notify_waiters();
                return Err(BusError::new(
                    ErrorKind::Unknown,
                    format!("publish {subject:?}: told to fail"),
                ));
            }
            let mut hearers = Vec::new();
            if let To::TaskCancel(task) = &to {
                let current = state
                    .cancels
                    .iter()
                    .filter(|(of, running, _)| of == task && !running.stop.is_cancelled());
                hearers.extend(current.map(|(_, _, handler)| (handler.clone(), payload.clone())));
            }
            (published, hearers)
        };
        self.shared.changed.notify_waiters();
        for (handler, payload) in hearers {
            handler(payload);
        }
        Ok(published)
    }

    async fn consume(
        &self,
        kind: ConsumerKind,
        options: ConsumeOptions,
        handler: Arc<dyn Handler>,
    ) -> crate::Result<Consuming> {
        let consuming = Consuming::new();
        let max = u64::from(options.max_deliver(kind));
        self.open("consume")?.running.push(consuming.clone());
        let (abort, task) = (
            consuming.abort.clone(),
            self.clone().run(kind, max, handler, consuming.clone()),
        );
        consuming.tasks.spawn(async move {
            abort.run_until_cancelled(task).await;
        });
        consuming.tasks.close();
        Ok(consuming)
    }

    async fn request_lease(&self, queue: &str, data: Bytes, limit: Duration) -> crate::Result<Bytes> {
        let queue = match queue {
            WILDCARD_QUEUE => Token::new(queue)?,
            _ => Token::queue(queue)?,
        };
        let subject = format!("work.lease.{queue}");
        let handler = self
            .open("request")?
            .leases
            .clone()
            .ok_or_else(|| no_responders(&subject))?;
        let call = LeaseCall {
            worker: self.worker.clone(),
            queue: queue.to_string(),
            data,
            asker: Asker::new(|| true),
            stopping: tokio_util::sync::CancellationToken::new(),
        };
        let answer = tokio::time::timeout(limit, handler(call)).await;
        answer.map_err(|_| timed_out("request", &subject, limit))
    }

    async fn subscribe_lease(&self, handler: LeaseHandler) -> crate::Result<Subscription> {
        self.open("subscribe")?.leases = Some(handler);
        let shared = self.shared.clone();
        let running = Consuming::new();
        let stop = running.stop.clone();
        running.tasks.spawn(async move {
            stop.cancelled().await;
            shared.state.lock().leases = None;
        });
        running.tasks.close();
        Ok(Subscription::of(running))
    }

    async fn publish_worker_diag(&self, worker: &Token, data: Bytes) -> crate::Result<()> {
        let handlers = self.open("publish")?.diagnostics.clone();
        let subject = worker_diag_subject(worker);
        for handler in handlers {
            handler(&subject, data.clone());
        }
        Ok(())
    }

    async fn subscribe_worker_diag(&self, handler: DiagHandler) -> crate::Result<Subscription> {
        self.open("subscribe")?.diagnostics.push(handler.clone());
        let shared = self.shared.clone();
        let running = Consuming::new();
        let stop = running.stop.clone();
        running.tasks.spawn(async move {
            stop.cancelled().await;
            shared
                .state
                .lock()
                .diagnostics
                .retain(|one| !Arc::ptr_eq(one, &handler));
        });
        running.tasks.close();
        Ok(Subscription::of(running))
    }

    async fn subscribe_task_cancel(
        &self,
        task: &Token,
        handler: CancelHandler,
    ) -> crate::Result<Subscription> {
        let running = Consuming::new();
        let early = {
            let mut state = self.open("subscribe")?;
            state
                .cancels
                .push((task.clone(), running.clone(), handler.clone()));
            let to = To::TaskCancel(task.clone());
            state
                .published
                .iter()
                .rev()
                .find(|one| one.to == to)
                .map(|one| one.payload.clone())
        };
        if let Some(payload) = early {
            handler(payload);
        }
        running.tasks.close();
        Ok(Subscription::of(running))
    }

    async fn drain(&self, limit: Duration) -> crate::Result<()> {
        let running = std::mem::take(&mut self.shared.state.lock().running);
        for consumer in &running {
            consumer.stop.cancel();
        }
        let ended = tokio::time::timeout(limit, async {
            for consumer in &running {
                consumer.tasks.wait().await;
            }
        });
        let late = ended.await.is_err();
        for consumer in &running {
            consumer.abort.cancel();
        }
        self.shared.state.lock().closed = true;
        if late {
            let text = format!("drain: it took longer than {limit:?}");
            return Err(BusError::new(ErrorKind::Timeout { limit }, text));
        }
        Ok(())
    }

    async fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for consumer in std::mem::take(&mut state.running) {
            consumer.stop.cancel();
            consumer.abort.cancel();
        }
    }
}
