//! The typed client: what workers and the server say to each other, over either kind of connection.
//!
//! [`Bus`] is the trait with every call; [`Client`] implements it in the broker's process and over TCP, and the fake of the
//! module [`fake`](crate::fake) for unit tests. A client is a handle: clone it, share it. What it started, consumers and
//! subscriptions, ends in [`Bus::drain`], in an order in which nothing is lost.

mod connect;
mod consume;
mod counters;
mod delivery;
mod lease;
mod listen;
mod publish;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

pub use connect::{Backoff, ClientTls, ConnectOptions};
pub use consume::{ConsumeOptions, ConsumerKind, Consuming};
pub use counters::Counts;
pub use delivery::{Delivery, Handler, Outcome};
pub use lease::{Asker, LeaseCall, LeaseHandler, lease_handler, refusal};
pub use listen::{CancelHandler, DiagHandler};
pub(crate) use publish::subject_of;
pub use publish::{MESSAGE_ID, Publication, Published, SENT_AT, To, VERSION};

use crate::error::{BusError, ErrorKind};
use crate::link::local::LocalLink;
use crate::link::tcp::TcpLink;
use crate::link::{Link, LinkState};
use crate::subjects::{Layout, Subjects};
use crate::token::Token;
use consume::Consume;
use counters::Counters;

/// Every call of the bus. Implemented by [`Client`].
#[async_trait]
pub trait Bus: Send + Sync + fmt::Debug {
    /// The layout of the subjects.
    fn layout(&self) -> Layout;

    /// Stores a message: durable when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::NoStream`], [`ErrorKind::StoreFull`], [`ErrorKind::Refused`], [`ErrorKind::TooLarge`],
    /// [`ErrorKind::BadToken`], [`ErrorKind::Closed`]: it was not stored. [`ErrorKind::Unknown`]: it may have been, no
    /// acknowledgement came; publish it again with the same [id](Publication::id).
    ///
    /// # Cancel safety
    /// Dropped early, the message may be stored or not.
    async fn publish(&self, publication: Publication) -> crate::Result<Published>;

    /// Starts one of the server's consumers: its durable exists when this returns. Two of one kind share its messages.
    ///
    /// # Errors
    /// [`ErrorKind::NoStream`], [`ErrorKind::Refused`], [`ErrorKind::Closed`], [`ErrorKind::Timeout`].
    ///
    /// # Cancel safety
    /// Dropped early, no handler runs; the durable may have been made.
    async fn consume(
        &self,
        kind: ConsumerKind,
        options: ConsumeOptions,
        handler: Arc<dyn Handler>,
    ) -> crate::Result<Consuming>;

    /// Asks for work on a queue or `_any` and waits up to `limit` for the answer, which comes as it was sent.
    ///
    /// # Errors
    /// [`ErrorKind::NoResponders`] at once when nobody serves; [`ErrorKind::Timeout`]; [`ErrorKind::BadToken`] for a queue that
    /// can be none; [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    /// Dropped early, the answer is lost; work that it gave out comes back when nobody reports it running.
    async fn request_lease(&self, queue: &str, data: Bytes, limit: Duration) -> crate::Result<Bytes>;

    /// Serves requests for work: in force when this returns. Of several servers one answers.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], [`ErrorKind::Timeout`], [`ErrorKind::PermissionDenied`].
    ///
    /// # Cancel safety
    /// Dropped early, nothing is served.
    async fn subscribe_lease(&self, handler: LeaseHandler) -> crate::Result<Subscription>;

    /// Sends a record of a worker's own log to whoever listens now. Not stored; an error is not worth more than a note.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], [`ErrorKind::TooLarge`].
    async fn publish_worker_diag(&self, worker: &Token, data: Bytes) -> crate::Result<()>;

    /// Hears the diagnostics of all workers, one at a time, each with its subject.
    ///
    /// # Errors
    /// As [`Bus::subscribe_lease`].
    ///
    /// # Cancel safety
    /// Dropped early, nothing is heard.
    async fn subscribe_worker_diag(&self, handler: DiagHandler) -> crate::Result<Subscription>;

    /// Hears the cancel of a task, whenever it was sent: before this call, while the connection was lost, or now. The handler
    /// may be told more than once.
    ///
    /// # Errors
    /// [`ErrorKind::NoStream`], and as [`Bus::subscribe_lease`].
    ///
    /// # Cancel safety
    /// Dropped early, nothing is heard.
    async fn subscribe_task_cancel(
        &self,
        task: &Token,
        handler: CancelHandler,
    ) -> crate::Result<Subscription>;

    /// Stops in order: consumers fetch no more, handlers that run finish and their answers are stored, what was fetched and
    /// not begun goes back, publishes that wait for their acknowledgement get it, the connection closes. When this returns no
    /// handler runs and publishing fails. A client that is closed already counts as drained.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when that takes longer than `limit`; everything was cut off then.
    ///
    /// # Cancel safety
    /// Dropped early, the stop has begun and is not waited for.
    async fn drain(&self, limit: Duration) -> crate::Result<()>;

