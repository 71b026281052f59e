//! Routing: from a published message to the subscriptions that get it.
//!
//! A publisher asks its account for the [`Matches`] of a subject (kept as long as the account's generation stands)
//! and hands message and matches to [`route`]. Every plain subscription gets a copy; of every queue group one member
//! does, found from a random start so that load spreads. Everything happens in the publisher's turn: when `route`
//! returns, the message stands in the outbound buffers and mailboxes of its receivers, in order. Nothing here waits;
//! the [`Turn`] remembers which connections must be flushed and whether the publisher ought to slow down.

mod subscription;
mod trie;

use std::cell::OnceCell;
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use subscription::{Beyond, Counted, Service, Sink, Subscription};
pub(crate) use trie::{Matches, TOKENS_MAX, Trie};

use crate::connection::Connection;
use crate::server::Shared;
use crate::trace::Trace;

/// A message on its way, as slices that live for the publisher's turn.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// The published subject after mapping.
    pub(crate) subject: &'a [u8],
    /// Where replies go.
    pub(crate) reply: Option<&'a [u8]>,
    /// The header block with its closing blank line; empty when there is none.
    pub(crate) headers: &'a [u8],
    /// The payload.
    pub(crate) payload: &'a [u8],
    /// The subject by which it finds its receivers, where that is not the one they see: a consumer's delivery.
    pub(crate) via: Option<&'a [u8]>,
    shared: OnceCell<Bytes>,
}

impl<'a> Message<'a> {
    /// A message made of slices.
    pub(crate) fn new(
        subject: &'a [u8],
        reply: Option<&'a [u8]>,
        headers: &'a [u8],
        payload: &'a [u8],
    ) -> Self {
        Self {
            subject,
            reply,
            headers,
            payload,
            via: None,
            shared: OnceCell::new(),
        }
    }

    /// A message whose payload is shared already, so that receivers need no copy.
    pub(crate) fn with_shared(
        subject: &'a [u8],
        reply: Option<&'a [u8]>,
        headers: &'a [u8],
        payload: &'a Bytes,
    ) -> Self {
        let message = Self::new(subject, reply, headers, payload);
        let _ = message.shared.set(payload.clone());
        message
    }

    /// The payload as shared bytes: copied once a message, however many receivers ask.
    pub(crate) fn shared_payload(&self) -> Bytes {
        self.shared
            .get_or_init(|| Bytes::copy_from_slice(self.payload))
            .clone()
    }

    /// Bytes that count against limits: headers and payload.
    pub(crate) fn size(&self) -> usize {
        self.headers.len() + self.payload.len()
    }

    /// The same message with other headers.
    pub(crate) fn with_headers<'b>(&'b self, headers: &'b [u8]) -> Message<'b> {
        Message {
            subject: self.subject,
            reply: self.reply,
            headers,
            payload: self.payload,
            via: self.via,
            shared: self.shared.clone(),
        }
    }

    /// The same message under another subject and reply.
    pub(crate) fn renamed<'b>(&'b self, subject: &'b [u8], reply: Option<&'b [u8]>) -> Message<'b> {
        Message {
            subject,
            reply,
            headers: self.headers,
            payload: self.payload,
            via: None,
            shared: self.shared.clone(),
        }
    }

    /// The subject by which it finds its receivers.
    pub(crate) fn key(&self) -> &[u8] {
        self.via.unwrap_or(self.subject)
    }

    /// The same message for the receivers of another subject. What they see changes with it, unless that is another anyway.
    pub(crate) fn carried<'b>(&'b self, to: &'b [u8]) -> Message<'b> {
        match self.via {
            None => self.renamed(to, self.reply),
            Some(_) => Message {
                via: Some(to),
                ..self.renamed(self.subject, self.reply)
            },
        }
    }
}

/// One turn of a publisher: what must be done once its batch of messages is routed.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    /// The server.
    pub(crate) server: &'a Shared,
    /// The publishing connection; `None` when the server itself publishes.
    pub(crate) origin: Option<&'a Arc<Connection>>,
    /// Connections with something to write that nobody has promised to flush yet.
    pub(crate) touched: Vec<Arc<Connection>>,
    /// Receivers that were more than three quarters full.
    pub(crate) crowded: u32,
    /// Messages handed over.
    pub(crate) out_msgs: u64,
    /// Bytes of headers and payload handed over.
    pub(crate) out_bytes: u64,
    /// Imports crossed on the way to here, to stop a cycle.
    pub(crate) depth: u8,
    /// Most bytes that may wait for one receiver, as of the start of the turn.
    pub(crate) max_pending: usize,
    /// The trace of the message that is being routed, if it is traced.
    pub(crate) trace: Option<Box<Trace>>,
    /// The subject to which a service carried the message and where nobody took it.
    pub(crate) untaken_as: Option<Bytes>,
    /// Whether a nearly full receiver is passed over instead of slowing the publisher.
    pub(crate) drop_when_crowded: bool,
    random: u64,
}

