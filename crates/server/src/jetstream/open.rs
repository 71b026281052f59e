//! Starting JetStream: opening the store, bringing its streams back, putting the services of accounts in place; and its end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};
use windjet_protocol::jetstream::{StorageType, StreamConfig, Timestamp, level};
use windjet_store::{
    BudgetDisk, Disk, Durability, Op, OpenError, RealDisk, Store, StoreOptions, StreamWriter,
};

use super::account::JsAccount;
use super::health::{Health, Lost};
use super::quota::Used;
use super::service::{self, Services};
use super::stream::call::Call;
use super::stream::{Stream, task};
use super::{JetStream, Medium, Size};
use crate::account::Account;
use crate::monitor::memory_of_machine;
use crate::options::{GLOBAL_ACCOUNT, Options};
use crate::server::Shared;

/// Why JetStream did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JetStreamError {
    /// The folder cannot be made or entered.
    #[error("cannot use {folder} for JetStream")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store in it does not open.
    #[error("cannot open the JetStream store in {folder}: {source}")]
    Open {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The system refused a thread.
    #[error("no thread for the JetStream store")]
    Thread(#[source] std::io::Error),
}

/// What the store keeps as a stream's configuration: JSON, so that another version reads what it knows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredStream {
    /// When the stream was created, nanoseconds since the Unix epoch.
    pub(crate) created: i64,
    /// Its configuration.
    pub(crate) config: StreamConfig,
    /// Whether it is being restored: what there is of it goes when the store is opened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
}

impl StoredStream {
    pub(crate) fn encode(&self) -> bytes::Bytes {
        // Serialising fails only for maps whose keys are no strings.
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        // It stays in memory as long as the stream does.
        text.shrink_to_fit();
        text.into()
    }
}

/// Name of a stream in the store. Neither part can have a `/` that would make it ambiguous: streams cannot at all.
pub(crate) fn store_name(account: &str, stream: &str) -> String {
    format!("{account}/{stream}")
}

/// How a stream is durable: what it says itself, else the server's default.
pub(crate) fn durability(config: &StreamConfig, default: Durability) -> Durability {
    use windjet_protocol::jetstream::PersistMode;
    match config.metadata.get("windjet.durability").map(String::as_str) {
        Some("sync") => return Durability::Sync,
        Some("os") => return Durability::Os,
        Some(text) => {
            let interval = text.strip_prefix("interval:");
            let parsed = interval.and_then(|text| text.parse::<windjet_protocol::jetstream::Nanos>().ok());
            if let Some(every) = parsed.filter(|every| every.is_positive()) {
                return Durability::Interval(every.to_std());
            }
        }
        None => {}
    }
    if config.persist_mode == PersistMode::Async {
        return Durability::Os;
    }
    default
}

/// The share of a memory budget that the store's cache of blocks gets, and its tails; what is left is for receivers.
const BUDGET_SHARE: u64 = 4;
/// The share of a storage budget that the journal gets; its ballast takes a little more.
const JOURNAL_SHARE: u64 = 12;
/// The share of a storage budget up to which segments are joined, which takes as much once more while it is done.
const SEGMENT_SHARE: u64 = 24;
/// The share of a storage budget at which the manifest is written anew. There are two copies, and four meanwhile.
const MANIFEST_SHARE: u64 = 128;

/// The store's sizes under the server's budgets.
pub(crate) fn store_options(options: &Options, own_disk: bool) -> StoreOptions {
    let mut store = StoreOptions {
        // A disk of a test has a budget or is full when the test says so.
        ballast: own_disk || options.storage_budget.is_some(),
        ..StoreOptions::default()
    };
    if let Some(budget) = options.memory_budget {
        let share = budget / BUDGET_SHARE;
        store.cache_max = store.cache_max.min(share);
        store.tail_max = store.tail_max.min(share);
        store.stream_staged_max = store.stream_staged_max.min(store.tail_max / 2);
    }
    if let Some(budget) = options.storage_budget {
        store.journal_max = store.journal_max.min(budget / JOURNAL_SHARE);
        store.journal_file_max = store.journal_file_max.min(store.journal_max / 8);
        store.journal_first = store.journal_first.min(store.journal_file_max);
        let record = usize::try_from(store.journal_max / 2).unwrap_or(usize::MAX);
        store.record_max = store.record_max.min(record);
        let file = usize::try_from(store.journal_file_max).unwrap_or(usize::MAX);
        store.frame_max = store.frame_max.min(file / 2);
        store.fragment = store.fragment.min(store.frame_max / 2);
        store.segment_max = store.segment_max.min(budget / SEGMENT_SHARE);
        store.manifest_max = store.manifest_max.min(budget / MANIFEST_SHARE);
    }
    store
}

