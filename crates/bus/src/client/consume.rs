//! Consumers: durable cursors that are pulled from, messages to handlers in order, answers back.
//!
//! A consume task asks for at most `prefetch` messages at a time and hands them to lanes. A lane runs one handler at a time, in
//! order; messages of one subject always take the same lane. While a message waits or is handled, the task says so to the
//! broker, so that a slow handler causes no second delivery. A nak comes back later and later; after the last delivery the
//! message goes to the dead-letter stream. A stop finishes the handlers that run and hands the rest back.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windjet_protocol::HeaderMap;
use windjet_protocol::jetstream::consumer::requests::{ConsumerAction, ConsumerCreateRequest};
use windjet_protocol::jetstream::{
    AckPolicy, ApiError, ConsumerConfig, DeliverPolicy, ErrorCode, Nanos, PullRequest, Timestamp,
};
use windjet_protocol::reply::{Ack, AckSubject};

use super::counters::Counters;
use super::delivery::{Delivery, Handler, Outcome};
use super::publish::{MESSAGE_ID, read_ack};
use crate::error::{BusError, ErrorKind};
use crate::link::{Incoming, Link, LinkState};
use crate::streams::{STREAM_LOGS, STREAM_TASK, STREAM_WORKER, nanos};
use crate::subjects::{DEAD_PREFIX, WORKER_HEARTBEAT};

/// Headers of a dead letter.
pub(crate) const DEAD_SUBJECT: &str = "Bus-Dead-Subject";
pub(crate) const DEAD_REASON: &str = "Bus-Dead-Reason";
pub(crate) const DEAD_DELIVERIES: &str = "Bus-Dead-Deliveries";
pub(crate) const DEAD_STREAM: &str = "Bus-Dead-Stream";

const REQUEST_LIFE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(5);
const API_LIMIT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(100);

/// The three consumers of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConsumerKind {
    /// Changes of state: 30 s to answer, 10 deliveries.
    TaskStatus,
    /// Output: 30 s, 5 deliveries.
    TaskLogs,
    /// Registrations, heartbeats and farewells: 10 s, 3 deliveries.
    Worker,
}

impl ConsumerKind {
    /// The stream.
    #[must_use]
    pub fn stream(self) -> &'static str {
        match self {
            Self::TaskStatus => STREAM_TASK,
            Self::TaskLogs => STREAM_LOGS,
            Self::Worker => STREAM_WORKER,
        }
    }

    /// The durable name.
    #[must_use]
    pub fn durable(self) -> &'static str {
        match self {
            Self::TaskStatus => "sqi-task-status-srv",
            Self::TaskLogs => "sqi-task-logs-srv",
            Self::Worker => "sqi-worker-srv",
        }
    }

    /// Time to answer.
    #[must_use]
    pub fn ack_wait(self) -> Duration {
        Duration::from_secs(if self == Self::Worker { 10 } else { 30 })
    }

    /// Most deliveries.
    #[must_use]
    pub fn max_deliver(self) -> u32 {
        match self {
            Self::TaskStatus => 10,
            Self::TaskLogs => 5,
            Self::Worker => 3,
        }
    }
}

/// How a consumer works. The defaults are the contract's; zero and `None` stand for them, but for `hold`.
#[derive(Debug, Clone)]
pub struct ConsumeOptions {
    /// Handlers that run at the same time. Messages of one subject stay in order. Default: 1. The worker consumer keeps
    /// heartbeats in a lane of their own from 2 on.
    pub lanes: usize,
    /// Messages in hand, waiting ones included. Default: 32 for each lane.
    pub prefetch: usize,
    /// Time to answer, instead of the contract's.
    pub ack_wait: Option<Duration>,
    /// Most deliveries, instead of the contract's.
    pub max_deliver: Option<u32>,
    /// Pauses before the second and later deliveries after a nak; the last is repeated. Default: 1, 2, 5, 10, 30 s.
    pub backoff: Vec<Duration>,
    /// Longest time for which a message in hand is held; then the broker may deliver it again. Zero holds nothing.
    /// Default: 5 min.
    pub hold: Duration,
    /// Whether each ack waits until the broker has stored it. Default: no; a drain always does.
    pub confirm: bool,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self {
            lanes: 1,
            prefetch: 0,
            ack_wait: None,
            max_deliver: None,
            backoff: [1, 2, 5, 10, 30].map(Duration::from_secs).into(),
            hold: Duration::from_secs(300),
            confirm: false,
        }
    }
}

