//! Client connections: one task each.
//!
//! A [`Connection`] is what the rest of the server sees of a client: its outbound buffer, its subscriptions, its
//! counters, and a way to close it. The task that owns the socket ([`reader::serve`]) reads, decodes and applies
//! operations through a [`session::Session`], which holds what nobody else needs. Producers on other connections append to
//! the outbound buffer and write the socket themselves (see [`outbound`]).
//!
//! Memory: an idle connection holds no read or write buffer. A busy one holds at most one read buffer as large as the
//! largest message it may send, and `max_pending` bytes of output.

mod buffers;
mod close;
mod describe;
pub(crate) mod handshake;
mod login;
mod outbound;
pub(crate) mod publish;
pub(crate) mod reader;
mod recheck;
mod report;
mod session;
mod timers;
mod writer;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::Notify;
use windjet_protocol::wire::encode;

pub(crate) use close::{CloseReason, Closing};
pub(crate) use describe::ClientInfo;
pub(crate) use outbound::{Carrier, Flushed, Outbound, State};
pub(crate) use publish::{Published, Publisher, is_reserved_subject};
pub(crate) use reader::Source;
pub(crate) use session::Session;
pub(crate) use writer::write_all;

use crate::account::{Account, Counter};
use crate::auth::{Identity, PeerCertificate, Permissions, ReplyGrants};
use crate::options::ConnectionType;
use crate::router::{Counted, Message, Subscription, Turn, Undelivered};
use crate::server::{Peer, Shared};

/// What a client has told about itself, and whom it has been taken for.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Account the connection is bound to.
    pub(crate) account: Arc<Account>,
    /// Who it is; `None` when nobody was asked.
    pub(crate) identity: Option<Identity>,
    /// What it may do; `None` means everything.
    pub(crate) permissions: Option<Arc<Permissions>>,
    /// Name, language and version out of CONNECT.
    pub(crate) name: String,
    /// Client language.
    pub(crate) lang: String,
    /// Client version.
    pub(crate) version: String,
}

/// What a client told of itself whose credentials were refused.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The name it gave.
    pub(crate) user: String,
    /// Name, language and version out of CONNECT.
    pub(crate) name: String,
    /// Client language.
    pub(crate) lang: String,
    /// Client version.
    pub(crate) version: String,
}

/// Something the server asks of a connection's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// Tell the client that the server is going away.
    LameDuck,
    /// The options changed: check credentials and permissions again.
    Reload,
}

/// TLS facts of a connection, for monitoring.
#[derive(Debug, Clone)]
pub(crate) struct TlsFacts {
    /// Version, as `1.3`.
    pub(crate) version: String,
    /// Cipher suite.
    pub(crate) cipher: String,
    /// Whether the handshake preceded INFO.
    pub(crate) first: bool,
    /// The client's certificate, if it showed one.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
}

/// One client, as the rest of the server sees it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Number of the connection, never used twice in a server's life.
    pub(crate) id: u64,
    /// Kind, for permissions and monitoring.
    pub(crate) kind: ConnectionType,
    /// The server.
    pub(crate) server: Arc<Shared>,
    /// Peer address; `None` in process.
    pub(crate) remote: Option<SocketAddr>,
    /// Peer address as shown: that of `X-Forwarded-For` where a WebSocket proxy told it.
    pub(crate) shown_ip: String,
    /// When it was accepted.
    pub(crate) started: SystemTime,
    started_at: Instant,
    /// Output on its way.
    pub(crate) outbound: Outbound,
    /// The close, once it has begun.
    pub(crate) closing: Closing,
    /// Live subscriptions by sid.
    pub(crate) subscriptions: Mutex<HashMap<Bytes, Arc<Subscription>, RandomState>>,
    profile: ArcSwapOption<Profile>,
    grants: Mutex<Option<ReplyGrants>>,
    has_grants: AtomicBool,
    echo: AtomicBool,
    headers: AtomicBool,
    wake: Notify,
    controls: Mutex<Vec<Control>>,
    /// Messages and bytes the client published.
    pub(crate) received: Counter,
    /// Turns in which the client was slowed down for slow receivers.
    pub(crate) stalls: AtomicU64,
    rtt_ns: AtomicU64,
    active_ms: AtomicU64,
    /// TLS facts, if any.
    pub(crate) tls: Option<TlsFacts>,
    refused: OnceLock<Refused>,
    /// Messages and bytes handed to an in-process client.
    pub(crate) handed: Counter,
}

/// What a new connection is made of.
pub(crate) struct NewConnection {
    pub(crate) id: u64,
    pub(crate) kind: ConnectionType,
    pub(crate) server: Arc<Shared>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) shown_ip: String,
    pub(crate) carrier: Carrier,
    pub(crate) tls: Option<TlsFacts>,
}

