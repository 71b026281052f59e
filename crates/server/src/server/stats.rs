//! Counters of the whole server. Exact once the turn that caused them has ended.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::account::Counter;

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    received: Counter,
    sent: Counter,
    total_connections: AtomicU64,
    slow_consumers: AtomicU64,
    stale: AtomicU64,
    stalled: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that clients published.
    pub in_msgs: u64,
    /// Their bytes of headers and payload.
    pub in_bytes: u64,
    /// Messages that were handed to clients.
    pub out_msgs: u64,
    /// Their bytes of headers and payload.
    pub out_bytes: u64,
    /// Connections since the start.
    pub total_connections: u64,
    /// Clients that were closed because they did not keep up.
    pub slow_consumers: u64,
    /// Clients that were closed because they did not answer PING.
    pub stale_connections: u64,
    /// Turns in which a publisher was slowed down for slow receivers.
    pub stalled_clients: u64,
}

impl Stats {
    /// Messages came in.
    pub(crate) fn received(&self, msgs: u64, bytes: u64) {
        self.received.add(msgs, bytes);
    }

    /// Messages were handed over.
    pub(crate) fn sent(&self, msgs: u64, bytes: u64) {
        if msgs > 0 {
            self.sent.add(msgs, bytes);
        }
    }

    /// A connection was accepted.
    pub(crate) fn connected(&self) {
        self.total_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A client did not keep up.
    pub(crate) fn slow_consumer(&self) {
        self.slow_consumers.fetch_add(1, Ordering::Relaxed);
    }

    /// A client did not answer.
    pub(crate) fn stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }

    /// A publisher was slowed down.
    pub(crate) fn stalled(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters now.
    pub(crate) fn counts(&self) -> Counts {
        let (in_msgs, in_bytes) = self.received.get();
        let (out_msgs, out_bytes) = self.sent.get();
        Counts {
            in_msgs,
            in_bytes,
            out_msgs,
            out_bytes,
            total_connections: self.total_connections.load(Ordering::Relaxed),
            slow_consumers: self.slow_consumers.load(Ordering::Relaxed),
            stale_connections: self.stale.load(Ordering::Relaxed),
            stalled_clients: self.stalled.load(Ordering::Relaxed),
        }
    }
}
