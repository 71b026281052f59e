//! What can be seen of a running consumer without asking the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Counters of one consumer. Reading them costs nothing; who wants rates keeps the last reading.
#[derive(Debug)]
pub struct Vitals {
    begun: Instant,
    received: AtomicU64,
    redelivered: AtomicU64,
    handled: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    routed: AtomicU64,
    backpressured: AtomicU64,
    busy_nanos: AtomicU64,
    latency_nanos: AtomicU64,
    last_success: AtomicU64,
    pending: AtomicU64,
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            received: AtomicU64::new(0),
            redelivered: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            routed: AtomicU64::new(0),
            backpressured: AtomicU64::new(0),
            busy_nanos: AtomicU64::new(0),
            latency_nanos: AtomicU64::new(0),
            last_success: AtomicU64::new(0),
            pending: AtomicU64::new(0),
        }
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Vitals {
    /// Messages received.
    #[must_use]
    pub fn received(&self) -> u64 {
        get(&self.received)
    }

    /// Of these, messages that had been delivered before.
    #[must_use]
    pub fn redelivered(&self) -> u64 {
        get(&self.redelivered)
    }

    /// Handler calls that ended.
    #[must_use]
    pub fn handled(&self) -> u64 {
        get(&self.handled)
    }

    /// Messages that were acknowledged, or routed to the dead-letter queue.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        get(&self.succeeded)
    }

    /// Messages whose handler failed or panicked, or whose payload could not be expanded.
    #[must_use]
    pub fn failed(&self) -> u64 {
        get(&self.failed)
    }

    /// Messages routed to the dead-letter queue.
    #[must_use]
    pub fn routed(&self) -> u64 {
        get(&self.routed)
    }

    /// Messages settled without their handler because the worker pool was full.
    #[must_use]
    pub fn backpressured(&self) -> u64 {
        get(&self.backpressured)
    }

    /// Time spent in handlers.
    #[must_use]
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(get(&self.busy_nanos))
    }

    /// How long handlers take, a moving average; zero before the first.
    #[must_use]
    pub fn latency(&self) -> Duration {
        Duration::from_nanos(get(&self.latency_nanos))
    }

    /// How long ago the last success was; counted from the beginning before the first.
    #[must_use]
    pub fn since_success(&self) -> Duration {
        self.begun
            .elapsed()
            .saturating_sub(Duration::from_nanos(get(&self.last_success)))
    }

    /// Messages that were waiting for this consumer, as the last delivery said.
    #[must_use]
    pub fn pending(&self) -> u64 {
        get(&self.pending)
    }

    pub(super) fn note_received(&self, delivered: u64, pending: u64) {
        add(&self.received, 1);
        if delivered > 1 {
            add(&self.redelivered, 1);
        }
        self.pending.store(pending, Ordering::Relaxed);
    }

    pub(super) fn note_handled(&self, elapsed: Duration) {
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        add(&self.handled, 1);
        add(&self.busy_nanos, nanos);
        let old = get(&self.latency_nanos);
        // Concurrent handlers may lose a sample to each other; an average can afford that.
        let new = if old == 0 {
            nanos
        } else {
            old - old / 8 + nanos / 8
        };
        self.latency_nanos.store(new.max(1), Ordering::Relaxed);
    }

    pub(super) fn note_success(&self) {
        add(&self.succeeded, 1);
        let nanos = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_success.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn note_failed(&self) {
        add(&self.failed, 1);
    }

    pub(super) fn note_routed(&self) {
        add(&self.routed, 1);
    }

    pub(super) fn note_backpressure(&self) {
        add(&self.backpressured, 1);
    }
}