impl ConsumeOptions {
    /// Time to answer, of a consumer of this kind.
    fn ack_wait(&self, kind: ConsumerKind) -> Duration {
        let own = self.ack_wait.filter(|wait| !wait.is_zero());
        own.unwrap_or_else(|| kind.ack_wait())
    }

    /// Most deliveries, of a consumer of this kind.
    pub(crate) fn max_deliver(&self, kind: ConsumerKind) -> u32 {
        let own = self.max_deliver.filter(|max| *max > 0);
        own.unwrap_or_else(|| kind.max_deliver())
    }
}

/// A running consumer. Dropping it does not stop it; the client's drain or [`Consuming::stop`] does.
#[derive(Debug, Clone)]
pub struct Consuming {
    pub(crate) stop: CancellationToken,
    pub(crate) abort: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Consuming {
    pub(crate) fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Fetches no more, lets the handlers that run finish, hands the rest back. Their answers are stored when this returns.
    ///
    /// # Cancel safety
    /// Dropped early, the stop goes on without anybody waiting for it.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.tasks.is_closed() && self.tasks.is_empty()
    }
}

pub(super) struct Consume {
    pub(super) kind: ConsumerKind,
    pub(super) options: ConsumeOptions,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) link: Arc<dyn Link>,
    pub(super) counters: Arc<Counters>,
}

/// Creates or updates the durable.
async fn ensure(link: &dyn Link, kind: ConsumerKind, options: &ConsumeOptions) -> Result<(), BusError> {
    let (stream, name) = (kind.stream(), kind.durable());
    let config = ConsumerConfig {
        durable_name: Some(name.to_owned()),
        name: Some(name.to_owned()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: nanos(options.ack_wait(kind)),
        max_deliver: i64::from(options.max_deliver(kind)),
        ..ConsumerConfig::default()
    };
    let request = ConsumerCreateRequest {
        stream_name: stream.to_owned(),
        config,
        action: ConsumerAction::CreateOrUpdate,
        pedantic: false,
    };
    let body = crate::message::encode(&request)?;
    let answer = api(link, &format!("$JS.API.CONSUMER.CREATE.{stream}.{name}"), body).await;
    answer.map(drop).map_err(|error| {
        let text = format!("ensure consumer {name} on {stream}");
        BusError::new(error.kind().clone(), text).with(error)
    })
}

/// A request to the JetStream API; an error in the answer is one here.
pub(super) async fn api(link: &dyn Link, subject: &str, body: Bytes) -> Result<serde_json::Value, BusError> {
    let answer = link.request(subject, None, body, API_LIMIT).await?;
    let value: serde_json::Value = crate::message::decode(&answer.payload)?;
    let Some(error) = value.get("error") else {
        return Ok(value);
    };
    let error: ApiError = match serde_json::from_value(error.clone()) {
        Ok(error) => error,
        Err(unread) => {
            return Err(BusError::new(
                ErrorKind::Decode,
                format!("{subject}: an error that cannot be read"),
            )
            .with(unread));
        }
    };
    let kind = if error.is(ErrorCode::StreamNotFound) {
        ErrorKind::NoStream
    } else {
        ErrorKind::Refused
    };
    Err(BusError::new(kind, format!("{subject}: {}", error.description)))
}

/// Starts a consumer: its durable exists when this returns.
pub(super) async fn start(consume: Consume) -> Result<Consuming, BusError> {
    ensure(&*consume.link, consume.kind, &consume.options).await?;
    let consuming = Consuming::new();
    let inbox = consume.link.new_inbox();
    let feed = consume
        .link
        .subscribe(&format!("{inbox}.*"), None)
        .await
        .map_err(|error| {
            BusError::new(
                error.kind().clone(),
                format!("start consumer {}", consume.kind.durable()),
            )
            .with(error)
        })?;
    let lanes = consume.options.lanes.max(1);
    let consume = Arc::new(consume);
    let hands = Arc::new(Hands::default());
    let mut doors = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        let (door, queue) = mpsc::unbounded_channel();
        doors.push(door);
        let lane = Lane {
            consume: consume.clone(),
            hands: hands.clone(),
            stop: consuming.stop.clone(),
        };
        let abort = consuming.abort.clone();
        consuming.tasks.spawn(async move {
            abort.run_until_cancelled(lane.run(queue)).await;
        });
    }
    let fetch = Fetch {
        prefetch: match consume.options.prefetch {
            0 => 32 * lanes,
            some => some,
        },
        consume,
        hands,
        inbox,
        doors,
        asked: VecDeque::new(),
        next: 0,
        heard: Instant::now(),
    };
    let (stop, abort) = (consuming.stop.clone(), consuming.abort.clone());
    consuming.tasks.spawn(async move {
        abort.run_until_cancelled(fetch.run(feed, stop)).await;
    });
    consuming.tasks.close();
    Ok(consuming)
}

