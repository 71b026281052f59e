//! Adaptive pressure: how much to ask for, from how busy the workers are.
//!
//! [`decide`] is a pure step from what is seen to what to do. [`AdaptivePressure`] keeps the latest decision, readable
//! without a lock, and carries the batch forward from one to the next, so that it grows back when the pressure ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much pressure there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Level {
    /// None.
    #[default]
    Idle = 0,
    /// Some.
    Warm = 1,
    /// Ask for less.
    Elevated = 2,
    /// Ask for the least.
    Hard = 3,
    /// Ask for the least and hand back with long delays.
    Critical = 4,
}

/// Bounds of the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Whether it is on. Off.
    pub enabled: bool,
    /// The smallest batch. 1.
    pub min_fetch_batch: usize,
    /// The largest batch; raised to the smallest when below it. 256.
    pub max_fetch_batch: usize,
    /// The fewest unacknowledged messages. 50.
    pub min_ack_pending: usize,
    /// The delay of a message handed back under elevated pressure. 100 ms.
    pub nak_delay_min: Duration,
    /// The same under critical pressure. 5 s.
    pub nak_delay_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: false,
            min_fetch_batch: 1,
            max_fetch_batch: 256,
            min_ack_pending: 50,
            nak_delay_min: Duration::from_millis(100),
            nak_delay_max: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// Zeros replaced by the defaults, and the bounds in order.
    #[must_use]
    pub fn normalized(self) -> Self {
        let defaults = Self::default();
        let number = |given: usize, default: usize| if given == 0 { default } else { given };
        let time = |given: Duration, default: Duration| if given.is_zero() { default } else { given };
        let min_fetch_batch = number(self.min_fetch_batch, defaults.min_fetch_batch);
        Self {
            enabled: self.enabled,
            min_fetch_batch,
            max_fetch_batch: number(self.max_fetch_batch, defaults.max_fetch_batch).max(min_fetch_batch),
            min_ack_pending: number(self.min_ack_pending, defaults.min_ack_pending),
            nak_delay_min: time(self.nak_delay_min, defaults.nak_delay_min),
            nak_delay_max: time(self.nak_delay_max, defaults.nak_delay_max),
        }
    }
}

/// What is seen. Zero means unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Input {
    /// Messages waiting for a worker.
    pub pool_depth: usize,
    /// Most that may wait.
    pub pool_capacity: usize,
    /// How long handlers take now.
    pub handler_latency: Duration,
    /// How long they usually take.
    pub baseline_latency: Duration,
    /// Messages between the stream's end and this consumer.
    pub lag: u64,
    /// Messages waiting for this consumer.
    pub pending: u64,
    /// The batch in use.
    pub current_batch: usize,
    /// The bound on unacknowledged messages in use.
    pub current_ack_pending: usize,
    /// The consumer's own bound on them.
    pub max_ack_pending: usize,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decision {
    /// How much pressure there is.
    pub level: Level,
    /// How many messages to ask for.
    pub fetch_batch: usize,
    /// How many unacknowledged messages to allow.
    pub ack_pending: usize,
    /// How long a message that is handed back should stay away.
    pub nak_delay: Duration,
}

/// One step.
#[must_use]
pub fn decide(config: Config, input: Input) -> Decision {
    let config = config.normalized();
    let Config {
        min_fetch_batch: min,
        max_fetch_batch: max,
        ..
    } = config;
    let pool = input.pool_capacity > 0;
    // In hundredths, so that the limits are exact.
    let fill = |hundredths: usize| pool && input.pool_depth * 100 >= hundredths * input.pool_capacity;
    let slower = |tenths: u32| {
        !input.handler_latency.is_zero()
            && !input.baseline_latency.is_zero()
            && input.handler_latency * 10 >= input.baseline_latency * tenths
    };
    let batch = if input.current_batch == 0 {
        max
    } else {
        input.current_batch
    };
    let ack = [input.current_ack_pending, input.max_ack_pending]
        .into_iter()
        .find(|known| *known > 0)
        .unwrap_or(4 * config.min_ack_pending);
    let (level, fetch_batch, ack_pending, nak_delay) = if fill(95) || slower(50) || input.lag > 10_000 {
        (Level::Critical, min, config.min_ack_pending, config.nak_delay_max)
    } else if fill(70) || slower(30) || input.pending > 5_000 {
        let delay = (config.nak_delay_min * 2).min(config.nak_delay_max);
        (Level::Hard, min, config.min_ack_pending.max(ack / 2), delay)
    } else if fill(40) || slower(15) || input.lag > 500 {
        (Level::Elevated, min.max(batch / 2), ack, config.nak_delay_min)
    } else if fill(15) || input.lag > 50 {
        (Level::Warm, batch, ack, Duration::ZERO)
    } else {
        let batch = if pool { batch.saturating_mul(2) } else { batch };
        let ack = if input.max_ack_pending > 0 {
            input.max_ack_pending
        } else {
            ack
        };
        (Level::Idle, batch, ack, Duration::ZERO)
    };
    Decision {
        level,
        fetch_batch: fetch_batch.clamp(min, max),
        ack_pending,
        nak_delay,
    }
}

/// The latest decision.
#[derive(Debug)]
pub struct AdaptivePressure {
    config: Config,
    /// Level, batch and bound in one word, so that a reader sees them together: 8, 28 and 28 bits.
    word: AtomicU64,
    nak_delay_nanos: AtomicU64,
}

const FIELD: u64 = (1 << 28) - 1;

