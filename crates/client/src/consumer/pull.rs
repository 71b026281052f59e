//! Pull consumers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dispatch::Dispatcher;
use super::pipeline::{OnUndecodable, RetryDelay, Rules};
use super::pool::WorkerPool;
use super::vitals::Vitals;
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{BoxHandler, Handler};
use crate::observe::Metrics;
use crate::ops::adaptive::{AdaptivePressure, Input};
use crate::ops::circuit::CircuitBreaker;
use crate::pull::{Batch, Options, PullError, PullErrorKind, Puller, Request, Target};

const BATCH: usize = 10;
const MAX_WAIT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct FetchOptions {
    max_wait: Duration,
    heartbeat: Option<Duration>,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            max_wait: MAX_WAIT,
            heartbeat: None,
        }
    }
}

impl FetchOptions {
    /// Waits at most this long. 5 s.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// Asks for heartbeats; see [`Request::heartbeat`]. None.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }
}

/// How to process.
#[derive(Debug, Clone)]
#[must_use]
pub struct ProcessOptions {
    batch: Option<usize>,
    max_wait: Duration,
    heartbeat: Option<Duration>,
    pub(super) concurrency: usize,
    pub(super) retry: RetryDelay,
    undecodable: OnUndecodable,
    confirm: Option<Duration>,
    progress: Option<u32>,
    pub(super) pressure: Option<Arc<AdaptivePressure>>,
    circuit: Option<Arc<CircuitBreaker>>,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        Self {
            batch: None,
            max_wait: MAX_WAIT,
            heartbeat: None,
            concurrency: 1,
            retry: RetryDelay::default(),
            undecodable: OnUndecodable::default(),
            confirm: None,
            progress: None,
            pressure: None,
            circuit: None,
        }
    }
}

impl ProcessOptions {
    /// Most messages fetched and not begun. 10, or what adaptive pressure says; given here, it wins.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = Some(messages);
        self
    }

    /// How long one request lasts. 5 s.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// Heartbeats of the requests; see [`Request::heartbeat`]. What the client's settings say.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// Handlers that run at a time. 1. On the client's worker pool, its size counts instead.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// How long a message stays away after a failure. 100 ms, doubling with each delivery, up to 30 s.
    pub fn retry_delay(mut self, delay: RetryDelay) -> Self {
        self.retry = delay;
        self
    }

    /// What becomes of messages that cannot be decoded. They are handed back.
    pub fn on_undecodable(mut self, what: OnUndecodable) -> Self {
        self.undecodable = what;
        self
    }

    /// Waits for the server to confirm each acknowledgement, at most this long. Off.
    pub fn confirm_acks(mut self, wait: Duration) -> Self {
        self.confirm = Some(wait);
        self
    }

    /// While a handler runs, tells the server so every half ack wait, at most so many times for one message. Off.
    pub fn extend_ack_wait(mut self, times: u32) -> Self {
        self.progress = Some(times);
        self
    }

    /// Lets adaptive pressure say how much to fetch.
    pub fn pressure(mut self, pressure: Arc<AdaptivePressure>) -> Self {
        self.pressure = Some(pressure);
        self
    }

    /// Stops fetching while this is open. Works on what adaptive pressure sees.
    pub fn circuit(mut self, circuit: Arc<CircuitBreaker>) -> Self {
        self.circuit = Some(circuit);
        self
    }

    /// What of this is about settling.
    pub(super) fn rules(&self, inner: &Inner, ack_wait: Duration, vitals: &Arc<Vitals>) -> Rules {
        let (meters, spans) = &inner.observed.consumer;
        Rules {
            retry: self.retry,
            undecodable: self.undecodable,
            confirm: self.confirm,
            progress: self.progress.map(|times| (ack_wait / 2, times)),
            expand: inner.config.consumer.decompression,
            vitals: Arc::clone(vitals),
            meters: meters.clone(),
            spans: *spans,
        }
    }
}

