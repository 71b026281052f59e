//! What each shard's durable must be.

use std::time::Duration;

use windjet_protocol::jetstream::{AckPolicy, ConsumerInfo, DeliverPolicy, PriorityPolicy, ReplayPolicy};

use crate::nats::finding::Findings;
use crate::nats::text::format_duration;
use crate::nats::topology::{LEASE_DURATION, MIN_PINNED_TTL};
use crate::nats::units::Unit;
use crate::nats::{PRIORITY_GROUP, Topology};

/// The longest time for which a pull is made, with room for the server's own limit.
const MIN_MAX_EXPIRES: Duration = Duration::from_secs(5);

/// Checks a durable; whether it can be pulled from at all.
pub(super) fn check(
    topology: &Topology,
    partition: u32,
    shard: u32,
    unit: &Unit,
    info: &ConsumerInfo,
    findings: &mut Findings,
) -> bool {
    let (object, config) = (format!("consumer {unit}"), &info.config);
    if config.deliver_subject.is_some() {
        findings.required(
            &object,
            "deliver_subject",
            "set: a push consumer; use a pull consumer",
        );
        return false;
    }
    let mut required = |bad: bool, field, problem: String| {
        if bad {
            findings.required(&object, field, problem);
        }
    };
    required(
        config.ack_policy != AckPolicy::Explicit,
        "ack_policy",
        format!("{:?}; use explicit", config.ack_policy),
    );
    let (wait, needed) = (config.ack_wait.to_std(), topology.ack_wait);
    required(
        wait < needed,
        "ack_wait",
        format!("{}; {} or more", format_duration(wait), format_duration(needed)),
    );
    required(
        config.max_deliver != -1,
        "max_deliver",
        format!("{}, and rows are given up; use -1", config.max_deliver),
    );
    required(
        config.max_ack_pending <= 0,
        "max_ack_pending",
        "not set; nothing holds delivery back".into(),
    );
    required(
        config.deliver_policy != DeliverPolicy::All,
        "deliver_policy",
        format!("{:?}; use all", config.deliver_policy),
    );
    let filter = topology.shard_subjects(partition, shard);
    let filters: Vec<_> = config
        .filter_subject
        .iter()
        .chain(&config.filter_subjects)
        .filter(|f| !f.is_empty())
        .collect();
    required(
        filters != [&filter],
        "filter_subject",
        format!("{filters:?}; must be {filter} alone"),
    );
    required(
        config.headers_only,
        "headers_only",
        "set, and rows come without bodies".into(),
    );
    required(
        config.replay_policy != ReplayPolicy::Instant,
        "replay_policy",
        format!("{:?}; use instant", config.replay_policy),
    );
    required(
        !config.inactive_threshold.is_zero(),
        "inactive_threshold",
        "set, and an idle durable vanishes; use none".into(),
    );
    let expires = config.max_expires.to_std();
    required(
        !expires.is_zero() && expires < MIN_MAX_EXPIRES,
        "max_expires",
        format!("{}; 5s or more, or none", format_duration(expires)),
    );
    let batch = usize::try_from(config.max_batch).unwrap_or(0);
    required(
        batch > 0 && batch < topology.prefetch,
        "max_request_batch",
        format!("{batch}; {} or more, or none", topology.prefetch),
    );
    let pinned = config.priority_policy == PriorityPolicy::PinnedClient;
    let policy = match config.priority_policy {
        PriorityPolicy::None => "none".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    required(!pinned, "priority_policy", format!("{policy}; use pinned_client"));
    required(
        config.priority_groups != [PRIORITY_GROUP],
        "priority_groups",
        format!("{:?}; must be {PRIORITY_GROUP} alone", config.priority_groups),
    );
    let ttl = config.priority_timeout.to_std();
    let text = format_duration(ttl);
    required(
        pinned && ttl < MIN_PINNED_TTL,
        "priority_timeout",
        format!("{text}; 10s or more, or an idle holder loses its pin"),
    );

    let pending = usize::try_from(config.max_ack_pending).unwrap_or(0);
    if pending > 0 && pending < topology.max_ack_pending {
        let problem = format!("{pending}; {} lets a batch fill up", topology.max_ack_pending);
        findings.recommended(&object, "max_ack_pending", problem);
    }
    if pinned && ttl >= LEASE_DURATION {
        let problem = format!("{text}; below 15s, or a shard outlives its owner's lease");
        findings.recommended(&object, "priority_timeout", problem);
    }
    true
}
