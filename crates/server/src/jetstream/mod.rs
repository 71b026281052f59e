//! JetStream: durable streams and consumers over the store.
//!
//! # How it is put together
//!
//! * One [`windjet_store::Store`] serves all accounts; a stream is called `<account>/<stream>` there, so names are free per
//!   account. Everything that must survive is an operation of the store; its `config` is the stream's configuration as JSON.
//! * `api` receives the requests on `$JS.API.>` in the publisher's turn, answers what needs no stream, and puts
//!   everything else into the inbox of the stream it is about, so that calls on one stream keep their order.
//! * `stream` is one task per stream that owns the [`windjet_store::StreamWriter`] and all the stream's consumers. Its
//!   inbox has lanes: journal completions, management, acks and pull requests, publishes. A turn drains them, each with a
//!   budget, submits once, and sends replies whose operations are committed.
//! * `stream::ingest` is the order of checks of a publish; it decides, and lists the effects in one store operation.
//! * `consumer` is the state machine of a consumer: synchronous, no I/O, told the time, told of events, and it speaks to
//!   the outside through `consumer::Port` alone.
//! * `config` holds defaults, validation and update rules of configurations; pure.
//! * `context` is JetStream for code in this process; what is sent to it goes through a `mailbox`.
//! * `overview` and `health` are what monitoring asks.
//! * `quota` holds what streams take against the bounds of account and server.
//! * `backup` sends snapshots of streams and restores them.
//! * `read` answers message gets and direct gets, away from the stream's task, from committed state.
//!
//! # What holds
//!
//! * A reply is sent when everything that it rests on is committed: not only publish acks, also duplicates, "wrong last
//!   sequence" and the answer to a confirmed ack.
//! * Consumers and readers see committed state only.
//! * Waiting goes one way: connection, stream, journal, disk. A stream never waits for a connection: a full outbound buffer
//!   stops the delivery to it.
//!
//! # What it does not do
//!
//! No clustering: calls that only a cluster answers get `503/10010`.

pub(crate) mod account;
pub(crate) mod api;
pub(crate) mod backup;
mod claims;
pub(crate) mod config;
pub(crate) mod consumer;
mod context;
mod explain;
mod fault;
mod health;
pub(crate) mod local;
pub(crate) mod mailbox;
mod medium;
mod offline;
mod open;
mod overview;
pub(crate) mod publish;
mod quota;
mod read;
mod service;
#[cfg(test)]
mod sim;
pub(crate) mod stream;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use windjet_store::{BudgetDisk, Clock, Durability, Store};

use consumer::Now;
use publish::{batch, fast};
use service::Services;

use crate::options::JetStreamOptions;
use crate::server::Shared;

pub(crate) use account::JsAccount;
pub use consumer::{Explanation, Unsettled};
pub use context::{
    AckError, ConsumeError, ConsumeOptions, Consumer, Delivery, Entry, FetchError, FetchOptions, GetError,
    JetStreamContext, KeyValue, KeyValueConfig, KeyValueError, KeyValueStatus, Messages, NewMessage,
    Operation, Ordered, OrderedConfig, PriorityRequest, Publish, PublishError, StartAt, Stored,
    StreamMessage, Watch,
};
pub(crate) use health::Lost;
#[cfg(feature = "test-util")]
pub use medium::TestClock;
pub(crate) use medium::{Medium, Time};
pub use open::JetStreamError;
pub(crate) use open::{apply_options, open, start, switch_off, switch_on};
pub(crate) use overview::{Asked, Totals, ask_consumers};
pub(crate) use stream::Stream;
pub use windjet_protocol::header::{HeaderError, HeaderMap};
pub use windjet_protocol::jetstream::stream::requests::PurgeRequest;
pub use windjet_protocol::jetstream::{
    AckPolicy, ApiError, ConsumerConfig, ConsumerInfo, DeliverPolicy, DiscardPolicy, ErrorCode, Nanos,
    RetentionPolicy, StorageType, StreamConfig, StreamInfo, Timestamp,
};