    /// Cuts everything off: handlers, publishes, the connection. Harmless any number of times.
    async fn close(&self);

    /// Stores a change of a task's state, without an id.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    async fn publish_task_status(&self, job: &Token, data: Bytes) -> crate::Result<Published> {
        self.publish(Publication::new(To::TaskStatus(job.clone()), data))
            .await
    }

    /// Stores a piece of a task's output, without an id.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    async fn publish_task_log(&self, task: &Token, data: Bytes) -> crate::Result<Published> {
        self.publish(Publication::new(To::TaskLogs(task.clone()), data))
            .await
    }

    /// Stores a cancel; workers that listen hear it at once.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    async fn publish_task_cancel(&self, task: &Token, data: Bytes) -> crate::Result<Published> {
        self.publish(Publication::new(To::TaskCancel(task.clone()), data))
            .await
    }

    /// Stores a heartbeat.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    async fn publish_worker_heartbeat(&self, data: Bytes) -> crate::Result<Published> {
        self.publish(Publication::new(To::Heartbeat, data)).await
    }

    /// Stores a registration.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    async fn publish_worker_register(&self, data: Bytes) -> crate::Result<Published> {
        self.publish(Publication::new(To::Register, data)).await
    }

    /// Stores a farewell.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    async fn publish_worker_deregister(&self, data: Bytes) -> crate::Result<Published> {
        self.publish(Publication::new(To::Deregister, data)).await
    }

    /// Starts the consumer of task states with its defaults.
    ///
    /// # Errors
    /// As [`Bus::consume`].
    async fn consume_task_status(&self, handler: Arc<dyn Handler>) -> crate::Result<Consuming> {
        self.consume(ConsumerKind::TaskStatus, ConsumeOptions::default(), handler)
            .await
    }

    /// Starts the consumer of output with its defaults.
    ///
    /// # Errors
    /// As [`Bus::consume`].
    async fn consume_task_logs(&self, handler: Arc<dyn Handler>) -> crate::Result<Consuming> {
        self.consume(ConsumerKind::TaskLogs, ConsumeOptions::default(), handler)
            .await
    }

    /// Starts the consumer of registrations, heartbeats and farewells with its defaults.
    ///
    /// # Errors
    /// As [`Bus::consume`].
    async fn consume_worker(&self, handler: Arc<dyn Handler>) -> crate::Result<Consuming> {
        self.consume(ConsumerKind::Worker, ConsumeOptions::default(), handler)
            .await
    }
}

/// A connection to the bus: in the broker's process from [`Broker::client`](crate::Broker::client), elsewhere from
/// [`Client::connect`].
#[derive(Clone)]
pub struct Client {
    link: Arc<dyn Link>,
    subjects: Subjects,
    worker: Option<Token>,
    counters: Arc<Counters>,
    running: Arc<Running>,
}

/// A running subscription. Dropping it does not end it; [`Subscription::stop`] and the client's drain do.
#[derive(Debug, Clone)]
pub struct Subscription(Consuming);

impl Subscription {
    pub(crate) fn of(running: Consuming) -> Self {
        Self(running)
    }

    /// Ends it: what has arrived is still handled, and no handler runs when this returns.
    ///
    /// # Cancel safety
    /// Dropped early, the end goes on without anybody waiting for it.
    pub async fn stop(&self) {
        self.0.stop().await;
    }
}

/// What a drain ends.
#[derive(Default)]
struct Running {
    consumers: Mutex<Vec<Consuming>>,
    /// Publishes that wait for their acknowledgement.
    publishes: TaskTracker,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("layout", &self.subjects.layout())
            .field("worker", &self.worker)
            .field("state", &*self.link.state().borrow())
            .finish_non_exhaustive()
    }
}

impl Client {
    fn over(link: impl Link, layout: Layout, worker: Option<Token>) -> Self {
        Self {
            link: Arc::new(link),
            subjects: Subjects::new(layout),
            worker,
            counters: Arc::default(),
            running: Arc::default(),
        }
    }

    pub(crate) fn in_process(client: windjet_server::Client, layout: Layout) -> Self {
        Self::over(LocalLink::new(client), layout, None)
    }

    /// Connects to a broker. Later it reconnects by itself for ever, except where the broker refuses the credentials.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`], [`ErrorKind::BadAddr`], [`ErrorKind::AuthRejected`], [`ErrorKind::Config`].
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn connect(url: &str, options: ConnectOptions) -> crate::Result<Self> {
        let (layout, worker, backoff) = (options.layout, options.worker.clone(), options.backoff);
        let link = TcpLink::connect(url, options.for_nats()?, backoff).await?;
        Ok(Self::over(link, layout, worker))
    }

