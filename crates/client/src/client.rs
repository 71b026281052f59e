//! The client: one connection, and everything on it.
//!
//! [`Client::connect`] checks the settings, connects, and starts the few tasks that every client has: one that hands out
//! answers, one that calls the application's hook if there is one, one for health checks if they are on. All are counted;
//! [`Client::close`] ends them and says what was flushed and what was not. Dropping the last clone ends them too, without
//! waiting for anything. Consumers and responders that were started hold the client: they go on until they are stopped or
//! the client is closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::response::Response;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{ConsumerManager, KeyValueKeys, KeyValueManager, ObjectManager, StreamManager};
use crate::config::Config;
use crate::connector::status::Board;
use crate::connector::{self, Connector};
use crate::consumer::Consumers;
use crate::consumer::pool::WorkerPool;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{self, Meters, Metrics, Spans};
use crate::ops::incidents::Incidents;
use crate::ops::replay::Replay;
use crate::publisher::{Publisher, Tracker};
use crate::replies::Replies;
use crate::rpc::{Requester, Responder};

/// A client of a NATS server with JetStream. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// What all clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) nats: async_nats::Client,
    pub(crate) js: jetstream::Context,
    pub(crate) board: Arc<Board>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) tracker: Arc<Tracker>,
    /// Tasks of consumers; they end when `intake` is cancelled and their handlers have.
    pub(crate) workers: TaskTracker,
    /// Tasks of the client itself; they end when `scope` is cancelled.
    pub(crate) tasks: TaskTracker,
    pub(crate) intake: CancellationToken,
    pub(crate) scope: CancellationToken,
    pub(crate) metrics: Metrics,
    pub(crate) observed: Observed,
    closed: AtomicBool,
    pool: OnceLock<WorkerPool>,
}

/// What each component measures, and which spans it makes.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) publisher: (Option<Arc<Meters>>, Spans),
    pub(crate) requester: (Option<Arc<Meters>>, Spans),
    pub(crate) responder: (Option<Arc<Meters>>, Spans),
    pub(crate) consumer: (Option<Arc<Meters>>, Spans),
}

impl Observed {
    fn new(config: &Config, metrics: &Metrics) -> Self {
        let component = |measured, traced| {
            let spans = Spans::new(
                config.metrics.allow_tracing && traced,
                config.metrics.semantic_names,
            );
            (metrics.when(measured), spans)
        };
        let (publisher, requester) = (&config.publisher, &config.requester);
        let (responder, consumer) = (&config.responder, &config.consumer);
        Self {
            publisher: component(publisher.allow_metrics, publisher.allow_tracing),
            requester: component(requester.allow_metrics, requester.allow_tracing),
            responder: component(responder.allow_metrics, responder.allow_tracing),
            consumer: component(consumer.allow_metrics, consumer.allow_tracing),
        }
    }
}

/// A connection as [`connector::dial`] makes it.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) nats: async_nats::Client,
    pub(crate) board: Arc<Board>,
}

/// What [`Client::close`] found and did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CloseReport {
    /// The client had been closed before; nothing was done.
    pub already_closed: bool,
    /// All consumers ended in time, with their handlers.
    pub consumers_ended: bool,
    /// Asynchronous publishes whose answer had not come when the time was up.
    pub publishes_unanswered: usize,
    /// The first failed asynchronous publish that nobody had been told of.
    pub publish_failure: Option<Error>,
    /// The connection had drained when the time was up: everything handed to it was written.
    pub drained: bool,
}

impl CloseReport {
    /// Whether everything was flushed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.already_closed
            || (self.consumers_ended
                && self.drained
                && self.publishes_unanswered == 0
                && self.publish_failure.is_none())
    }
}

impl Client {
    /// Connects as the settings say.
    ///
    /// # Errors
    /// When a setting cannot be used, before anything is sent; when no connection could be made, unless it is made in the
    /// background.
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn connect(config: Config) -> Result<Self> {
        config.validate()?;
        if config.connection.tls.insecure_skip_verify {
            tracing::warn!("certificates are not verified; only for development");
        }
        let (sender, calls) = connector::hook(&config.connection);
        let metrics = Metrics::new(&config);
        if let Some(meters) = metrics.get() {
            meters.state(false);
        }
        let reach = connector::dial(&config.connection, sender, &metrics).await?;
        let client = Self::build(reach, config, metrics).await?;
        if let Some(calls) = calls {
            client.inner.spawn(calls);
        }
        Ok(client)
    }

    /// Builds the kit on a connection that was made elsewhere. The connection's own settings in `config` are not used,
    /// except the domain and the drain timeout; of its events, only what can be seen from outside is known.
    ///
    /// # Errors
    /// When the connection is closed.
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn from_connection(nats: async_nats::Client, config: Config) -> Result<Self> {
        let metrics = Metrics::new(&config);
        let board = Arc::new(Board::new(None, false, metrics.clone()));
        if let Some(meters) = metrics.get() {
            meters.state(nats.connection_state() == State::Connected);
        }
        Self::build(Reach { nats, board }, config, metrics).await
    }

