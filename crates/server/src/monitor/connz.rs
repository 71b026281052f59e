//! `connz`: the connections, open and closed.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use windjet_protocol::subject;

use super::Refused;
use super::format::{age, duration, is_zero, rfc3339};
use super::params::Params;
use crate::account::Account;
use crate::auth::PeerCertificate;
use crate::connection::{CloseReason, Connection, Profile};
use crate::options::{ConnectionType, GLOBAL_ACCOUNT};
use crate::router::Subscription;
use crate::server::{Closed, Shared};

/// Connections in one answer unless the asker says otherwise.
const LIMIT: i64 = 1_024;

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnzOptions {
    sort: String,
    #[serde(rename = "auth")]
    authorization: bool,
    subscriptions: bool,
    subscriptions_detail: bool,
    offset: i64,
    limit: i64,
    cid: u64,
    mqtt_client: String,
    state: u8,
    user: String,
    /// Only connections of this account.
    #[serde(rename = "acc")]
    pub(crate) account: String,
    filter_subject: String,
}

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const ALL: u8 = 2;

impl ConnzOptions {
    /// Reads the query part of a URL.
    pub(super) fn of(params: &Params) -> Result<Self, Refused> {
        let detail = params.text("subs").eq_ignore_ascii_case("detail");
        Ok(Self {
            sort: params.text("sort").to_owned(),
            authorization: params.flag("auth")?,
            subscriptions: detail || params.flag("subs")?,
            subscriptions_detail: detail,
            offset: params.int("offset")?,
            limit: params.int("limit")?,
            cid: params.uint("cid")?,
            mqtt_client: params.text("mqtt_client").to_owned(),
            state: match params.text("state").to_lowercase().as_str() {
                "" | "open" => OPEN,
                "closed" => CLOSED,
                "any" | "all" => ALL,
                other => return Err(Refused(format!("Error decoding state for {other}"))),
            },
            user: params.text("user").to_owned(),
            account: params.text("acc").to_owned(),
            filter_subject: params.text("filter_subject").to_owned(),
        })
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct Connz {
    server_id: String,
    now: String,
    num_connections: usize,
    total: usize,
    offset: i64,
    limit: i64,
    connections: Option<Vec<Conn>>,
}

#[derive(Debug, Serialize)]
struct Conn {
    cid: u64,
    kind: &'static str,
    #[serde(rename = "type")]
    carrier: &'static str,
    ip: String,
    port: u16,
    start: String,
    last_activity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    reason: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    rtt: String,
    uptime: String,
    idle: String,
    pending_bytes: usize,
    in_msgs: u64,
    out_msgs: u64,
    in_bytes: u64,
    out_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    stalls: u64,
    subscriptions: usize,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    lang: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tls_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tls_cipher_suite: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tls_peer_certs: Vec<PeerCert>,
    #[serde(skip_serializing_if = "is_zero")]
    tls_first: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    authorized_user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subscriptions_list: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subscriptions_list_detail: Vec<SubDetail>,
    #[serde(skip_serializing_if = "String::is_empty")]
    jwt: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    issuer_key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name_tag: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PeerCert {
    subject: String,
    spki_sha256: String,
    cert_sha256: String,
}

/// One subscription with its details.
#[derive(Debug, Serialize)]
pub(super) struct SubDetail {
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    account_tag: String,
    subject: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    qgroup: String,
    sid: String,
    msgs: u64,
    #[serde(skip_serializing_if = "is_zero")]
    max: u64,
    cid: u64,
}

impl SubDetail {
    /// A subscription, with the account it belongs to where `account` is given.
    pub(super) fn of(subscription: &Subscription, account: Option<&Account>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            account: account
                .map(|account| account.name.to_string())
                .unwrap_or_default(),
            account_tag: account
                .map(|account| account.display_name.to_string())
                .unwrap_or_default(),
            subject: text(&subscription.subject),
            qgroup: subscription.queue.as_deref().map(text).unwrap_or_default(),
            sid: text(&subscription.sid),
            msgs: subscription.delivered(),
            max: subscription.limit(),
            cid: subscription.owner,
        }
    }
}

/// One connection among those that the answer is chosen from.
struct Entry {
    connection: Arc<Connection>,
    profile: Option<Arc<Profile>>,
    uptime: Duration,
    end: Option<(SystemTime, CloseReason)>,
    subscriptions: usize,
}

impl Entry {
    fn open(connection: Arc<Connection>) -> Self {
        let subscriptions = connection.subscriptions.lock().len();
        Self {
            profile: connection.profile(),
            uptime: connection.uptime(),
            end: None,
            subscriptions,
            connection,
        }
    }

    fn closed(closed: Closed) -> Self {
        Self {
            connection: closed.connection,
            profile: closed.profile,
            uptime: closed.uptime,
            end: Some((closed.stopped, closed.reason)),
            subscriptions: closed.subscriptions,
        }
    }

    fn account(&self) -> Option<&str> {
        self.profile.as_ref().map(|profile| &*profile.account.name)
    }

    fn user(&self) -> String {
        self.connection.authorized_user(self.profile.as_deref())
    }

    fn idle(&self) -> Duration {
        self.uptime.saturating_sub(self.connection.last_activity())
    }

    fn subscribes_to(&self, filter: &str) -> bool {
        self.connection
            .subscriptions
            .lock()
            .values()
            .any(|s| subject::matches(filter.as_bytes(), &s.subject))
    }
}

/// The connections that are asked for.
///
/// # Errors
///
/// When the question contradicts itself.
pub(crate) fn connz(shared: &Shared, options: &ConnzOptions) -> Result<Connz, Refused> {
    let order = Order::of(options)?;
    let mut answer = Connz {
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        num_connections: 0,
        total: 0,
        offset: options.offset.max(0),
        limit: if options.limit > 0 { options.limit } else { LIMIT },
        connections: None,
    };
    if options.cid > 0 {
        answer.limit = 1;
    }
    if !options.account.is_empty() && shared.accounts.get(&options.account).is_none() {
        answer.server_id = String::new();
        return Ok(answer);
    }
    let (total, mut found) = select(shared, options);
    answer.total = total;
    order.sort(&mut found);
    let page: Vec<Conn> = found
        .into_iter()
        .skip(usize::try_from(answer.offset).unwrap_or(usize::MAX))
        .take(usize::try_from(answer.limit).unwrap_or(usize::MAX))
        .map(|entry| describe(&entry, options))
        .collect();
    answer.num_connections = page.len();
    answer.connections = Some(page);
    Ok(answer)
}

/// The number of connections in the chosen state and account, and those among them that pass the other filters.
fn select(shared: &Shared, options: &ConnzOptions) -> (usize, Vec<Entry>) {
    let mut all: Vec<Entry> = Vec::new();
    if options.state != CLOSED {
        all.extend(shared.registry.live().into_iter().map(Entry::open));
    }
    if options.state != OPEN {
        all.extend(shared.registry.closed().into_iter().map(Entry::closed));
    }
    if !options.account.is_empty() {
        all.retain(|entry| entry.account() == Some(&options.account));
    }
    let total = all.len();
    if options.cid > 0 {
        all.retain(|entry| entry.connection.id == options.cid);
        return (total, all);
    }
    if !options.user.is_empty() {
        all.retain(|entry| entry.user() == options.user);
    }
    if !options.mqtt_client.is_empty() {
        all.clear();
    }
    if !options.filter_subject.is_empty() {
        all.retain(|entry| entry.subscribes_to(&options.filter_subject));
    }
    (total, all)
}

fn describe(entry: &Entry, options: &ConnzOptions) -> Conn {
    let connection = &entry.connection;
    let profile = entry.profile.as_ref();
    let identity = profile
        .and_then(|profile| profile.identity.as_ref())
        .filter(|_| options.authorization);
    let tls = connection.tls.as_ref();
    let (name, lang, version) = connection.told();
    let (in_msgs, in_bytes) = connection.received.get();
    let (out_msgs, out_bytes) = connection.sent_counts();
    let account = profile
        .map(|profile| &profile.account)
        .filter(|_| options.authorization);
    let mut conn = Conn {
        cid: connection.id,
        kind: "Client",
        carrier: carrier(connection.kind),
        ip: connection.shown_ip.clone(),
        port: connection.remote.map_or(0, |address| address.port()),
        start: rfc3339(connection.started),
        last_activity: rfc3339(connection.started + connection.last_activity()),
        stop: entry.end.map(|(stop, _)| rfc3339(stop)),
        reason: entry.end.map_or("", |(_, reason)| reason.as_str()),
        rtt: connection.rtt().map(duration).unwrap_or_default(),
        uptime: age(entry.uptime),
        idle: age(entry.idle()),
        pending_bytes: connection.outbound.pending(),
        in_msgs,
        out_msgs,
        in_bytes,
        out_bytes,
        stalls: connection.stalls.load(std::sync::atomic::Ordering::Relaxed),
        subscriptions: entry.subscriptions,
        name,
        lang,
        version,
        tls_version: tls.map(|tls| tls.version.clone()).unwrap_or_default(),
        tls_cipher_suite: tls.map(|tls| tls.cipher.clone()).unwrap_or_default(),
        tls_peer_certs: tls
            .filter(|_| options.authorization)
            .and_then(|tls| tls.certificate.as_deref())
            .map(|certificate| vec![peer_cert(certificate)])
            .unwrap_or_default(),
        tls_first: tls.is_some_and(|tls| tls.first),
        authorized_user: if options.authorization {
            entry.user()
        } else {
            String::new()
        },
        account: account
            .filter(|account| &*account.name != GLOBAL_ACCOUNT)
            .map(|account| account.name.to_string())
            .unwrap_or_default(),
        subscriptions_list: Vec::new(),
        subscriptions_list_detail: Vec::new(),
        jwt: identity
            .and_then(|identity| identity.jwt.as_ref())
            .map(|jwt| jwt.reveal().to_owned())
            .unwrap_or_default(),
        issuer_key: identity
            .and_then(|identity| identity.issuer_key.clone())
            .unwrap_or_default(),
        name_tag: account
            .map(|account| account.display_name.to_string())
            .unwrap_or_default(),
        tags: identity.map(|identity| identity.tags.clone()).unwrap_or_default(),
    };
    list_subscriptions(entry, options, &mut conn);
    conn
}

fn list_subscriptions(entry: &Entry, options: &ConnzOptions, conn: &mut Conn) {
    if !options.subscriptions && !options.subscriptions_detail {
        return;
    }
    let subscriptions = entry.connection.subscriptions.lock();
    if options.subscriptions_detail {
        conn.subscriptions_list_detail = subscriptions
            .values()
            .map(|subscription| SubDetail::of(subscription, None))
            .collect();
    } else {
        conn.subscriptions_list = subscriptions
            .values()
            .map(|subscription| String::from_utf8_lossy(&subscription.subject).into_owned())
            .collect();
    }
}

fn carrier(kind: ConnectionType) -> &'static str {
    match kind {
        ConnectionType::WebSocket => "websocket",
        _ => "nats",
    }
}

fn peer_cert(certificate: &PeerCertificate) -> PeerCert {
    PeerCert {
        subject: certificate.subject(),
        spki_sha256: certificate.spki_sha256().to_owned(),
        cert_sha256: certificate.cert_sha256().to_owned(),
    }
}

/// What the answer is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Cid,
    Start,
    Subs,
    Pending,
    MsgsTo,
    MsgsFrom,
    BytesTo,
    BytesFrom,
    Last,
    Idle,
    Uptime,
    Stop,
    Reason,
    Rtt,
}

