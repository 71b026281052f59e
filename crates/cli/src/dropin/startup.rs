//! The lines of the log between start and readiness, in the order in which suites expect them.

use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};
use windjet_server::config::{Problem, format_size};
use windjet_server::options::{HandshakeFirst, ListenAddress, Options, UserCredential, UserOptions};
use windjet_server::{JetStreamReport, PROTOCOL_VERSION, Server};

use super::files::{Ports, urls};
use super::flags::Flags;

/// Payloads above this are legal, and worth a warning.
const MAX_PAYLOAD_ADVISED: i64 = 8 << 20;

/// First lines: who this is.
pub(super) fn greet(id: &str, options: &Options) {
    tracing::info!("Starting {}", super::NAME);
    tracing::info!("  Version:  {PROTOCOL_VERSION}");
    tracing::info!("  Git:      [windjet {}]", env!("CARGO_PKG_VERSION"));
    let name = options.server_name.as_deref().unwrap_or(id);
    tracing::info!("  Name:     {name}");
    if options.jetstream.is_some() {
        tracing::info!("  Node:     {}", node(name));
    }
    tracing::info!("  ID:       {id}");
    if has_plain_passwords(options) {
        tracing::warn!("Plaintext passwords detected, use nkeys or bcrypt");
    }
    if options.max_payload > MAX_PAYLOAD_ADVISED {
        tracing::warn!(
            "Maximum payloads over 8.00 MB are generally discouraged and could lead to poor performance"
        );
    }
    if let Some(file) = &options.config_file {
        tracing::info!(
            "Using configuration file: {} ({})",
            file.display(),
            options.config_digest
        );
    }
}

/// Lines about what was asked for and has no effect.
pub(super) fn warn(flags: &Flags, notices: &[Problem]) {
    for notice in notices {
        tracing::warn!("{notice}");
    }
    let cluster = [
        &flags.cluster,
        &flags.cluster_name,
        &flags.cluster_listen,
        &flags.cluster_advertise,
    ];
    let clustered = cluster.iter().any(|flag| flag.is_some())
        || flags.no_advertise.is_some()
        || flags.connect_retries.is_some();
    if clustered {
        tracing::warn!("cluster flags have no effect: Windjet runs on one machine");
    }
    if flags.profile.is_some() {
        tracing::warn!("there is no profiling over HTTP: --profile has no effect");
    }
    if flags.syslog == Some(true) || flags.remote_syslog.is_some() {
        tracing::warn!("there is no logging to syslog: the log stays where it is");
    }
}

/// Whether a user's password could be read off the configuration.
fn has_plain_passwords(options: &Options) -> bool {
    let plain = |password: &str| !password.is_empty() && !password.starts_with("$2");
    let user_plain = |user: &UserOptions| matches!(&user.credential, UserCredential::Password { password, .. } if plain(password));
    let mut users = options.auth.users.iter();
    let mut others = options.accounts.values().flat_map(|account| &account.users);
    options
        .auth
        .user
        .as_ref()
        .is_some_and(|(_, password)| plain(password))
        || users.any(user_plain)
        || others.any(user_plain)
}