impl<'a> Turn<'a> {
    /// A turn of `origin`.
    pub(crate) fn new(server: &'a Shared, origin: Option<&'a Arc<Connection>>) -> Self {
        let limits = server.limits();
        Self {
            server,
            origin,
            touched: Vec::new(),
            crowded: 0,
            out_msgs: 0,
            out_bytes: 0,
            depth: 0,
            max_pending: limits.max_pending,
            trace: None,
            untaken_as: None,
            drop_when_crowded: limits.drop_when_crowded,
            random: rand::random::<u64>() | 1,
        }
    }

    /// A number to start from in a queue group (xorshift; needs no quality, only spread).
    fn start(&mut self, members: usize) -> usize {
        if members < 2 {
            return 0;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % members as u64) as usize
    }

    /// Writes out what the turn put into outbound buffers and adds its counts to the server's.
    pub(crate) fn finish(&mut self) {
        self.server.stats.sent(self.out_msgs, self.out_bytes);
        self.out_msgs = 0;
        self.out_bytes = 0;
        for connection in self.touched.drain(..) {
            connection.flush();
        }
    }
}

/// Hands a message to everything that matches. Returns how many subscriptions took it.
pub(crate) fn route(matches: &Matches, message: &Message<'_>, turn: &mut Turn<'_>) -> usize {
    let mut taken = 0;
    for subscription in &matches.plain {
        taken += usize::from(deliver(subscription, message, turn));
    }
    for group in &matches.groups.list {
        let start = turn.start(group.members.len());
        let (before, from) = group.members.split_at(start);
        taken += usize::from(
            from.iter()
                .chain(before)
                .any(|member| deliver(member, message, turn)),
        );
    }
    taken
}

/// Why a subscription did not get a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undelivered {
    /// It is the publisher's own, and the publisher wants no echo.
    NoEcho,
    /// Its owner may not receive the subject.
    Denied,
    /// It has ended.
    Closed,
    /// It has had as many messages as it asked for.
    Exceeded,
    /// Its owner is gone.
    ClientClosed,
    /// Its owner is nearly full, and the server does not slow publishers down.
    Crowded,
    /// Its mailbox is full.
    Full,
}

impl Undelivered {
    /// The reason as a trace gives it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NoEcho => "Not delivered because of no echo",
            Self::Denied => "Not delivered because subscription denies this subject",
            Self::Closed => "Not delivered because subscription is closed",
            Self::Exceeded => "Not delivered because auto-unsubscribe exceeded",
            Self::ClientClosed => "Not delivered because client is closed",
            Self::Crowded => "Not delivered because fast producer not stalled and consumer is slow",
            Self::Full => "Not delivered because the mailbox of the subscription is full",
        }
    }
}

fn deliver(subscription: &Arc<Subscription>, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
    if let Sink::Service(service) = &subscription.sink
        && subscription.owner == 0
    {
        return service.receive(message, turn);
    }
    if turn.trace.is_some() {
        return deliver_traced(subscription, message, turn);
    }
    admits(subscription, message, turn).is_ok() && hand_over(subscription, message, turn).is_ok()
}

/// The same for a message that is traced.
fn deliver_traced(subscription: &Arc<Subscription>, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
    let Some(mut trace) = turn.trace.take() else {
        return false;
    };
    let follows = trace.meets(subscription);
    let mut outcome = admits(subscription, message, turn);
    if outcome.is_ok() {
        outcome = if trace.only() {
            subscription.open()
        } else {
            hand_over(subscription, message, turn)
        };
    }
    if follows {
        trace.reached(subscription, outcome);
    }
    turn.trace = Some(trace);
    outcome.is_ok()
}

/// Whether the message may go to the subscription of a client.
fn admits(subscription: &Subscription, message: &Message<'_>, turn: &Turn<'_>) -> Result<(), Undelivered> {
    if let Some(origin) = turn.origin
        && origin.id == subscription.owner
        && !origin.echo()
    {
        return Err(Undelivered::NoEcho);
    }
    match &subscription.deny {
        Some(deny) if deny.denies(message.subject) => Err(Undelivered::Denied),
        _ => Ok(()),
    }
}

/// Puts the message into the buffer, the mailbox or the inbox of the subscription's owner.
fn hand_over(
    subscription: &Arc<Subscription>,
    message: &Message<'_>,
    turn: &mut Turn<'_>,
) -> Result<(), Undelivered> {
    match &subscription.sink {
        Sink::Connection(connection) => connection.push(subscription, message, turn)?,
        Sink::Mailbox(mailbox) => mailbox.push(subscription, message)?,
        // The inbox of an in-process client. Like any service it counts for itself.
        Sink::Service(service) if service.receive(message, turn) => return Ok(()),
        Sink::Service(_) => return Err(Undelivered::Closed),
    }
    turn.out_msgs += 1;
    turn.out_bytes += message.size() as u64;
    Ok(())
}