/// A pull consumer. Clones share it: they take turns, and a fetch waits for a running one.
#[derive(Debug, Clone)]
pub struct PullConsumer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<Inner>,
    target: Target,
    ack_wait: Duration,
    puller: Mutex<Option<Puller>>,
    stop: CancellationToken,
    vitals: Arc<Vitals>,
}

impl PullConsumer {
    pub(super) fn bind(inner: Arc<Inner>, target: Target, info: &consumer::Info) -> Result<Self> {
        if info.config.deliver_subject.is_some() {
            let what = format!("pulling from {target}, which is a push consumer");
            return Err(Error::new(ErrorKind::InvalidSubscription, what));
        }
        Ok(Self {
            shared: Arc::new(Shared {
                stop: inner.intake.child_token(),
                inner,
                target,
                ack_wait: info.config.ack_wait,
                puller: Mutex::new(None),
                vitals: Arc::default(),
            }),
        })
    }

    /// The consumer's names.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.shared.target
    }

    /// What can be seen of it without asking the server.
    #[must_use]
    pub fn vitals(&self) -> &Arc<Vitals> {
        &self.shared.vitals
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.inner.metrics
    }

    /// The server's word on it.
    ///
    /// # Errors
    /// When it is gone, or the server does not answer.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn info(&self) -> Result<consumer::Info> {
        let target = &self.shared.target;
        self.shared
            .inner
            .consumer_info(target.stream(), target.consumer())
            .await
    }

    /// Makes one request; see [`Puller::fetch`]. The deliveries are the caller's to settle.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSubscription`] after a stop, else [`ErrorKind::Pull`].
    ///
    /// # Cancel safety
    /// Nothing is lost: what had arrived comes with the next call.
    pub async fn fetch(&self, batch: usize, options: FetchOptions) -> Result<Batch> {
        let mut request = Request::batch(batch).expires(options.max_wait);
        if let Some(heartbeat) = options.heartbeat {
            request = request.heartbeat(heartbeat);
        }
        self.fetch_with(&request).await
    }

    /// Takes what is there now.
    ///
    /// # Errors
    /// As [`PullConsumer::fetch`].
    ///
    /// # Cancel safety
    /// As [`PullConsumer::fetch`].
    pub async fn fetch_no_wait(&self, batch: usize) -> Result<Batch> {
        self.fetch_with(&Request::batch(batch).no_wait()).await
    }

    async fn fetch_with(&self, request: &Request) -> Result<Batch> {
        let mut slot = self.shared.puller.lock().await;
        let puller = self.shared.puller(&mut slot).await?;
        let mut batch = puller
            .fetch(request)
            .await
            .map_err(|error| failed(&self.shared.target, error))?;
        if self.shared.inner.config.consumer.decompression {
            for delivery in &mut batch.deliveries {
                delivery.expand();
            }
        }
        Ok(batch)
    }

    /// Runs `handler` on the messages of this consumer until it is stopped, then finishes what is in hand.
    ///
    /// A lost connection, a missed heartbeat and the like are waited out with back-off.
    ///
    /// # Errors
    /// When going on makes no sense: the consumer or its stream is gone, or does not accept the request.
    ///
    /// # Cancel safety
    /// Dropped, running handlers are aborted and their messages handed back.
    pub async fn process(&self, handler: impl Handler, options: ProcessOptions) -> Result<()> {
        let mut slot = self.shared.puller.lock().await;
        self.shared.puller(&mut slot).await?;
        // Declared before the puller, and so dropped after it: the server learns that nobody listens before messages are
        // handed back, or it would send them right here again.
        let mut run = Run::new(&self.shared, BoxHandler::new(handler), options);
        let Some(mut puller) = slot.take() else {
            return Err(self.shared.closed());
        };
        let result = run.until_stopped(&mut puller).await;
        run.finish().await;
        puller
            .close(self.shared.inner.config.connection.drain_timeout())
            .await;
        result
    }

    /// Runs `handler` in a task of the client, which [`Client::close`](crate::Client::close) stops and waits for.
    pub fn start(&self, handler: impl Handler, options: ProcessOptions) -> Worker {
        let consumer = self.clone();
        let task = self
            .shared
            .inner
            .workers
            .spawn(async move { consumer.process(handler, options).await });
        Worker {
            consumer: self.clone(),
            task,
        }
    }

    /// Stops processing, and refuses what comes later. What was received and not begun is handed back by whoever is at
    /// work, or here. May be called any number of times.
    ///
    /// # Cancel safety
    /// Dropped early, it is stopped all the same.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        // A running `process` holds the lock until it has ended.
        if let Some(puller) = self.shared.puller.lock().await.take() {
            puller
                .close(self.shared.inner.config.connection.drain_timeout())
                .await;
        }
    }
}

