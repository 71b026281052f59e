//! Everything that can be set on a server, as plain data.
//!
//! `Options` is what [`crate::Builder`] fills by method calls and what `crate::config` fills from a
//! configuration file. The defaults are those of nats-server 2.15, except that nothing listens unless
//! `listen` is set: an embedded server opens no port by itself.
//!
//! The types here carry values only. Checks across fields live in [`Options::validate`], which reports
//! every problem at once; the meaning of a field lives with the module that uses it.

mod auth;
mod jetstream;
mod listener;
mod sharing;
mod validate;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use auth::{
    AccountLimits, AccountOptions, AuthOptions, ConnectionType, ExportKind, ExportOptions, ImportKind,
    ImportOptions, JwtOptions, MappingDestination, MappingOptions, PermissionList, PermissionsOptions,
    ResolverOptions, ResponsePermission, ResponseType, UserCredential, UserOptions,
};
pub use jetstream::{AccountJetStreamLimits, JetStreamOptions, JetStreamServerLimits};
pub use listener::{
    HandshakeFirst, ListenAddress, MonitoringOptions, TlsOptions, TlsVersion, WebSocketOptions,
};
pub(crate) use sharing::check_sharing;
pub use validate::OptionsError;
pub(crate) use validate::check_mapping;

/// The name of the account of clients that authenticate into no other one.
pub const GLOBAL_ACCOUNT: &str = "$G";
/// The name of the system account unless `system_account` chooses another one.
pub const SYSTEM_ACCOUNT: &str = "$SYS";

/// Settings of a server. See the module's page.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where clients connect by TCP. `None` (the default) opens no port.
    pub listen: Option<ListenAddress>,
    /// `host:port` shown in INFO instead of the listener's own.
    pub client_advertise: Option<String>,
    /// Name of the server; the server id when absent. No spaces.
    pub server_name: Option<String>,
    /// Free labels shown in monitoring, lower case.
    pub server_tags: Vec<String>,
    /// Free key-value pairs shown in `varz`.
    pub server_metadata: BTreeMap<String, String>,

    /// Credentials of section 5 of the core protocol: users, tokens, accounts, JWT.
    pub auth: AuthOptions,
    /// Accounts by name. Empty means that only the global and the system account exist.
    pub accounts: BTreeMap<String, AccountOptions>,
    /// Account that carries `$SYS` events. Default `$SYS`.
    pub system_account: Option<String>,
    /// Whether no system account exists at all. Default false.
    pub no_system_account: bool,
    /// Subject mappings of the global account, in definition order.
    pub mappings: Vec<MappingOptions>,

    /// TLS of the client listener. `None` means plain text.
    pub tls: Option<TlsOptions>,
    /// Whether plain-text clients are accepted beside TLS ones. Default false.
    pub allow_non_tls: bool,
    /// WebSocket listener. `None` means none.
    pub websocket: Option<WebSocketOptions>,
    /// HTTP monitoring. Default: no listener.
    pub monitoring: MonitoringOptions,
    /// JetStream. `None` means off.
    pub jetstream: Option<JetStreamOptions>,
    /// JetStream domain of each account that names none. Only checked: a domain makes a difference between servers.
    pub default_js_domain: BTreeMap<String, String>,
    /// Folder for JetStream when `jetstream` names none. Has no effect while JetStream is off.
    pub store_dir: Option<PathBuf>,
    /// Switches of nats-server that are shown in `varz` and have no other effect.
    pub feature_flags: BTreeMap<String, bool>,

    /// Most client connections at a time. Default 65,536. Zero or less admits nobody.
    pub max_connections: i64,
    /// Most subscriptions of one connection; 0 or less means no limit. Default 0.
    pub max_subscriptions: i64,
    /// Most tokens of a subscription's subject; 0 means no limit. Default 0.
    pub max_sub_tokens: usize,
    /// Longest argument text of a protocol line in bytes. Default 4,096.
    pub max_control_line: usize,
    /// Largest headers plus payload in bytes; negative means no limit. Default 1 MiB.
    pub max_payload: i64,
    /// Most bytes waiting to be written to one client before it is closed as a slow consumer. Default 64 MiB.
    pub max_pending: usize,
    /// Closed connections remembered for `connz?state=closed`. Default 10,000.
    pub max_closed_clients: usize,
    /// Longest payload part shown by protocol tracing; 0 means all of it. Default 0.
    pub max_traced_msg_len: usize,

    /// Time between PINGs to a silent client. Default 2 minutes.
    pub ping_interval: Duration,
    /// Unanswered PINGs after which a connection is stale. Default 2.
    pub ping_max: u32,
    /// Longest time one write to a client may be blocked. Default 10 s.
    pub write_deadline: Duration,
    /// What happens to a client at the write deadline. Default: it is closed.
    pub write_timeout: WriteTimeoutPolicy,
    /// Drop for the consumer instead of slowing the producer when a consumer is nearly full. Default false.
    pub no_fast_producer_stall: bool,
    /// Time over which lame duck mode closes the clients. Default 2 minutes, at least 30 s.
    pub lame_duck_duration: Duration,
    /// Time before lame duck mode closes the first client. Default 10 s.
    pub lame_duck_grace_period: Duration,
    /// Failed connections to other servers from one report to the next. Default 3,600. Has no effect, as there are
    /// no other servers.
    pub connect_error_reports: i64,
    /// The same for connections that were lost. Default 1. Has no effect.
    pub reconnect_error_reports: i64,
    /// Whether the server refuses headers. Default false.
    pub no_header_support: bool,

    /// Logging wishes. The library itself only emits `tracing` events; the binary reads these.
    pub log: LogOptions,
    /// File that receives the process id. Read by the binary.
    pub pid_file: Option<PathBuf>,
    /// Folder that receives the ports file. Read by the binary.
    pub ports_file_dir: Option<PathBuf>,

    /// The configuration file these options were read from, if any.
    pub config_file: Option<PathBuf>,
    /// `sha256:<hex>` over the parsed configuration; empty without a file.
    pub config_digest: String,

    /// Most bytes of memory for what waits for receivers and for the store's caches; `None` means no bound but each one's
    /// own. See [`Builder::memory_budget`](crate::Builder::memory_budget).
    pub memory_budget: Option<u64>,
    /// Most bytes that the files of JetStream's folder take together; `None` means no bound. See
    /// [`Builder::storage_budget`](crate::Builder::storage_budget).
    pub storage_budget: Option<u64>,
}

