//! Waiting for a condition, with an end.
//!
//! Tests of this project never sleep for a guessed time: they wait until something is so, and fail with the name
//! of what they waited for. [`until`] asks again every few milliseconds; [`Deadline`] carries one end of time
//! through several waits in a row.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a wait pauses between two looks at its condition.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A point in time by which something has to have happened.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    end: Instant,
}

impl Deadline {
    /// The deadline `wait` from now.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        Self {
            end: Instant::now() + wait,
        }
    }

    /// What is left of it, or `None` once it has passed.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.end
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }
}

/// Waits until `condition` gives a value, at most for `wait`.
///
/// # Errors
/// When the time is up, naming `what`.
pub fn until_some<T>(what: &str, wait: Duration, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Deadline::after(wait);
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if deadline.left().is_none() {
            bail!("waited {wait:?} in vain for {what}");
        }
        pause();
    }
}

/// Waits until `condition` holds, at most for `wait`.
///
/// # Errors
/// When the time is up, naming `what`.
pub fn until(what: &str, wait: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    until_some(what, wait, || condition().then_some(()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where polling pauses; every caller has a deadline"
)]
pub(crate) fn pause() {
    std::thread::sleep(LOOK_AGAIN);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        let mut looks = 0;
        let found = until_some("the third look", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found.unwrap(), 3);
    }

    #[test]
    fn a_condition_that_never_comes_true_is_named_in_the_error() {
        let error = until("the end of days", Duration::from_millis(5), || false).unwrap_err();
        assert!(error.to_string().contains("the end of days"));
    }
}
