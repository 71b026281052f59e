//! The limits that connections ask for often, in one place and in the form they need.

use std::time::Duration;

use crate::options::{Options, WriteTimeoutPolicy};

/// See the module's page.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) max_control_line: usize,
    /// Negative means no limit.
    pub(crate) max_payload: i64,
    pub(crate) max_pending: usize,
    /// Subscriptions of one connection; `None` means no limit.
    pub(crate) max_subscriptions: Option<u64>,
    /// 0 means no limit.
    pub(crate) max_sub_tokens: usize,
    pub(crate) ping_max: u32,
    pub(crate) write_deadline: Duration,
    pub(crate) write_timeout: WriteTimeoutPolicy,
    /// Drop for a receiver that is nearly full instead of slowing its publishers.
    pub(crate) drop_when_crowded: bool,
    /// Whether headers are supported.
    pub(crate) headers: bool,
}

impl Limits {
    /// The limits that `options` ask for.
    pub(crate) fn of(options: &Options) -> Self {
        Self {
            max_control_line: options.max_control_line,
            max_payload: options.max_payload,
            max_pending: options.max_pending,
            max_subscriptions: u64::try_from(options.max_subscriptions)
                .ok()
                .filter(|&max| max > 0),
            max_sub_tokens: options.max_sub_tokens,
            ping_max: options.ping_max,
            write_deadline: options.write_deadline,
            write_timeout: options.write_timeout,
            drop_when_crowded: options.no_fast_producer_stall,
            headers: !options.no_header_support,
        }
    }

    /// The largest payload of a client: the least of what its user, its account and the server allow. Negative means
    /// no limit.
    pub(crate) fn payload_of(&self, user: Option<u64>, account: Option<u64>) -> i64 {
        match least(user, account).map(|max| i64::try_from(max).unwrap_or(i64::MAX)) {
            None => self.max_payload,
            Some(max) if self.max_payload > 0 => max.min(self.max_payload),
            Some(max) => max,
        }
    }

    /// The most subscriptions of a client: the least of what its user, its account and the server allow.
    pub(crate) fn subscriptions_of(&self, user: Option<u64>, account: Option<u64>) -> Option<u64> {
        least(least(user, account), self.max_subscriptions)
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_payload: i64, max_subscriptions: i64) -> Limits {
        Limits::of(&Options {
            max_payload,
            max_subscriptions,
            ..Options::default()
        })
    }

    #[test]
    fn the_least_payload_limit_counts() {
        assert_eq!(limits(100, 0).payload_of(None, None), 100);
        assert_eq!(limits(100, 0).payload_of(None, Some(1_000)), 100);
        assert_eq!(limits(1_000, 0).payload_of(Some(200), Some(100)), 100);
        assert_eq!(limits(1_000, 0).payload_of(Some(50), Some(100)), 50);
        assert_eq!(limits(1_000, 0).payload_of(Some(0), None), 0);
    }

    #[test]
    fn a_server_without_a_payload_limit_leaves_it_to_others() {
        for unlimited in [-1, 0] {
            assert_eq!(limits(unlimited, 0).payload_of(None, Some(50)), 50);
            assert_eq!(limits(unlimited, 0).payload_of(None, None), unlimited);
        }
    }

    #[test]
    fn the_least_subscription_limit_counts() {
        assert_eq!(limits(-1, 0).subscriptions_of(None, None), None);
        assert_eq!(limits(-1, 10).subscriptions_of(None, Some(20)), Some(10));
        assert_eq!(limits(-1, 10).subscriptions_of(Some(5), Some(20)), Some(5));
        assert_eq!(limits(-1, 0).subscriptions_of(Some(0), Some(20)), Some(0));
    }
}