impl Connection {
    /// A connection that is bound to nothing yet.
    pub(crate) fn new(new: NewConnection) -> Self {
        Self {
            id: new.id,
            kind: new.kind,
            server: new.server,
            remote: new.remote,
            shown_ip: new.shown_ip,
            started: SystemTime::now(),
            started_at: Instant::now(),
            outbound: Outbound::new(new.carrier),
            closing: Closing::default(),
            subscriptions: Mutex::default(),
            profile: ArcSwapOption::empty(),
            grants: Mutex::new(None),
            has_grants: AtomicBool::new(false),
            echo: AtomicBool::new(true),
            headers: AtomicBool::new(false),
            wake: Notify::new(),
            controls: Mutex::default(),
            received: Counter::default(),
            stalls: AtomicU64::new(0),
            rtt_ns: AtomicU64::new(0),
            active_ms: AtomicU64::new(0),
            tls: new.tls,
            refused: OnceLock::new(),
            handed: Counter::default(),
        }
    }

    /// What INFO needs to know of the client.
    pub(crate) fn peer(&self) -> Peer {
        Peer {
            id: self.id,
            kind: self.kind,
            ip: self
                .remote
                .map_or_else(String::new, |remote| remote.ip().to_string()),
        }
    }

    /// Whether the client receives its own messages.
    pub(crate) fn echo(&self) -> bool {
        self.echo.load(Ordering::Relaxed)
    }

    /// Whether the client understands headers.
    pub(crate) fn headers(&self) -> bool {
        self.headers.load(Ordering::Relaxed)
    }

    /// Sets what CONNECT negotiated.
    pub(crate) fn negotiate(&self, echo: bool, headers: bool) {
        self.echo.store(echo, Ordering::Relaxed);
        self.headers.store(headers, Ordering::Relaxed);
    }

    /// Who the client is; `None` before it is bound to an account.
    pub(crate) fn profile(&self) -> Option<Arc<Profile>> {
        self.profile.load_full()
    }

    /// Binds the client to an account and to permissions.
    pub(crate) fn bind(&self, profile: Profile) {
        let grants = profile
            .permissions
            .as_ref()
            .and_then(|permissions| permissions.responses())
            .map(ReplyGrants::new);
        self.has_grants.store(grants.is_some(), Ordering::Release);
        *self.grants.lock() = grants;
        self.profile.store(Some(Arc::new(profile)));
    }

    /// Messages and bytes that the client was sent, over a socket or in process.
    pub(crate) fn sent_counts(&self) -> (u64, u64) {
        let (msgs, bytes) = self.outbound.counts();
        let (handed_msgs, handed_bytes) = self.handed.get();
        (msgs + handed_msgs, bytes + handed_bytes)
    }

    /// Notes what a client told of itself whose credentials were refused.
    pub(crate) fn refuse(&self, refused: Refused) {
        let _ = self.refused.set(refused);
    }

    /// What a client told of itself whose credentials were refused.
    pub(crate) fn refused(&self) -> Option<&Refused> {
        self.refused.get()
    }

    /// The user as monitoring shows it: whom the client was taken for, or whom it pretended to be.
    pub(crate) fn authorized_user(&self, profile: Option<&Profile>) -> String {
        match profile.and_then(|profile| profile.identity.as_ref()) {
            Some(identity) => identity.user.clone(),
            None => self
                .refused()
                .map(|refused| refused.user.clone())
                .unwrap_or_default(),
        }
    }

    /// Whether a publish to `subject` is granted by an earlier delivery; uses the grant up.
    pub(crate) fn take_grant(&self, subject: &[u8]) -> bool {
        self.has_grants.load(Ordering::Acquire)
            && self
                .grants
                .lock()
                .as_mut()
                .is_some_and(|grants| grants.take(subject, Instant::now()))
    }

    /// Notes that the client was handed a message with this reply subject, and may answer it where it has leave to.
    pub(crate) fn grant(&self, reply: &[u8]) {
        if self.has_grants.load(Ordering::Acquire)
            && let Some(grants) = self.grants.lock().as_mut()
        {
            grants.grant(reply, Instant::now());
        }
    }

    /// Appends a message for one of the client's subscriptions. Never waits.
    pub(crate) fn push(
        self: &Arc<Self>,
        subscription: &Arc<Subscription>,
        message: &Message<'_>,
        turn: &mut Turn<'_>,
    ) -> Result<(), Undelivered> {
        let mut state = self.outbound.lock();
        if state.is_closed() {
            return Err(Undelivered::ClientClosed);
        }
        let crowded = state.pending > turn.max_pending / 4 * 3;
        if crowded && turn.drop_when_crowded {
            return Err(Undelivered::Crowded);
        }
        let counted = subscription.count();
        if counted == Counted::Closed {
            return Err(subscription.open().err().unwrap_or(Undelivered::Closed));
        }
        let headers: &[u8] = if self.headers() { message.headers } else { &[] };
        let sid: &[u8] = &subscription.sid;
        if report::tracing_protocol() {
            self.trace_delivery(sid, headers, message);
        }
        if State::shares(message.payload.len()) {
            let size = headers.len() + message.payload.len();
            state.append(|out| {
                if headers.is_empty() {
                    encode::msg_line(out, message.subject, sid, message.reply, size);
                } else {
                    encode::hmsg_line(out, message.subject, sid, message.reply, headers.len(), size);
                    out.extend_from_slice(headers);
                }
            });
            state.append_shared(message.shared_payload());
            state.append(|out| out.extend_from_slice(b"\r\n"));
        } else {
            state.append(|out| {
                if headers.is_empty() {
                    encode::msg(out, message.subject, sid, message.reply, message.payload);
                } else {
                    encode::hmsg(out, message.subject, sid, message.reply, headers, message.payload);
                }
            });
        }
        state.msgs += 1;
        state.bytes += (headers.len() + message.payload.len()) as u64;
        let overflow = state.pending > turn.max_pending;
        if state.promise_flush() {
            turn.touched.push(self.clone());
        }
        drop(state);
        if crowded {
            turn.crowded += 1;
        }
        if overflow {
            self.close(CloseReason::SlowConsumerPendingBytes);
        }
        if counted == Counted::Last {
            self.forget(subscription);
        }
        if let Some(reply) = message.reply {
            self.grant(reply);
        }
        Ok(())
    }

