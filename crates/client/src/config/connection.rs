//! Where and how to connect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Secret;
use crate::connector::{Event, tls};
use crate::error::{Error, ErrorKind, Result};

/// A function that is told of the connection's events.
pub type Hook = Arc<dyn Fn(&Event) + Send + Sync>;
/// A function that gives the wait before a reconnect attempt, counted from 1.
pub type Delay = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

/// Where and how to connect.
#[derive(Clone)]
pub struct Connection {
    /// One address, or several separated by commas. `nats://127.0.0.1:4222`.
    pub address: String,
    /// The user, with [`Connection::password`].
    pub user: String,
    /// The password, with [`Connection::user`].
    pub password: Secret,
    /// An nkey seed.
    pub seed: Secret,
    /// A token.
    pub secret: Secret,
    /// The path of a credentials file.
    pub credentials_file: String,
    /// The connection's name, shown by the server.
    pub client_name: String,
    /// The JetStream domain.
    pub domain: String,
    /// Prefix of the inboxes, for accounts that may not subscribe to `_INBOX.>`.
    pub inbox_prefix: String,
    /// TLS.
    pub tls: Tls,
    /// How long one attempt to connect may take; zero for any time. 5 s.
    pub connect_timeout: Duration,
    /// How long a shutdown waits for work and for the connection to drain; zero means 30 s. 30 s.
    pub drain_timeout: Duration,
    /// How often to ping the server. 20 s.
    pub ping_interval: Duration,
    /// Connect again after a connection is lost. On. Off, one more attempt may be seen: the official client has no such
    /// switch.
    pub allow_reconnect: bool,
    /// Most attempts in a row; `None` for any number, `Some(0)` as if [`Connection::allow_reconnect`] were off. `None`.
    pub max_reconnect: Option<usize>,
    /// The wait before the second pass over the servers; it doubles with each pass, up to 30 s. The first pass does not
    /// wait. 1 s.
    pub reconnect_wait: Duration,
    /// Added to it at random, at most this. 100 ms.
    pub reconnect_jitter: Duration,
    /// The same when TLS is on. 1 s.
    pub reconnect_jitter_tls: Duration,
    /// Replaces the wait.
    pub custom_reconnect_delay: Option<Delay>,
    /// Refuse to publish while there is no connection, instead of queueing. Off.
    pub refuse_while_disconnected: bool,
    /// Begin without a connection and make it in the background. On: building a client then never fails because no
    /// server is there; [`Connector::wait_connected`](crate::connector::Connector::wait_connected) waits for one.
    pub retry_on_failed_connect: bool,
    /// Attempts at first connect, when it is not made in the background; 0 means one. 5.
    pub initial_retry_attempts: u32,
    /// The wait between them. 1 s.
    pub initial_retry_wait: Duration,
    /// What it is multiplied by each time; 0 means 2. 2.
    pub initial_retry_backoff: f64,
    /// Try several addresses in their order. Off: at random.
    pub dont_randomize: bool,
    /// How often to check the connection's health in the background; zero for never. Zero.
    pub health_check_interval: Duration,
    /// Measure, whatever [`MetricsConfig::allow_metrics`](super::MetricsConfig::allow_metrics) says. On.
    pub allow_metrics: bool,
    /// What names of measurements begin with, when [`MetricsConfig::prefix`](super::MetricsConfig::prefix) is empty. `nats`.
    pub metric_prefix: String,
    /// Told of each event, after the kit's own handling, from a task of its own. A slow one loses no status, only calls.
    pub on_event: Option<Hook>,
}

