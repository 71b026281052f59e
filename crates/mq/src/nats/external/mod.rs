//! The broker over an operator-owned NATS cluster.
//!
//! Every tenant shares N work-queue partitions, the history that they republish to, and one dead-letter stream. The broker
//! finds what the operator made, checks it at the start and every five minutes, and never repairs it. The only objects that
//! it creates are consumers of its own on the history, which expire by themselves.

#[cfg(feature = "embedded")]
mod arrivals;
mod config;
mod consumer;
mod history;
mod leases;
mod link;
mod meters;
mod publish;
mod unit;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windjet_protocol::jetstream::ConsumerInfo;

#[cfg(feature = "embedded")]
pub(crate) use self::arrivals::{Arrival, Arrived, Identity};
pub use self::config::{Auth, ExternalConfig, Tls};
use self::consumer::{WORKER_DURABLE, pinned_client};
pub use self::leases::{LeaseTimings, NatsLeases};
use self::link::Link;
use self::publish::{Destination, closed};
use self::watch::History;
use super::api::{Api, ApiFailure};
use super::finding::{Finding, Severity, TopologyError};
use super::topology::{MIN_PINNED_TTL, Topology};
use super::units::{self, Unit};
use super::verify::{Probe, verify};
use crate::broker::dead_letter_tables;
use crate::{
    Broker, Consumer, ConsumerConfig, ConsumerManager, Ctx, DeadLetterCounts, DeadLetterStats, DeadLetterer,
    Error, ErrorKind, IngestUnits, Listener, Message, PublishOptions, Publisher, PurgeOutcome, Purger,
    ReplaySink, Replayer, Sharded, Stats, Subscriber, TenantId, Topic,
};

const BACKOFF_MIN: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// How long a close waits for its tasks and for what is on its way to the server.
const CLOSE_WAIT: Duration = Duration::from_secs(6);

/// A [`Broker`] over an operator-owned NATS cluster. Cloning is cheap.
///
/// ```no_run
/// # async fn example() -> Result<(), windjet_mq::Error> {
/// use std::sync::Arc;
/// use windjet_mq::Broker;
/// use windjet_mq::nats::{ExternalConfig, ExternalNats};
///
/// let config = ExternalConfig::new(["nats://nats.internal:4222"]);
/// let broker: Arc<dyn Broker> = Arc::new(ExternalNats::connect(config).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ExternalNats {
    shared: Arc<Shared>,
}

struct Shared {
    api: Api,
    link: Arc<Link>,
    topology: Topology,
    domain: Option<String>,
    check_every: Duration,
    history_every: Duration,
    /// The partitions' streams, in order.
    partitions: Vec<String>,
    dead_letters: String,
    units: Vec<Unit>,
    extras: Mutex<Vec<Unit>>,
    budgets: Mutex<BTreeMap<TenantId, u64>>,
    budgets_told: AtomicBool,
    history: History,
    /// What unique names begin with, and how many there were.
    unique: (String, AtomicU64),
    closed: CancellationToken,
    tasks: TaskTracker,
}

impl fmt::Debug for ExternalNats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalNats")
            .field("prefix", &self.shared.topology.prefix)
            .field("partitions", &self.shared.partitions)
            .finish_non_exhaustive()
    }
}

/// Checks the operator's topology once, as the start of the broker does, and returns all findings.
///
/// # Errors
/// [`Unavailable`](crate::ErrorKind::Unavailable) when the cluster is not reached within the configuration's
/// `topology_wait`; another error when a check could not be made.
pub async fn check_topology(config: ExternalConfig) -> Result<Vec<Finding>, Error> {
    let link = Arc::<Link>::default();
    let client = config.connect(&link).await?;
    let api = Api::new(client.clone(), config.domain.as_deref());
    let connected = tokio::time::timeout(config.topology_wait, link.wait_connected()).await;
    let found = match connected {
        Ok(()) => check(&api, &link, &config)
            .await
            .map_err(|failure| failure.into_error("check nats topology")),
        Err(_) => Err(unreached(&config, &link, None)),
    };
    link.begin_close();
    // Nothing of ours is left behind on the connection.
    let _ = client.drain().await;
    found
}

