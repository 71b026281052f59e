//! What a connection's task knows alone: protocol state, and what each operation does.
//!
//! Operations are applied in the order they arrive and take effect at once; replies go through the same outbound
//! buffer as messages, so that a PONG follows every delivery that came before it.

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::task;
use windjet_protocol::subject;
use windjet_protocol::wire::{ClientDecoder, ClientOp, Connect, DecodeError, encode};

use super::publish::{Published, Publisher, answer_no_responders};
use super::timers::{Due, Timers};
use super::{CloseReason, Connection, Control, Profile};
use crate::auth::{Attempt, AuthFailure, Credentials, Expires, Identity, PeerCertificate, Recheck};
use crate::options::ConnectionType;
use crate::router::{Message, Sink, Subscription, Turn};
use crate::server::Bound;
use crate::websocket::Cookies;

/// Queue group that clients may not join.
const SYSTEM_GROUP: &[u8] = b"_sys_";
/// Longest sleep for crowded receivers in one turn.
const STALL_MAX: Duration = Duration::from_millis(10);
/// Sleep for one crowded receiver.
const STALL_STEP: Duration = Duration::from_millis(2);

/// What CONNECT chose, or the defaults before it.
#[derive(Debug)]
struct Negotiated {
    verbose: bool,
    pedantic: bool,
    no_responders: bool,
    asynchronous_info: bool,
    /// CONNECT was accepted.
    connected: bool,
    /// The first PING after CONNECT was answered.
    greeted: bool,
}

/// What the reader does after an operation.
#[derive(Debug)]
pub(super) enum Next {
    /// Go on with the next operation.
    Continue,
    /// Finish the turn, then authenticate with this CONNECT.
    Connect(Vec<u8>),
    /// Stop: the close has begun.
    Stop,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Session {
    /// The connection as others see it.
    pub(super) connection: Arc<Connection>,
    /// The incremental decoder.
    pub(super) decoder: ClientDecoder,
    /// The clocks.
    pub(super) timers: Timers,
    negotiated: Negotiated,
    publisher: Option<Publisher>,
    nonce: Option<String>,
    certificate: Option<Arc<PeerCertificate>>,
    cookies: Cookies,
    touched: Vec<Arc<Connection>>,
    received_msgs: u64,
    received_bytes: u64,
    max_payload: i64,
    max_subscriptions: Option<u64>,
}

impl Session {
    /// A session of a connection that has just been greeted with INFO.
    pub(crate) fn new(
        connection: Arc<Connection>,
        nonce: Option<String>,
        certificate: Option<Arc<PeerCertificate>>,
        cookies: Cookies,
    ) -> Self {
        let server = &connection.server;
        let limits = server.limits();
        let needs_auth = server.auth_required(connection.kind);
        let mut decoder = ClientDecoder::new();
        decoder.max_control_line = limits.max_control_line;
        decoder.max_payload = limits.max_payload;
        decoder.headers = false;
        let timers = Timers::new(
            Instant::now(),
            server.ping_interval(connection.kind),
            needs_auth.then(|| server.auth_timeout(connection.kind)),
        );
        let mut session = Self {
            decoder,
            timers,
            negotiated: Negotiated {
                verbose: true,
                pedantic: true,
                no_responders: false,
                asynchronous_info: false,
                connected: false,
                greeted: false,
            },
            publisher: None,
            nonce,
            certificate,
            cookies,
            touched: Vec::new(),
            received_msgs: 0,
            received_bytes: 0,
            max_payload: limits.max_payload,
            max_subscriptions: None,
            connection,
        };
        if !needs_auth {
            session.bind(None, &Connect::default());
        }
        session
    }