/// What happens to a client whose write is blocked past the write deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteTimeoutPolicy {
    /// The client is closed as a slow consumer.
    #[default]
    Close,
    /// The write is tried again; the client is closed only when its pending bytes exceed the limit.
    Retry,
}

/// Logging wishes from a configuration or a command line.
#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// Debug messages.
    pub debug: bool,
    /// Protocol trace of clients.
    pub trace: bool,
    /// Protocol trace of internal clients too.
    pub trace_verbose: bool,
    /// Trace headers only.
    pub trace_headers: bool,
    /// Omit the time from log lines. (`logtime: false`.)
    pub no_time: bool,
    /// Times in UTC instead of local time.
    pub utc: bool,
    /// Log file; standard error when absent.
    pub file: Option<PathBuf>,
    /// Size at which the log file is rotated; 0 means never.
    pub file_size_limit: u64,
    /// Rotated files that are kept; 0 means all.
    pub file_max_num: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: None,
            client_advertise: None,
            server_name: None,
            server_tags: Vec::new(),
            server_metadata: BTreeMap::new(),
            auth: AuthOptions::default(),
            accounts: BTreeMap::new(),
            system_account: None,
            no_system_account: false,
            mappings: Vec::new(),
            tls: None,
            allow_non_tls: false,
            websocket: None,
            monitoring: MonitoringOptions::default(),
            jetstream: None,
            default_js_domain: BTreeMap::new(),
            store_dir: None,
            feature_flags: BTreeMap::new(),
            max_connections: 65_536,
            max_subscriptions: 0,
            max_sub_tokens: 0,
            max_control_line: 4_096,
            max_payload: 1_048_576,
            max_pending: 64 << 20,
            max_closed_clients: 10_000,
            max_traced_msg_len: 0,
            ping_interval: Duration::from_secs(120),
            ping_max: 2,
            write_deadline: Duration::from_secs(10),
            write_timeout: WriteTimeoutPolicy::Close,
            no_fast_producer_stall: false,
            lame_duck_duration: Duration::from_secs(120),
            lame_duck_grace_period: Duration::from_secs(10),
            connect_error_reports: 3_600,
            reconnect_error_reports: 1,
            no_header_support: false,
            log: LogOptions::default(),
            pid_file: None,
            ports_file_dir: None,
            config_file: None,
            config_digest: String::new(),
            memory_budget: None,
            storage_budget: None,
        }
    }
}
