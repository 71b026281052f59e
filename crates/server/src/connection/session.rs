//! What a connection's task knows alone: protocol state, and what each operation does.
//!
//! Operations are applied in the order they arrive and take effect at once; replies go through the same outbound
//! buffer as messages, so that a PONG follows every delivery that came before it.

use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windjet_protocol::subject;
use windjet_protocol::wire::{ClientDecoder, ClientOp, Connect, DecodeError, encode, errors};

use super::publish::{Published, Publisher, answer_no_responders};
use super::report::tracing_protocol;
use super::timers::{Due, Timers};
use super::{CloseReason, Connection, Control};
use crate::auth::{Expires, PeerCertificate};
use crate::router::{Message, Sink, Subscription, TOKENS_MAX, Turn};
use crate::trace;
use crate::websocket::Cookies;

/// Queue group that clients may not join.
const SYSTEM_GROUP: &[u8] = b"_sys_";
/// Longest sleep for crowded receivers in one turn.
const STALL_MAX: Duration = Duration::from_millis(10);
/// Sleep for one crowded receiver.
const STALL_STEP: Duration = Duration::from_millis(2);

/// What CONNECT chose, or the defaults before it.
#[derive(Debug)]
pub(super) struct Negotiated {
    pub(super) verbose: bool,
    pub(super) pedantic: bool,
    pub(super) no_responders: bool,
    pub(super) asynchronous_info: bool,
    /// CONNECT was accepted.
    pub(super) connected: bool,
    /// The first PING after CONNECT was answered.
    pub(super) greeted: bool,
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
    pub(super) negotiated: Negotiated,
    pub(super) publisher: Option<Publisher>,
    pub(super) nonce: Option<String>,
    pub(super) certificate: Option<Arc<PeerCertificate>>,
    pub(super) cookies: Cookies,
    touched: Vec<Arc<Connection>>,
    received_msgs: u64,
    received_bytes: u64,
    pub(super) max_payload: i64,
    pub(super) max_subscriptions: Option<u64>,
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
        if tracing_protocol() {
            self.connection.trace_in(&op);
        }
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
                if serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(json).is_ok() {
                    Next::Continue
                } else {
                    self.close(CloseReason::ProtocolViolation)
                }
            }
            ClientOp::Err(_) => self.close(CloseReason::ProtocolViolation),
            ClientOp::Ok => Next::Continue,
        }
    }

    /// Answers bytes outside the grammar, with which `rest` begins, and closes.
    pub(super) fn refuse(&mut self, error: &DecodeError, rest: &[u8], turn: &mut Turn<'_>) {
        if matches!(error, DecodeError::PayloadTooLarge { .. })
            && let Some(publisher) = &self.publisher
        {
            trace::too_large(rest, &self.connection, publisher, turn);
        }
        let reason = match error {
            DecodeError::ControlLineTooLong { .. } => CloseReason::MaxControlLineExceeded,
            DecodeError::PayloadTooLarge { .. } => CloseReason::MaxPayloadExceeded,
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
            self.error(errors::INVALID_PUBLISH_SUBJECT, turn);
        }
        let Some(publisher) = &mut self.publisher else {
            return Next::Stop;
        };
        let (connection, verbose) = (&self.connection, self.negotiated.verbose);
        let published = publisher.publish(connection, message, turn, |turn| {
            // Before delivery, so that it precedes a message to the publisher itself.
            if verbose {
                connection.send(&mut turn.touched, encode::ok);
            }
        });
        self.report(published, message, turn);
        turn.untaken_as = None;
        trace::finish(turn);
        Next::Continue
    }

    fn report(&mut self, published: Published, message: &Message<'_>, turn: &mut Turn<'_>) {
        match published {
            Published::Delivered(0) => {
                let carried = turn.untaken_as.take();
                self.untaken(carried.as_deref().unwrap_or(message.subject), message, turn);
            }
            Published::UntakenAs(subject) => self.untaken(&subject, message, turn),
            Published::Delivered(_) | Published::Withheld => {}
            Published::Denied => self.publish_denied(message.subject, turn),
            Published::DeniedAs(subject) => self.publish_denied(&subject, turn),
            Published::ReplyDenied => {
                let reply = message.reply.unwrap_or_default();
                let text = errors::publish_reply_denied(reply);
                self.error(&text, turn);
                self.violation(format_args!("Publish Violation - Reply {}", errors::quote(reply)));
            }
        }
    }

    fn publish_denied(&mut self, subject: &[u8], turn: &mut Turn<'_>) {
        self.error(&errors::publish_denied(subject), turn);
        self.violation(format_args!(
            "Publish Violation - Subject {}",
            errors::quote(subject)
        ));
    }

    /// Writes into the log what the client may not do.
    fn violation(&self, what: fmt::Arguments<'_>) {
        tracing::error!(client = %self.connection.log_name(), "{what}");
    }

    /// Tells a requester that nobody took its request, where it wants to know.
    fn untaken(&mut self, subject: &[u8], message: &Message<'_>, turn: &mut Turn<'_>) {
        if let Some(reply) = message.reply
            && self.negotiated.no_responders
            && let Some(publisher) = &self.publisher
        {
            answer_no_responders(&self.connection, &publisher.account, subject, reply, turn);
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
            let text = errors::subscribe_denied(pattern, queue);
            self.error(&text, turn);
            let queue = queue.map_or_else(String::new, |queue| format!(", Queue: {}", errors::quote(queue)));
            self.violation(format_args!(
                "Subscription Violation - Subject {}{queue}, SID {}",
                errors::quote(pattern),
                String::from_utf8_lossy(sid)
            ));
            return Next::Continue;
        }
        let limits = connection.server.limits();
        let tokens_max = if limits.max_sub_tokens > 0 {
            limits.max_sub_tokens.min(TOKENS_MAX)
        } else {
            TOKENS_MAX
        };
        if subject::token_count(pattern) > tokens_max {
            let text = errors::subscribe_too_many_tokens(pattern);
            self.error(&text, turn);
            self.violation(format_args!(
                "Subscription Violation Too Many Tokens - Subject {}, SID {}",
                errors::quote(pattern),
                String::from_utf8_lossy(sid)
            ));
            return Next::Continue;
        }
        if let Some(max) = self.max_subscriptions
            && connection.subscriptions.lock().len() as u64 >= max
        {
            self.error(errors::MAX_SUBSCRIPTIONS, turn);
            self.violation(format_args!("{}", errors::MAX_SUBSCRIPTIONS));
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
                    self.error(errors::INVALID_SUBJECT, turn);
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
                self.error(errors::STALE_CONNECTION, &mut turn);
                self.close(CloseReason::StaleConnection);
                connection.server.stats.stale();
            }
            Due::AuthenticationTimeout => {
                self.error(errors::AUTHENTICATION_TIMEOUT, &mut turn);
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
    ///
    /// # Cancel safety
    ///
    /// Dropped while credentials are judged again, the connection keeps its old ones.
    pub(super) async fn obey(&mut self, control: Control) {
        let judged = match control {
            Control::Reload => Some(self.judge_again().await),
            Control::LameDuck => None,
        };
        let connection = self.connection.clone();
        let mut turn = self.begin(&connection);
        match judged {
            None => {
                if self.negotiated.asynchronous_info && self.negotiated.greeted {
                    let info = connection.server.lame_duck_info(&connection, self.max_payload);
                    connection.send(&mut turn.touched, |out| encode::info(out, &info));
                }
            }
            Some(judged) => self.reload(judged, &mut turn),
        }
        self.finish(turn);
    }
}