async fn check(api: &Api, link: &Link, config: &ExternalConfig) -> Result<Vec<Finding>, ApiFailure> {
    let probe = Probe {
        refusals: &link.refusals,
        domain: config.domain.as_deref(),
    };
    verify(api, &config.topology, Some(probe)).await
}

/// Waits for the operator's topology; the recommended findings once nothing required is missing.
async fn await_topology(api: &Api, link: &Link, config: &ExternalConfig) -> Result<Vec<Finding>, Error> {
    let deadline = Instant::now() + config.topology_wait;
    let mut backoff = BACKOFF_MIN;
    let mut last = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_secs(1);
        let checked = tokio::time::timeout(left, async {
            link.wait_connected().await;
            check(api, link, config).await
        });
        match checked.await {
            Ok(Ok(findings))
                if findings
                    .iter()
                    .all(|finding| finding.severity != Severity::Required) =>
            {
                return Ok(findings);
            }
            Ok(Ok(findings)) => last = Some(Error::from(TopologyError { findings })),
            Ok(Err(failure)) => last = Some(failure.into_error("check nats topology")),
            Err(_) => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(backoff.min(left)).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
    if !link.connected() {
        return Err(unreached(config, link, last));
    }
    let error =
        last.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "check nats topology: no answer in time"));
    let refused = link.refusals.subjects();
    if refused.is_empty() || error.is(ErrorKind::Topology) {
        return Err(error);
    }
    let command = super::permissions::command(&config.topology, config.domain.as_deref());
    let text = format!(
        "the server refuses {}; give the user what `{command}` writes",
        refused.join(", ")
    );
    Err(Error::wrap(error.kind(), text, error))
}

fn unreached(config: &ExternalConfig, link: &Link, cause: Option<Error>) -> Error {
    let mut text = format!("{} not reached", config.redacted_urls());
    if let Some(error) = link.last_error() {
        text = format!("{text}; the last attempt: {error}");
    }
    match cause {
        Some(cause) => Error::wrap(ErrorKind::Unavailable, text, cause),
        None => Error::new(ErrorKind::Unavailable, text),
    }
}

impl ExternalNats {
    /// Connects, and waits up to the configuration's `topology_wait` for the operator's topology.
    ///
    /// # Errors
    /// [`Topology`](crate::ErrorKind::Topology) with a [`TopologyError`] that lists every finding;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the cluster was not reached;
    /// [`Invalid`](crate::ErrorKind::Invalid), before anything is dialled, for a configuration that cannot be.
    ///
    /// # Cancel safety
    /// Dropped early, the connection is closed and nothing stays behind.
    pub async fn connect(config: ExternalConfig) -> Result<Self, Error> {
        let link = Arc::<Link>::default();
        let client = config.connect(&link).await?;
        let api = Api::new(client, config.domain.as_deref());
        let begun = Self::begin(&api, &link, &config).await;
        if begun.is_err() {
            link.begin_close();
            let _ = api.client().drain().await;
        }
        begun
    }