    async fn build(reach: Reach, config: Config, metrics: Metrics) -> Result<Self> {
        let Reach { nats, board } = reach;
        let domain = &config.connection.domain;
        let js = if domain.is_empty() {
            jetstream::new(nats.clone())
        } else {
            jetstream::with_domain(nats.clone(), domain)
        };
        let (replies, subscriber) = Replies::open(&nats)
            .await
            .map_err(|error| Error::new(ErrorKind::Closed, "subscribing an inbox").because(error))?;
        let observed = Observed::new(&config, &metrics);
        let inner = Arc::new(Inner {
            tracker: Tracker::new(config.publisher.max_async_pending, observed.publisher.0.clone()),
            replies: Arc::clone(&replies),
            workers: TaskTracker::new(),
            tasks: TaskTracker::new(),
            intake: CancellationToken::new(),
            scope: CancellationToken::new(),
            closed: AtomicBool::new(false),
            pool: OnceLock::new(),
            observed,
            metrics,
            config,
            nats,
            js,
            board,
        });
        inner.spawn(replies.serve(subscriber));
        let client = Self { inner };
        client.watch_health();
        if let Some(meters) = client.inner.metrics.get() {
            let weak = Arc::downgrade(&client.inner);
            client.inner.spawn(observe::collect(weak, Arc::clone(meters)));
        }
        Ok(client)
    }

    /// The official client underneath.
    #[must_use]
    pub fn inner(&self) -> &async_nats::Client {
        &self.inner.nats
    }

    /// The official client's JetStream context, in the configured domain.
    #[must_use]
    pub fn jetstream(&self) -> &jetstream::Context {
        &self.inner.js
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The measurements, for what counts beside the client.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The connection.
    #[must_use]
    pub fn connector(&self) -> Connector {
        Connector::new(Arc::clone(&self.inner))
    }

    /// Publishing into streams.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        Publisher::new(Arc::clone(&self.inner))
    }

    /// Consumers of streams.
    #[must_use]
    pub fn consumer(&self) -> Consumers {
        Consumers::new(Arc::clone(&self.inner))
    }

    /// Requests.
    #[must_use]
    pub fn requester(&self) -> Requester {
        Requester::new(Arc::clone(&self.inner))
    }

    /// Replies.
    #[must_use]
    pub fn responder(&self) -> Responder {
        Responder::new(Arc::clone(&self.inner))
    }

    /// Streams.
    #[must_use]
    pub fn streams(&self) -> StreamManager {
        StreamManager::new(Arc::clone(&self.inner))
    }

    /// Consumers, to manage; [`Client::consumer`] runs them.
    #[must_use]
    pub fn consumers(&self) -> ConsumerManager {
        ConsumerManager::new(Arc::clone(&self.inner))
    }

    /// Key-value buckets.
    #[must_use]
    pub fn kv(&self) -> KeyValueManager {
        KeyValueManager::new(Arc::clone(&self.inner))
    }

    /// Keys of key-value buckets.
    #[must_use]
    pub fn kv_keys(&self) -> KeyValueKeys {
        KeyValueKeys::new(Arc::clone(&self.inner))
    }

    /// Object buckets and objects.
    #[must_use]
    pub fn objects(&self) -> ObjectManager {
        ObjectManager::new(Arc::clone(&self.inner))
    }

    /// Replays and ranges of messages.
    #[must_use]
    pub fn replay(&self) -> Replay {
        Replay::new(Arc::clone(&self.inner))
    }

    /// Incident capsules.
    #[must_use]
    pub fn incidents(&self) -> Incidents {
        Incidents::new(Arc::clone(&self.inner))
    }

    /// Monitoring pages, with the connection's time limit and certificates.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidTls`] when the TLS settings cannot be used.
    #[cfg(feature = "monitoring")]
    pub fn monitoring(&self) -> Result<crate::monitoring::Monitoring> {
        let connection = &self.inner.config.connection;
        crate::monitoring::Monitoring::new(connection.connect_timeout, &connection.tls)
    }

    /// Closes the client, within twice the configured drain timeout: consumers stop pulling and finish what their
    /// handlers have in hand, what they hold is handed back, asynchronous publishes get their answers, the connection
    /// drains. Calling it again does nothing.
    ///
    /// # Cancel safety
    /// Dropped early, the rest is not waited for.
    pub async fn close(&self) -> CloseReport {
        let inner = &self.inner;
        if inner.closed.swap(true, Ordering::AcqRel) {
            return CloseReport {
                already_closed: true,
                ..CloseReport::default()
            };
        }
        let mut report = CloseReport::default();
        let limit = inner.config.connection.drain_timeout();
        let deadline = Instant::now() + limit;
        inner.intake.cancel();
        inner.workers.close();
        let work = async {
            inner.workers.wait().await;
            if let Some(pool) = inner.pool.get() {
                pool.stop().await;
            }
        };
        report.consumers_ended = tokio::time::timeout_at(deadline, work).await.is_ok();
        // Acknowledgements first: nothing can be published once the connection drains.
        let _ = tokio::time::timeout_at(deadline, inner.nats.flush()).await;
        match tokio::time::timeout_at(deadline, inner.tracker.complete()).await {
            Ok(done) => report.publish_failure = done.err(),
            Err(_) => {
                report.publishes_unanswered = inner.tracker.pending();
                report.publish_failure = inner.tracker.take_failure();
            }
        }
        inner.scope.cancel();
        report.drained = drain(&inner.nats, limit).await;
        if !report.drained {
            tracing::warn!("the connection did not drain in time and was abandoned");
        }
        inner.board.close();
        inner.tasks.close();
        let _ = tokio::time::timeout_at(
            deadline.max(Instant::now() + Duration::from_millis(100)),
            inner.tasks.wait(),
        )
        .await;
        report
    }

