//! Time, as the store sees it.
//!
//! The store reads the clock for stamping messages, for dedup windows and for the pace of background work; replay reads it
//! never. All readings go through [`Clock`], so that a simulated run is a function of its seed.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of wall time and of monotonic time.
pub trait Clock: Debug + Send + Sync {
    /// Nanoseconds since the Unix epoch, UTC. May jump in both directions.
    fn wall_ns(&self) -> i64;
    /// Time since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;
}

/// The clock of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic reading starts at zero now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_ns(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
            Err(e) => i64::try_from(e.duration().as_nanos()).map_or(i64::MIN, |n| -n),
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that stands still until told to move.
#[cfg(feature = "test-util")]
#[derive(Debug)]
pub struct SimClock {
    now_ns: std::sync::atomic::AtomicI64,
    base_ns: i64,
}

#[cfg(feature = "test-util")]
impl SimClock {
    /// A clock that reads `now_ns` on the wall and zero on the monotonic side.
    pub fn new(now_ns: i64) -> Self {
        Self {
            now_ns: std::sync::atomic::AtomicI64::new(now_ns),
            base_ns: now_ns,
        }
    }

    /// Moves both readings forward.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        self.now_ns.fetch_add(by, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(feature = "test-util")]
impl Clock for SimClock {
    fn wall_ns(&self) -> i64 {
        self.now_ns.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        let ns = self
            .now_ns
            .load(std::sync::atomic::Ordering::Relaxed)
            .saturating_sub(self.base_ns);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
    }
}