/// Opens the store; blocks on the disk.
pub(crate) fn open(options: &Options, medium: Medium) -> Result<Option<JetStream>, JetStreamError> {
    let Some(settings) = &options.jetstream else {
        return Ok(None);
    };
    let begun = Instant::now();
    let base = settings
        .store_dir
        .clone()
        .or_else(|| options.store_dir.clone())
        .unwrap_or_else(|| std::env::temp_dir().join("nats"));
    let folder = base.join("jetstream");
    let in_folder = |source| JetStreamError::Folder {
        folder: folder.clone(),
        source,
    };
    let (own_disk, runs) = (medium.disk.is_none(), medium.runs());
    let disk: Arc<dyn Disk> = match medium.disk {
        Some(disk) => disk,
        None => {
            std::fs::create_dir_all(&folder).map_err(in_folder)?;
            Arc::new(RealDisk::new(&folder).map_err(in_folder)?)
        }
    };
    let disk = BudgetDisk::new(disk, options.storage_budget).map_err(in_folder)?;
    let clock = medium.time.clock();
    let store_options = store_options(options, own_disk);
    let opened = Store::open(store_options, Arc::new(disk.clone()), clock.clone());
    let (mut store, report) = opened.map_err(|source| JetStreamError::Open {
        folder: folder.clone(),
        source,
    })?;
    if !report.is_intact() {
        for finding in &report.findings {
            tracing::error!(?finding, "the store had damage; what could be read is kept");
        }
    }
    if runs {
        store.start().map_err(JetStreamError::Thread)?;
    }
    let storage = settings
        .max_file_store
        .unwrap_or_else(|| three_quarters_of_disk(&folder));
    let size = Size {
        memory: settings.max_memory_store.unwrap_or_else(three_quarters_of_memory),
        storage: options
            .storage_budget
            .map_or(storage, |budget| storage.min(budget)),
    };
    Ok(Some(JetStream {
        health: Health::new(store.probe()),
        folder,
        size: Mutex::new(size),
        used: Used::default(),
        took: AtomicU64::new(nanos(begun.elapsed())),
        durability: match settings.sync_interval {
            None => Durability::Sync,
            Some(every) => Durability::Interval(every),
        },
        store: Mutex::new(Some(store)),
        disk,
        clock,
        time: medium.time,
        options: ArcSwap::from_pointee(settings.clone()),
        services: Services::default(),
        accounts: RwLock::new(HashMap::new()),
        max_payload: usize::try_from(options.max_payload).unwrap_or(1 << 20),
        reads: Arc::new(Semaphore::new(2)),
        backups: Arc::new(Semaphore::new(super::backup::RUNNING_MAX)),
        atomic_batches: super::batch::Shared::default(),
        fast_batches: Arc::default(),
    }))
}

/// Three quarters of the machine's memory; 256 MiB where that is not known.
fn three_quarters_of_memory() -> u64 {
    memory_of_machine().map_or(256 << 20, |bytes| bytes / 4 * 3)
}

/// Three quarters of what is free on the disk of `folder`; 1 TiB where that is not known.
fn three_quarters_of_disk(folder: &std::path::Path) -> u64 {
    free_on_disk(folder).map_or(1 << 40, |bytes| bytes / 4 * 3)
}

