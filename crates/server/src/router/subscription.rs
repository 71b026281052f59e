//! One subscription: a pattern, an optional queue group, and where its messages go.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::{Message, Turn, Undelivered};
use crate::account::Account;
use crate::auth::DenyFilter;
use crate::client::Mailbox;
use crate::connection::Connection;

/// Where the messages of a subscription go.
pub(crate) enum Sink {
    /// Into the outbound buffer of a client connection.
    Connection(Arc<Connection>),
    /// Into the bounded mailbox of an in-process subscription.
    Mailbox(Arc<Mailbox>),
    /// To code of the server itself: system requests, imports.
    Service(Arc<dyn Service>),
}

/// Where messages go on to from a subscription.
#[derive(Debug)]
pub(crate) enum Beyond {
    /// Nowhere else: it takes them itself.
    Here,
    /// Nobody is there any more.
    Nowhere,
    /// Into another account, under this subject.
    Into(Arc<Account>, Vec<u8>),
}

/// Server-side code that receives messages in the publisher's turn. It must not block.
pub(crate) trait Service: Send + Sync {
    /// Takes one message; returns whether it counts as delivered.
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool;

    /// Where a message on `subject` would go on to.
    fn beyond(&self, subject: &[u8]) -> Beyond {
        let _ = subject;
        Beyond::Here
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sink::Connection(connection) => write!(f, "Connection({})", connection.id),
            Sink::Mailbox(_) => f.write_str("Mailbox"),
            Sink::Service(_) => f.write_str("Service"),
        }
    }
}

/// One subscription. Shared between its owner, the trie and cached match results; `closed` is the word that a holder
/// of a stale result asks before delivering.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The pattern, valid by construction.
    pub(crate) subject: Bytes,
    /// Queue group, if any.
    pub(crate) queue: Option<Bytes>,
    /// Subscription id as the owner chose it.
    pub(crate) sid: Bytes,
    /// Connection number of the owner; 0 for the server itself.
    pub(crate) owner: u64,
    /// Account whose trie holds this subscription.
    pub(crate) account: Weak<Account>,
    /// Where messages go.
    pub(crate) sink: Sink,
    /// Literal subjects that a wider subscription must not receive.
    pub(crate) deny: Option<Arc<DenyFilter>>,
    delivered: AtomicU64,
    limit: AtomicU64,
    closed: AtomicBool,
    /// Where the trie keeps it in its list; guarded by the lock of the trie.
    pub(super) place: AtomicUsize,
}

/// What counting one delivery came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The message may be handed over.
    Deliver,
    /// The message may be handed over and is the last one.
    Last,
    /// The subscription has ended: nothing may be handed over.
    Closed,
}

impl Subscription {
    /// A live subscription without a limit.
    pub(crate) fn new(
        subject: Bytes,
        queue: Option<Bytes>,
        sid: Bytes,
        owner: u64,
        account: &Arc<Account>,
        sink: Sink,
    ) -> Self {
        Self {
            subject,
            queue,
            sid,
            owner,
            account: Arc::downgrade(account),
            sink,
            deny: None,
            delivered: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            place: AtomicUsize::new(0),
        }
    }

    /// Where a message on `subject` would go on to.
    pub(crate) fn beyond(&self, subject: &[u8]) -> Beyond {
        match &self.sink {
            Sink::Service(service) if self.owner == 0 => service.beyond(subject),
            _ => Beyond::Here,
        }
    }

    /// The same subscription with a filter for literal subjects it must not receive.
    pub(crate) fn with_deny(mut self, deny: Option<Arc<DenyFilter>>) -> Self {
        self.deny = deny;
        self
    }

    /// Messages handed over since the subscription began.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Deliveries after which the subscription ends; 0 means never.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the number of deliveries after which the subscription ends. True when it has been reached already.
    pub(crate) fn set_limit(&self, limit: u64) -> bool {
        self.limit.store(limit, Ordering::Relaxed);
        limit != 0 && self.delivered() >= limit
    }

    /// Whether the subscription has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Fails when the subscription has ended, with the reason.
    pub(crate) fn open(&self) -> Result<(), Undelivered> {
        let limit = self.limit();
        match self.is_closed() {
            false => Ok(()),
            true if limit != 0 && self.delivered() >= limit => Err(Undelivered::Exceeded),
            true => Err(Undelivered::Closed),
        }
    }

    /// Ends the subscription. Called under the lock of its sink, so that nothing follows it there.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Sink::Mailbox(mailbox) = &self.sink {
            mailbox.end();
        }
    }

    /// Counts one delivery. Called under the lock of the sink, which serialises deliveries of one subscription.
    pub(crate) fn count(&self) -> Counted {
        if self.is_closed() {
            return Counted::Closed;
        }
        let delivered = self.delivered.load(Ordering::Relaxed) + 1;
        self.delivered.store(delivered, Ordering::Relaxed);
        if delivered == self.limit.load(Ordering::Relaxed) {
            self.close();
            return Counted::Last;
        }
        Counted::Deliver
    }

    #[cfg(test)]
    pub(crate) fn for_test(subject: &str, queue: Option<&str>) -> Self {
        struct Nobody;
        impl Service for Nobody {
            fn receive(&self, _: &Message<'_>, _: &mut Turn<'_>) -> bool {
                false
            }
        }
        Self {
            subject: Bytes::copy_from_slice(subject.as_bytes()),
            queue: queue.map(|name| Bytes::copy_from_slice(name.as_bytes())),
            sid: Bytes::new(),
            owner: 0,
            account: Weak::new(),
            sink: Sink::Service(Arc::new(Nobody)),
            deny: None,
            delivered: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            place: AtomicUsize::new(0),
        }
    }
}
