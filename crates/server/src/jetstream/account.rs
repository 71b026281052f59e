//! JetStream of one account: its streams by name, its limits, its counters.
//!
//! Look-ups take a read lock for a moment. Creating, updating and deleting a stream go one at a time per account
//! ([`JsAccount::admin`]), because names, subjects and reservations of all its streams belong together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use windjet_protocol::jetstream::account::{AccountLimits, AccountUsage};
use windjet_protocol::jetstream::advisory::{ApiAudit, Event, EventBody};
use windjet_protocol::jetstream::{StorageType, StreamConfig, Timestamp};
use windjet_protocol::subject;

use super::claims::{Claims, reserved_by};
use super::offline::Offline;
use super::quota::Used;
use super::stream::Stream;
use super::stream::call::Asker;
use super::stream::source::follow::{Follower, Followers};
use crate::account::Account;
use crate::options::AccountJetStreamLimits;
use crate::server::Shared;

/// Those that run.
#[derive(Debug, Default)]
struct Streams {
    by_name: BTreeMap<Arc<str>, Arc<Stream>>,
    claims: Claims,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct JsAccount {
    /// The account.
    pub(crate) account: Arc<Account>,
    streams: RwLock<Streams>,
    /// Those that exist and do not run.
    pub(crate) offline: Offline,
    limits: RwLock<AccountJetStreamLimits>,
    /// What its streams take.
    pub(super) used: Used,
    /// Who copies from streams, by their names, whether they exist or not.
    followers: Mutex<HashMap<String, Arc<Followers>>>,
    /// Streams that are being restored: their names and subjects are taken.
    reserved: Mutex<BTreeMap<String, StreamConfig>>,
    /// Restores that run; they end with the account's JetStream.
    restores: TaskTracker,
    closing: CancellationToken,
    /// Held while streams are created, changed or deleted.
    pub(crate) admin: Mutex<()>,
    /// Whether it had a stream since the start.
    had_streams: AtomicBool,
    /// It has JetStream no longer. Changes under `admin`.
    retired: AtomicBool,
    total: AtomicU64,
    errors: AtomicU64,
    domain: Option<String>,
}

impl JsAccount {
    /// An account without streams.
    pub(crate) fn new(account: Arc<Account>, limits: AccountJetStreamLimits, domain: Option<String>) -> Self {
        Self {
            account,
            streams: RwLock::default(),
            offline: Offline::default(),
            limits: RwLock::new(limits),
            used: Used::default(),
            followers: Mutex::default(),
            reserved: Mutex::default(),
            restores: TaskTracker::new(),
            closing: CancellationToken::new(),
            admin: Mutex::new(()),
            had_streams: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            total: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            domain,
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.account.name
    }

    /// The domain of the server.
    pub(crate) fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// Its limits.
    pub(crate) fn limits(&self) -> AccountJetStreamLimits {
        self.limits.read().clone()
    }

    /// Most consumers of one stream.
    pub(crate) fn consumers_max(&self) -> Option<i64> {
        let max = self.limits.read().max_consumers?;
        Some(i64::try_from(max).unwrap_or(i64::MAX))
    }

    /// New limits, after a reload.
    pub(crate) fn set_limits(&self, limits: AccountJetStreamLimits) {
        *self.limits.write() = limits;
    }

    /// A stream by name.
    pub(crate) fn stream(&self, name: &str) -> Option<Arc<Stream>> {
        self.streams.read().by_name.get(name).cloned()
    }

    /// All streams in the order of their names.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.streams.read().by_name.values().cloned().collect()
    }

