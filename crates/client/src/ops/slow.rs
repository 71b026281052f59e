//! Slow consumers: notices a backlog that stays over its thresholds.
//!
//! It speaks once for each episode: after a look that is healthy again, the next one counts anew. A look that fails says
//! nothing and interrupts nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::liveness::WatchedRef;
use super::watch::{Probe, Watch};
use crate::admin::StreamManager;
use crate::observe;

/// Too many messages wait.
pub const REASON_PENDING: &str = "pending";
/// The consumer is too far behind the stream.
pub const REASON_LAG: &str = "lag";
/// Too many deliveries are not settled.
pub const REASON_ACK_PENDING: &str = "ack_pending";

/// When a consumer is slow. Zeros mean the defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// How often to look. 2 s.
    pub poll_interval: Duration,
    /// How long it must be so. 30 s.
    pub sustain_for: Duration,
    /// Messages waiting. 1000.
    pub pending_threshold: u64,
    /// Sequences between the stream's end and what was delivered. 1000.
    pub lag_threshold: u64,
    /// Unsettled deliveries, of the most there may be. 0.9.
    pub ack_pending_ratio: f64,
    /// End after the first event. Off.
    pub circuit_stop: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(2),
            sustain_for: Duration::from_secs(30),
            pending_threshold: 1000,
            lag_threshold: 1000,
            ack_pending_ratio: 0.9,
            circuit_stop: false,
        }
    }
}

impl Config {
    fn normalized(self) -> Self {
        let defaults = Self::default();
        let time = |given: Duration, default| if given.is_zero() { default } else { given };
        let number = |given: u64, default| if given == 0 { default } else { given };
        Self {
            poll_interval: time(self.poll_interval, defaults.poll_interval),
            sustain_for: time(self.sustain_for, defaults.sustain_for),
            pending_threshold: number(self.pending_threshold, defaults.pending_threshold),
            lag_threshold: number(self.lag_threshold, defaults.lag_threshold),
            ack_pending_ratio: if self.ack_pending_ratio > 0.0 {
                self.ack_pending_ratio
            } else {
                defaults.ack_pending_ratio
            },
            circuit_stop: self.circuit_stop,
        }
    }
}

/// A consumer that has been slow for long enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowEvent {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub durable: String,
    /// Why: of `pending`, `lag` and `ack_pending` those that hold, in this order.
    pub reasons: Vec<&'static str>,
    /// Messages waiting.
    pub pending: u64,
    /// Sequences behind the stream's end.
    pub lag: u64,
    /// Unsettled deliveries.
    pub ack_pending: u64,
    /// Most of them.
    pub max_ack_pending: u64,
    /// How long it has been so.
    pub sustained_for: Duration,
}

/// How far a consumer is behind its stream's end.
#[must_use]
pub fn lag(stream_last_seq: u64, delivered: u64) -> u64 {
    stream_last_seq.saturating_sub(delivered)
}

/// Which thresholds are reached, in the order of their names above.
#[must_use]
pub fn evaluate(
    config: &Config,
    pending: u64,
    lag: u64,
    ack_pending: u64,
    max_ack_pending: u64,
) -> Vec<&'static str> {
    let config = config.normalized();
    let most = (max_ack_pending as f64 * config.ack_pending_ratio)
        .floor()
        .max(1.0);
    [
        (pending >= config.pending_threshold, REASON_PENDING),
        (lag >= config.lag_threshold, REASON_LAG),
        (
            max_ack_pending > 0 && ack_pending as f64 >= most,
            REASON_ACK_PENDING,
        ),
    ]
    .into_iter()
    .filter(|(reached, _)| *reached)
    .map(|(_, reason)| reason)
    .collect()
}

/// Episodes, from look to look.
#[derive(Debug, Default)]
struct Judge {
    since: Option<Instant>,
    told: bool,
}

impl Judge {
    /// How long it has been slow, when that is news.
    fn look(&mut self, slow: bool, now: Instant, sustain_for: Duration) -> Option<Duration> {
        if !slow {
            *self = Self::default();
            return None;
        }
        let lasted = now - *self.since.get_or_insert(now);
        if lasted < sustain_for || self.told {
            return None;
        }
        self.told = true;
        Some(lasted)
    }
}

/// Watches a consumer. Without `streams` the lag is not known and counts as 0. The callback is called at each event, before
/// anyone else hears of it.
pub fn watch(
    consumer: &impl WatchedRef,
    streams: Option<StreamManager>,
    config: Config,
    on_slow: impl Fn(&SlowEvent) + Send + Sync + 'static,
) -> Watch<SlowEvent> {
    let (consumer, config) = (consumer.watched(), config.normalized());
    Watch::start(move |shared| async move {
        let (stream, durable) = consumer.names();
        let mut judge = Judge::default();
        loop {
            tokio::time::sleep(config.poll_interval).await;
            let Ok(Probe {
                pending,
                ack_pending,
                max_ack_pending,
                delivered,
            }) = consumer.probe().await
            else {
                continue;
            };
            let lag = match &streams {
                Some(streams) => streams
                    .info(&stream)
                    .await
                    .map_or(0, |info| lag(info.state.last_sequence, delivered)),
                None => 0,
            };
            let reasons = evaluate(&config, pending, lag, ack_pending, max_ack_pending);
            if reasons.is_empty() {
                shared.lower();
            }
            let Some(sustained_for) = judge.look(!reasons.is_empty(), Instant::now(), config.sustain_for)
            else {
                continue;
            };
            let event = SlowEvent {
                stream: stream.clone(),
                durable: durable.clone(),
                reasons,
                pending,
                lag,
                ack_pending,
                max_ack_pending,
                sustained_for,
            };
            tracing::warn!(?event, "slow consumer");
            shared.raise();
            consumer.metrics().note(observe::Counted::Slow);
            on_slow(&event);
            shared.tell(event);
            if config.circuit_stop {
                return;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_contract() {
        let config = Config {
            pending_threshold: 100,
            lag_threshold: 50,
            ..Config::default()
        };
        let why = |pending, lag, ack| evaluate(&config, pending, lag, ack, 100);
        assert!(why(99, 0, 0).is_empty());
        assert_eq!(why(100, 0, 0), ["pending"]);
        assert_eq!(why(0, 50, 0), ["lag"]);
        assert_eq!(why(0, 0, 90), ["ack_pending"]);
        assert!(why(0, 0, 89).is_empty());
        assert_eq!(why(100, 50, 90), ["pending", "lag", "ack_pending"]);
        assert!(evaluate(&config, 0, 0, 1000, 0).is_empty());
        assert_eq!((lag(10, 12), lag(12, 10)), (0, 2));
    }

    /// The original spoke once, ever.
    #[test]
    fn each_episode_is_told_once() {
        let (begun, mut judge, wait) = (Instant::now(), Judge::default(), Duration::from_secs(30));
        let at = |secs| begun + Duration::from_secs(secs);
        let looks = [
            (0, true, false),
            (29, true, false),
            (30, true, true),
            (60, true, false),
            (62, false, false),
            (64, true, false),
            (80, false, false),
            (82, true, false),
            (112, true, true),
        ];
        for (secs, slow, told) in looks {
            assert_eq!(judge.look(slow, at(secs), wait).is_some(), told, "{secs}");
        }
    }
}
