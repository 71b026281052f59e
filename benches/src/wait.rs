//! Waiting for a condition with a deadline.
//!
//! The one place of the bench that pauses a thread. Used while a server starts and while memory settles;
//! never inside a measured stretch.

use std::time::{Duration, Instant};

/// Asks `probe` every few milliseconds until it answers `Some`, or `limit` has passed.
pub(crate) fn until<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(3));
    }
}
