//! Soft liveness: notices a consumer whose backlog grows, or stands, while nothing is processed.
//!
//! Healthy means [`Watch::is_raised`] is false: a readiness probe can ask that. Activity is that of the watched consumer
//! alone.

use std::sync::Arc;
use std::time::Duration;

use super::watch::{Probe, Watch, Watched};
use crate::observe;

/// When to speak of a stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// How often to look. 2 s.
    pub poll_interval: Duration,
    /// How long nothing must have been processed. 10 s.
    pub stall_after: Duration,
    /// Looks in a row with a growing backlog. 3.
    pub rising_windows: u32,
    /// End after the first stall. Off.
    pub circuit_stop: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(2),
            stall_after: Duration::from_secs(10),
            rising_windows: 3,
            circuit_stop: false,
        }
    }
}

/// Messages pile up and none is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Messages waiting.
    pub num_pending: u64,
    /// How long nothing was processed.
    pub stalled_for: Duration,
}

/// The judgement from look to look.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    last: Option<u64>,
    rising: u32,
}

impl Judge {
    /// What a look shows, when the last success was `idle` ago.
    pub(crate) fn look(&mut self, config: &Config, probe: Probe, idle: Duration) -> Option<Stall> {
        let grew = self.last.is_some_and(|last| probe.pending > last);
        self.last = Some(probe.pending);
        self.rising = if grew { self.rising + 1 } else { 0 };
        let growing = self.rising >= config.rising_windows && probe.pending > 0 && idle >= config.stall_after;
        // A backlog that only stands is a stall too, if it does so for long.
        let standing = (probe.pending > 0 || probe.ack_pending > 0) && idle >= 6 * config.stall_after;
        if growing || standing {
            self.rising = 0;
            return Some(Stall {
                num_pending: probe.pending,
                stalled_for: idle,
            });
        }
        None
    }
}

/// Watches a consumer. The callback is called at each stall, before anyone else hears of it.
pub fn watch(
    consumer: &impl WatchedRef,
    config: Config,
    on_stall: impl Fn(&Stall) + Send + Sync + 'static,
) -> Watch<Stall> {
    let consumer = consumer.watched();
    Watch::start(move |shared| async move {
        let (mut judge, vitals) = (Judge::default(), consumer.vitals());
        loop {
            tokio::time::sleep(config.poll_interval).await;
            // A look that fails says nothing.
            let Ok(probe) = consumer.probe().await else {
                continue;
            };
            let idle = vitals.since_success();
            match judge.look(&config, probe, idle) {
                Some(stall) => {
                    tracing::warn!(?stall, "messages pile up and none is processed");
                    shared.raise();
                    consumer.metrics().note(observe::Counted::Stall);
                    on_stall(&stall);
                    shared.tell(stall);
                    if config.circuit_stop {
                        return;
                    }
                }
                None if idle < config.stall_after => shared.lower(),
                None => {}
            }
        }
    })
}

/// Something that gives a consumer to watch.
pub trait WatchedRef {
    /// The consumer, shared.
    fn watched(&self) -> Arc<dyn Watched>;
}

impl<W: Watched + Clone> WatchedRef for W {
    fn watched(&self) -> Arc<dyn Watched> {
        Arc::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(pending: u64) -> Probe {
        Probe {
            pending,
            ..Probe::default()
        }
    }

    #[test]
    fn a_growing_backlog_without_activity_is_a_stall() {
        let (config, idle) = (Config::default(), Duration::from_secs(10));
        let mut judge = Judge::default();
        for (look, expected) in [
            (5, false),
            (6, false),
            (7, false),
            (8, true),
            (9, false),
            (10, false),
            (11, true),
        ] {
            assert_eq!(
                judge.look(&config, pending(look), idle).is_some(),
                expected,
                "{look}"
            );
        }
        // One look without growth begins the count anew; activity is no stall.
        let mut judge = Judge::default();
        for look in [1, 2, 3, 3, 4, 5] {
            assert_eq!(judge.look(&config, pending(look), idle), None);
        }
        let mut judge = Judge::default();
        for look in 1..20 {
            assert_eq!(judge.look(&config, pending(look), Duration::from_secs(9)), None);
        }
    }

    /// The original never noticed a consumer that is stuck while nobody publishes.
    #[test]
    fn a_backlog_that_stands_for_long_is_a_stall_too() {
        let (config, mut judge) = (Config::default(), Judge::default());
        let held = Probe {
            ack_pending: 1,
            ..Probe::default()
        };
        assert_eq!(judge.look(&config, held, Duration::from_secs(59)), None);
        assert!(judge.look(&config, held, Duration::from_secs(60)).is_some());
        assert_eq!(
            judge.look(&config, Probe::default(), Duration::from_secs(600)),
            None
        );
    }
}
