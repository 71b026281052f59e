//! Where JetStream's bytes and time come from: the disk and the clock of the system, or those of a test.
//!
//! All of JetStream reads the time by [`JetStream::now`](super::JetStream::now) and waits by
//! [`JetStream::sleep_until`](super::JetStream::sleep_until); both end here. The feature `test-util` adds [`TestClock`], which stands
//! still until it is moved, and the builder's setters for it and for another disk. Connections keep to the runtime's time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinError;
use windjet_store::{Clock, Disk, SystemClock};

/// See the module's page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Medium {
    /// Instead of the folder that the options name.
    pub(crate) disk: Option<Arc<dyn Disk>>,
    pub(crate) time: Time,
    /// Whether the store has no threads: a simulation makes its steps.
    #[cfg(test)]
    pub(crate) by_hand: bool,
}

impl Medium {
    /// Whether the store works by itself.
    pub(crate) fn runs(&self) -> bool {
        #[cfg(test)]
        if self.by_hand {
            return false;
        }
        true
    }
}

/// Work that waits for the disk, on a thread that may wait.
///
/// # Cancel safety
/// Work that has begun goes on.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    #[cfg(test)]
    if INLINE.get() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}

#[cfg(test)]
thread_local! {
    /// Whether this thread does such work itself, so that a simulation is a function of its seed.
    pub(crate) static INLINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A clock, and how to wait by it.
#[derive(Debug, Clone)]
pub(crate) enum Time {
    System(Arc<SystemClock>),
    #[cfg(feature = "test-util")]
    Test(TestClock),
}

impl Default for Time {
    fn default() -> Self {
        Self::System(Arc::default())
    }
}

impl Time {
    /// The clock.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Self::System(clock) => clock.clone(),
            #[cfg(feature = "test-util")]
            Self::Test(clock) => Arc::new(clock.clone()),
        }
    }

    /// Waits until the monotonic time is `due`. Not for so long: the clock of a test may move before the wait begins.
    pub(crate) async fn sleep_until(&self, due: Duration) {
        match self {
            Self::System(clock) => tokio::time::sleep(due.saturating_sub(clock.monotonic())).await,
            #[cfg(feature = "test-util")]
            Self::Test(clock) => clock.sleep_until(due).await,
        }
    }
}

#[cfg(feature = "test-util")]
pub use test_clock::TestClock;

#[cfg(feature = "test-util")]
mod test_clock {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use tokio::sync::watch;
    use windjet_store::{Clock, SimClock};

    /// The clock of JetStream in a test: it stands still until [`TestClock::advance`] moves it, and whatever is due then
    /// happens at once. Clones are the same clock.
    #[derive(Debug, Clone)]
    pub struct TestClock {
        inner: Arc<Inner>,
    }

    #[derive(Debug)]
    struct Inner {
        clock: SimClock,
        moved: watch::Sender<()>,
    }

    impl TestClock {
        /// A clock that shows this time.
        #[must_use]
        pub fn new(at: SystemTime) -> Self {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
            Self {
                inner: Arc::new(Inner {
                    clock: SimClock::new(ns),
                    moved: watch::Sender::new(()),
                }),
            }
        }

        /// Moves it forward.
        pub fn advance(&self, by: Duration) {
            self.inner.clock.advance(by);
            self.inner.moved.send_replace(());
        }

        /// What it shows.
        #[must_use]
        pub fn now(&self) -> SystemTime {
            UNIX_EPOCH + Duration::from_nanos(u64::try_from(self.wall_ns()).unwrap_or(0))
        }

        pub(crate) async fn sleep_until(&self, due: Duration) {
            let mut moved = self.inner.moved.subscribe();
            while self.monotonic() < due {
                // The sender lives as long as the clock.
                let _ = moved.changed().await;
            }
        }
    }

    impl Clock for TestClock {
        fn wall_ns(&self) -> i64 {
            self.inner.clock.wall_ns()
        }

        fn monotonic(&self) -> Duration {
            self.inner.clock.monotonic()
        }
    }
}