    /// Applies one operation.
    pub(super) fn apply(&mut self, op: ClientOp<'_>, turn: &mut Turn<'_>) -> Next {
        if self.publisher.is_none()
            && !matches!(op, ClientOp::Connect(_))
            && !self.bind_without_credentials(turn)
        {
            return Next::Stop;
        }
        match op {
            ClientOp::Pub {
                subject,
                reply,
                payload,
            } => self.publish(&Message::new(subject, reply, &[], payload), turn),
            ClientOp::HPub {
                subject,
                reply,
                header_len,
                message,
            } => {
                let (headers, payload) = message.split_at(header_len);
                self.publish(&Message::new(subject, reply, headers, payload), turn)
            }
            ClientOp::Ping => self.ping(turn),
            ClientOp::Pong => {
                if let Some(rtt) = self.timers.pong(Instant::now()) {
                    self.connection.set_rtt(rtt);
                }
                Next::Continue
            }
            ClientOp::Sub { subject, queue, sid } => self.subscribe(subject, queue, sid, turn),
            ClientOp::Unsub { sid, max } => self.unsubscribe(sid, max.unwrap_or(0), turn),
            ClientOp::Connect(json) => Next::Connect(json.to_vec()),
            ClientOp::Info(json) => {
                if serde_json::from_slice::<serde_json::Value>(json).is_ok() {
                    Next::Continue
                } else {
                    self.close(CloseReason::ProtocolViolation)
                }
            }
            ClientOp::Err(_) => self.close(CloseReason::ProtocolViolation),
            ClientOp::Ok => Next::Continue,
        }
    }

    /// Answers bytes outside the grammar, and closes.
    pub(super) fn refuse(&mut self, error: &DecodeError, turn: &mut Turn<'_>) {
        let reason = match error {
            DecodeError::UnknownOperation => CloseReason::ParseError,
            DecodeError::ControlLineTooLong { .. } => CloseReason::MaxControlLineExceeded,
            DecodeError::PayloadTooLarge { .. } => CloseReason::MaxPayloadExceeded,
            DecodeError::HeadersNotNegotiated => CloseReason::MessageHeaderViolation,
            _ => CloseReason::ProtocolViolation,
        };
        if let Some(text) = error.reply() {
            self.error(text, turn);
        }
        self.close(reason);
    }

    /// Whether bytes may be read at all: before authentication only a CONNECT may come.
    pub(super) fn admits(&mut self, first: u8, turn: &mut Turn<'_>) -> bool {
        self.publisher.is_some() || matches!(first, b'C' | b'c') || self.bind_without_credentials(turn)
    }

