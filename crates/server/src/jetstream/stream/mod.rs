//! A stream: one task that owns the writer and all consumers, and the handle that others hold.
//!
//! * [`inbox`]: what waits for the task.
//! * [`call`]: management calls and where their answers go.
//! * [`task`]: the loop and the order of a turn.
//! * [`ingest`]: a publish, from its checks to its acknowledgement.
//! * [`batches`]: publishes that belong together.
//! * [`outbox`]: replies that wait for the journal.
//! * [`admin`]: management calls on the stream, [`consumers`] and [`roster`] its consumers.
//! * [`backup`]: snapshots of the stream, the end of its restore.
//! * [`signals`]: acks and pull requests; [`records`]: what consumers store.
//! * [`upkeep`]: limits, age, per-message times to live, schedules: what happens without being asked.
//! * [`limits`]: events near the stream's limits.
//! * [`source`]: messages taken from other streams: mirrors and sources.
//! * [`sink`]: subscriptions of the stream in its account's trie.

pub(crate) mod admin;
mod backup;
mod batches;
pub(crate) mod call;
pub(crate) mod consumers;
pub(crate) mod inbox;
pub(crate) mod ingest;
mod limits;
pub(crate) mod outbox;
mod post;
mod records;
mod republish;
mod roster;
mod signals;
mod sink;
pub(crate) mod source;
pub(crate) mod task;
pub(crate) mod upkeep;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::RwLock;
use windjet_protocol::jetstream::{StreamConfig, Timestamp};
use windjet_protocol::subject;
use windjet_store::StreamReader;

use call::Call;
use inbox::Inbox;
use source::follow::Followers;
use source::progress::Progress;

/// A stream as everybody but its task sees it.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Name within its account.
    pub(crate) name: Arc<str>,
    /// When it was created.
    pub(crate) created: Timestamp,
    /// Committed messages.
    pub(crate) reader: StreamReader,
    /// What waits for its task.
    pub(crate) inbox: Arc<Inbox>,
    config: ArcSwap<StreamConfig>,
    directory: RwLock<HashMap<Arc<str>, Entry>>,
    visible: AtomicUsize,
    /// Whether its account has it under its name.
    listed: AtomicBool,
    /// Whether a consumer wants to hear of clients that go.
    requeues: AtomicBool,
    /// Streams that copy from it, if any.
    followers: ArcSwapOption<Followers>,
    /// How far its own mirror and sources are, if it has any.
    progress: ArcSwapOption<Vec<Arc<Progress>>>,
}

/// What has to be known of a consumer to hand it a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its number within the stream.
    pub(crate) number: u32,
    /// Whether it takes acks.
    pub(crate) acks: bool,
}

impl Stream {
    /// A handle; the task is started by [`task::spawn`].
    pub(crate) fn new(name: &str, created: Timestamp, config: StreamConfig, reader: StreamReader) -> Self {
        Self {
            name: name.into(),
            created,
            reader,
            inbox: Arc::default(),
            config: ArcSwap::from_pointee(config),
            directory: RwLock::default(),
            visible: AtomicUsize::new(0),
            listed: AtomicBool::new(false),
            requeues: AtomicBool::new(false),
            followers: ArcSwapOption::empty(),
            progress: ArcSwapOption::empty(),
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<StreamConfig> {
        self.config.load_full()
    }

    /// Whether a message with a literal subject belongs into it, by the configuration in force.
    pub(crate) fn takes(&self, literal: &[u8]) -> bool {
        let config = self.config.load();
        config
            .subjects
            .iter()
            .any(|pattern| subject::matches(pattern.as_bytes(), literal))
    }

    /// Whether its account has it under its name: not any more once it is being deleted.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    /// Its account has it now, or has it no more.
    pub(in crate::jetstream) fn set_listed(&self, listed: bool) {
        self.listed.store(listed, Ordering::Release);
    }

    /// Consumers, internal ones included.
    pub(crate) fn consumers(&self) -> usize {
        self.visible.load(Ordering::Relaxed)
    }

    /// A consumer that messages can be handed to.
    pub(crate) fn consumer(&self, name: &str) -> Option<Entry> {
        self.directory.read().get(name).copied()
    }

    /// A client is gone; told on where a consumer asked for it.
    pub(crate) fn client_gone(&self, connection: u64) {
        if self.requeues.load(Ordering::Relaxed) {
            // A stream that is gone has nobody to tell.
            drop(self.inbox.call(Call::Gone(connection)));
        }
    }

    /// Who copies from it.
    pub(crate) fn set_followers(&self, followers: Option<Arc<Followers>>) {
        self.followers.store(followers);
    }

    /// Something was committed, or nothing more will be: whoever copies or reads looks.
    fn tell_followers(&self) {
        if let Some(followers) = &*self.followers.load() {
            followers.tell();
        }
    }

    /// A new configuration.
    fn set_config(&self, config: Arc<StreamConfig>) {
        self.config.store(config);
    }

    fn want_gone(&self) {
        self.requeues.store(true, Ordering::Relaxed);
    }

    fn list_consumer(&self, name: Arc<str>, entry: Entry) {
        let mut directory = self.directory.write();
        directory.insert(name, entry);
        self.visible.store(directory.len(), Ordering::Relaxed);
    }

    fn unlist_consumer(&self, name: &str) {
        let mut directory = self.directory.write();
        directory.remove(name);
        self.visible.store(directory.len(), Ordering::Relaxed);
    }

    fn clear_consumers(&self) {
        self.directory.write().clear();
        self.visible.store(0, Ordering::Relaxed);
    }
}