    async fn begin(api: &Api, link: &Arc<Link>, config: &ExternalConfig) -> Result<Self, Error> {
        for finding in await_topology(api, link, config).await? {
            tracing::warn!(component = "nats", "{finding}");
        }
        let topology = config.topology.clone();
        let named = async |subject: String| {
            let names = api
                .stream_names(&subject)
                .await
                .map_err(|failure| failure.into_error("find streams"))?;
            names
                .into_iter()
                .next()
                .ok_or_else(|| Error::new(ErrorKind::Topology, format!("no stream holds {subject} any more")))
        };
        let mut partitions = Vec::new();
        for partition in 0..topology.partitions {
            partitions.push(named(format!("{}.ingest.{partition}.x", topology.prefix)).await?);
        }
        let dead_letters = named(format!("{}.dlq.x", topology.prefix)).await?;
        let units = partitions.iter().flat_map(|stream| {
            (0..topology.shards).map(|shard| Unit::new(stream, &topology.shard_durable(shard)))
        });
        let units = units.collect();
        let outside = units::outside(api, &topology, &partitions).await;
        let outside = outside.map_err(|failure| failure.into_error("find extra units"))?;
        let inbox = api.client().new_inbox();
        let shared = Arc::new(Shared {
            api: api.clone(),
            link: Arc::clone(link),
            domain: config.domain.clone(),
            check_every: config.check_every,
            history_every: config.history_every,
            partitions,
            dead_letters,
            units,
            extras: Mutex::new(outside.units),
            budgets: Mutex::default(),
            budgets_told: AtomicBool::new(false),
            history: History::default(),
            unique: (
                inbox.rsplit('.').next().unwrap_or(&inbox).to_owned(),
                AtomicU64::new(0),
            ),
            closed: CancellationToken::new(),
            tasks: TaskTracker::new(),
            topology,
        });
        shared.link.begin_measuring(&config.name);
        shared.read_history().await;
        shared.tasks.spawn(Arc::clone(&shared).watch());
        Ok(Self { shared })
    }

    /// Whether a publish can get through now: for a readiness probe.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) without a connection, [`Topology`](crate::ErrorKind::Topology)
    /// while the topology failed its last check or something was found missing since.
    pub fn ready(&self) -> Result<(), Error> {
        if !self.shared.link.connected() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "no connection; the client reconnects by itself",
            ));
        }
        if !self.shared.link.topology_ok() {
            let text = "the topology failed its last check; see the log, or run `windjet nats verify`";
            return Err(Error::new(ErrorKind::Topology, text));
        }
        Ok(())
    }

    /// How long an idempotency key is remembered wherever a tenant may publish: the shortest of the partitions' windows.
    ///
    /// # Errors
    /// When a partition cannot be read.
    pub async fn duplicate_window(&self) -> Result<Duration, Error> {
        let mut shortest = Duration::MAX;
        for stream in &self.shared.partitions {
            let info = self
                .shared
                .api
                .stream(stream)
                .await
                .map_err(|failure| failure.into_error(stream))?;
            let info = info
                .ok_or_else(|| Error::new(ErrorKind::Topology, format!("stream {stream} does not exist")))?;
            shortest = shortest.min(info.config.duplicate_window.to_std());
        }
        Ok(shortest)
    }

    /// Warns in the log for each tenant whose clients may have longer gaps than the history keeps, once for each window.
    /// Asks nobody; runs again by itself when the history's age changes.
    pub fn check_replay_windows(&self, windows: BTreeMap<TenantId, Duration>) {
        self.shared.history.check_windows(Some(windows));
    }

    /// How far the history trails the partitions, as last read; `None` before the first reading.
    #[must_use]
    pub fn history_behind(&self) -> Option<Duration> {
        self.shared.history.behind()
    }

    /// Leases in a bucket of the operator's, over this connection. `holder` names this process in them.
    ///
    /// # Errors
    /// [`Topology`](crate::ErrorKind::Topology) when the bucket does not exist: it is never created.
    pub async fn leases(
        &self,
        bucket: &str,
        holder: &str,
        timings: LeaseTimings,
    ) -> Result<NatsLeases, Error> {
        self.shared.leases(bucket, holder, timings).await
    }
}

impl Shared {
    /// A name that nobody else uses.
    fn unique(&self) -> String {
        let (prefix, count) = &self.unique;
        format!("{prefix}-{}", count.fetch_add(1, Ordering::Relaxed))
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.closed.is_cancelled() {
            Err(closed())
        } else {
            Ok(())
        }
    }

    /// The unit of a name, and whether it is an extra one.
    fn unit(&self, name: &str) -> Result<(Unit, bool), Error> {
        let is = |unit: &&Unit| unit.to_string() == name;
        if let Some(unit) = self.units.iter().find(is) {
            return Ok((unit.clone(), false));
        }
        let extras = self.extras.lock();
        let extra = extras.iter().find(is).cloned();
        extra.map(|unit| (unit, true)).ok_or_else(|| {
            Error::new(
                ErrorKind::UnitsUnsupported,
                format!("unit {name:?} is none of this broker's"),
            )
        })
    }