/// Lines about what listens, then the last one.
pub(super) fn announce(server: &Server, options: &Options) {
    if let Some(address) = server.monitoring_addr() {
        let (scheme, configured) = match &options.monitoring.http {
            Some(http) => ("http", Some(http)),
            None => ("https", options.monitoring.https.as_ref()),
        };
        let configured = configured.map(|configured| configured.with_host_of(options.listen.as_ref()));
        tracing::info!(
            "Starting {scheme} monitor on {}",
            shown(configured.as_ref(), address)
        );
    }
    if let Some(report) = server.jetstream_report() {
        tracing::info!("Starting JetStream");
        jetstream(&report, options);
    }
    if let (Some(address), Some(websocket)) = (server.websocket_addr(), &options.websocket) {
        let scheme = if websocket.tls.is_some() { "wss" } else { "ws" };
        let shown = shown(Some(&websocket.listen), address);
        tracing::info!("Listening for websocket clients on {scheme}://{shown}");
        if websocket.tls.is_none() {
            tracing::warn!("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!");
        }
    }
    if let Some(address) = server.client_addr() {
        let shown = shown(options.listen.as_ref(), address);
        tracing::info!("Listening for client connections on {shown}");
        if let Some(tls) = &options.tls {
            let what = if options.allow_non_tls {
                "available"
            } else {
                "required"
            };
            tracing::info!("TLS {what} for client connections");
            if tls.handshake_first == HandshakeFirst::Required {
                tracing::warn!(
                    "Clients that are not using \"TLS Handshake First\" option will fail to connect"
                );
            }
        }
    }
    tracing::info!("Server is ready");
}

/// Lines about a JetStream that has started.
pub(super) fn jetstream(report: &JetStreamReport, options: &Options) {
    tracing::info!("---------------- JETSTREAM ----------------");
    let settings = options.jetstream.as_ref();
    let strict = settings.is_none_or(|settings| settings.strict);
    tracing::info!("  Strict:          {strict}");
    tracing::info!("  Max Memory:      {}", format_size(report.max_memory));
    tracing::info!("  Max Storage:     {}", format_size(report.max_storage));
    tracing::info!("  Store Directory: {:?}", report.folder);
    if let Some(domain) = settings.and_then(|settings| settings.domain.as_ref()) {
        tracing::info!("  Domain:          {domain}");
    }
    tracing::info!("  API Level:       {}", report.api_level);
    tracing::info!("-------------------------------------------");
    tracing::info!("Took {:?} to start JetStream", report.took);
}

/// What the ports file lists.
pub(super) fn ports(server: &Server, options: &Options) -> Ports {
    let tls = options.tls.is_some() && !options.allow_non_tls;
    let websocket_tls = options
        .websocket
        .as_ref()
        .is_some_and(|websocket| websocket.tls.is_some());
    let monitoring = if options.monitoring.http.is_some() {
        "http"
    } else {
        "https"
    };
    Ports {
        nats: urls(if tls { "tls" } else { "nats" }, server.client_addr()),
        monitoring: urls(monitoring, server.monitoring_addr()),
        websocket: urls(if websocket_tls { "wss" } else { "ws" }, server.websocket_addr()),
    }
}

/// The host as configured with the port in use.
fn shown(configured: Option<&ListenAddress>, bound: SocketAddr) -> String {
    match configured {
        Some(configured) if configured.host.contains(':') && !configured.host.starts_with('[') => {
            format!("[{}]:{}", configured.host, bound.port())
        }
        Some(configured) if !configured.host.is_empty() => format!("{}:{}", configured.host, bound.port()),
        _ => bound.to_string(),
    }
}

/// Short hash of a server's name, by which JetStream nodes are called.
fn node(name: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let hash = Sha256::digest(name.as_bytes());
    hash.iter()
        .take(8)
        .map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_that_of_the_reference_for_the_same_name() {
        let name = "NBHTH557KMYV7OWDS2UNXHZ2QOFAZG7PO72LVT5RNG2QK6HHR6S62MG2";
        assert_eq!(node(name), "JndwEXKA");
    }

    #[test]
    fn the_configured_host_is_shown_with_the_port_in_use() {
        let bound = "127.0.0.1:5000".parse().unwrap();
        let host = |host: &str| ListenAddress {
            host: host.to_owned(),
            port: None,
        };
        assert_eq!(shown(Some(&host("localhost")), bound), "localhost:5000");
        assert_eq!(shown(Some(&host("0.0.0.0")), bound), "0.0.0.0:5000");
        assert_eq!(shown(Some(&host("::1")), bound), "[::1]:5000");
        assert_eq!(shown(None, bound), "127.0.0.1:5000");
    }
}
