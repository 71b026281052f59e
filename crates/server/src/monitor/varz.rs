//! `varz`: the server as a whole.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{age, float, is_zero, nanos, rfc3339};
use super::jetstream::Overview;
use super::process;
use crate::options::{ListenAddress, Options, TlsOptions, WebSocketOptions};
use crate::server::{PROTOCOL_VERSION, RUNTIME, Shared};

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct Varz {
    server_id: String,
    server_name: String,
    version: &'static str,
    proto: u32,
    go: &'static str,
    host: String,
    port: u16,
    #[serde(skip_serializing_if = "is_zero")]
    auth_required: bool,
    #[serde(skip_serializing_if = "is_zero")]
    tls_required: bool,
    #[serde(skip_serializing_if = "is_zero")]
    tls_verify: bool,
    max_connections: i64,
    #[serde(skip_serializing_if = "is_zero")]
    max_subscriptions: i64,
    ping_interval: u64,
    ping_max: u32,
    http_host: String,
    http_port: i64,
    http_base_path: String,
    https_port: i64,
    #[serde(serialize_with = "float")]
    auth_timeout: f64,
    max_control_line: usize,
    max_payload: i64,
    max_pending: usize,
    cluster: Empty,
    gateway: Empty,
    leaf: Empty,
    mqtt: Empty,
    websocket: WebSocket,
    jetstream: JetStreamVarz,
    #[serde(serialize_with = "float")]
    tls_timeout: f64,
    write_deadline: u64,
    #[serde(skip_serializing_if = "is_zero")]
    write_timeout: &'static str,
    start: String,
    now: String,
    uptime: String,
    mem: u64,
    cores: usize,
    gomaxprocs: usize,
    #[serde(serialize_with = "float")]
    cpu: f64,
    connections: usize,
    total_connections: u64,
    routes: u32,
    remotes: u32,
    leafnodes: u32,
    in_msgs: u64,
    in_bytes: u64,
    in_client_msgs: u64,
    in_client_bytes: u64,
    out_msgs: u64,
    out_bytes: u64,
    out_client_msgs: u64,
    out_client_bytes: u64,
    slow_consumers: u64,
    stale_connections: u64,
    stalled_clients: u64,
    subscriptions: usize,
    http_req_stats: BTreeMap<&'static str, u64>,
    config_load_time: String,
    config_digest: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    feature_flags: FeatureFlags,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trusted_operators_jwt: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trusted_operators_claim: Vec<OperatorClaims>,
    #[serde(skip_serializing_if = "String::is_empty")]
    system_account: String,
    slow_consumer_stats: Kinds,
    stale_connection_stats: Kinds,
    disk_io_wait_stats: DiskWaits,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_cert_not_after: Option<String>,
}

#[derive(Debug, Serialize)]
struct Empty {}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum JetStreamVarz {
    Off(Empty),
    On(Box<Overview>),
}

/// Which behaviours of JetStream that may be switched are on. None can be switched here.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct FeatureFlags {
    js_ack_fc_v2: bool,
    js_api_reply_v2: bool,
    js_raft_delete_range: bool,
    js_snapshot_sources: bool,
}

