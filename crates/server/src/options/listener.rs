//! Listeners: addresses, TLS, WebSocket, monitoring.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Host and port of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// Host name or address as configured; shown as it is in INFO and in the log.
    pub host: String,
    /// Port; `None` lets the system choose a free one.
    pub port: Option<u16>,
}

impl ListenAddress {
    /// A free port on the loopback interface.
    pub fn loopback() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: None,
        }
    }

    /// The address; an empty host becomes that of `clients`, or every address when there is none.
    pub fn with_host_of(&self, clients: Option<&Self>) -> Self {
        let mut address = self.clone();
        if address.host.is_empty() {
            address.host = clients.map_or_else(|| "0.0.0.0".to_owned(), |clients| clients.host.clone());
        }
        address
    }
}

/// Lowest TLS version that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// Whether the TLS handshake precedes INFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HandshakeFirst {
    /// INFO comes first, in plain text.
    #[default]
    No,
    /// The handshake comes first, always.
    Required,
    /// The handshake comes first when the client begins it within this time; else INFO is sent.
    Auto(Duration),
}

/// The `tls` block of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// Certificate chains and keys (PEM); the first one is used when no server name matches.
    pub certificates: Vec<(PathBuf, PathBuf)>,
    /// Certificate authorities for client certificates (PEM).
    pub ca_file: Option<PathBuf>,
    /// Whether a client certificate is demanded.
    pub verify: bool,
    /// Whether the client certificate names the user. Implies `verify`.
    pub verify_and_map: bool,
    /// Time for the handshake. Default 2 s.
    pub timeout: Duration,
    /// Order of handshake and INFO.
    pub handshake_first: HandshakeFirst,
    /// Lowest version. Default 1.2.
    pub min_version: TlsVersion,
    /// SHA-256 (hex, lower case) of the public keys of acceptable client certificates; empty means any.
    pub pinned_certs: Vec<String>,
    /// New handshakes a second; 0 means no limit.
    pub connection_rate_limit: u32,
}

impl TlsOptions {
    /// Whether clients must show a certificate.
    pub fn demands_certificate(&self) -> bool {
        self.verify || self.verify_and_map
    }
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self {
            certificates: Vec::new(),
            ca_file: None,
            verify: false,
            verify_and_map: false,
            timeout: Duration::from_secs(2),
            handshake_first: HandshakeFirst::No,
            min_version: TlsVersion::V1_2,
            pinned_certs: Vec::new(),
            connection_rate_limit: 0,
        }
    }
}

/// The `websocket` block.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WebSocketOptions {
    /// Where WebSocket clients connect.
    pub listen: ListenAddress,
    /// `host:port` shown to clients.
    pub advertise: Option<String>,
    /// Whether plain WebSocket is allowed. Without it `tls` is needed.
    pub no_tls: bool,
    /// TLS of this listener.
    pub tls: Option<TlsOptions>,
    /// Whether a browser's `Origin` must be the request's host.
    pub same_origin: bool,
    /// Origins that are allowed; empty means all.
    pub allowed_origins: Vec<String>,
    /// Time for TLS handshake and upgrade. Default 2 s.
    pub handshake_timeout: Duration,
    /// Whether permessage-deflate is agreed to.
    pub compression: bool,
    /// User and password instead of the main ones.
    pub user: Option<(String, String)>,
    /// Token instead of the main one.
    pub token: Option<String>,
    /// Authentication time-out instead of the main one.
    pub auth_timeout: Option<Duration>,
    /// `no_auth_user` of this listener.
    pub no_auth_user: Option<String>,
    /// Cookie that supplies a missing `jwt`.
    pub jwt_cookie: Option<String>,
    /// Cookie that supplies a missing `user`.
    pub user_cookie: Option<String>,
    /// Cookie that supplies a missing `pass`.
    pub pass_cookie: Option<String>,
    /// Cookie that supplies a missing `auth_token`.
    pub token_cookie: Option<String>,
    /// Headers added to the upgrade response.
    pub headers: BTreeMap<String, String>,
    /// PING interval instead of the main one.
    pub ping_interval: Option<Duration>,
}

impl WebSocketOptions {
    /// Options of a listener at `listen`, all else at its default.
    pub fn new(listen: ListenAddress) -> Self {
        Self {
            listen,
            advertise: None,
            no_tls: false,
            tls: None,
            same_origin: false,
            allowed_origins: Vec::new(),
            handshake_timeout: Duration::from_secs(2),
            compression: false,
            user: None,
            token: None,
            auth_timeout: None,
            no_auth_user: None,
            jwt_cookie: None,
            user_cookie: None,
            pass_cookie: None,
            token_cookie: None,
            headers: BTreeMap::new(),
            ping_interval: None,
        }
    }
}

/// HTTP monitoring. An empty host in an address stands for the host of the client listener; see
/// [`ListenAddress::with_host_of`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonitoringOptions {
    /// Plain HTTP listener.
    pub http: Option<ListenAddress>,
    /// HTTPS listener; uses the certificates of the client listener.
    pub https: Option<ListenAddress>,
    /// Prefix of all endpoints.
    pub base_path: String,
}