    /// Connects as [`Client::connect`] does, again and again until it succeeds: workers may start before their server.
    ///
    /// # Errors
    /// What trying again cannot mend: [`ErrorKind::BadAddr`], [`ErrorKind::AuthRejected`], [`ErrorKind::Config`].
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn connect_patiently(url: &str, options: ConnectOptions) -> crate::Result<Self> {
        let backoff = options.backoff;
        let mut tries = 0;
        loop {
            match Self::connect(url, options.clone()).await {
                Err(error) if *error.kind() == ErrorKind::Connect => {
                    let pause = backoff.delay(tries);
                    tracing::warn!(url, %error, ?pause, "no broker yet; trying again");
                    tokio::time::sleep(pause).await;
                    tries = tries.saturating_add(1);
                }
                done => return done,
            }
        }
    }

    /// Where the connection stands, and news of it.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.link.state()
    }

    /// Whether it is connected at this moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(*self.link.state().borrow(), LinkState::Connected(_))
    }

    /// What it counted since it was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Remembers what a drain has to end.
    fn track(&self, running: Consuming) {
        let mut known = self.running.consumers.lock();
        known.retain(|running| !running.is_stopped());
        known.push(running);
    }

    fn tracked(&self, subscription: Subscription) -> Subscription {
        self.track(subscription.0.clone());
        subscription
    }

    async fn end_in_order(&self) -> Result<(), BusError> {
        let consumers = std::mem::take(&mut *self.running.consumers.lock());
        for consumer in &consumers {
            consumer.stop.cancel();
        }
        for consumer in &consumers {
            consumer.tasks.wait().await;
        }
        // From here on publishing fails; what was sent before still gets its answer.
        self.running.publishes.close();
        self.running.publishes.wait().await;
        match self.link.flush(FLUSH_LIMIT).await {
            Err(error) if *error.kind() != ErrorKind::Closed => Err(error),
            _ => Ok(()),
        }
    }

    fn cut(&self) {
        self.running.publishes.close();
        for consumer in std::mem::take(&mut *self.running.consumers.lock()) {
            consumer.stop.cancel();
            consumer.abort.cancel();
        }
    }
}

/// For the round trip at the end of a drain.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

#[async_trait]
impl Bus for Client {
    fn layout(&self) -> Layout {
        self.subjects.layout()
    }

    async fn publish(&self, publication: Publication) -> crate::Result<Published> {
        if self.running.publishes.is_closed() {
            return Err(crate::link::closed("publish", &format!("{:?}", publication.to)));
        }
        self.running.publishes.track_future(self.store(publication)).await
    }

    async fn consume(
        &self,
        kind: ConsumerKind,
        options: ConsumeOptions,
        handler: Arc<dyn Handler>,
    ) -> crate::Result<Consuming> {
        if self.running.publishes.is_closed() {
            return Err(crate::link::closed("consume", kind.stream()));
        }
        let consume = Consume {
            kind,
            options,
            handler,
            link: self.link.clone(),
            counters: self.counters.clone(),
        };
        let consuming = consume::start(consume).await?;
        self.track(consuming.clone());
        Ok(consuming)
    }

    async fn request_lease(&self, queue: &str, data: Bytes, limit: Duration) -> crate::Result<Bytes> {
        self.ask_for_work(queue, data, limit).await
    }

    async fn subscribe_lease(&self, handler: LeaseHandler) -> crate::Result<Subscription> {
        self.serve(handler)
            .await
            .map(|subscription| self.tracked(subscription))
    }

    async fn publish_worker_diag(&self, worker: &Token, data: Bytes) -> crate::Result<()> {
        self.send_diag(worker, data).await
    }

    async fn subscribe_worker_diag(&self, handler: DiagHandler) -> crate::Result<Subscription> {
        self.hear_diag(handler)
            .await
            .map(|subscription| self.tracked(subscription))
    }

    async fn subscribe_task_cancel(
        &self,
        task: &Token,
        handler: CancelHandler,
    ) -> crate::Result<Subscription> {
        self.hear_cancel(task, handler)
            .await
            .map(|subscription| self.tracked(subscription))
    }

    async fn drain(&self, limit: Duration) -> crate::Result<()> {
        // Whatever it left is cut off as well when this future is dropped or late.
        let tracked = self.running.consumers.lock().clone();
        let ended = tokio::time::timeout(limit, self.end_in_order()).await;
        if ended.is_err() {
            for consumer in &tracked {
                consumer.abort.cancel();
            }
            self.cut();
        }
        self.link.close().await;
        match ended {
            Ok(ended) => ended,
            Err(_) => Err(BusError::new(
                ErrorKind::Timeout { limit },
                format!("drain: it took longer than {limit:?}; handlers and publishes were cut off"),
            )),
        }
    }

    async fn close(&self) {
        self.cut();
        self.link.close().await;
    }
}
