//! JetStream settings of the server and of an account.

use std::path::PathBuf;
use std::time::Duration;

/// The `jetstream` block.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JetStreamOptions {
    /// Whether requests with unknown fields are refused. Default true.
    pub strict: bool,
    /// Folder under which `jetstream/` is made. `None` means a folder under the system's temporary one.
    pub store_dir: Option<PathBuf>,
    /// `None` syncs before every acknowledgement (Windjet's default); a duration acknowledges after the write
    /// and syncs at the latest that much later.
    pub sync_interval: Option<Duration>,
    /// Whether the configuration asks for `sync_interval: always` in so many words; shown in monitoring only, since it is
    /// the default. Default false.
    pub sync_always: bool,
    /// Memory for memory streams in bytes; `None` means three quarters of the machine's.
    pub max_memory_store: Option<u64>,
    /// Disk for file streams in bytes; `None` means three quarters of what is free.
    pub max_file_store: Option<u64>,
    /// JetStream domain.
    pub domain: Option<String>,
    /// Prefix of the server tag that replicas must differ in; shown in monitoring only.
    pub unique_tag: Option<String>,
    /// API requests that may wait for their turn in nats-server; shown in monitoring only. `None` means the default.
    pub request_queue_limit: Option<u64>,
    /// The same for requests that only read, shown in monitoring only. `None` means `request_queue_limit`.
    pub info_queue_limit: Option<u64>,
    /// Server-wide limits.
    pub limits: JetStreamServerLimits,
}

/// The `limits` block inside `jetstream`. `None` keeps the default.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct JetStreamServerLimits {
    /// Default and most `max_ack_pending` of a consumer.
    pub max_ack_pending: Option<i64>,
    /// Most messages of one pull request.
    pub max_request_batch: Option<i64>,
    /// Longest duplicate window.
    pub duplicate_window: Option<Duration>,
    /// Atomic, and as many fast, batches open at a time on one stream.
    pub batch_max_inflight_per_stream: Option<i64>,
    /// Atomic, and as many fast, batches open at a time on the server.
    pub batch_max_inflight_total: Option<i64>,
    /// Most messages of one atomic batch.
    pub batch_max_msgs: Option<i64>,
    /// Time after which an unfinished batch is abandoned.
    pub batch_timeout: Option<Duration>,
}

impl Default for JetStreamOptions {
    fn default() -> Self {
        Self {
            strict: true,
            store_dir: None,
            sync_interval: None,
            sync_always: false,
            max_memory_store: None,
            max_file_store: None,
            domain: None,
            unique_tag: None,
            request_queue_limit: None,
            info_queue_limit: None,
            limits: JetStreamServerLimits::default(),
        }
    }
}

/// JetStream limits of one account. `None` means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountJetStreamLimits {
    /// Bytes of memory streams.
    pub max_memory: Option<u64>,
    /// Bytes of file streams.
    pub max_store: Option<u64>,
    /// Streams.
    pub max_streams: Option<u64>,
    /// Consumers.
    pub max_consumers: Option<u64>,
    /// Largest `max_ack_pending` of a consumer.
    pub max_ack_pending: Option<u64>,
    /// Bytes of one memory stream.
    pub memory_max_stream_bytes: Option<u64>,
    /// Bytes of one file stream.
    pub store_max_stream_bytes: Option<u64>,
    /// Whether every stream must set `max_bytes`.
    pub max_bytes_required: bool,
}
