//! A circuit breaker for pulls: while pressure is critical, nothing new is fetched.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::adaptive::{Decision, Level};
use crate::observe::{Counted, Metrics};

/// Settings of the circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Whether it is on. Off.
    pub enabled: bool,
    /// Opens at this level; [`Level::Idle`] counts as not set. [`Level::Critical`].
    pub open_on_level: Level,
    /// How long to wait before the next look, when it is open; zero means 1 s. 1 s.
    pub pause: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: false,
            open_on_level: Level::Critical,
            pause: Duration::from_secs(1),
        }
    }
}

/// Says when to stop fetching.
#[derive(Debug)]
pub struct CircuitBreaker {
    open_on_level: Level,
    pause: Duration,
    open: AtomicBool,
    opens: AtomicU64,
}

impl CircuitBreaker {
    /// A closed one; `None` when it is off.
    #[must_use]
    pub fn new(config: Config) -> Option<Self> {
        config.enabled.then(|| Self {
            open_on_level: if config.open_on_level == Level::Idle {
                Level::Critical
            } else {
                config.open_on_level
            },
            pause: if config.pause.is_zero() {
                Duration::from_secs(1)
            } else {
                config.pause
            },
            open: AtomicBool::new(false),
            opens: AtomicU64::new(0),
        })
    }

    /// Whether to wait instead of fetching.
    pub fn should_pause(&self, decision: Decision) -> bool {
        self.should_pause_counting(decision, &Metrics::default())
    }

    /// As [`CircuitBreaker::should_pause`]; an opening is measured.
    pub(crate) fn should_pause_counting(&self, decision: Decision, metrics: &Metrics) -> bool {
        let open = decision.level >= self.open_on_level;
        let was = self.open.swap(open, Ordering::AcqRel);
        if open && !was {
            self.opens.fetch_add(1, Ordering::AcqRel);
            metrics.note(Counted::CircuitOpened);
            tracing::warn!(level = ?decision.level, "circuit open: nothing is fetched for now");
        } else if was && !open {
            tracing::warn!("circuit closed: fetching again");
        }
        open
    }

    /// Whether it was open when last asked.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// How often it has opened.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Acquire)
    }

    /// How long to wait before the next look.
    #[must_use]
    pub fn pause_duration(&self) -> Duration {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(level: Level) -> Decision {
        Decision {
            level,
            ..Decision::default()
        }
    }

    #[test]
    fn off_there_is_none() {
        assert!(CircuitBreaker::new(Config::default()).is_none());
    }

    #[test]
    fn it_counts_openings_and_not_looks() {
        let config = Config {
            enabled: true,
            open_on_level: Level::Idle,
            pause: Duration::ZERO,
        };
        let circuit = CircuitBreaker::new(config).unwrap();
        assert_eq!(circuit.pause_duration(), Duration::from_secs(1));
        assert!(!circuit.should_pause(at(Level::Hard)));
        for _ in 0..3 {
            assert!(circuit.should_pause(at(Level::Critical)));
        }
        assert!(circuit.is_open());
        assert!(!circuit.should_pause(at(Level::Idle)));
        assert!(circuit.should_pause(at(Level::Critical)));
        assert_eq!(circuit.opens(), 2);
        let early = CircuitBreaker::new(Config {
            open_on_level: Level::Elevated,
            ..config
        });
        assert!(early.unwrap().should_pause(at(Level::Elevated)));
    }
}