    /// A turn of this connection, with the buffers of the last one.
    pub(super) fn begin<'a>(&mut self, connection: &'a Arc<Connection>) -> Turn<'a> {
        let mut turn = Turn::new(&connection.server, Some(connection));
        turn.touched = std::mem::take(&mut self.touched);
        turn
    }

    /// Ends a turn: counts, flushes, and says how long to pause for crowded receivers.
    pub(super) fn finish(&mut self, mut turn: Turn<'_>) -> Option<Duration> {
        if self.received_msgs > 0 {
            let (msgs, bytes) = (self.received_msgs, self.received_bytes);
            self.connection.received.add(msgs, bytes);
            self.connection.server.stats.received(msgs, bytes);
            if let Some(publisher) = &self.publisher {
                publisher.account.received.add(msgs, bytes);
                publisher.account.sent.add(turn.out_msgs, turn.out_bytes);
            }
            self.received_msgs = 0;
            self.received_bytes = 0;
        }
        let crowded = turn.crowded;
        turn.finish();
        self.touched = std::mem::take(&mut turn.touched);
        (crowded > 0).then(|| {
            self.connection.server.stats.stalled();
            self.connection
                .stalls
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            STALL_STEP.saturating_mul(crowded).min(STALL_MAX)
        })
    }

    /// Authenticates with a CONNECT and binds the connection. Runs outside a turn, since a password hash may take long.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the hash is computed, the connection stays unauthenticated.
    pub(super) async fn connect(&mut self, json: &[u8]) {
        let connection = self.connection.clone();
        let Ok(mut connect) = Connect::from_json(json) else {
            self.close(CloseReason::ProtocolViolation);
            return;
        };
        self.cookies.fill(&mut connect);
        if self.negotiated.connected {
            connection.forget_all();
        }
        let outcome = self.authenticate(&connect).await;
        let mut turn = self.begin(&connection);
        match outcome {
            Ok(identity) => self.accept(identity, &connect, &mut turn),
            Err(failure) => self.reject(&failure, &connect, &mut turn),
        }
        self.finish(turn);
    }

    async fn authenticate(&self, connect: &Connect) -> Result<Option<Identity>, AuthFailure> {
        let connection = &self.connection;
        let server = &connection.server;
        if !server.auth_required(connection.kind) {
            return Ok(None);
        }
        let authenticator = server.authenticator();
        let evidence = Evidence {
            credentials: Credentials::from(connect),
            nonce: self.nonce.clone(),
            kind: connection.kind,
            remote: connection.remote.map(|address| address.ip()),
            certificate: self.certificate.clone(),
        };
        if !authenticator.needs_blocking(&evidence.credentials, evidence.kind) {
            return authenticator.authenticate(&evidence.attempt()).map(Some);
        }
        let check = task::spawn_blocking(move || authenticator.authenticate(&evidence.attempt()));
        check.await.unwrap_or(Err(AuthFailure::NoCredentials)).map(Some)
    }

    fn accept(&mut self, identity: Option<Identity>, connect: &Connect, turn: &mut Turn<'_>) {
        let headers = connect.headers && self.connection.server.limits().headers;
        if connect.no_responders && !headers {
            self.error("no responders requires headers support", turn);
            self.close(CloseReason::NoRespondersRequiresHeaders);
            return;
        }
        if !matches!(connect.protocol, 0 | 1) {
            self.error("invalid client protocol", turn);
            self.close(CloseReason::BadClientProtocolVersion);
            return;
        }
        self.negotiated = Negotiated {
            verbose: connect.verbose,
            pedantic: connect.pedantic,
            no_responders: connect.no_responders,
            asynchronous_info: connect.protocol == 1,
            connected: true,
            greeted: false,
        };
        self.connection.negotiate(connect.echo, headers);
        self.decoder.headers = headers;
        let expires_at = expires_at(identity.as_ref());
        match self.bind(identity, connect) {
            Bound::Done => {}
            Bound::TooManyConnections => {
                self.error("maximum account active connections exceeded", turn);
                self.close(CloseReason::MaxAccountConnectionsExceeded);
                return;
            }
            Bound::NoSubscriptions => {
                self.error("maximum subscriptions exceeded", turn);
                self.close(CloseReason::MaxSubscriptionsExceeded);
                return;
            }
            Bound::NoAccount => {
                self.error("Failed Account Registration", turn);
                self.close(CloseReason::MissingAccount);
                return;
            }
        }
        self.timers.connected(Instant::now(), rand::random(), expires_at);
        if self.negotiated.verbose {
            self.connection.send(&mut turn.touched, encode::ok);
        }
        self.connection.server.client_connected(&self.connection);
    }

    fn reject(&mut self, failure: &AuthFailure, connect: &Connect, turn: &mut Turn<'_>) {
        self.error(failure.connect_text(), turn);
        self.connection
            .server
            .authentication_failed(&self.connection, connect, failure);
        self.close(CloseReason::AuthenticationFailure);
    }

    fn bind(&mut self, identity: Option<Identity>, connect: &Connect) -> Bound {
        let connection = self.connection.clone();
        let server = &connection.server;
        let account = match server.account_of(identity.as_ref()) {
            Some(account) => account,
            None => return Bound::NoAccount,
        };
        let limits = account.limits();
        self.max_payload = identity
            .as_ref()
            .and_then(|identity| identity.max_payload)
            .or(limits.max_payload)
            .map_or(server.limits().max_payload, |max| {
                i64::try_from(max).unwrap_or(i64::MAX)
            });
        self.max_subscriptions = identity
            .as_ref()
            .and_then(|identity| identity.max_subscriptions)
            .or(limits.max_subscriptions)
            .or(server.limits().max_subscriptions);
        let permissions = identity
            .as_ref()
            .and_then(|identity| identity.permissions.clone());
        self.publisher = Some(Publisher::new(
            account.clone(),
            permissions,
            server.is_system(&account),
        ));
        self.decoder.max_payload = self.max_payload;
        let bound = server.bind(&connection, Profile::of(account, identity, connect));
        if bound == Bound::Done && self.max_subscriptions == Some(0) {
            return Bound::NoSubscriptions;
        }
        bound
    }

    /// Binds a client that has not sent CONNECT to the configured `no_auth_user`, if there is one.
    fn bind_without_credentials(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.connection.server.has_no_auth_user(self.connection.kind) {
            let attempt = Attempt {
                credentials: &Credentials::default(),
                nonce: None,
                connection_type: self.connection.kind,
                remote: self.connection.remote.map(|address| address.ip()),
                certificate: None,
                now: SystemTime::now(),
            };
            if let Ok(identity) = self.connection.server.authenticator().authenticate(&attempt)
                && self.bind(Some(identity), &Connect::default()) == Bound::Done
            {
                self.timers.connected(Instant::now(), rand::random(), None);
                return true;
            }
        }
        self.reject(&AuthFailure::NoCredentials, &Connect::default(), turn);
        false
    }

    fn ping(&mut self, turn: &mut Turn<'_>) -> Next {
        let greet = self.negotiated.connected && !self.negotiated.greeted;
        let info = (greet && self.negotiated.asynchronous_info).then(|| {
            self.connection
                .server
                .second_info(&self.connection, self.max_payload)
        });
        self.negotiated.greeted |= greet;
        self.connection.send(&mut turn.touched, |out| {
            encode::pong(out);
            if let Some(info) = info {
                encode::info(out, &info);
            }
        });
        Next::Continue
    }

    fn publish(&mut self, message: &Message<'_>, turn: &mut Turn<'_>) -> Next {
        self.received_msgs += 1;
        self.received_bytes += message.size() as u64;
        if self.negotiated.pedantic && !subject::is_literal(message.subject) {
            self.error("Invalid Publish Subject", turn);
        }
        let Some(publisher) = &mut self.publisher else {
            return Next::Stop;
        };
        let (connection, verbose) = (&self.connection, self.negotiated.verbose);
        let published = publisher.publish(Some(connection), message, turn, |turn| {
            // Before delivery, so that it precedes a message to the publisher itself.
            if verbose {
                connection.send(&mut turn.touched, encode::ok);
            }
        });
        self.report(published, message, turn);
        Next::Continue
    }

    fn report(&mut self, published: Published, message: &Message<'_>, turn: &mut Turn<'_>) {
        match published {
            Published::Delivered(0) => {
                if self.negotiated.no_responders && message.reply.is_some() {
                    answer_no_responders(&self.connection, message, turn);
                }
            }
            Published::Delivered(_) => {}
            Published::Denied => {
                let text = format!("Permissions Violation for Publish to {}", quoted(message.subject));
                self.error(&text, turn);
            }
            Published::ReplyDenied => {
                let reply = message.reply.unwrap_or_default();
                let text = format!(
                    "Permissions Violation for Publish with Reply of {}",
                    quoted(reply)
                );
                self.error(&text, turn);
            }
        }
    }

    fn subscribe(&mut self, pattern: &[u8], queue: Option<&[u8]>, sid: &[u8], turn: &mut Turn<'_>) -> Next {
        let Some(publisher) = &self.publisher else {
            return Next::Stop;
        };
        let connection = self.connection.clone();
        let permitted = publisher
            .permissions
            .as_ref()
            .is_none_or(|p| p.can_subscribe(pattern, queue));
        if !permitted || queue == Some(SYSTEM_GROUP) {
            let text = subscription_violation(pattern, queue);
            self.error(&text, turn);
            return Next::Continue;
        }
        let limits = connection.server.limits();
        if limits.max_sub_tokens > 0 && subject::token_count(pattern) > limits.max_sub_tokens {
            let text = format!(
                "Permissions Violation for Subscription to {}, too many tokens",
                quoted(pattern)
            );
            self.error(&text, turn);
            return Next::Continue;
        }
        if let Some(max) = self.max_subscriptions
            && connection.subscriptions.lock().len() as u64 >= max
        {
            self.error("maximum subscriptions exceeded", turn);
            return Next::Continue;
        }
        let valid = subject::is_valid_subscription(pattern);
        let account = publisher.account.clone();
        let deny = publisher
            .permissions
            .as_ref()
            .and_then(|p| p.deny_filter_for(pattern, queue));
        let inserted = {
            let mut subscriptions = connection.subscriptions.lock();
            match subscriptions.entry(Bytes::copy_from_slice(sid)) {
                Entry::Occupied(_) => None,
                Entry::Vacant(_) if !valid => {
                    drop(subscriptions);
                    self.error("Invalid Subject", turn);
                    return Next::Continue;
                }
                Entry::Vacant(vacant) => {
                    let subscription = Arc::new(
                        Subscription::new(
                            Bytes::copy_from_slice(pattern),
                            queue.map(Bytes::copy_from_slice),
                            vacant.key().clone(),
                            connection.id,
                            &account,
                            Sink::Connection(connection.clone()),
                        )
                        .with_deny(deny),
                    );
                    Some(vacant.insert(subscription).clone())
                }
            }
        };
        if let Some(subscription) = inserted {
            account.subscribe(subscription);
        }
        self.acknowledge(turn);
        Next::Continue
    }

    fn unsubscribe(&mut self, sid: &[u8], max: u64, turn: &mut Turn<'_>) -> Next {
        let known = self.connection.subscriptions.lock().get(sid).cloned();
        if let Some(subscription) = known {
            let over = {
                let _in_order = self.connection.outbound.lock();
                max == 0 || subscription.set_limit(max)
            };
            if over {
                self.connection.forget(&subscription);
            }
        }
        self.acknowledge(turn);
        Next::Continue
    }

    fn acknowledge(&mut self, turn: &mut Turn<'_>) {
        if self.negotiated.verbose {
            self.connection.send(&mut turn.touched, encode::ok);
        }
    }

    /// Sends an `-ERR` line.
    pub(super) fn error(&mut self, text: &str, turn: &mut Turn<'_>) {
        self.connection
            .send(&mut turn.touched, |out| encode::err(out, text.as_bytes()));
    }

    /// Begins the close.
    pub(super) fn close(&mut self, reason: CloseReason) -> Next {
        self.connection.close(reason);
        Next::Stop
    }

    /// Does what the timers say is due.
    pub(super) fn tick(&mut self, now: Instant) {
        let connection = self.connection.clone();
        let active_at = connection.started_at + connection.last_activity();
        self.timers
            .set_interval(now, connection.server.ping_interval(connection.kind));
        let due = self
            .timers
            .due(now, active_at, connection.server.limits().ping_max);
        let mut turn = self.begin(&connection);
        match due {
            Due::Nothing => {}
            Due::Ping => connection.send(&mut turn.touched, encode::ping),
            Due::Stale => {
                self.error("Stale Connection", &mut turn);
                self.close(CloseReason::StaleConnection);
                connection.server.stats.stale();
            }
            Due::AuthenticationTimeout => {
                self.error("Authentication Timeout", &mut turn);
                self.close(CloseReason::AuthenticationTimeout);
            }
            Due::Expired => {
                let profile = connection.profile();
                let expiry = profile
                    .as_ref()
                    .and_then(|profile| profile.identity.as_ref()?.expiry);
                self.error(
                    expiry.map_or(Expires::User, |expiry| expiry.of).error_text(),
                    &mut turn,
                );
                self.close(CloseReason::AuthenticationExpired);
            }
        }
        self.finish(turn);
    }

    /// Does what the server asked of the connection.
    pub(super) fn obey(&mut self, control: Control) {
        let connection = self.connection.clone();
        let mut turn = self.begin(&connection);
        match control {
            Control::LameDuck => {
                if self.negotiated.asynchronous_info && self.negotiated.greeted {
                    let info = connection.server.lame_duck_info(&connection, self.max_payload);
                    connection.send(&mut turn.touched, |out| encode::info(out, &info));
                }
            }
            Control::Reload => self.reload(&mut turn),
        }
        self.finish(turn);
    }

    /// Checks credentials and permissions again under new options.
    fn reload(&mut self, turn: &mut Turn<'_>) {
        let connection = self.connection.clone();
        let server = &connection.server;
        let limits = server.limits();
        self.decoder.max_control_line = limits.max_control_line;
        let Some(profile) = connection.profile() else {
            return;
        };
        let identity = match (&profile.identity, server.auth_required(connection.kind)) {
            (_, false) => None,
            (None, true) => return self.turn_out(&AuthFailure::NoCredentials, turn),
            (Some(identity), true) => match server.authenticator().recheck(identity, SystemTime::now()) {
                Recheck::Keep(identity) => Some(*identity),
                Recheck::Refused(failure) => return self.turn_out(&failure, turn),
                _ => {
                    self.close(CloseReason::MissingAccount);
                    return;
                }
            },
        };
        let account = server.account_of(identity.as_ref());
        if !account.is_some_and(|account| Arc::ptr_eq(&account, &profile.account)) {
            self.close(CloseReason::MissingAccount);
            return;
        }
        self.timers
            .connected(Instant::now(), rand::random(), expires_at(identity.as_ref()));
        let connect = Connect {
            name: profile.name.clone(),
            lang: profile.lang.clone(),
            version: profile.version.clone(),
            ..Connect::default()
        };
        self.bind(identity, &connect);
        self.revoke_denied(turn);
    }

    fn turn_out(&mut self, failure: &AuthFailure, turn: &mut Turn<'_>) {
        self.error(failure.live_text(), turn);
        self.close(CloseReason::AuthenticationFailure);
    }

    /// Removes subscriptions that new permissions no longer allow, telling the client each.
    fn revoke_denied(&mut self, turn: &mut Turn<'_>) {
        let Some(permissions) = self
            .publisher
            .as_ref()
            .and_then(|publisher| publisher.permissions.clone())
        else {
            return;
        };
        let connection = self.connection.clone();
        let mut denied: Vec<Arc<Subscription>> = connection
            .subscriptions
            .lock()
            .values()
            .filter(|s| !permissions.can_subscribe(&s.subject, s.queue.as_deref()))
            .cloned()
            .collect();
        denied.sort_by(|a, b| a.sid.cmp(&b.sid));
        for subscription in denied {
            connection.forget(&subscription);
            let text = format!(
                "{} (sid {})",
                subscription_violation(&subscription.subject, subscription.queue.as_deref()),
                quoted(&subscription.sid)
            );
            self.error(&text, turn);
        }
    }
}

