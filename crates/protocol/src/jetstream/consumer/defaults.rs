//! What the server makes of a consumer configuration that leaves things out.
//!
//! [`ConsumerConfig::fill_defaults`] turns a configuration as a client sends it into the form that is stored,
//! compared and shown. It corrects and never refuses. A client that sets `pedantic` wants no corrections that change
//! the meaning of what it sent: those are reported, and the server refuses the request with the first of them.
//!
//! Two corrections are not reported, because a pedantic client gets errors of their own for them, which are checked
//! before: `flow_control` and `idle_heartbeat` of the policy `flow_control`.

use super::config::{AckPolicy, ConsumerConfig, PriorityPolicy};
use crate::jetstream::{ConsumerLimits, Nanos};

/// The `ack_wait` of a consumer that sets none.
pub const ACK_WAIT: Nanos = Nanos::from_secs(30);
/// The `max_ack_pending` of a consumer that sets none.
pub const MAX_ACK_PENDING: i64 = 1000;
/// The `max_waiting` of a pull consumer that sets none.
pub const MAX_WAITING: i64 = 512;
/// The `inactive_threshold` of an ephemeral consumer that sets none.
pub const INACTIVE_THRESHOLD: Nanos = Nanos::from_secs(5);
/// The `priority_timeout` of a consumer with pinned clients that sets none.
pub const PRIORITY_TIMEOUT: Nanos = Nanos::from_secs(120);
/// The `idle_heartbeat` that the policy `flow_control` forces.
pub const FLOW_CONTROL_HEARTBEAT: Nanos = Nanos::from_secs(1);

/// Bounds from outside that take part in the defaults of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerBounds {
    /// What the stream sets.
    pub stream: ConsumerLimits,
    /// Highest `max_ack_pending` of the server or the account, the lower of the two; 0 or below for none.
    pub max_ack_pending: i64,
    /// Highest `max_batch` of the server; 0 or below for none.
    pub max_request_batch: i64,
}

