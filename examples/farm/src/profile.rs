//! How patient the farm is: the contract's times, or short ones to watch it at work.

use std::time::Duration;

/// All times and limits in one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    /// Between two heartbeats of a worker.
    pub heartbeat: Duration,
    /// Silence after which a worker counts as gone.
    pub worker_timeout: Duration,
    /// Between two sweeps of the server.
    pub sweep: Duration,
    /// How long a request for work waits at the server.
    pub hold: Duration,
    /// How long a worker waits for the answer.
    pub request: Duration,
    /// Time for an assigned task to be reported running.
    pub assigned_timeout: Duration,
    /// Pause before a failed task runs again.
    pub retry_delay: Duration,
    /// Executions of a task that fails.
    pub attempts: i64,
    /// Time for running tasks when a worker stops.
    pub grace: Duration,
    /// Longest pause before a message that could not be handled comes again.
    pub pause_max: Duration,
}

impl Profile {
    /// The contract's times, or short ones.
    pub(crate) fn named(fast: bool) -> Self {
        let ms = Duration::from_millis;
        if fast {
            Self {
                heartbeat: ms(1000),
                worker_timeout: ms(3000),
                sweep: ms(500),
                hold: ms(5000),
                request: ms(6000),
                assigned_timeout: ms(3000),
                retry_delay: ms(300),
                attempts: 3,
                grace: ms(1000),
                pause_max: ms(1000),
            }
        } else {
            Self {
                heartbeat: ms(15_000),
                worker_timeout: ms(30_000),
                sweep: ms(15_000),
                hold: ms(30_000),
                request: ms(35_000),
                assigned_timeout: ms(30_000),
                retry_delay: ms(30_000),
                attempts: 3,
                grace: ms(30_000),
                pause_max: ms(30_000),
            }
        }
    }
}
