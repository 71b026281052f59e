//! The rules of a consumer's configuration by itself, in the order of nats-server.

use windjet_protocol::jetstream::level::{METADATA_BYTES_MAX, metadata_bytes};
use windjet_protocol::jetstream::{
    AckPolicy, ApiError, ConsumerConfig, DeliverPolicy, ErrorCode, Nanos, PriorityPolicy, RetentionPolicy,
};
use windjet_protocol::subject;

use super::Rules;

const DESCRIPTION_MAX: usize = 4096;
const HEARTBEAT_MIN: Nanos = Nanos::from_millis(100);
const GROUP_MAX: usize = 16;

/// The first of these that holds.
fn first(refused: &[(bool, ErrorCode)]) -> Result<(), ApiError> {
    match refused.iter().find(|(refused, _)| *refused) {
        Some((_, code)) => Err(code.error()),
        None => Ok(()),
    }
}

/// Checks a configuration whose defaults are filled in; `asked` is what the client sent. A pedantic client must say itself what
/// would be filled in.
pub(super) fn check(
    asked: &ConsumerConfig,
    config: &ConsumerConfig,
    pedantic: bool,
    rules: &Rules,
) -> Result<(), ApiError> {
    let flow = config.ack_policy == AckPolicy::FlowControl;
    let backoff = i64::try_from(config.backoff.len()).unwrap_or(i64::MAX);
    first(&[
        (config.num_replicas < 0, ErrorCode::ReplicasNegative),
        (config.num_replicas > 1, ErrorCode::ReplicasNotSupported),
        (
            config.backoff.iter().any(|wait| wait.is_negative()),
            ErrorCode::BackoffNegative,
        ),
        (asked.ack_wait.is_negative(), ErrorCode::AckWaitNegative),
        (
            flow && !config.is_push(),
            ErrorCode::FlowControlPolicyRequiresPush,
        ),
        (
            flow && pedantic && !asked.flow_control,
            ErrorCode::FlowControlPolicyRequiresFlowControl,
        ),
    ])?;
    if flow && pedantic && asked.idle_heartbeat != config.idle_heartbeat {
        return Err(ErrorCode::StreamInvalidConfig.with("flow control ack policy heartbeat needs to be 1s"));
    }
    first(&[
        (
            flow && config.max_ack_pending <= 0,
            ErrorCode::FlowControlPolicyRequiresMaxAckPending,
        ),
        (
            flow && !config.ack_wait.is_zero(),
            ErrorCode::FlowControlPolicyWithAckWait,
        ),
        (
            flow && asked.max_deliver > 0,
            ErrorCode::FlowControlPolicyWithMaxDeliver,
        ),
        (
            backoff > 0 && config.max_deliver != -1 && config.max_deliver < backoff,
            ErrorCode::MaxDeliverBelowBackoff,
        ),
    ])?;
    if config.description.len() > DESCRIPTION_MAX {
        return Err(ErrorCode::ConsumerDescriptionTooLong.with(DESCRIPTION_MAX));
    }
    check_mode(config, rules)?;
    check_limits(config, rules)?;
    first(&[
        (config.direct && !config.is_push(), ErrorCode::DirectRequiresPush),
        (
            config.direct && config.is_durable(),
            ErrorCode::DirectRequiresEphemeral,
        ),
    ])?;
    check_filters(config)?;
    check_start(config)?;
    check_sampling(config)?;
    first(&[(
        config.flow_control && config.idle_heartbeat.is_zero(),
        ErrorCode::FlowControlRequiresHeartbeat,
    )])?;
    if let (Some(durable), Some(name)) = (&config.durable_name, &config.name)
        && !durable.is_empty()
        && durable != name
    {
        return Err(ErrorCode::DurableAndNameDiffer.error());
    }
    if metadata_bytes(&config.metadata) > METADATA_BYTES_MAX {
        return Err(ErrorCode::ConsumerMetadataTooLarge.with("128KB"));
    }
    check_priority(config)
}

fn check_mode(config: &ConsumerConfig, rules: &Rules) -> Result<(), ApiError> {
    let Some(deliver) = config.deliver_subject.as_deref().filter(|_| config.is_push()) else {
        let queue = rules.retention == RetentionPolicy::WorkQueue;
        let expires = config.max_expires;
        first(&[
            (
                queue && config.ack_policy == AckPolicy::None,
                ErrorCode::PullWithoutExplicitAckOnWorkQueue,
            ),
            (config.rate_limit_bps > 0, ErrorCode::PullWithRateLimit),
            (!config.idle_heartbeat.is_zero(), ErrorCode::HeartbeatRequiresPush),
            (config.flow_control, ErrorCode::FlowControlRequiresPush),
            (
                !expires.is_zero() && expires < Nanos::from_millis(1),
                ErrorCode::MaxRequestExpiresTooSmall,
            ),
        ])?;
        let max = rules.bounds.max_request_batch;
        if max > 0 && config.max_batch > max {
            return Err(ErrorCode::MaxRequestBatchExceeded.with(max));
        }
        return Ok(());
    };
    let deliver = deliver.as_bytes();
    let heartbeat = config.idle_heartbeat;
    first(&[
        (subject::has_wildcards(deliver), ErrorCode::DeliverSubjectWildcard),
        (!subject::is_literal(deliver), ErrorCode::DeliverSubjectInvalid),
        (
            rules
                .subjects
                .iter()
                .any(|taken| subject::overlaps(taken.as_bytes(), deliver)),
            ErrorCode::DeliverSubjectCycle,
        ),
        (config.max_waiting != 0, ErrorCode::PushMaxWaiting),
        (
            config.max_ack_pending > 0 && config.ack_policy == AckPolicy::None,
            ErrorCode::MaxAckPendingWithoutAckPolicy,
        ),
        (
            heartbeat.is_positive() && heartbeat < HEARTBEAT_MIN,
            ErrorCode::HeartbeatTooSmall,
        ),
    ])
}