    async fn reset(&self, unit: &Unit) -> Result<bool, Error> {
        let failed = |failure: ApiFailure| failure.into_error(format!("reset {unit}"));
        let info = self
            .api
            .consumer(&unit.stream, &unit.durable)
            .await
            .map_err(failed)?;
        let held = |text: &str| Err(Error::new(ErrorKind::UnitHeld, format!("unit {unit}: {text}")));
        if pinned_client(&info).is_some() {
            return held("a client has its pin");
        }
        if info.num_ack_pending == 0 {
            return Ok(false);
        }
        if recently_active(&info) {
            return held("somebody was active on it just now");
        }
        self.api
            .reset(&unit.stream, &unit.durable)
            .await
            .map_err(failed)?;
        Ok(true)
    }
}

/// Whether somebody received from a durable or settled a message of it a while ago, by the server's clock. A missing pin
/// alone is no proof of death: a new leader forgets it for a moment.
fn recently_active(info: &ConsumerInfo) -> bool {
    let window = info.config.priority_timeout.to_std().max(MIN_PINNED_TTL);
    let window = i64::try_from(window.as_nanos()).unwrap_or(i64::MAX);
    [info.delivered.last_active, info.ack_floor.last_active]
        .into_iter()
        .flatten()
        .any(|active| info.ts.unix_nanos().saturating_sub(active.unix_nanos()) < window)
}

#[async_trait]
impl Publisher for ExternalNats {
    async fn publish(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        data: Bytes,
        options: PublishOptions,
    ) -> Result<(), Error> {
        topic.checked()?;
        self.shared.check_open()?;
        ctx.check("publish")?;
        let topology = &self.shared.topology;
        let place = topology.place(topic);
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        let destination = Destination {
            subject: &topology.ingest_subject(place, topic),
            stream: &self.shared.partitions[place.partition as usize],
            tell_stream: false,
        };
        self.shared.store(ctx, destination, headers, data).await.map(drop)
    }

    async fn close(&self) -> Result<(), Error> {
        if self.shared.link.begin_close() {
            return Ok(());
        }
        self.shared.closed.cancel();
        self.shared.link.end_measuring();
        self.shared.tasks.close();
        let ended = async {
            self.shared.tasks.wait().await;
            // Acknowledgements on their way are on the server when this returns.
            if self.shared.link.connected() {
                let _ = self.shared.api.client().flush().await;
            }
            let _ = self.shared.api.client().drain().await;
        };
        tokio::time::timeout(CLOSE_WAIT, ended).await.map_err(|_| {
            Error::new(
                ErrorKind::Unavailable,
                "close: a handler is still running, or the server does not answer",
            )
        })
    }
}

#[async_trait]
impl Subscriber for ExternalNats {
    async fn subscribe(&self, ctx: &Ctx, consumer: &str, listener: Listener) -> Result<(), Error> {
        self.shared.check_open()?;
        self.shared.listen(ctx, consumer, listener).await
    }
}

#[async_trait]
impl ConsumerManager for ExternalNats {
    async fn create_consumer(&self, ctx: &Ctx, config: ConsumerConfig) -> Result<Box<dyn Consumer>, Error> {
        self.shared.check_open()?;
        Ok(Box::new(self.shared.bind(ctx, config).await?))
    }
}

#[async_trait]
impl DeadLetterer for ExternalNats {
    async fn dead_letter(&self, ctx: &Ctx, message: &Message, options: PublishOptions) -> Result<(), Error> {
        self.shared.check_open()?;
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        let destination = Destination {
            subject: &self.shared.topology.dead_letter_subject(message.topic_key()),
            stream: &self.shared.dead_letters,
            tell_stream: true,
        };
        self.shared
            .store(ctx, destination, headers, message.data().clone())
            .await
            .map(drop)
    }
}

