//! Consumer configurations.

mod check;

use windjet_protocol::jetstream::consumer::defaults::ConsumerBounds;
use windjet_protocol::jetstream::consumer::requests::ConsumerCreateRequest;
use windjet_protocol::jetstream::{
    AckPolicy, ApiError, ConsumerConfig, ConsumerName, DeliverPolicy, ErrorCode, RetentionPolicy,
    StreamConfig, level,
};
use windjet_protocol::subject;

use crate::jetstream::JetStream;
use crate::jetstream::account::JsAccount;

/// What a configuration is held against besides itself.
#[derive(Debug)]
pub(crate) struct Rules {
    bounds: ConsumerBounds,
    retention: RetentionPolicy,
    subjects: Vec<String>,
}

impl JetStream {
    /// The rules for consumers of a stream.
    pub(crate) fn consumer_rules(&self, account: &JsAccount, stream: &StreamConfig) -> Rules {
        let options = self.options();
        let limits = &options.limits;
        let of_account = account
            .limits()
            .max_ack_pending
            .and_then(|max| i64::try_from(max).ok());
        let of_server = limits.max_ack_pending.filter(|max| *max > 0);
        Rules {
            retention: stream.retention,
            subjects: stream.subjects.clone(),
            bounds: ConsumerBounds {
                stream: stream.consumer_limits,
                max_ack_pending: [of_account, of_server].into_iter().flatten().min().unwrap_or(0),
                max_request_batch: limits.max_request_batch.unwrap_or(0),
            },
        }
    }
}

fn invalid_filter() -> ApiError {
    ErrorCode::StreamInvalidConfig.with("invalid subject")
}

/// A configuration as it will be, names aside.
pub(crate) fn check(
    request: ConsumerCreateRequest,
    name: Option<&str>,
    rules: &Rules,
) -> Result<ConsumerConfig, ApiError> {
    let pedantic = request.pedantic;
    let mut config = request.config;
    if let Some(name) = name {
        ConsumerName::new(name).map_err(windjet_protocol::jetstream::InvalidName::consumer_error)?;
        config.name = Some(name.to_owned());
    }
    let asked = config.clone();
    let corrections = config.fill_defaults(&rules.bounds);
    if let Some(correction) = corrections.first().filter(|_| pedantic) {
        return Err(ErrorCode::Pedantic.with(correction));
    }
    check::check(&asked, &config, pedantic, rules)?;
    Ok(config)
}

/// Records the level that the configuration needs.
pub(crate) fn stamp(config: &mut ConsumerConfig) {
    let level = config.required_level();
    level::stamp_stored(&mut config.metadata, level);
}

/// Whether a consumer may become this.
pub(crate) fn check_update(old: &ConsumerConfig, new: &ConsumerConfig) -> Result<(), ApiError> {
    let checks = [
        (
            old.deliver_policy != new.deliver_policy,
            "deliver policy can not be updated",
        ),
        (
            old.mem_storage != new.mem_storage,
            "storage type can not be updated",
        ),
        (old.direct != new.direct, "direct can not be updated"),
        (old.sourcing != new.sourcing, "sourcing can not be updated"),
        (
            old.opt_start_seq != new.opt_start_seq,
            "start sequence can not be updated",
        ),
        (
            old.opt_start_time != new.opt_start_time,
            "start time can not be updated",
        ),
        (old.ack_policy != new.ack_policy, "ack policy can not be updated"),
        (
            old.replay_policy != new.replay_policy,
            "replay policy can not be updated",
        ),
        (
            old.idle_heartbeat != new.idle_heartbeat,
            "heart beats can not be updated",
        ),
        (
            old.flow_control != new.flow_control,
            "flow control can not be updated",
        ),
        (
            !old.is_push() && new.is_push(),
            "can not update pull consumer to push based",
        ),
        (
            old.is_push() && !new.is_push(),
            "can not update push consumer to pull based",
        ),
        (
            old.max_waiting != new.max_waiting,
            "max waiting can not be updated",
        ),
    ];
    match checks.iter().find(|(refused, _)| *refused) {
        Some((_, text)) => Err(ErrorCode::ConsumerCreateFailed.with(text)),
        None => Ok(()),
    }
}

/// Whether a consumer may stand beside others of a work queue.
pub(crate) fn check_work_queue<'c>(
    config: &ConsumerConfig,
    others: impl Iterator<Item = &'c ConsumerConfig>,
) -> Result<(), ApiError> {
    if !config.is_push() && config.ack_policy == AckPolicy::None {
        return Err(ErrorCode::PullWithoutExplicitAckOnWorkQueue.error());
    }
    if !matches!(config.ack_policy, AckPolicy::Explicit | AckPolicy::FlowControl) {
        return Err(ErrorCode::WorkQueueRequiresExplicitAck.error());
    }
    if config.deliver_policy != DeliverPolicy::All {
        return Err(ErrorCode::WorkQueueConsumerNotDeliverAll.error());
    }
    let own: Vec<&str> = config.filters().filter(|filter| *filter != ">").collect();
    for other in others {
        if own.is_empty() {
            return Err(ErrorCode::WorkQueueMultipleUnfiltered.error());
        }
        let theirs: Vec<&str> = other.filters().filter(|filter| *filter != ">").collect();
        let collide = theirs.is_empty()
            || theirs
                .iter()
                .any(|t| own.iter().any(|o| subject::overlaps(o.as_bytes(), t.as_bytes())));
        if collide {
            return Err(ErrorCode::WorkQueueConsumerNotUnique.error());
        }
    }
    Ok(())
}