    fn watch_health(&self) {
        let every = self.inner.config.connection.health_check_interval;
        if every.is_zero() {
            return;
        }
        let weak = Arc::downgrade(&self.inner);
        self.inner.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(inner) = weak.upgrade() else { return };
                if let Err(error) = Connector::new(inner).health_check().await {
                    tracing::warn!(%error, "health check failed");
                }
            }
        });
    }
}

impl Inner {
    pub(crate) fn is_connected(&self) -> bool {
        !self.is_closed() && self.nats.connection_state() == State::Connected
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.board.is_closed()
    }

    /// Refuses to send when the client is closed, or is not connected and may not queue.
    pub(crate) fn guard(&self, subject: &str) -> Result<()> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, format!("publishing to {subject}")));
        }
        if self.config.connection.refuse_while_disconnected && !self.is_connected() {
            return Err(Error::new(
                ErrorKind::NotConnected,
                format!("publishing to {subject}"),
            ));
        }
        Ok(())
    }

    /// The pool that all consumers of this client share, made at its first use.
    pub(crate) fn pool(&self) -> WorkerPool {
        let config = &self.config.consumer;
        self.pool
            .get_or_init(|| WorkerPool::new(config.worker_pool_size, config.worker_buffer_size))
            .clone()
    }

    /// What waits for the pool, once there is one.
    pub(crate) fn pool_depth(&self) -> Option<usize> {
        self.pool.get().map(WorkerPool::depth)
    }

    /// Waits until the server has taken in what was sent so far, subscriptions among it; gives the time it took.
    pub(crate) async fn round_trip(&self, wait: Duration) -> Option<Duration> {
        let begun = Instant::now();
        let (to_self, mut ticket) = self.replies.ticket();
        self.nats.publish(to_self, bytes::Bytes::new()).await.ok()?;
        ticket.answer(begun + wait).await.ok()??;
        Some(begun.elapsed())
    }

    /// Asks JetStream's API; `subject` without its prefix.
    pub(crate) async fn api<Q, R>(&self, what: &str, subject: String, question: &Q) -> Result<R>
    where
        Q: serde::Serialize + ?Sized,
        R: serde::de::DeserializeOwned,
    {
        use jetstream::context::RequestErrorKind as Theirs;
        let answer: std::result::Result<Response<R>, _> = self.js.request(subject, &question).await;
        match answer {
            Ok(Response::Ok(answer)) => Ok(answer),
            Ok(Response::Err { error }) => Err(Error::api(what, error)),
            Err(error) => {
                let kind = match error.kind() {
                    Theirs::TimedOut => ErrorKind::TimedOut,
                    Theirs::NoResponders => return Err(Error::unanswered(what)),
                    Theirs::InvalidSubject => ErrorKind::InvalidSubject,
                    Theirs::Other => ErrorKind::Protocol,
                };
                Err(Error::new(kind, what).because(error))
            }
        }
    }

    /// Does `call`, and gives up with [`ErrorKind::NotConnected`] once the connection has been made anew: the answer to what
    /// was sent before went with the old one, and the official client would wait for it until its time is up.
    pub(crate) async fn on_this_connection<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let connects = || self.nats.statistics().connects.load(Ordering::Acquire);
        let (before, mut phase) = (connects(), self.board.phase());
        let made_anew = async {
            while phase.changed().await.is_ok() {
                if connects() != before {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            answer = call => answer,
            () = made_anew => Err(Error::new(ErrorKind::NotConnected, what)),
        }
    }

    /// The server's word on a consumer.
    pub(crate) async fn consumer_info(&self, stream: &str, name: &str) -> Result<jetstream::consumer::Info> {
        let what = format!("looking up {stream}/{name}");
        self.api(
            &what,
            format!("CONSUMER.INFO.{stream}.{name}"),
            &serde_json::json!({}),
        )
        .await
    }

    /// Runs a task of the client until the client ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let scope = self.scope.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = scope.cancelled() => {}
                () = task => {}
            }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.intake.cancel();
        self.scope.cancel();
    }
}

/// Drains the connection and waits until it is closed.
async fn drain(nats: &async_nats::Client, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    if nats.connection_state() != State::Connected || nats.drain().await.is_err() {
        return false;
    }
    // The client says nothing when it is done; from then on it takes no commands.
    loop {
        match tokio::time::timeout_at(deadline, nats.flush()).await {
            Ok(Err(_)) => return true,
            Ok(Ok(())) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(_) => return false,
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}