/// Messages in hand: waiting in a lane or with a handler.
#[derive(Default)]
struct Hands {
    held: Mutex<HashMap<u64, Held>>,
    freed: Notify,
}

struct Held {
    reply: String,
    since: Instant,
}

struct Item {
    number: u64,
    reply: String,
    delivery: Arc<Delivery>,
}

/// The task that asks for messages.
struct Fetch {
    consume: Arc<Consume>,
    hands: Arc<Hands>,
    inbox: String,
    prefetch: usize,
    doors: Vec<mpsc::UnboundedSender<Item>>,
    /// Requests with the messages still to come for each, oldest first. The broker serves them in this order, and a message
    /// does not say whose it is.
    asked: VecDeque<(u64, usize)>,
    next: u64,
    heard: Instant,
}

impl Fetch {
    async fn run(mut self, mut feed: Box<dyn crate::link::Feed>, stop: CancellationToken) {
        let mut state = self.consume.link.state();
        let ack_wait = self.consume.options.ack_wait(self.consume.kind);
        let mut hold = tokio::time::interval((ack_wait / 3).max(Duration::from_millis(1)));
        hold.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let hands = self.hands.clone();
        loop {
            self.ask().await;
            let silent = self.heard + HEARTBEAT * 2 + HEARTBEAT / 2;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = state.changed() => {
                    let now = *state.borrow_and_update();
                    match now {
                        LinkState::Connected(_) if changed.is_ok() => {
                            // What was asked for went down with the old connection.
                            self.asked.clear();
                            self.heard = Instant::now();
                            self.ensure().await;
                        }
                        LinkState::Disconnected => {}
                        _ => break,
                    }
                }
                message = feed.next() => match message {
                    Some(message) => self.take(message).await,
                    None => break,
                },
                () = hands.freed.notified() => {}
                _ = hold.tick() => self.extend().await,
                () = tokio::time::sleep_until(silent), if !self.asked.is_empty() => {
                    tracing::warn!(consumer = self.consume.kind.durable(), "no sign of life; asking again");
                    self.asked.clear();
                    self.heard = Instant::now();
                }
            }
        }
        feed.finish().await;
        // What is on its way is handed back at once instead of after the ack wait.
        while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(20), feed.next()).await {
            if message.status == 0
                && let Some(reply) = message.reply
            {
                give_back(&self.consume, &reply).await;
            }
        }
    }

    /// Keeps as many messages asked for as there is room.
    async fn ask(&mut self) {
        let coming: usize = self.asked.iter().map(|(_, left)| left).sum();
        let in_hand = self.hands.held.lock().len();
        let room = self.prefetch.saturating_sub(coming + in_hand);
        if room == 0 || (coming > 0 && room < self.prefetch / 2) {
            return;
        }
        if !matches!(*self.consume.link.state().borrow(), LinkState::Connected(_)) {
            return;
        }
        let request = PullRequest {
            batch: i64::try_from(room).unwrap_or(i64::MAX),
            expires: nanos(REQUEST_LIFE),
            idle_heartbeat: nanos(HEARTBEAT),
            ..PullRequest::default()
        };
        let Ok(body) = crate::message::encode(&request) else {
            return;
        };
        self.next += 1;
        let (stream, name) = (self.consume.kind.stream(), self.consume.kind.durable());
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
        let reply = format!("{}.{}", self.inbox, self.next);
        let sent = self
            .consume
            .link
            .publish(&subject, Some(&reply), None, body)
            .await;
        if sent.is_ok() {
            if self.asked.is_empty() {
                self.heard = Instant::now();
            }
            self.asked.push_back((self.next, room));
        }
    }

    async fn take(&mut self, message: Incoming) {
        self.heard = Instant::now();
        if message.status != 0 {
            // 100 is a sign of life; everything else ends the request that its subject names.
            let request = message
                .subject
                .rsplit('.')
                .next()
                .and_then(|number| number.parse::<u64>().ok());
            if message.status != 100
                && let Some(request) = request
            {
                self.asked.retain(|(number, _)| *number != request);
                if message.status == 409 || message.status == 503 {
                    // The consumer or the server went away under the request; ask again, gently.
                    tokio::time::sleep(RETRY).await;
                    self.ensure().await;
                }
            }
            return;
        }
        let Some((item, subject)) = read(message) else {
            return;
        };
        if let Some((_, left)) = self.asked.front_mut() {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.asked.pop_front();
            }
        }
        if item.delivery.deliveries > 1 {
            Counters::add(&self.consume.counters.redelivered);
        }
        let held = Held {
            reply: item.reply.clone(),
            since: Instant::now(),
        };
        self.hands.held.lock().insert(item.number, held);
        let lane = self.lane(&subject);
        if let Some(door) = self.doors.get(lane) {
            let _ = door.send(item);
        }
    }

    /// The same subject always takes the same lane. Heartbeats, which are many, leave the first one to registrations.
    fn lane(&self, subject: &str) -> usize {
        let lanes = self.doors.len();
        if lanes == 1 {
            return 0;
        }
        if self.consume.kind == ConsumerKind::Worker {
            return usize::from(subject.starts_with(WORKER_HEARTBEAT));
        }
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(subject);
        usize::try_from(hash % lanes as u64).unwrap_or(0)
    }

    /// Makes the durable again where it is gone; a broker that cannot is asked for messages all the same, and says so.
    async fn ensure(&self) {
        let consume = &self.consume;
        if let Err(error) = ensure(&*consume.link, consume.kind, &consume.options).await {
            tracing::warn!(consumer = consume.kind.durable(), %error, "the consumer could not be made sure of");
        }
    }

    /// Says of all messages in hand that they are being worked on.
    async fn extend(&self) {
        let hold = self.consume.options.hold;
        let replies: Vec<String> = {
            let held = self.hands.held.lock();
            let current = held.values().filter(|held| held.since.elapsed() < hold);
            current.map(|held| held.reply.clone()).collect()
        };
        for reply in replies {
            let _ = answer(&self.consume, &reply, &Ack::Progress, false).await;
        }
    }
}