impl Default for FeatureFlags {
    fn default() -> Self {
        Self {
            js_ack_fc_v2: false,
            js_api_reply_v2: false,
            js_raft_delete_range: true,
            js_snapshot_sources: false,
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct WebSocket {
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    #[serde(skip_serializing_if = "is_zero")]
    port: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    advertise: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    no_auth_user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    jwt_cookie: String,
    #[serde(skip_serializing_if = "is_zero")]
    handshake_timeout: u64,
    #[serde(skip_serializing_if = "is_zero", serialize_with = "float")]
    auth_timeout: f64,
    #[serde(skip_serializing_if = "is_zero")]
    no_tls: bool,
    #[serde(skip_serializing_if = "is_zero")]
    tls_map: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tls_pinned_certs: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    same_origin: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_origins: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    compression: bool,
}

#[derive(Debug, Default, Serialize)]
struct Kinds {
    clients: u64,
    routes: u64,
    gateways: u64,
    leafs: u64,
}

#[derive(Debug, Default, Serialize)]
struct DiskWaits {
    waiters: u64,
    waits: u64,
    wait_time: u64,
    max_wait_time: u64,
}

/// The server as a whole.
pub(crate) fn varz(shared: &Shared) -> Varz {
    let options = shared.options().clone();
    let addresses = shared.addresses();
    let counts = shared.stats.counts();
    let now = SystemTime::now();
    let (host, port) = shared.advertised(crate::options::ConnectionType::Standard);
    let tls = options.tls.as_ref();
    let monitoring = &options.monitoring;
    let cores = process::cores();
    Varz {
        server_id: shared.id.clone(),
        server_name: shared.name.clone(),
        version: PROTOCOL_VERSION,
        proto: 1,
        go: RUNTIME,
        host,
        port,
        auth_required: shared.auth_required(crate::options::ConnectionType::Standard),
        tls_required: tls.is_some() && !options.allow_non_tls,
        tls_verify: tls.is_some_and(TlsOptions::demands_certificate),
        max_connections: options.max_connections,
        max_subscriptions: options.max_subscriptions,
        ping_interval: nanos(options.ping_interval),
        ping_max: options.ping_max,
        http_host: monitoring
            .http
            .as_ref()
            .or(monitoring.https.as_ref())
            .or(options.listen.as_ref())
            .map(|listen| listen.with_host_of(options.listen.as_ref()).host)
            .unwrap_or_default(),
        http_port: configured_port(monitoring.http.as_ref()),
        http_base_path: monitoring.base_path.clone(),
        https_port: configured_port(monitoring.https.as_ref()),
        auth_timeout: shared
            .auth_timeout(crate::options::ConnectionType::Standard)
            .as_secs_f64(),
        max_control_line: options.max_control_line,
        max_payload: options.max_payload,
        max_pending: options.max_pending,
        cluster: Empty {},
        gateway: Empty {},
        leaf: Empty {},
        mqtt: Empty {},
        websocket: options
            .websocket
            .as_ref()
            .map(|websocket| describe_websocket(websocket, addresses.websocket.map_or(0, |a| a.port())))
            .unwrap_or_default(),
        jetstream: shared.jetstream().map_or(JetStreamVarz::Off(Empty {}), |js| {
            JetStreamVarz::On(Box::new(Overview::now(&js)))
        }),
        tls_timeout: tls.map_or(TLS_TIMEOUT, |tls| tls.timeout).as_secs_f64(),
        write_deadline: nanos(options.write_deadline),
        write_timeout: write_timeout(&options),
        start: rfc3339(shared.started),
        now: rfc3339(now),
        uptime: age(shared.started_at.elapsed()),
        mem: shared.monitor.process.memory(),
        cores,
        gomaxprocs: cores,
        cpu: shared.monitor.process.cpu_percent(),
        connections: shared.registry.len(),
        total_connections: counts.total_connections,
        routes: 0,
        remotes: 0,
        leafnodes: 0,
        in_msgs: counts.in_msgs,
        in_bytes: counts.in_bytes,
        in_client_msgs: counts.in_msgs,
        in_client_bytes: counts.in_bytes,
        out_msgs: counts.out_msgs,
        out_bytes: counts.out_bytes,
        out_client_msgs: counts.out_msgs,
        out_client_bytes: counts.out_bytes,
        slow_consumers: counts.slow_consumers,
        stale_connections: counts.stale_connections,
        stalled_clients: counts.stalled_clients,
        subscriptions: shared.subscriptions(),
        http_req_stats: shared.monitor.requests(),
        config_load_time: rfc3339(shared.configured_at()),
        config_digest: options.config_digest.clone(),
        tags: tags(&options),
        metadata: options.server_metadata.clone(),
        feature_flags: FeatureFlags::default(),
        trusted_operators_jwt: operators(&options).to_vec(),
        trusted_operators_claim: operators(&options).iter().filter_map(|jwt| claims(jwt)).collect(),
        system_account: shared
            .accounts
            .system()
            .map(|account| account.name.to_string())
            .unwrap_or_default(),
        slow_consumer_stats: Kinds {
            clients: counts.slow_consumers,
            ..Kinds::default()
        },
        stale_connection_stats: Kinds {
            clients: counts.stale_connections,
            ..Kinds::default()
        },
        disk_io_wait_stats: DiskWaits::default(),
        tls_cert_not_after: shared.tls().and_then(|tls| tls.not_after()).map(rfc3339),
    }
}

/// Shown where TLS is not configured.
const TLS_TIMEOUT: Duration = Duration::from_secs(2);

/// The port as configured: -1 for a free one, 0 for no listener.
fn configured_port(listen: Option<&ListenAddress>) -> i64 {
    listen.map_or(0, |listen| listen.port.map_or(-1, i64::from))
}

fn describe_websocket(websocket: &WebSocketOptions, port: u16) -> WebSocket {
    let tls = websocket.tls.as_ref();
    WebSocket {
        host: websocket.listen.host.clone(),
        port,
        advertise: websocket.advertise.clone().unwrap_or_default(),
        no_auth_user: websocket.no_auth_user.clone().unwrap_or_default(),
        jwt_cookie: websocket.jwt_cookie.clone().unwrap_or_default(),
        handshake_timeout: nanos(websocket.handshake_timeout),
        auth_timeout: websocket.auth_timeout.unwrap_or_default().as_secs_f64(),
        no_tls: websocket.no_tls,
        tls_map: tls.is_some_and(|tls| tls.verify_and_map),
        tls_pinned_certs: tls.map(|tls| tls.pinned_certs.clone()).unwrap_or_default(),
        same_origin: websocket.same_origin,
        allowed_origins: websocket.allowed_origins.clone(),
        compression: websocket.compression,
    }
}

fn write_timeout(options: &Options) -> &'static str {
    match options.write_timeout {
        crate::options::WriteTimeoutPolicy::Close => "",
        crate::options::WriteTimeoutPolicy::Retry => "retry",
    }
}

/// Labels in the form that is shown.
pub(crate) fn tags(options: &Options) -> Vec<String> {
    options.server_tags.iter().map(|tag| tag.to_lowercase()).collect()
}

fn operators(options: &Options) -> &[String] {
    options.auth.jwt.as_ref().map_or(&[], |jwt| &jwt.operators)
}

/// The claims inside an operator's JWT, for show.
#[derive(Debug, Serialize, Deserialize)]
struct OperatorClaims {
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iat: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nats: Option<Value>,
}

fn claims(jwt: &str) -> Option<OperatorClaims> {
    let body = jwt.split('.').nth(1)?;
    let json = data_encoding::BASE64URL_NOPAD.decode(body.as_bytes()).ok()?;
    serde_json::from_slice(&json).ok()
}