/// JetStream of one server.
#[derive(Debug)]
pub(crate) struct JetStream {
    /// The store; taken out when it is closed.
    store: Mutex<Option<Store>>,
    /// What the store's folder takes.
    disk: BudgetDisk,
    clock: Arc<dyn Clock>,
    time: Time,
    options: ArcSwap<JetStreamOptions>,
    /// What accounts hear of it by subject.
    services: Services,
    /// Where the store is.
    pub(crate) folder: PathBuf,
    /// How much it may take.
    size: Mutex<Size>,
    /// What all its streams take.
    used: quota::Used,
    /// For health checks.
    pub(crate) health: health::Health,
    /// How long its start took, in nanoseconds.
    took: AtomicU64,
    /// How streams are durable that do not say so themselves.
    pub(crate) durability: Durability,
    accounts: RwLock<HashMap<Arc<str>, Arc<JsAccount>>>,
    /// Longest payload on the server, when it started.
    pub(crate) max_payload: usize,
    /// Reads of messages that are not in memory, at the same time.
    pub(crate) reads: Arc<Semaphore>,
    /// Snapshots and restores that may still begin.
    pub(crate) backups: Arc<Semaphore>,
    /// What the open atomic batches of all streams take.
    pub(crate) atomic_batches: batch::Shared,
    /// Open fast batches of all streams.
    pub(crate) fast_batches: Arc<AtomicU64>,
}

/// Bytes that JetStream may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Of memory streams.
    pub(crate) memory: u64,
    /// Of file streams.
    pub(crate) storage: u64,
}

impl JetStream {
    /// The moment.
    pub(crate) fn now(&self) -> Now {
        Now {
            mono: u64::try_from(self.clock.monotonic().as_nanos()).unwrap_or(u64::MAX),
            wall: self.clock.wall_ns(),
        }
    }

    /// Waits until the moment whose [`Now::mono`] is `due`.
    pub(crate) async fn sleep_until(&self, due: u64) {
        self.time.sleep_until(Duration::from_nanos(due)).await;
    }

    /// Options of the server.
    pub(crate) fn options(&self) -> Arc<JetStreamOptions> {
        self.options.load_full()
    }

    /// How much it may take: what is configured, or what the machine had when it started.
    pub(crate) fn size(&self) -> Size {
        *self.size.lock()
    }

    /// How long its start took.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_nanos(self.took.load(Ordering::Relaxed))
    }

    /// Limits of atomic and of fast batches.
    pub(crate) fn batch_limits(&self) -> (batch::Limits, fast::Limits) {
        let options = self.options();
        let limits = &options.limits;
        let number = |set: Option<i64>| set.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        let count = |set: Option<i64>| number(set).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (mut atomic, mut fast) = (batch::Limits::default(), fast::Limits::default());
        atomic.per_stream = count(limits.batch_max_inflight_per_stream).unwrap_or(atomic.per_stream);
        atomic.total = number(limits.batch_max_inflight_total).unwrap_or(atomic.total);
        fast.per_stream = count(limits.batch_max_inflight_per_stream).unwrap_or(fast.per_stream);
        fast.total = number(limits.batch_max_inflight_total).unwrap_or(fast.total);
        atomic.messages = count(limits.batch_max_msgs).unwrap_or(atomic.messages);
        if let Some(timeout) = limits.batch_timeout {
            let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            (atomic.timeout, fast.timeout) = (timeout, timeout);
        }
        (atomic, fast)
    }

    /// JetStream of an account, if it has it.
    pub(crate) fn account(&self, name: &str) -> Option<Arc<JsAccount>> {
        self.accounts.read().get(name).cloned()
    }

    /// All accounts that have JetStream.
    pub(crate) fn accounts(&self) -> Vec<Arc<JsAccount>> {
        self.accounts.read().values().cloned().collect()
    }

    /// What its files take, and the bound.
    pub(crate) fn disk(&self) -> &BudgetDisk {
        &self.disk
    }

    /// Does something with the store; `None` when it is closed.
    pub(crate) fn with_store<T>(&self, what: impl FnOnce(&Store) -> T) -> Option<T> {
        self.store.lock().as_ref().map(what)
    }
}

/// The wall clock of JetStream, or the system's without it.
pub(crate) fn wall_ns(server: &Shared) -> i64 {
    match server.jetstream() {
        Some(js) => js.clock.wall_ns(),
        None => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
        }
    }
}