fn read(message: Incoming) -> Option<(Item, String)> {
    let reply = message.reply?;
    let ack = AckSubject::parse(reply.as_bytes())?;
    let delivery = Delivery {
        subject: message.subject.clone(),
        payload: message.payload,
        headers: message.headers,
        stream: String::from_utf8_lossy(ack.stream).into_owned(),
        seq: ack.stream_seq,
        deliveries: ack.delivered,
        stored_at: Timestamp::from_unix_nanos(ack.time_ns),
    };
    let item = Item {
        number: ack.consumer_seq,
        delivery: Arc::new(delivery),
        reply,
    };
    Some((item, message.subject))
}

struct Lane {
    consume: Arc<Consume>,
    hands: Arc<Hands>,
    stop: CancellationToken,
}

impl Lane {
    async fn run(self, mut queue: mpsc::UnboundedReceiver<Item>) {
        while let Some(item) = queue.recv().await {
            if self.stop.is_cancelled() {
                give_back(&self.consume, &item.reply).await;
            } else {
                self.handle(&item).await;
            }
            self.hands.held.lock().remove(&item.number);
            self.hands.freed.notify_one();
        }
    }

    async fn handle(&self, item: &Item) {
        let counters = &self.consume.counters;
        let handled = AssertUnwindSafe(self.consume.handler.handle(item.delivery.clone()));
        let outcome = handled.catch_unwind().await.unwrap_or_else(|_| {
            Counters::add(&counters.panicked);
            Outcome::nak("the handler panicked")
        });
        // The last answers before a stop are waited for; they stand behind all earlier ones.
        let confirm = self.consume.options.confirm || self.stop.is_cancelled();
        let answered = match outcome {
            Outcome::Ack => {
                Counters::add(&counters.acked);
                answer(&self.consume, &item.reply, &Ack::Done, confirm).await
            }
            Outcome::Term { reason } => {
                Counters::add(&counters.termed);
                self.bury(item, &reason, confirm).await
            }
            Outcome::Nak { delay, reason } => {
                let max = self.consume.options.max_deliver(self.consume.kind);
                if item.delivery.deliveries >= u64::from(max) {
                    self.bury(item, &reason, confirm).await
                } else {
                    Counters::add(&counters.naked);
                    let delay = delay.unwrap_or_else(|| self.pause(item.delivery.deliveries));
                    let delay = Some(nanos(delay)).filter(|delay: &Nanos| delay.is_positive());
                    answer(&self.consume, &item.reply, &Ack::Nak { delay }, confirm).await
                }
            }
        };
        if let Err(error) = answered {
            tracing::warn!(subject = item.delivery.subject, %error, "the answer to a message did not leave; it will come again");
        }
    }

