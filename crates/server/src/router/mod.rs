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

pub(crate) use subscription::{Counted, Service, Sink, Subscription};
pub(crate) use trie::{Matches, TOKENS_MAX, Trie};

use crate::connection::{Connection, Pushed};
use crate::server::Shared;

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

    /// The same message under another subject and reply.
    pub(crate) fn renamed<'b>(&'b self, subject: &'b [u8], reply: Option<&'b [u8]>) -> Message<'b> {
        Message {
            subject,
            reply,
            headers: self.headers,
            payload: self.payload,
            shared: self.shared.clone(),
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

fn deliver(subscription: &Arc<Subscription>, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
    if let Some(origin) = turn.origin
        && origin.id == subscription.owner
        && !origin.echo()
    {
        return false;
    }
    if subscription
        .deny
        .as_ref()
        .is_some_and(|deny| deny.denies(message.subject))
    {
        return false;
    }
    let size = message.size() as u64;
    let taken = match &subscription.sink {
        Sink::Connection(connection) => {
            let pushed = connection.push(subscription, message, turn);
            pushed != Pushed::Refused
        }
        Sink::Mailbox(mailbox) => mailbox.push(subscription, message),
        Sink::Service(service) => return service.receive(message, turn),
    };
    if taken {
        turn.out_msgs += 1;
        turn.out_bytes += size;
    }
    taken
}
