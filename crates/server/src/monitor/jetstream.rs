//! JetStream in numbers: the object that `varz`, `statsz` and `jsz` have in common.

use serde::Serialize;
use windjet_protocol::jetstream::API_LEVEL;

use super::format::{is_zero, nanos};
use crate::jetstream::{JetStream, Totals};

/// What nats-server shows where no interval is configured.
const SYNC_INTERVAL_NS: u64 = 120_000_000_000;
/// Consumers of a stream that sets no limit, as nats-server shows it. Neither server has such a limit for streams that are
/// not replicated.
const DEFAULT_MAX_CONSUMERS: i64 = 1000;

/// The object.
#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    config: Config,
    stats: Stats,
    limits: Limits,
}

impl Overview {
    /// JetStream now.
    pub(crate) fn now(js: &JetStream) -> Self {
        Self {
            config: Config::of(js),
            stats: Stats::of(js, &js.totals()),
            limits: Limits::of(js),
        }
    }

    /// The same for other servers to read, without what is only of interest on this machine.
    pub(crate) fn for_others(js: &JetStream) -> Self {
        let mut overview = Self::now(js);
        overview.config.store_dir.clear();
        overview
    }
}

/// How it is configured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Config {
    max_memory: u64,
    max_storage: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    store_dir: String,
    #[serde(skip_serializing_if = "is_zero")]
    sync_interval: u64,
    #[serde(skip_serializing_if = "is_zero")]
    sync_always: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    domain: String,
    #[serde(skip_serializing_if = "is_zero")]
    compress_ok: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    unique_tag: String,
    #[serde(skip_serializing_if = "is_zero")]
    strict: bool,
}

impl Config {
    pub(super) fn of(js: &JetStream) -> Self {
        let options = js.options();
        Self {
            max_memory: js.size().memory,
            max_storage: js.size().storage,
            store_dir: js.folder.display().to_string(),
            sync_interval: options.sync_interval.map_or(SYNC_INTERVAL_NS, nanos),
            sync_always: options.sync_always,
            domain: options.domain.clone().unwrap_or_default(),
            compress_ok: true,
            unique_tag: options.unique_tag.clone().unwrap_or_default(),
            strict: options.strict,
        }
    }
}

/// What it holds and does.
#[derive(Debug, Default, Serialize)]
pub(super) struct Stats {
    memory: u64,
    storage: u64,
    reserved_memory: u64,
    reserved_storage: u64,
    accounts: u64,
    ha_assets: u64,
    api: Api,
}

#[derive(Debug, Default, Serialize)]
struct Api {
    level: u8,
    total: u64,
    errors: u64,
}

impl Stats {
    pub(super) fn of(js: &JetStream, totals: &Totals) -> Self {
        Self {
            memory: totals.memory,
            storage: totals.storage,
            reserved_memory: totals.reserved_memory,
            reserved_storage: totals.reserved_storage,
            accounts: js.accounts().len() as u64,
            ha_assets: 0,
            api: Api {
                level: API_LEVEL,
                total: totals.calls,
                errors: totals.failed_calls,
            },
        }
    }

    /// Of one account, where what is reserved is what the account may take.
    pub(super) fn of_account(totals: &Totals, memory_max: Option<u64>, storage_max: Option<u64>) -> Self {
        Self {
            memory: totals.memory,
            storage: totals.storage,
            reserved_memory: memory_max.unwrap_or(u64::MAX),
            reserved_storage: storage_max.unwrap_or(u64::MAX),
            accounts: 0,
            ha_assets: 0,
            api: Api {
                level: 0,
                total: totals.calls,
                errors: totals.failed_calls,
            },
        }
    }
}

/// Its limits: those that are configured.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    #[serde(skip_serializing_if = "is_zero")]
    max_request_batch: i64,
    #[serde(skip_serializing_if = "is_zero")]
    max_ack_pending: i64,
    #[serde(skip_serializing_if = "is_zero")]
    max_duplicate_window: u64,
    #[serde(skip_serializing_if = "is_zero")]
    max_batch_inflight_per_stream: i64,
    #[serde(skip_serializing_if = "is_zero")]
    max_batch_inflight_total: i64,
    #[serde(skip_serializing_if = "is_zero")]
    max_batch_size: i64,
    #[serde(skip_serializing_if = "is_zero")]
    max_batch_timeout: u64,
    default_max_consumers: i64,
}

impl Limits {
    pub(super) fn of(js: &JetStream) -> Self {
        let limits = &js.options().limits;
        Self {
            max_request_batch: limits.max_request_batch.unwrap_or(0),
            max_ack_pending: limits.max_ack_pending.unwrap_or(0),
            max_duplicate_window: limits.duplicate_window.map_or(0, nanos),
            max_batch_inflight_per_stream: limits.batch_max_inflight_per_stream.unwrap_or(0),
            max_batch_inflight_total: limits.batch_max_inflight_total.unwrap_or(0),
            max_batch_size: limits.batch_max_msgs.unwrap_or(0),
            max_batch_timeout: limits.batch_timeout.map_or(0, nanos),
            default_max_consumers: DEFAULT_MAX_CONSUMERS,
        }
    }
}