    fn pause(&self, deliveries: u64) -> Duration {
        let backoff = &self.consume.options.backoff;
        let place = usize::try_from(deliveries.saturating_sub(1)).unwrap_or(usize::MAX);
        backoff.get(place).or(backoff.last()).copied().unwrap_or_default()
    }

    /// Stores the message among the dead letters and ends it. What cannot be stored there stays.
    async fn bury(&self, item: &Item, reason: &str, confirm: bool) -> Result<(), BusError> {
        let delivery = &item.delivery;
        let subject = format!("{DEAD_PREFIX}.{}.{}", delivery.stream, delivery.subject);
        let mut headers = HeaderMap::default();
        // Line breaks would end the header.
        let reason: String = reason
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let pairs = [
            (MESSAGE_ID, format!("{}:{}", delivery.stream, delivery.seq)),
            (DEAD_SUBJECT, delivery.subject.clone()),
            (DEAD_STREAM, delivery.stream.clone()),
            (DEAD_DELIVERIES, delivery.deliveries.to_string()),
            (DEAD_REASON, reason.clone()),
        ];
        for (name, value) in pairs {
            headers.insert(name, value).map_err(|error| {
                BusError::new(ErrorKind::Config, format!("dead letter of {}", delivery.subject)).with(error)
            })?;
        }
        let stored = self
            .consume
            .link
            .request(&subject, Some(&headers), delivery.payload.clone(), API_LIMIT)
            .await
            // An answer may be a refusal.
            .and_then(|answer| read_ack(&subject, &answer.payload));
        if let Err(error) = stored {
            tracing::error!(subject = delivery.subject, %error, reason, "a message that nothing could handle is not among the dead letters; it stays where it is");
            return Err(error);
        }
        Counters::add(&self.consume.counters.dead);
        tracing::warn!(
            subject = delivery.subject,
            seq = delivery.seq,
            reason,
            "a message became a dead letter"
        );
        answer(&self.consume, &item.reply, &Ack::Term { reason: b"" }, confirm).await
    }
}

async fn give_back(consume: &Consume, reply: &str) {
    Counters::add(&consume.counters.returned);
    if let Err(error) = answer(consume, reply, &Ack::Nak { delay: None }, false).await {
        tracing::debug!(%error, "a message was not handed back; it comes again after its ack wait");
    }
}

async fn answer(consume: &Consume, reply: &str, ack: &Ack<'_>, confirm: bool) -> Result<(), BusError> {
    let mut body = Vec::new();
    ack.write(&mut body);
    if confirm {
        return consume
            .link
            .request(reply, None, body.into(), API_LIMIT)
            .await
            .map(drop);
    }
    consume.link.publish(reply, None, None, body.into()).await
}