    /// Adds a stream. Under [`JsAccount::admin`].
    pub(crate) fn insert(&self, stream: &Arc<Stream>) {
        self.had_streams.store(true, Ordering::Relaxed);
        stream.set_listed(true);
        let before = {
            let mut streams = self.streams.write();
            streams.claims.set(&stream.name, &stream.config());
            streams.by_name.insert(stream.name.clone(), stream.clone())
        };
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, stream)) {
            before.set_listed(false);
        }
        if let Some(followers) = self.followers.lock().get(&*stream.name) {
            stream.set_followers(Some(followers.clone()));
            followers.tell();
        }
    }

    /// From now on `follower` hears of the stream with a name: of what it stores, that it comes, that it goes.
    pub(crate) fn follow(&self, name: &str, follower: Arc<Follower>) {
        let mut all = self.followers.lock();
        let followers = all.entry(name.to_owned()).or_default();
        followers.add(follower);
        if let Some(stream) = self.stream(name) {
            stream.set_followers(Some(followers.clone()));
        }
    }

    /// It hears nothing any more.
    pub(crate) fn unfollow(&self, name: &str, follower: &Arc<Follower>) {
        let mut all = self.followers.lock();
        let Some(followers) = all.get(name) else { return };
        if followers.remove(follower) {
            all.remove(name);
            if let Some(stream) = self.stream(name) {
                stream.set_followers(None);
            }
        }
    }

    /// Takes a stream out, if it is still this one. Under [`JsAccount::admin`] or by the stream's own task.
    pub(crate) fn remove(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.write();
        if streams.has(stream) {
            streams.by_name.remove(&stream.name);
            streams.claims.clear(&stream.name);
        }
        drop(streams);
        stream.set_listed(false);
        if let Some(followers) = self.followers.lock().get(&*stream.name) {
            followers.tell();
        }
    }

    /// A stream has changed its configuration. Under [`JsAccount::admin`].
    pub(crate) fn changed(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.write();
        if streams.has(stream) {
            streams.claims.set(&stream.name, &stream.config());
        }
    }

    /// From now on nobody makes a stream here.
    pub(super) fn retire(&self) {
        let _admin = self.admin.lock();
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether it has JetStream no longer. Under [`JsAccount::admin`].
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Told when a restore must end; the restore is waited for while it holds the second.
    pub(super) fn restoring(&self) -> (CancellationToken, TaskTrackerToken) {
        (self.closing.clone(), self.restores.token())
    }

    /// Ends the restores that run, and those that begin from now on, and waits for what they clear away.
    pub(super) async fn end_restores(&self) {
        self.closing.cancel();
        self.restores.close();
        self.restores.wait().await;
    }

    /// Forgets its streams, whose tasks have ended.
    pub(super) fn forget_streams(&self) {
        let gone = std::mem::take(&mut *self.streams.write());
        gone.by_name.values().for_each(|stream| stream.set_listed(false));
    }

    /// Whether it had a stream since the start.
    pub(crate) fn is_used(&self) -> bool {
        self.had_streams.load(Ordering::Relaxed)
    }

    /// Takes name and subjects of a stream that is not there yet. Under [`JsAccount::admin`].
    pub(crate) fn reserve(self: &Arc<Self>, config: &StreamConfig) -> Reserved {
        self.reserved.lock().insert(config.name.clone(), config.clone());
        Reserved {
            account: self.clone(),
            name: config.name.clone(),
        }
    }

    /// Whether a name is taken by a stream that is not there yet.
    pub(crate) fn reserves(&self, name: &str) -> bool {
        self.reserved.lock().contains_key(name)
    }

    /// Counts an API call.
    pub(crate) fn count_call(&self, failed: bool) {
        self.total.fetch_add(1, Ordering::Relaxed);
        if failed {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// API calls and failures among them.
    pub(crate) fn calls(&self) -> (u64, u64) {
        (
            self.total.load(Ordering::Relaxed),
            self.errors.load(Ordering::Relaxed),
        )
    }

    /// How many streams other than `except` the account has, and what bytes they reserve in a kind of storage.
    pub(crate) fn reserved(&self, storage: StorageType, except: Option<&str>) -> (u64, u64) {
        let (mut count, mut bytes) = {
            let streams = self.streams.read();
            let known = except.is_some_and(|name| streams.by_name.contains_key(name));
            let others = streams.by_name.len() - usize::from(known);
            (others as u64, streams.claims.reserved(storage, except))
        };
        for (name, config) in &*self.reserved.lock() {
            if except == Some(name) {
                continue;
            }
            count += 1;
            if config.storage == storage {
                bytes = bytes.saturating_add(reserved_by(config));
            }
        }
        (count, bytes)
    }

    /// What the account's streams take and reserve.
    pub(crate) fn usage(&self) -> AccountUsage {
        let mut usage = AccountUsage {
            limits: self.shown_limits(),
            ..AccountUsage::default()
        };
        for stream in self.streams.read().by_name.values() {
            let used = match stream.config().storage {
                StorageType::Memory => &mut usage.memory,
                _ => &mut usage.storage,
            };
            *used += stream.reader.state().bytes;
            usage.consumers += stream.consumers() as u64;
        }
        (usage.streams, usage.reserved_memory) = self.reserved(StorageType::Memory, None);
        usage.reserved_storage = self.reserved(StorageType::File, None).1;
        usage
    }

    /// Most bytes of streams of a kind of storage.
    pub(crate) fn bytes_max(&self, memory: bool) -> Option<u64> {
        let limits = self.limits.read();
        if memory {
            limits.max_memory
        } else {
            limits.max_store
        }
    }

    /// The limits as the API shows them: -1 for none.
    pub(crate) fn shown_limits(&self) -> AccountLimits {
        let limits = self.limits.read();
        let shown = |limit: Option<u64>| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        AccountLimits {
            max_memory: shown(limits.max_memory),
            max_storage: shown(limits.max_store),
            max_streams: shown(limits.max_streams),
            max_consumers: shown(limits.max_consumers),
            max_ack_pending: shown(limits.max_ack_pending),
            memory_max_stream_bytes: shown(limits.memory_max_stream_bytes),
            storage_max_stream_bytes: shown(limits.store_max_stream_bytes),
            max_bytes_required: limits.max_bytes_required,
        }
    }

    /// Whether another stream's subjects collide with those of `config`.
    pub(crate) fn overlaps(&self, config: &StreamConfig) -> bool {
        let collides = |other: &StreamConfig| {
            other.name != config.name
                && other.subjects.iter().any(|theirs| {
                    config
                        .subjects
                        .iter()
                        .any(|ours| subject::overlaps(ours.as_bytes(), theirs.as_bytes()))
                })
        };
        self.streams.read().claims.overlap(config)
            || self.reserved.lock().values().any(collides)
            || self.offline.overlaps(&config.subjects)
    }

    /// Whether anybody listens to a subject of the account.
    pub(crate) fn listens(&self, subject: &str) -> bool {
        !self.account.matches(subject.as_bytes()).1.is_empty()
    }

    /// Publishes an event to whoever listens.
    pub(crate) fn advise<B: EventBody>(&self, server: &Shared, body: impl FnOnce() -> B, subject: &str) {
        advise(server, &self.account, body, subject);
    }
}

impl Streams {
    fn has(&self, stream: &Arc<Stream>) -> bool {
        let known = self.by_name.get(&stream.name);
        known.is_some_and(|known| Arc::ptr_eq(known, stream))
    }
}

/// A name and subjects that are taken as long as this is there.
#[derive(Debug)]
pub(crate) struct Reserved {
    account: Arc<JsAccount>,
    name: String,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account.reserved.lock().remove(&self.name);
    }
}

/// Publishes an event in an account to whoever listens.
pub(crate) fn advise<B: EventBody>(
    server: &Shared,
    account: &Arc<Account>,
    body: impl FnOnce() -> B,
    subject: &str,
) {
    if account.matches(subject.as_bytes()).1.is_empty() {
        return;
    }
    let event = Event {
        id: event_id(),
        timestamp: Timestamp::from_unix_nanos(super::wall_ns(server)),
        body: body(),
    };
    server.publish(
        account,
        subject.as_bytes(),
        None,
        b"",
        &Bytes::from(event.to_vec()),
    );
}

/// 22 random characters.
pub(crate) fn event_id() -> String {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    (0..22)
        .map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]))
        .collect()
}

/// The subject of the audit of API calls.
pub(crate) const AUDIT: &str = "$JS.EVENT.ADVISORY.API";

impl Asker {
    /// Counts the call, sends its answer, and tells the audit: who has the answer reads a count with the call in it.
    pub(crate) fn send(self, server: &Shared, text: Vec<u8>, failed: bool, counted: bool) {
        let text = Bytes::from(text);
        if counted {
            self.account.count_call(failed);
        }
        if !self.reply.is_empty() {
            server.publish(&self.account.account, &self.reply, None, b"", &text);
        }
        if !counted {
            return;
        }
        let Some(client) = self.client else { return };
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.account.advise(
            server,
            || ApiAudit {
                server: server.name.clone(),
                client: *client,
                subject: lossy(&self.subject),
                request: lossy(&self.body),
                response: lossy(&text),
                domain: self.account.domain.clone(),
            },
            AUDIT,
        );
    }
}
