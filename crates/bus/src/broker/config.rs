//! What a broker is told: where to listen, where to store, how much, and who may come in.

use std::path::PathBuf;
use std::time::Duration;

use crate::auth::Credential;
use crate::subjects::Layout;

const MIB: u64 = 1024 * 1024;

/// Settings of a [`Broker`](super::Broker).
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// Where workers connect, `host:port`. Port 0 takes a free one. Default: `127.0.0.1:4222`.
    ///
    /// An address that other machines can reach needs [`auth`](Self::auth), or
    /// [`allow_unauthenticated`](Self::allow_unauthenticated) to say that none is wanted.
    pub addr: String,
    /// Folder of the streams; made with its parents when missing. Default: `data/nats`.
    pub data_dir: PathBuf,
    /// Disk for all streams together, in MiB, at least 8: the folder's files take at most a tenth more. The streams have
    /// [shares](StreamLimits) of it, the rest is for the store itself. Below 30, a message may not be as long as 1 MiB
    /// but a 32nd of what the files may take. 0: no budgets; the server then takes at most three quarters of what is free on the disk.
    /// Default: 1024.
    pub max_store_mb: u64,
    /// Which subjects workers publish on. Default: plain.
    pub layout: Layout,
    /// Who may connect. Default: anybody. Needs the identity layout, because permissions are per worker.
    pub auth: Option<Auth>,
    /// Encryption of the listener. Default: none.
    pub tls: Option<Tls>,
    /// Whether anybody on the network may connect without credentials. Default: no.
    pub allow_unauthenticated: bool,
    /// Ages and shares of the streams.
    pub streams: StreamLimits,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            addr: "127.0.0.1:4222".to_owned(),
            data_dir: PathBuf::from("data/nats"),
            max_store_mb: 1024,
            layout: Layout::Plain,
            auth: None,
            tls: None,
            allow_unauthenticated: false,
            streams: StreamLimits::default(),
        }
    }
}

impl BrokerConfig {
    /// The disk cap in bytes; `None` without one.
    #[must_use]
    pub fn store_cap(&self) -> Option<u64> {
        (self.max_store_mb > 0).then(|| self.max_store_mb.saturating_mul(MIB))
    }

    /// What the folder's files may take: the cap and a tenth.
    pub(crate) fn file_budget(&self) -> Option<u64> {
        self.store_cap().map(|cap| cap / 10 * 11)
    }
}

/// Authentication of workers: each has a key of its own.
#[derive(Debug, Clone, Default)]
pub struct Auth {
    /// The enrolled workers. [`Broker::reload_credentials`](super::Broker::reload_credentials) changes them later.
    pub workers: Vec<Credential>,
}

/// Encryption of the listener, TLS 1.2 or newer. Clients without it are refused.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Certificate chain, PEM.
    pub cert_file: PathBuf,
    /// Its key, PEM.
    pub key_file: PathBuf,
    /// When set, clients need a certificate of this authority besides their key.
    pub client_ca_file: Option<PathBuf>,
}

/// Ages and shares of the disk cap. The shares are percent, 75 together at most, because the store needs room of its own;
/// logs are the first to lose data, statuses never do silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Age of statuses. Default: 24 h.
    pub task_age: Duration,
    /// Age of output. Default: 96 h.
    pub logs_age: Duration,
    /// Age of registrations and farewells. Default: 24 h. Heartbeats carry a life of their own, 2 min.
    pub worker_age: Duration,
    /// Age of cancels. Default: 5 min.
    pub cancel_age: Duration,
    /// Age of dead letters. Default: 7 days.
    pub dead_age: Duration,
    /// Share of statuses. When it is used up, publishers get an error. Default: 15.
    pub task_share: u8,
    /// Share of output. When it is used up, the oldest goes. Default: 45.
    pub logs_share: u8,
    /// Share of registrations. Default: 5.
    pub worker_share: u8,
    /// Share of cancels. Default: 5.
    pub cancel_share: u8,
    /// Share of dead letters. Default: 5.
    pub dead_share: u8,
}

impl Default for StreamLimits {
    fn default() -> Self {
        const HOUR: Duration = Duration::from_secs(3600);
        Self {
            task_age: HOUR * 24,
            logs_age: HOUR * 96,
            worker_age: HOUR * 24,
            cancel_age: Duration::from_secs(300),
            dead_age: HOUR * 24 * 7,
            task_share: 15,
            logs_share: 45,
            worker_share: 5,
            cancel_share: 5,
            dead_share: 5,
        }
    }
}