    /// Appends protocol bytes for the client and makes sure that the turn flushes them.
    pub(crate) fn send(
        self: &Arc<Self>,
        touched: &mut Vec<Arc<Connection>>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut state = self.outbound.lock();
        if state.is_closed() {
            return;
        }
        if report::tracing_protocol() {
            let mut lines = Vec::new();
            write(&mut lines);
            self.trace_out(&lines);
            state.append(|out| out.extend_from_slice(&lines));
        } else {
            state.append(write);
        }
        let overflow = state.pending > self.server.limits().max_pending;
        if state.promise_flush() {
            touched.push(self.clone());
        }
        drop(state);
        if overflow {
            self.close(CloseReason::SlowConsumerPendingBytes);
        }
    }

    /// Writes what is pending as far as the socket takes it at once; the rest follows by a drain task.
    pub(crate) fn flush(self: &Arc<Self>) {
        match self.outbound.flush(&self.server.memory) {
            Flushed::Done => {}
            Flushed::Blocked => {
                let connection = self.clone();
                self.server.tasks.spawn(writer::drain(connection));
            }
            Flushed::Failed => self.close(CloseReason::WriteError),
            Flushed::OverBudget => self.close(CloseReason::SlowConsumerPendingBytes),
        }
    }

    /// Removes a subscription from the client and from its account.
    pub(crate) fn forget(&self, subscription: &Arc<Subscription>) {
        {
            let _in_order = self.outbound.lock();
            subscription.close();
        }
        let mut subscriptions = self.subscriptions.lock();
        if subscriptions
            .get(&subscription.sid)
            .is_some_and(|known| Arc::ptr_eq(known, subscription))
        {
            subscriptions.remove(&subscription.sid);
        }
        drop(subscriptions);
        if let Some(account) = subscription.account.upgrade() {
            account.unsubscribe(subscription);
        }
    }

    /// Removes all subscriptions; how many there were.
    pub(crate) fn forget_all(&self) -> usize {
        let all = std::mem::take(&mut *self.subscriptions.lock());
        {
            let _in_order = self.outbound.lock();
            all.values().for_each(|subscription| subscription.close());
        }
        for subscription in all.values() {
            if let Some(account) = subscription.account.upgrade() {
                account.unsubscribe(subscription);
            }
        }
        all.len()
    }

    /// Begins the close. The first reason wins; the connection's task does the rest.
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closing.begin(reason) {
            self.outbound.close(!reason.flushes(), &self.server.memory);
            self.wake.notify_one();
        }
    }

    /// Frees what was never written; the server may remember the connection for long.
    fn discard_output(&self) {
        self.outbound.close(true, &self.server.memory);
    }

    /// Asks something of the connection's task. What was asked already and not done yet is not asked twice, so at most one
    /// of each kind waits.
    pub(crate) fn control(&self, control: Control) {
        let mut controls = self.controls.lock();
        if !controls.contains(&control) {
            controls.push(control);
        }
        drop(controls);
        self.wake.notify_one();
    }

    /// The task of a connection without a socket: waits for the close and cleans up.
    pub(crate) async fn keep(self: Arc<Self>) {
        while self.closing.reason().is_none() {
            self.wake.notified().await;
        }
        let subscriptions = self.forget_all();
        self.server.client_gone(&self, subscriptions);
    }

    /// What was asked since the last call.
    fn take_controls(&self) -> Vec<Control> {
        std::mem::take(&mut *self.controls.lock())
    }

    /// Notes that the client did something.
    pub(crate) fn touch(&self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.started_at).as_millis();
        self.active_ms
            .store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Time from the start of the connection to its last activity.
    pub(crate) fn last_activity(&self) -> Duration {
        Duration::from_millis(self.active_ms.load(Ordering::Relaxed))
    }

    /// Age of the connection.
    pub(crate) fn uptime(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Measured round trip; `None` before the first one.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        match self.rtt_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// Takes the time until CONNECT for a round trip, until one is measured.
    fn estimate_rtt(&self) {
        if self.rtt().is_none() {
            self.set_rtt(self.uptime());
        }
    }

    fn set_rtt(&self, rtt: Duration) {
        let ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.rtt_ns.store(ns, Ordering::Relaxed);
    }
}
