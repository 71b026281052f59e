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
}