#[async_trait]
impl DeadLetterStats for ExternalNats {
    async fn dead_letter_counts(
        &self,
        ctx: &Ctx,
        tenant: &TenantId,
        table: Option<&str>,
    ) -> Result<DeadLetterCounts, Error> {
        self.shared.check_open()?;
        ctx.check("dead-letter counts")?;
        let stream = &self.shared.dead_letters;
        let filter = self.shared.topology.dead_letter_subject(&format!("{tenant}.>"));
        let info = self.shared.api.stream_subjects(stream, &filter).await;
        let info = info.map_err(|failure| failure.into_error("dead-letter counts"))?;
        let info =
            info.ok_or_else(|| Error::new(ErrorKind::Topology, format!("stream {stream} does not exist")))?;
        let counts = info.state.subjects.iter();
        let keys = counts.map(|(subject, count)| (self.shared.topology.topic_key(subject), *count));
        Ok(DeadLetterCounts {
            tables: dead_letter_tables(keys, table),
            total: info.state.subjects.values().sum(),
        })
    }
}

#[async_trait]
impl Purger for ExternalNats {
    /// Removes nothing: partitions delete each event once it is acknowledged, and the history keeps what its age allows.
    async fn purge_acked(&self, _: &Ctx, consumer: &str, _: &BTreeMap<TenantId, SystemTime>) -> PurgeOutcome {
        let known = [WORKER_DURABLE, &self.shared.topology.ingest_consumer].contains(&consumer);
        let unknown = || {
            Error::new(
                ErrorKind::ConsumerNotFound,
                format!("consumer {consumer} not found"),
            )
        };
        PurgeOutcome {
            purged: false,
            error: (!known).then(unknown),
        }
    }
}

#[async_trait]
impl Replayer for ExternalNats {
    async fn replay_since(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        since: SystemTime,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error> {
        self.shared.check_open()?;
        self.shared.replay(ctx, topic, since, sink).await
    }
}

#[async_trait]
impl Broker for ExternalNats {
    /// Records the budget and enforces nothing: the tenants of a partition share its bytes.
    async fn set_max_bytes(&self, _: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        self.shared.check_open()?;
        if !self.shared.budgets_told.swap(true, Ordering::Relaxed) {
            tracing::info!(
                component = "nats",
                "budgets are recorded only: the tenants of a partition share its max_bytes"
            );
        }
        self.shared.budgets.lock().insert(tenant.clone(), bytes);
        Ok(())
    }

    fn max_bytes(&self, tenant: &TenantId) -> u64 {
        self.shared.budgets.lock().get(tenant).copied().unwrap_or(0)
    }

    fn stats(&self) -> Result<Stats, Error> {
        let statistics = self.shared.api.client().statistics();
        Ok(Stats {
            connections: u64::from(self.shared.link.connected()),
            in_msgs: statistics.in_messages.load(Ordering::Relaxed),
        })
    }

    fn as_sharded(&self) -> Option<&dyn Sharded> {
        Some(self)
    }
}

#[async_trait]
impl Sharded for ExternalNats {
    fn ingest_units(&self) -> IngestUnits {
        IngestUnits {
            configured: self.shared.units.iter().map(ToString::to_string).collect(),
            extra: self
                .shared
                .extras
                .lock()
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }

    async fn reset_orphaned(&self, ctx: &Ctx, unit: &str) -> Result<bool, Error> {
        let (unit, _) = self.shared.unit(unit)?;
        tokio::select! {
            biased;
            () = ctx.canceled() => Err(Error::canceled("reset")),
            reset = self.shared.reset(&unit) => reset,
        }
    }

    async fn unowned(&self, ctx: &Ctx) -> Result<usize, Error> {
        let extras = self.shared.extras.lock().clone();
        let mut count = 0;
        for unit in self.shared.units.iter().chain(&extras) {
            ctx.check("unowned")?;
            let info = match self.shared.api.consumer(&unit.stream, &unit.durable).await {
                Ok(info) => info,
                Err(failure) if failure.is_gone() => continue,
                Err(failure) => return Err(failure.into_error(format!("unit {unit}"))),
            };
            let waiting = info.num_pending > 0 || info.num_ack_pending > 0;
            count += usize::from(waiting && pinned_client(&info).is_none() && !recently_active(&info));
        }
        Ok(count)
    }
}