impl Shared {
    async fn puller<'a>(&self, slot: &'a mut Option<Puller>) -> Result<&'a mut Puller> {
        if self.stop.is_cancelled() {
            return Err(self.closed());
        }
        if slot.is_none() {
            let puller = Puller::new(self.inner.nats.clone(), self.target.clone(), Options::default()).await;
            let mut puller = puller.map_err(|error| failed(&self.target, error))?;
            puller.measure(self.inner.observed.consumer.0.as_ref());
            *slot = Some(puller);
        }
        slot.as_mut().ok_or_else(|| self.closed())
    }

    fn closed(&self) -> Error {
        Error::new(
            ErrorKind::InvalidSubscription,
            format!("pulling from {}", self.target),
        )
    }
}

fn failed(target: &Target, error: PullError) -> Error {
    Error::new(ErrorKind::Pull, format!("pulling from {target}")).because(error)
}

/// A handler at work in a task of the client. Dropped, it works on until the client is closed.
#[derive(Debug)]
pub struct Worker {
    consumer: PullConsumer,
    task: JoinHandle<Result<()>>,
}

impl Worker {
    /// The consumer it works on.
    #[must_use]
    pub fn consumer(&self) -> &PullConsumer {
        &self.consumer
    }

    /// Whether it has ended, by itself or stopped.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops it, and waits until what was in hand is finished.
    ///
    /// # Errors
    /// As [`PullConsumer::process`].
    ///
    /// # Cancel safety
    /// Dropped early, it is stopped all the same.
    pub async fn stop(self) -> Result<()> {
        self.consumer.shared.stop.cancel();
        self.finished().await
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// As [`PullConsumer::process`].
    ///
    /// # Cancel safety
    /// Dropped early, it works on.
    pub async fn finished(self) -> Result<()> {
        self.task
            .await
            .unwrap_or_else(|error| Err(Error::new(ErrorKind::Handler, "running a worker").because(error)))
    }
}

/// One run of `process`.
struct Run<'a> {
    shared: &'a Shared,
    work: Dispatcher,
    backoff: Duration,
    unanswered: u32,
    /// Requests sent and time spent in handlers when last measured.
    measured: (u64, Duration),
    /// Usual handling time, a slow moving average in nanoseconds.
    baseline: u64,
}

impl<'a> Run<'a> {
    fn new(shared: &'a Shared, handler: BoxHandler, options: ProcessOptions) -> Self {
        Self {
            work: Dispatcher::new(&shared.inner, handler, options, shared.ack_wait, &shared.vitals),
            shared,
            backoff: BACKOFF_MIN,
            unanswered: 0,
            measured: (0, Duration::ZERO),
            baseline: 0,
        }
    }