#[cfg(unix)]
fn free_on_disk(folder: &std::path::Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_on_disk(_: &std::path::Path) -> Option<u64> {
    None
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether an account has JetStream, and with which limits.
fn limits_of(
    options: &Options,
    account: &Account,
    server: &Shared,
) -> Option<crate::options::AccountJetStreamLimits> {
    if server
        .accounts
        .system()
        .is_some_and(|system| system.name == account.name)
    {
        return None;
    }
    if let Some(account) = options.accounts.get(&*account.name) {
        return account.jetstream.clone();
    }
    if &*account.name == GLOBAL_ACCOUNT {
        // The global account has it as long as no account is told to have it.
        let told = options
            .accounts
            .values()
            .any(|account| account.jetstream.is_some());
        return (!told || options.accounts.is_empty()).then(Default::default);
    }
    server.claimed_jetstream(&account.name)
}

/// Brings the accounts in line with the options: at the start and after a reload.
pub(crate) fn apply_options(server: &Arc<Shared>) {
    let Some(js) = server.jetstream() else {
        return;
    };
    let options = server.options().clone();
    if let Some(settings) = &options.jetstream {
        js.options.store(Arc::new(settings.clone()));
        let mut size = js.size.lock();
        size.memory = settings.max_memory_store.unwrap_or(size.memory);
        size.storage = settings.max_file_store.unwrap_or(size.storage);
    }
    let mut lost = Vec::new();
    let mut gained = Vec::new();
    for account in server.accounts.all() {
        let limits = limits_of(&options, &account, server);
        let known = js.account(&account.name);
        match (limits, known) {
            (Some(limits), Some(known)) => known.set_limits(limits),
            (Some(limits), None) => {
                let made = Arc::new(JsAccount::new(
                    account.clone(),
                    limits,
                    js.options().domain.clone(),
                ));
                js.accounts.write().insert(account.name.clone(), made.clone());
                service::attach(server, &js, &account, Some(made.clone()));
                gained.push(made);
            }
            (None, known) => {
                service::attach(server, &js, &account, None);
                lost.extend(known);
            }
        }
    }
    let is_there = |name: &str| server.accounts.get(name).is_some();
    js.services.retain(is_there);
    lost.extend(js.accounts().into_iter().filter(|known| !is_there(known.name())));
    for account in &lost {
        js.accounts.write().remove(account.name());
    }
    if !lost.is_empty() {
        retire(server, &js, lost);
    }
    if !gained.is_empty() {
        bring_back(server, &js, &gained);
    }
}

/// Ends the streams of accounts that have JetStream no longer. What they have in files stays there, for when they have it
/// again; memory streams are gone, as after a restart. Blocks until it is done.
fn retire(server: &Arc<Shared>, js: &Arc<JetStream>, lost: Vec<Arc<JsAccount>>) {
    let js = js.clone();
    let end = async move {
        for account in &lost {
            account.retire();
        }
        end_streams(&lost).await;
        for account in &lost {
            for stream in account.streams() {
                if stream.config().storage != StorageType::Memory {
                    continue;
                }
                let full = store_name(account.name(), &stream.name);
                let writer = js.with_store(|store| store.writer(&full)).flatten();
                if let Some(Err(error)) = writer.map(remove) {
                    tracing::error!(stream = %full, "the memory stream stays until the restart: {error}");
                }
            }
            account.forget_streams();
        }
    };
    if !wait_for(server, end) {
        tracing::warn!("accounts have JetStream no longer, and their streams have not ended yet");
    }
}

/// Starts the tasks of the streams that the store has of accounts.
fn bring_back(server: &Arc<Shared>, js: &Arc<JetStream>, gained: &[Arc<JsAccount>]) {
    let _runtime = server.runtime.enter();
    let gained: HashMap<&str, &Arc<JsAccount>> = gained.iter().map(|a| (a.name(), a)).collect();
    let mut names = js.with_store(Store::streams).unwrap_or_default();
    names.sort_unstable();
    for (full, _) in names {
        let Some((account, stream)) = full.rsplit_once('/') else {
            continue;
        };
        let Some(&account) = gained.get(account) else {
            continue;
        };
        if let Err((config, why)) = recover(server, js, account, &full, stream) {
            account.offline.insert(stream, config.as_deref(), why);
            js.health.lose(Lost {
                account: account.name().to_owned(),
                stream: stream.to_owned(),
                consumer: None,
            });
        }
    }
}

/// Puts everything in place: services of accounts, tasks of the streams that the store has.
pub(crate) fn start(server: &Arc<Shared>) {
    let Some(js) = server.jetstream() else {
        return;
    };
    let begun = Instant::now();
    apply_options(server);
    let mut left = js.with_store(Store::streams).unwrap_or_default();
    left.retain(|(name, _)| {
        name.rsplit_once('/')
            .is_some_and(|(account, _)| js.account(account).is_none())
    });
    if !left.is_empty() {
        let mut names: Vec<String> = left.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        tracing::warn!(
            "streams of accounts that are not configured are kept and not served: {}",
            names.join(", ")
        );
    }
    js.took.fetch_add(nanos(begun.elapsed()), Ordering::Relaxed);
}

/// Removes a stream that nobody owns.
fn remove(mut writer: StreamWriter) -> Result<(), String> {
    writer.stage(Op::Delete).map_err(|error| error.to_string())?;
    writer.submit();
    Ok(())
}

fn recover(
    server: &Arc<Shared>,
    js: &Arc<JetStream>,
    account: &Arc<JsAccount>,
    full: &str,
    name: &str,
) -> Result<(), (Option<Box<StreamConfig>>, String)> {
    let writer = js
        .with_store(|store| store.writer(full))
        .flatten()
        .ok_or_else(|| (None, "its writer is in use".to_owned()))?;
    let stored: StoredStream = serde_json::from_slice(&writer.options().config)
        .map_err(|error| (None, format!("its configuration cannot be read: {error}")))?;
    if stored.unfinished {
        tracing::warn!(stream = %full, "a restore was not finished: what there is of the stream is removed");
        return remove(writer).map_err(|why| (Some(Box::new(stored.config)), why));
    }
    if let Some(why) = level::unsupported_reason(&stored.config.metadata) {
        return Err((Some(Box::new(stored.config)), why));
    }
    let created = Timestamp::from_unix_nanos(stored.created);
    let stream = Arc::new(Stream::new(name, created, stored.config, writer.reader()));
    account.insert(&stream);
    task::spawn(task::Task::new(
        server.clone(),
        js.clone(),
        account.clone(),
        stream,
        writer,
        task::Origin::Found,
    ));
    Ok(())
}

/// Longest time that a reload waits for the end of streams that it switches off; they go on ending after that.
const SWITCH_OFF_MAX: Duration = Duration::from_secs(30);

/// Starts a JetStream that a reload opened. The options in force ask for it already.
pub(crate) fn switch_on(server: &Arc<Shared>, jetstream: JetStream) {
    let _runtime = server.runtime.enter();
    server.set_jetstream(Some(Arc::new(jetstream)));
    start(server);
}

/// Ends JetStream while the server goes on, and waits until its folder is free again. Blocks.
pub(crate) fn switch_off(server: &Arc<Shared>) {
    let Some(js) = server.set_jetstream(None) else {
        return;
    };
    js.services.detach();
    let end = async move {
        js.shutdown().await;
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || js.close()).await {
            tracing::error!("the JetStream store did not close cleanly: {error}");
        }
    };
    if !wait_for(server, end) {
        tracing::warn!("JetStream is switched off, and its streams have not ended yet");
    }
}

/// Runs something on the server's runtime and blocks until it is done; false when that takes too long.
fn wait_for(server: &Arc<Shared>, what: impl Future<Output = ()> + Send + 'static) -> bool {
    let (done, ended) = std::sync::mpsc::channel();
    let run = async move {
        what.await;
        // The reload may have given up.
        let _ = done.send(());
    };
    server.tasks.spawn_on(run, &server.runtime);
    ended.recv_timeout(SWITCH_OFF_MAX).is_ok()
}

/// Ends all restores and streams of accounts, with their last records in the journal and their writers free.
async fn end_streams(accounts: &[Arc<JsAccount>]) {
    // One that is at its end makes a stream.
    for account in accounts {
        let _ = tokio::time::timeout(SWITCH_OFF_MAX, account.end_restores()).await;
    }
    let mut waits = Vec::new();
    for stream in accounts.iter().flat_map(|account| account.streams()) {
        let (done, wait) = oneshot::channel();
        if stream.inbox.call(Call::Shutdown(done)).is_ok() {
            waits.push(wait);
        }
    }
    for wait in waits {
        let _ = tokio::time::timeout(SWITCH_OFF_MAX, wait).await;
    }
}

impl JetStream {
    /// Ends all streams and closes the store. Waits for the disk.
    pub(crate) async fn shutdown(&self) {
        end_streams(&self.accounts()).await;
    }

    /// Closes the store, after the tasks of the streams have ended. Blocks on the disk.
    pub(crate) fn close(&self) -> std::io::Result<()> {
        match self.store.lock().take() {
            Some(store) => store.close(),
            None => Ok(()),
        }
    }
}