/// TLS settings. TLS is on when any is set, from version 1.2.
#[derive(Clone, Default)]
pub struct Tls {
    /// Used as it is; the others are then ignored.
    pub config: Option<Arc<rustls::ClientConfig>>,
    /// PEM with certificates of authorities; empty for those of the system.
    pub ca: Vec<u8>,
    /// PEM with this client's certificate, with [`Tls::key`].
    pub cert: Vec<u8>,
    /// PEM with its key.
    pub key: Vec<u8>,
    /// The name to look for in the server's certificate, when it is not the host's.
    pub server_name: String,
    /// Accept any certificate. **Only for development.**
    pub insecure_skip_verify: bool,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            address: "nats://127.0.0.1:4222".to_owned(),
            user: String::new(),
            password: Secret::default(),
            seed: Secret::default(),
            secret: Secret::default(),
            credentials_file: String::new(),
            client_name: String::new(),
            domain: String::new(),
            inbox_prefix: String::new(),
            tls: Tls::default(),
            connect_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(20),
            allow_reconnect: true,
            max_reconnect: None,
            reconnect_wait: Duration::from_secs(1),
            reconnect_jitter: Duration::from_millis(100),
            reconnect_jitter_tls: Duration::from_secs(1),
            custom_reconnect_delay: None,
            refuse_while_disconnected: false,
            retry_on_failed_connect: true,
            initial_retry_attempts: 5,
            initial_retry_wait: Duration::from_secs(1),
            initial_retry_backoff: 2.0,
            dont_randomize: false,
            health_check_interval: Duration::ZERO,
            allow_metrics: true,
            metric_prefix: "nats".to_owned(),
            on_event: None,
        }
    }
}

impl Connection {
    /// The addresses, without the blanks around them.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.address
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The drain timeout in force.
    pub(crate) fn drain_timeout(&self) -> Duration {
        if self.drain_timeout.is_zero() {
            Duration::from_secs(30)
        } else {
            self.drain_timeout
        }
    }

    /// Whether to connect again after a connection is lost.
    pub(crate) fn reconnects(&self) -> bool {
        self.allow_reconnect && self.max_reconnect != Some(0)
    }

    pub(super) fn validate(&self) -> Result<()> {
        let what = || format!("connecting to {}", redact(&self.address));
        if self.addresses().is_empty() {
            return Err(Error::new(ErrorKind::EmptyAddress, "connecting"));
        }
        let user_info = self
            .addresses()
            .iter()
            .any(|address| user_info(address).is_some());
        let half = !self.user.is_empty() || !self.password.is_empty();
        let ways = [
            half,
            !self.seed.is_empty(),
            !self.secret.is_empty(),
            !self.credentials_file.is_empty(),
            user_info,
        ];
        if ways.iter().filter(|set| **set).count() > 1 {
            return Err(Error::new(ErrorKind::ConflictingAuth, what()));
        }
        if half && (self.user.is_empty() || self.password.is_empty()) {
            return Err(Error::new(ErrorKind::IncompleteUserPassword, what()));
        }
        if !self.seed.is_empty() {
            // The key pair wipes itself when it is dropped.
            nkeys::KeyPair::from_seed(self.seed.expose())
                .map_err(|error| Error::new(ErrorKind::InvalidNKeySeed, what()).because(error.to_string()))?;
        }
        tls::client_config(&self.tls).map(|_| ())
    }
}

impl Tls {
    /// Whether any of the settings is there.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.config.is_some()
            || !self.ca.is_empty()
            || !self.cert.is_empty()
            || !self.key.is_empty()
            || !self.server_name.is_empty()
            || self.insecure_skip_verify
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &redact(&self.address))
            .field("user", &self.user)
            .field("password", &self.password)
            .field("seed", &self.seed)
            .field("secret", &self.secret)
            .field("credentials_file", &self.credentials_file)
            .field("client_name", &self.client_name)
            .field("domain", &self.domain)
            .field("tls", &self.tls)
            .field("allow_reconnect", &self.allow_reconnect)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("on", &self.is_on())
            .field("server_name", &self.server_name)
            .field("insecure_skip_verify", &self.insecure_skip_verify)
            .finish_non_exhaustive()
    }
}

/// The user info of an address, with the positions where it lies.
fn user_info(address: &str) -> Option<(usize, usize)> {
    let start = address.find("://").map_or(0, |at| at + 3);
    let host_end = address[start..]
        .find(['/', '?', '#'])
        .map_or(address.len(), |at| start + at);
    let at = address[start..host_end].rfind('@')?;
    (at > 0).then_some((start, start + at))
}

/// A list of addresses without user info, for logs.
pub(crate) fn redact(addresses: &str) -> String {
    let clean = |part: &str| {
        let part = part.trim();
        match user_info(part) {
            Some((start, end)) => format!("{}{}", &part[..start], &part[end + 1..]),
            None => part.to_owned(),
        }
    };
    addresses.split(',').map(clean).collect::<Vec<_>>().join(",")
}