    async fn until_stopped(&mut self, puller: &mut Puller) -> Result<()> {
        let stop = &self.shared.stop;
        while !stop.is_cancelled() {
            let Some(request) = self.plan().await else {
                continue;
            };
            // Room first: what is fetched is begun at once, or waits in the pool.
            self.work.room().await?;
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                next = puller.next(&request) => next,
            };
            match next {
                Ok(delivery) => {
                    self.backoff = BACKOFF_MIN;
                    self.unanswered = 0;
                    self.work.handle(delivery).await?;
                }
                Err(error) => self.wait_out(error).await?,
            }
            self.work.reap()?;
            self.measure(puller.requests());
        }
        Ok(())
    }

    /// Measures the time in handlers once for each request.
    fn measure(&mut self, requests: u64) {
        let Some(meters) = &self.shared.inner.observed.consumer.0 else {
            return;
        };
        let (last, busy) = self.measured;
        if requests != last {
            let now = self.shared.vitals.busy();
            meters
                .batch_process
                .record(now.saturating_sub(busy).as_secs_f64());
            self.measured = (requests, now);
        }
    }

    /// What to ask for now; `None` after a pause of the circuit.
    async fn plan(&mut self) -> Option<Request> {
        let (options, pool) = (self.work.options(), self.work.pool());
        let decision = options
            .pressure
            .as_ref()
            .filter(|pressure| pressure.is_enabled())
            .map(|pressure| {
                let latency = u64::try_from(self.shared.vitals.latency().as_nanos()).unwrap_or(u64::MAX);
                self.baseline = if self.baseline == 0 {
                    latency
                } else {
                    self.baseline - self.baseline / 256 + latency / 256
                };
                pressure.observe(Input {
                    pool_depth: pool.map_or(0, WorkerPool::depth),
                    pool_capacity: pool.map_or(0, WorkerPool::capacity),
                    handler_latency: Duration::from_nanos(latency),
                    baseline_latency: Duration::from_nanos(self.baseline),
                    pending: self.shared.vitals.pending(),
                    ..Input::default()
                })
            });
        if let (Some(circuit), Some(decision)) = (&options.circuit, decision)
            && circuit.should_pause_counting(decision, &self.shared.inner.metrics)
        {
            tokio::select! {
                () = self.shared.stop.cancelled() => {}
                () = tokio::time::sleep(circuit.pause_duration()) => {}
            }
            return None;
        }
        let batch = options
            .batch
            .or(decision.map(|decision| decision.fetch_batch))
            .unwrap_or(BATCH);
        let heartbeat = options
            .heartbeat
            .unwrap_or(self.shared.inner.config.consumer.idle_heartbeat);
        Some(
            Request::batch(batch)
                .expires(options.max_wait)
                .heartbeat(heartbeat),
        )
    }

    /// Waits out what passes, and ends with what does not.
    async fn wait_out(&mut self, error: PullError) -> Result<()> {
        if !error.is_retryable() {
            return Err(failed(&self.shared.target, error));
        }
        if error.kind() == PullErrorKind::NoResponders {
            self.unanswered += 1;
            if self.unanswered > 1 {
                self.look_up().await?;
            }
        } else {
            self.unanswered = 0;
        }
        if error.kind() == PullErrorKind::HeartbeatMissed {
            tracing::warn!(%error, "asking again");
        } else {
            tracing::debug!(%error, "asking again");
        }
        let pause = self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        tokio::select! {
            () = self.shared.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        Ok(())
    }

    /// Whether the consumer is still there, when nobody answers for it.
    async fn look_up(&self) -> Result<()> {
        let target = &self.shared.target;
        match self
            .shared
            .inner
            .consumer_info(target.stream(), target.consumer())
            .await
        {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConsumerNotFound | ErrorKind::StreamNotFound
                ) =>
            {
                Err(error)
            }
            // It is there, or nobody can say: go on asking.
            _ => Ok(()),
        }
    }

    /// Waits for the handlers that run.
    async fn finish(&mut self) {
        let begun = Instant::now();
        self.work.finish().await;
        tracing::debug!(target = %self.shared.target, waited = ?begun.elapsed(), "processing ended");
    }
}