impl ConsumerConfig {
    /// Fills in what is left out and gives the corrections that a pedantic client does not want, in the words of the
    /// server.
    ///
    /// Idempotent: a second call changes and reports nothing.
    pub fn fill_defaults(&mut self, bounds: &ConsumerBounds) -> Vec<&'static str> {
        let mut corrections = Vec::new();
        if self.name.is_none() {
            self.name.clone_from(&self.durable_name);
        }
        self.clamp_negatives(&mut corrections);
        if self.ack_policy == AckPolicy::FlowControl {
            self.flow_control = true;
            self.idle_heartbeat = FLOW_CONTROL_HEARTBEAT;
        }
        if self.ack_wait.is_zero() && matches!(self.ack_policy, AckPolicy::Explicit | AckPolicy::All) {
            self.ack_wait = ACK_WAIT;
        }
        if let Some(first) = self.backoff.first().copied()
            && self.ack_wait != first
        {
            corrections.push("first backoff value has to equal batch AckWait");
            self.ack_wait = first;
        }
        self.fill_from_bounds(bounds, &mut corrections);
        if !self.is_push() && self.max_waiting == 0 {
            self.max_waiting = MAX_WAITING;
        }
        if self.inactive_threshold.is_zero() && !self.is_durable() {
            self.inactive_threshold = INACTIVE_THRESHOLD;
        }
        if self.priority_policy == PriorityPolicy::PinnedClient && self.priority_timeout.is_zero() {
            self.priority_timeout = PRIORITY_TIMEOUT;
        }
        corrections
    }

    fn clamp_negatives(&mut self, corrections: &mut Vec<&'static str>) {
        if self.max_deliver < -1 {
            corrections.push("max_deliver must be set to -1");
        }
        if self.max_deliver < 1 {
            self.max_deliver = -1;
        }
        if self.max_ack_pending < -1 {
            corrections.push("max_ack_pending must be set to -1");
            self.max_ack_pending = -1;
        }
        for (value, text) in [
            (&mut self.max_waiting, "max_waiting must not be negative"),
            (&mut self.max_batch, "max_batch must not be negative"),
            (&mut self.max_bytes, "max_bytes must not be negative"),
            (&mut self.max_expires.0, "max_expires must not be negative"),
            (
                &mut self.inactive_threshold.0,
                "inactive_threshold must not be negative",
            ),
            (&mut self.idle_heartbeat.0, "idle_heartbeat must not be negative"),
            (
                &mut self.priority_timeout.0,
                "priority_timeout must not be negative",
            ),
        ] {
            if *value < 0 {
                corrections.push(text);
                *value = 0;
            }
        }
    }

    fn fill_from_bounds(&mut self, bounds: &ConsumerBounds, corrections: &mut Vec<&'static str>) {
        if self.max_ack_pending == 0 {
            if bounds.stream.max_ack_pending > 0 {
                corrections.push("max_ack_pending must be set if it's configured in stream limits");
                self.max_ack_pending = bounds.stream.max_ack_pending;
            } else if self.ack_policy != AckPolicy::None {
                self.max_ack_pending = match bounds.max_ack_pending {
                    bound @ 1.. => bound.min(MAX_ACK_PENDING),
                    _ => MAX_ACK_PENDING,
                };
            }
        }
        if self.inactive_threshold.is_zero() && bounds.stream.inactive_threshold.is_positive() {
            corrections.push("inactive_threshold must be set if it's configured in stream limits");
            self.inactive_threshold = bounds.stream.inactive_threshold;
        }
        if !self.is_push() && self.max_batch == 0 && bounds.max_request_batch > 0 {
            corrections.push("max_request_batch must be set if it's JetStream limits are set");
            self.max_batch = bounds.max_request_batch;
        }
    }

    /// Whether two configurations ask for the same consumer: equal but for the server's metadata.
    ///
    /// Both must have their defaults filled in.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let without_metadata = |config: &Self| Self {
            metadata: Default::default(),
            ..config.clone()
        };
        crate::jetstream::level::same_user_metadata(&self.metadata, &other.metadata)
            && without_metadata(self) == without_metadata(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(
        bounds: ConsumerBounds,
        change: impl FnOnce(&mut ConsumerConfig),
    ) -> (ConsumerConfig, Vec<&'static str>) {
        let mut config = ConsumerConfig {
            ack_policy: AckPolicy::Explicit,
            ..ConsumerConfig::default()
        };
        change(&mut config);
        let corrections = config.fill_defaults(&bounds);
        let mut again = config.clone();
        assert!(again.fill_defaults(&bounds).is_empty(), "second call reports");
        assert_eq!(again, config, "second call changes");
        (config, corrections)
    }

    fn plain(change: impl FnOnce(&mut ConsumerConfig)) -> (ConsumerConfig, Vec<&'static str>) {
        filled(ConsumerBounds::default(), change)
    }

    #[test]
    fn pull_consumer_gets_the_defaults_of_the_server() {
        let (config, corrections) = plain(|c| c.max_deliver = 0);
        assert!(corrections.is_empty());
        let expected = ConsumerConfig {
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_waiting: 512,
            max_ack_pending: 1000,
            inactive_threshold: INACTIVE_THRESHOLD,
            ..ConsumerConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn durable_consumer_has_its_name_and_stays() {
        let (config, _) = plain(|c| c.durable_name = Some("d".into()));
        assert_eq!(
            (config.name.as_deref(), config.inactive_threshold),
            (Some("d"), Nanos::ZERO)
        );
    }

    #[test]
    fn consumer_without_acknowledgements_waits_for_none() {
        let (config, _) = plain(|c| c.ack_policy = AckPolicy::None);
        assert_eq!((config.ack_wait, config.max_ack_pending), (Nanos::ZERO, 0));
    }

    #[test]
    fn push_consumer_has_no_waiting_requests() {
        let (config, corrections) = filled(
            ConsumerBounds {
                max_request_batch: 77,
                ..Default::default()
            },
            |c| {
                c.deliver_subject = Some("d".into());
                c.max_waiting = -1;
            },
        );
        assert_eq!((config.max_waiting, config.max_batch), (0, 0));
        assert_eq!(corrections, ["max_waiting must not be negative"]);
    }

    #[test]
    fn negative_numbers_are_corrected_and_reported() {
        let (config, corrections) = plain(|c| {
            (c.max_deliver, c.max_ack_pending, c.max_batch, c.max_bytes) = (-9, -7, -3, -3);
            (c.max_expires, c.inactive_threshold) = (Nanos(-5), Nanos(-3));
        });
        assert_eq!(
            (config.max_deliver, config.max_ack_pending, config.max_batch),
            (-1, -1, 0)
        );
        assert_eq!(
            (config.max_expires, config.inactive_threshold),
            (Nanos::ZERO, INACTIVE_THRESHOLD)
        );
        assert_eq!(corrections[0], "max_deliver must be set to -1");
        assert_eq!(corrections.len(), 6);
        // These two are left for the server to refuse.
        let (config, _) = plain(|c| c.ack_wait = Nanos(-1));
        assert_eq!(config.ack_wait, Nanos(-1));
        let (config, _) = plain(|c| c.num_replicas = -1);
        assert_eq!(config.num_replicas, -1);
    }

    #[test]
    fn backoff_takes_the_place_of_the_ack_wait() {
        let (config, corrections) = plain(|c| c.backoff = vec![Nanos::from_secs(1), Nanos::from_secs(2)]);
        assert_eq!(config.ack_wait, Nanos::from_secs(1));
        assert_eq!(corrections, ["first backoff value has to equal batch AckWait"]);
        let (_, corrections) = plain(|c| {
            c.backoff = vec![Nanos::from_secs(1)];
            c.ack_wait = Nanos::from_secs(1);
        });
        assert!(corrections.is_empty());
    }

    #[test]
    fn flow_control_policy_forces_what_it_works_by() {
        let (config, corrections) = plain(|c| {
            c.ack_policy = AckPolicy::FlowControl;
            c.deliver_subject = Some("d".into());
            c.idle_heartbeat = Nanos::from_secs(5);
        });
        assert!(config.flow_control && corrections.is_empty());
        assert_eq!(
            (config.idle_heartbeat, config.ack_wait),
            (FLOW_CONTROL_HEARTBEAT, Nanos::ZERO)
        );
    }

    #[test]
    fn bounds_of_stream_and_server_become_defaults() {
        let stream = ConsumerLimits {
            inactive_threshold: Nanos::from_secs(10),
            max_ack_pending: 50,
        };
        let bounds = ConsumerBounds {
            stream,
            max_ack_pending: 300,
            max_request_batch: 77,
        };
        let (config, corrections) = filled(bounds, |c| {
            c.durable_name = Some("d".into());
            c.ack_policy = AckPolicy::None;
        });
        assert_eq!((config.max_ack_pending, config.max_batch), (50, 77));
        assert_eq!(config.inactive_threshold, Nanos::from_secs(10));
        assert_eq!(corrections.len(), 3);
        let (config, _) = filled(
            ConsumerBounds {
                stream: ConsumerLimits::default(),
                ..bounds
            },
            |_| {},
        );
        assert_eq!(config.max_ack_pending, 300);
        let (config, _) = filled(
            ConsumerBounds {
                max_ack_pending: 5000,
                ..ConsumerBounds::default()
            },
            |_| {},
        );
        assert_eq!(config.max_ack_pending, 1000);
    }

    #[test]
    fn pinned_clients_have_a_timeout() {
        let (config, _) = plain(|c| c.priority_policy = PriorityPolicy::PinnedClient);
        assert_eq!(config.priority_timeout, PRIORITY_TIMEOUT);
        let (config, _) = plain(|c| {
            c.priority_policy = PriorityPolicy::Overflow;
            c.priority_timeout = Nanos(-5);
        });
        assert_eq!(config.priority_timeout, Nanos::ZERO);
    }

    #[test]
    fn metadata_of_the_server_does_not_make_another_consumer() {
        let (left, _) = plain(|_| {});
        let mut right = left.clone();
        crate::jetstream::level::stamp_stored(&mut right.metadata, 0);
        assert!(left.is_same_as(&right));
        right.description = "other".into();
        assert!(!left.is_same_as(&right));
    }
}
