//! How long to wait before a reconnect attempt.

use std::time::Duration;

use crate::config::Connection;

const DELAY_MAX: Duration = Duration::from_secs(30);

/// The wait of the pass `pass` over all servers, from 1: it doubles each time, up to 30 s.
pub(crate) fn delay(base: Duration, pass: u32) -> Duration {
    let base = if base.is_zero() {
        Duration::from_secs(1)
    } else {
        base
    };
    let doublings = pass.max(1) - 1;
    2_u32
        .checked_pow(doublings)
        .and_then(|factor| base.checked_mul(factor))
        .map_or(DELAY_MAX, |delay| delay.min(DELAY_MAX))
}

/// The wait before attempt `attempt`, from 1, with `servers` servers. The official client asks before every dial, the
/// very first included; nobody waits in the first pass.
pub(crate) fn before_attempt(connection: &Connection, servers: usize, attempt: usize) -> Duration {
    let pass = attempt.saturating_sub(1) / servers.max(1);
    if pass == 0 {
        return Duration::ZERO;
    }
    let pass = u32::try_from(pass).unwrap_or(u32::MAX);
    if let Some(custom) = &connection.custom_reconnect_delay {
        return custom(pass);
    }
    let jitter = if connection.tls.is_on() {
        connection.reconnect_jitter_tls
    } else {
        connection.reconnect_jitter
    };
    delay(connection.reconnect_wait, pass) + jitter.mul_f64(rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(base: u64, pass: u32) -> u64 {
        delay(Duration::from_secs(base), pass).as_secs()
    }

    #[test]
    fn the_wait_doubles_up_to_half_a_minute() {
        let waits: Vec<u64> = (0..9).map(|pass| secs(1, pass)).collect();
        assert_eq!(waits, [1, 1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(secs(40, 1), 30);
        assert_eq!(secs(1, u32::MAX), 30);
        assert_eq!(secs(0, 1), 1);
    }

    #[test]
    fn nobody_waits_in_the_first_pass() {
        let connection = Connection::default();
        for servers in [1, 3] {
            for attempt in 0..=servers {
                assert_eq!(before_attempt(&connection, servers, attempt), Duration::ZERO);
            }
            for attempt in servers + 1..=2 * servers {
                let wait = before_attempt(&connection, servers, attempt);
                assert!((1000..=1100).contains(&wait.as_millis()), "{wait:?}");
            }
        }
    }

    #[test]
    fn jitter_is_added_even_with_tls() {
        let mut connection = Connection::default();
        connection.tls.insecure_skip_verify = true;
        let waits: Vec<_> = (0..200).map(|_| before_attempt(&connection, 1, 2)).collect();
        assert!(waits.iter().any(|wait| wait.as_millis() > 1200));
        assert!(waits.iter().all(|wait| (1000..=2000).contains(&wait.as_millis())));
    }

    #[test]
    fn a_custom_delay_replaces_the_wait() {
        let connection = Connection {
            custom_reconnect_delay: Some(std::sync::Arc::new(|pass| Duration::from_millis(u64::from(pass)))),
            ..Connection::default()
        };
        assert_eq!(before_attempt(&connection, 2, 7), Duration::from_millis(3));
    }
}