fn check_limits(config: &ConsumerConfig, rules: &Rules) -> Result<(), ApiError> {
    let stream = &rules.bounds.stream;
    let of = |limit: i64| limit > 0 && config.max_ack_pending > limit;
    for limit in [rules.bounds.max_ack_pending, stream.max_ack_pending] {
        if of(limit) {
            return Err(ErrorCode::MaxAckPendingExceeded.with(limit));
        }
    }
    let inactive = stream.inactive_threshold;
    if inactive.is_positive() && config.inactive_threshold > inactive {
        return Err(ErrorCode::InactiveThresholdExceeded.with(inactive));
    }
    Ok(())
}

fn check_filters(config: &ConsumerConfig) -> Result<(), ApiError> {
    let single = config.filter_subject.as_deref().unwrap_or_default();
    if !single.is_empty() && !config.filter_subjects.is_empty() {
        return Err(ErrorCode::BothFilterForms.error());
    }
    let invalid = |filter: &str| !subject::is_valid_subscription(filter.as_bytes());
    if !single.is_empty() && invalid(single) {
        return Err(super::invalid_filter());
    }
    if config.filter_subjects.iter().any(String::is_empty) {
        return Err(ErrorCode::FilterEmpty.error());
    }
    for (at, filter) in config.filter_subjects.iter().enumerate() {
        if invalid(filter) {
            return Err(super::invalid_filter());
        }
        let earlier = &config.filter_subjects[..at];
        // Filters that share some subjects are fine, one within another is not.
        let within = |other: &String| {
            let (one, two) = (other.as_bytes(), filter.as_bytes());
            subject::is_subset(one, two) || subject::is_subset(two, one)
        };
        if earlier.iter().any(within) {
            return Err(ErrorCode::FiltersOverlap.error());
        }
    }
    Ok(())
}

fn check_start(config: &ConsumerConfig) -> Result<(), ApiError> {
    let (seq, time) = (config.opt_start_seq > 0, config.opt_start_time.is_some());
    let failed = |text: String| Err(ErrorCode::DeliveryPolicyInvalid.with(text));
    let unset = |policy: &str, what: &str| {
        failed(format!(
            "consumer delivery policy is deliver {policy}, but optional {what} is not set"
        ))
    };
    let policy = match config.deliver_policy {
        DeliverPolicy::All => "all",
        DeliverPolicy::Last => "last",
        DeliverPolicy::LastPerSubject => "last per subject",
        DeliverPolicy::New => "new",
        DeliverPolicy::ByStartSequence => {
            if !seq {
                return unset("by start sequence", "start sequence");
            }
            if time {
                return failed("consumer delivery policy is deliver by start sequence, but optional start time is also set".into());
            }
            return Ok(());
        }
        DeliverPolicy::ByStartTime => {
            if !time {
                return unset("by start time", "start time");
            }
            if seq {
                return failed("consumer delivery policy is deliver by start time, but optional start start sequence is also set".into());
            }
            return Ok(());
        }
    };
    for (set, what) in [(seq, "sequence"), (time, "time")] {
        if set {
            return failed(format!(
                "consumer delivery policy is deliver {policy}, but optional start {what} is also set"
            ));
        }
    }
    let filtered = config.filters().next().is_some();
    if config.deliver_policy == DeliverPolicy::LastPerSubject && !filtered {
        return unset(policy, "filter subject");
    }
    Ok(())
}

fn check_sampling(config: &ConsumerConfig) -> Result<(), ApiError> {
    let text = config.sample_freq.as_deref().unwrap_or_default();
    let number = text.strip_suffix('%').unwrap_or(text);
    if text.is_empty() || number.parse::<u64>().is_ok() {
        return Ok(());
    }
    Err(ErrorCode::SamplingInvalid.with(format_args!("{text:?} is not a whole number of percent")))
}

fn check_priority(config: &ConsumerConfig) -> Result<(), ApiError> {
    if config.priority_policy == PriorityPolicy::None {
        return first(&[
            (
                !config.priority_groups.is_empty(),
                ErrorCode::PriorityGroupsWithoutPolicy,
            ),
            (
                config.priority_timeout.is_positive(),
                ErrorCode::PinnedTtlWithoutPolicy,
            ),
        ]);
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_/=)+".contains(&byte);
    first(&[
        (config.is_push(), ErrorCode::PriorityGroupsOnPush),
        (
            config.priority_groups.is_empty(),
            ErrorCode::PriorityPolicyWithoutGroup,
        ),
    ])?;
    for group in &config.priority_groups {
        first(&[
            (group.is_empty(), ErrorCode::PriorityGroupEmpty),
            (
                group.len() > GROUP_MAX || !group.bytes().all(allowed),
                ErrorCode::PriorityGroupInvalid,
            ),
        ])?;
    }
    Ok(())
}