impl AdaptivePressure {
    /// Begins idle with the largest batch.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = config.normalized();
        let pressure = Self {
            config,
            word: AtomicU64::new(0),
            nak_delay_nanos: AtomicU64::new(0),
        };
        pressure.store(Decision {
            fetch_batch: config.max_fetch_batch,
            ..Decision::default()
        });
        pressure
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.config.enabled
    }

    /// The latest decision.
    #[must_use]
    pub fn decision(&self) -> Decision {
        let word = self.word.load(Ordering::Acquire);
        let field = |shift: u32| usize::try_from(word >> shift & FIELD).unwrap_or(usize::MAX);
        let level = match word >> 56 {
            0 => Level::Idle,
            1 => Level::Warm,
            2 => Level::Elevated,
            3 => Level::Hard,
            _ => Level::Critical,
        };
        Decision {
            level,
            fetch_batch: field(28),
            ack_pending: field(0),
            nak_delay: Duration::from_nanos(self.nak_delay_nanos.load(Ordering::Acquire)),
        }
    }

    /// The batch of the latest decision, or this one when it is off.
    #[must_use]
    pub fn fetch_batch_or(&self, batch: usize) -> usize {
        if self.config.enabled {
            self.decision().fetch_batch
        } else {
            batch
        }
    }

    /// Decides anew. Off, it gives a decision of zeros and keeps nothing. Without a batch in use it goes on from the last.
    pub fn observe(&self, mut input: Input) -> Decision {
        if !self.config.enabled {
            return Decision::default();
        }
        if input.current_batch == 0 {
            input.current_batch = self.decision().fetch_batch;
        }
        let decision = decide(self.config, input);
        self.store(decision);
        decision
    }

    fn store(&self, decision: Decision) {
        let field = |number: usize| (number as u64).min(FIELD);
        let word =
            (decision.level as u64) << 56 | field(decision.fetch_batch) << 28 | field(decision.ack_pending);
        let nanos = u64::try_from(decision.nak_delay.as_nanos()).unwrap_or(u64::MAX);
        self.nak_delay_nanos.store(nanos, Ordering::Release);
        self.word.store(word, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(min: usize, max: usize, ack: usize) -> Config {
        Config {
            enabled: true,
            min_fetch_batch: min,
            max_fetch_batch: max,
            min_ack_pending: ack,
            ..Config::default()
        }
    }

    fn pool(depth: usize, batch: usize, max_ack_pending: usize) -> Input {
        Input {
            pool_depth: depth,
            pool_capacity: 100,
            current_batch: batch,
            max_ack_pending,
            ..Input::default()
        }
    }

    fn decision(level: Level, fetch_batch: usize, ack_pending: usize, delay_ms: u64) -> Decision {
        let nak_delay = Duration::from_millis(delay_ms);
        Decision {
            level,
            fetch_batch,
            ack_pending,
            nak_delay,
        }
    }

    #[test]
    fn the_vectors_of_the_contract() {
        let ms = Duration::from_millis;
        assert_eq!(
            decide(config(1, 100, 10), pool(0, 10, 1000)),
            decision(Level::Idle, 20, 1000, 0)
        );
        let slow = Input {
            handler_latency: ms(4),
            baseline_latency: ms(1),
            ..pool(80, 50, 1000)
        };
        assert_eq!(
            decide(config(1, 100, 10), slow),
            decision(Level::Hard, 1, 500, 200)
        );
        let far = Input {
            lag: 20_000,
            ..pool(99, 50, 1000)
        };
        assert_eq!(
            decide(config(1, 100, 10), far),
            decision(Level::Critical, 1, 10, 5000)
        );
        assert_eq!(
            decide(config(2, 64, 0), pool(45, 40, 500)),
            decision(Level::Elevated, 20, 500, 100)
        );
        let no_pool = Input {
            current_batch: 10,
            ..Input::default()
        };
        assert_eq!(
            decide(config(1, 100, 10), no_pool),
            decision(Level::Idle, 10, 40, 0)
        );
    }

    #[test]
    fn the_limits_are_inclusive_where_the_contract_has_them() {
        let level = |input| decide(config(1, 100, 10), input).level;
        for (depth, expected) in [
            (14, Level::Idle),
            (15, Level::Warm),
            (40, Level::Elevated),
            (70, Level::Hard),
            (95, Level::Critical),
        ] {
            assert_eq!(level(pool(depth, 10, 0)), expected, "{depth}");
        }
        for (lag, expected) in [
            (50, Level::Idle),
            (51, Level::Warm),
            (501, Level::Elevated),
            (10_000, Level::Elevated),
            (10_001, Level::Critical),
        ] {
            assert_eq!(
                level(Input {
                    lag,
                    ..Input::default()
                }),
                expected,
                "{lag}"
            );
        }
        assert_eq!(
            level(Input {
                pending: 5000,
                ..Input::default()
            }),
            Level::Idle
        );
        assert_eq!(
            level(Input {
                pending: 5001,
                ..Input::default()
            }),
            Level::Hard
        );
    }

    #[test]
    fn off_it_decides_nothing() {
        let off = AdaptivePressure::new(Config::default());
        assert_eq!(off.decision(), decision(Level::Idle, 256, 0, 0));
        assert_eq!(off.observe(pool(99, 10, 0)), Decision::default());
        assert_eq!(off.decision().level, Level::Idle);
        assert_eq!(off.fetch_batch_or(7), 7);
    }

    /// The original began from the configured batch each time, so that it never grew back.
    #[test]
    fn the_batch_grows_back_when_the_pressure_ends() {
        let pressure = AdaptivePressure::new(config(1, 64, 10));
        pressure.observe(pool(99, 0, 0));
        assert_eq!(pressure.fetch_batch_or(7), 1);
        let batches: Vec<usize> = (0..8)
            .map(|_| pressure.observe(pool(0, 0, 0)).fetch_batch)
            .collect();
        assert_eq!(batches, [2, 4, 8, 16, 32, 64, 64, 64]);
    }
}
