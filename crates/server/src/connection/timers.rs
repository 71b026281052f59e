//! The clocks of one connection: authentication, credentials, PING.
//!
//! Pure: told the time, it says what is due. The connection's task keeps one timer for [`Timers::next`].

use std::time::{Duration, Instant};

/// A measured round trip is good for this long; then a PING goes out even to a busy client.
const RTT_VALID: Duration = Duration::from_secs(3600);
/// The first PING comes at the latest this long after CONNECT.
const FIRST_PING_MAX: Duration = Duration::from_secs(2);

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing.
    Nothing,
    /// No successful CONNECT in time.
    AuthenticationTimeout,
    /// The credentials have run out.
    Expired,
    /// A PING must be sent.
    Ping,
    /// Too many PINGs have gone unanswered.
    Stale,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Timers {
    authenticate_by: Option<Instant>,
    expires_at: Option<Instant>,
    ping_at: Instant,
    interval: Duration,
    outstanding: u32,
    sent_at: Option<Instant>,
    measured_at: Option<Instant>,
}

impl Timers {
    /// Timers of a connection that was just accepted. `authenticate_within` is set when credentials are needed.
    pub(super) fn new(now: Instant, interval: Duration, authenticate_within: Option<Duration>) -> Self {
        Self {
            authenticate_by: authenticate_within.map(|limit| now + limit),
            expires_at: None,
            ping_at: now + interval,
            interval,
            outstanding: 0,
            sent_at: None,
            measured_at: None,
        }
    }

    /// The client has authenticated; `spread` in 0..1 keeps many clients from being asked at the same moment.
    pub(super) fn connected(&mut self, now: Instant, spread: f64, expires_at: Option<Instant>) {
        self.authenticate_by = None;
        self.expires_at = expires_at;
        if self.measured_at.is_none() {
            self.ping_at = now + self.interval.min(FIRST_PING_MAX).mul_f64(1.0 + 0.2 * spread);
        }
    }

    /// A new interval takes effect from the next PING on.
    pub(super) fn set_interval(&mut self, now: Instant, interval: Duration) {
        if interval != self.interval {
            self.interval = interval;
            self.ping_at = self.ping_at.min(now + interval);
        }
    }

    /// When to ask again.
    pub(super) fn next(&self) -> Instant {
        [self.authenticate_by, self.expires_at]
            .into_iter()
            .flatten()
            .fold(self.ping_at, Instant::min)
    }

    /// What is due at `now`. `active_at` is when the client last sent something; `ping_max` how many PINGs may go unanswered.
    pub(super) fn due(&mut self, now: Instant, active_at: Instant, ping_max: u32) -> Due {
        if self.authenticate_by.is_some_and(|by| now >= by) {
            self.authenticate_by = None;
            return Due::AuthenticationTimeout;
        }
        if self.expires_at.is_some_and(|at| now >= at) {
            self.expires_at = None;
            return Due::Expired;
        }
        if now < self.ping_at {
            return Due::Nothing;
        }
        self.ping_at = now + self.interval;
        let measured = self
            .measured_at
            .is_some_and(|at| now.saturating_duration_since(at) < RTT_VALID);
        let active = now.saturating_duration_since(active_at) < self.interval;
        if measured && active {
            return Due::Nothing;
        }
        if self.outstanding + 1 > ping_max {
            return Due::Stale;
        }
        self.outstanding += 1;
        self.sent_at = Some(now);
        Due::Ping
    }

    /// A PONG arrived: the round trip, when a PING of ours was out.
    pub(super) fn pong(&mut self, now: Instant) -> Option<Duration> {
        self.outstanding = 0;
        let sent_at = self.sent_at.take()?;
        self.measured_at = Some(now);
        Some(now.saturating_duration_since(sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(120);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn authentication_times_out_once() {
        let start = Instant::now();
        let mut timers = Timers::new(start, INTERVAL, Some(Duration::from_secs(2)));
        assert_eq!(timers.next(), at(start, 2));
        assert_eq!(timers.due(at(start, 1), start, 2), Due::Nothing);
        assert_eq!(timers.due(at(start, 2), start, 2), Due::AuthenticationTimeout);
        assert_eq!(timers.due(at(start, 3), start, 2), Due::Nothing);
    }

    #[test]
    fn the_third_tick_after_two_unanswered_pings_is_stale() {
        let start = Instant::now();
        let mut timers = Timers::new(start, INTERVAL, None);
        timers.connected(start, 0.0, None);
        assert_eq!(timers.next(), at(start, 2));
        assert_eq!(timers.due(at(start, 2), start, 2), Due::Ping);
        assert_eq!(timers.due(at(start, 122), start, 2), Due::Ping);
        assert_eq!(timers.due(at(start, 242), start, 2), Due::Stale);
    }

    #[test]
    fn an_active_client_with_a_known_round_trip_is_not_pinged() {
        let start = Instant::now();
        let mut timers = Timers::new(start, INTERVAL, None);
        timers.connected(start, 0.0, None);
        assert_eq!(timers.due(at(start, 2), start, 2), Due::Ping);
        assert_eq!(timers.pong(at(start, 3)), Some(Duration::from_secs(1)));
        assert_eq!(timers.due(at(start, 122), at(start, 100), 2), Due::Nothing);
        assert_eq!(timers.due(at(start, 242), at(start, 100), 2), Due::Ping);
        assert_eq!(
            timers.due(at(start, 4000), at(start, 3999), 2),
            Due::Ping,
            "the round trip is an hour old"
        );
    }

    #[test]
    fn an_unasked_pong_measures_nothing() {
        let start = Instant::now();
        let mut timers = Timers::new(start, INTERVAL, None);
        assert_eq!(timers.pong(start), None);
    }

    #[test]
    fn credentials_run_out() {
        let start = Instant::now();
        let mut timers = Timers::new(start, INTERVAL, None);
        timers.connected(start, 0.0, Some(at(start, 1)));
        assert_eq!(timers.due(at(start, 1), start, 2), Due::Expired);
    }
}