impl Order {
    fn of(options: &ConnzOptions) -> Result<Self, Refused> {
        let order = match options.sort.as_str() {
            "" | "cid" => Self::Cid,
            "start" => Self::Start,
            "subs" => Self::Subs,
            "pending" => Self::Pending,
            "msgs_to" => Self::MsgsTo,
            "msgs_from" => Self::MsgsFrom,
            "bytes_to" => Self::BytesTo,
            "bytes_from" => Self::BytesFrom,
            "last" => Self::Last,
            "idle" => Self::Idle,
            "uptime" => Self::Uptime,
            "stop" => Self::Stop,
            "reason" => Self::Reason,
            "rtt" => Self::Rtt,
            other => return Err(Refused(format!("invalid sorting option: {other}"))),
        };
        if matches!(order, Self::Stop | Self::Reason) && options.state != CLOSED {
            return Err(Refused(format!(
                "sort by {} only valid on closed connections",
                options.sort
            )));
        }
        Ok(order)
    }

    /// Keys are read once a connection, since they change while we sort.
    fn sort(self, entries: &mut [Entry]) {
        match self {
            Self::Cid => entries.sort_by_cached_key(|e| e.connection.id),
            Self::Start => entries.sort_by_cached_key(|e| e.connection.started),
            Self::Uptime => entries.sort_by_cached_key(|e| e.uptime),
            Self::Reason => entries.sort_by_cached_key(|e| e.end.map(|(_, reason)| reason.as_str())),
            Self::Stop => entries.sort_by_cached_key(|e| Reverse(e.end.map(|(stop, _)| stop))),
            Self::Subs => entries.sort_by_cached_key(|e| Reverse(e.subscriptions)),
            Self::Pending => entries.sort_by_cached_key(|e| Reverse(e.connection.outbound.pending())),
            Self::MsgsTo => entries.sort_by_cached_key(|e| Reverse(e.connection.sent_counts().0)),
            Self::BytesTo => entries.sort_by_cached_key(|e| Reverse(e.connection.sent_counts().1)),
            Self::MsgsFrom => entries.sort_by_cached_key(|e| Reverse(e.connection.received.get().0)),
            Self::BytesFrom => entries.sort_by_cached_key(|e| Reverse(e.connection.received.get().1)),
            Self::Last => {
                entries.sort_by_cached_key(|e| Reverse(e.connection.started + e.connection.last_activity()));
            }
            Self::Idle => entries.sort_by_cached_key(|e| Reverse(e.idle())),
            Self::Rtt => entries.sort_by_cached_key(|e| Reverse(e.connection.rtt())),
        }
    }
}