/// What a client presents, in a form that can go to another thread.
struct Evidence {
    credentials: Credentials,
    nonce: Option<String>,
    kind: ConnectionType,
    remote: Option<IpAddr>,
    certificate: Option<Arc<PeerCertificate>>,
}

impl Evidence {
    fn attempt(&self) -> Attempt<'_> {
        Attempt {
            credentials: &self.credentials,
            nonce: self.nonce.as_deref().map(str::as_bytes),
            connection_type: self.kind,
            remote: self.remote,
            certificate: self.certificate.as_ref(),
            now: SystemTime::now(),
        }
    }
}

/// When an identity has to be turned out, on the monotonic clock.
fn expires_at(identity: Option<&Identity>) -> Option<Instant> {
    let expiry = identity?.expiry?;
    Some(Instant::now() + expiry.at.duration_since(SystemTime::now()).unwrap_or_default())
}

/// The text for a subscription that is not allowed.
fn subscription_violation(pattern: &[u8], queue: Option<&[u8]>) -> String {
    match queue {
        None => format!("Permissions Violation for Subscription to {}", quoted(pattern)),
        Some(queue) => {
            format!(
                "Permissions Violation for Subscription to {} using queue {}",
                quoted(pattern),
                quoted(queue)
            )
        }
    }
}

/// Bytes in double quotes, with escapes for what does not print.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}
