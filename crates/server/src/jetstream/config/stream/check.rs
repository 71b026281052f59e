//! The rules of a configuration by itself, in the order of nats-server.

use windjet_protocol::jetstream::level::{METADATA_BYTES_MAX, metadata_bytes};
use windjet_protocol::jetstream::stream::requests::StreamConfigRequest;
use windjet_protocol::jetstream::{
    ApiError, DiscardPolicy, ErrorCode, InvalidName, Nanos, PersistMode, RetentionPolicy, StorageType,
    StreamConfig, StreamName,
};
use windjet_protocol::subject;
use windjet_protocol::transform::{Transform, TransformError};

use super::{Rules, copies, invalid, limits};
use crate::router::TOKENS_MAX;

const DESCRIPTION_MAX: usize = 4096;
const REPLICAS_MAX: i64 = 5;
const SHORTEST: Nanos = Nanos::from_millis(100);

/// The configuration with its defaults, checked and stamped.
pub(super) fn normalised(request: StreamConfigRequest, rules: &Rules<'_>) -> Result<StreamConfig, ApiError> {
    let asked = request.config;
    check_sizes(&asked)?;
    let mut config = asked.clone();
    let corrections = config.fill_defaults(rules.window_max);
    if let Some(correction) = corrections.first().filter(|_| request.pedantic) {
        return Err(ErrorCode::Pedantic.with(correction));
    }
    check_times(&config, rules)?;
    if config.deny_purge && config.allow_rollup_hdrs {
        return Err(invalid("roll-ups require the purge permission"));
    }
    // Counters are refused message times that were asked for, not those that follow from markers.
    check_counter(&asked)?;
    check_discard(&config)?;
    check_markers(&asked, request.pedantic)?;
    check_schedules(&asked, request.pedantic)?;
    check_persistence(&config)?;
    copies::check(&mut config, request.pedantic, rules.streams)?;
    check_subjects(&config)?;
    limits::check_bytes(&config, &rules.bounds)?;
    check_transform(&config)?;
    check_republish(&config)?;
    if config.placement.as_ref().is_some_and(|p| !p.preferred.is_empty()) {
        return Err(invalid("preferred server not permitted in placement"));
    }
    if config.num_replicas > 1 {
        return Err(ErrorCode::ReplicasNotSupported.error());
    }
    super::stamp(&mut config);
    Ok(config)
}

fn check_sizes(config: &StreamConfig) -> Result<(), ApiError> {
    // Path separators have an error of their own where a request names the stream in its subject, not here.
    StreamName::new(&config.name).map_err(|error| match error {
        InvalidName::PathSeparator => InvalidName::Character.stream_error(),
        error => error.stream_error(),
    })?;
    if config.description.len() > DESCRIPTION_MAX {
        return Err(invalid(format_args!(
            "stream description is too long, maximum allowed is {DESCRIPTION_MAX}"
        )));
    }
    if metadata_bytes(&config.metadata) > METADATA_BYTES_MAX {
        return Err(invalid(format_args!(
            "stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes"
        )));
    }
    if config.num_replicas > REPLICAS_MAX {
        return Err(invalid(format_args!("maximum replicas is {REPLICAS_MAX}")));
    }
    if config.num_replicas < 0 {
        return Err(ErrorCode::ReplicasNegative.error());
    }
    Ok(())
}

fn check_times(config: &StreamConfig, rules: &Rules<'_>) -> Result<(), ApiError> {
    let (age, window) = (config.max_age, config.duplicate_window);
    if age.is_negative() {
        return Err(invalid("max age can not be negative"));
    }
    if age.is_positive() && age < SHORTEST {
        return Err(invalid("max age needs to be >= 100ms"));
    }
    if window.is_negative() {
        return Err(invalid("duplicates window can not be negative"));
    }
    if age.is_positive() && window > age {
        return Err(invalid("duplicates window can not be larger then max age"));
    }
    if let Some(max) = rules.window_max.filter(|max| max.is_positive() && window > *max) {
        return Err(invalid(format_args!(
            "duplicates window can not be larger then server limit of {max}"
        )));
    }
    if window.is_positive() && window < SHORTEST {
        return Err(invalid("duplicates window needs to be >= 100ms"));
    }
    Ok(())
}

fn check_counter(config: &StreamConfig) -> Result<(), ApiError> {
    if !config.allow_msg_counter {
        return Ok(());
    }
    let refused = [
        (
            config.discard == DiscardPolicy::New,
            "counter stream cannot use discard new",
        ),
        (config.allow_msg_ttl, "counter stream cannot use message TTLs"),
        (
            config.allow_msg_schedules,
            "counter stream cannot use message schedules",
        ),
        (
            config.retention != RetentionPolicy::Limits,
            "counter stream can only use limits retention",
        ),
    ];
    match refused.iter().find(|(refused, _)| *refused) {
        Some((_, text)) => Err(invalid(text)),
        None => Ok(()),
    }
}

fn check_discard(config: &StreamConfig) -> Result<(), ApiError> {
    if !config.discard_new_per_subject {
        return Ok(());
    }
    if config.discard != DiscardPolicy::New {
        return Err(invalid(
            "discard new per subject requires discard new policy to be set",
        ));
    }
    if config.max_msgs_per_subject <= 0 {
        return Err(invalid(
            "discard new per subject requires max msgs per subject > 0",
        ));
    }
    Ok(())
}

fn check_markers(asked: &StreamConfig, pedantic: bool) -> Result<(), ApiError> {
    let ttl = asked.subject_delete_marker_ttl;
    if ttl.is_negative() {
        return Err(invalid("subject delete marker TTL must not be negative"));
    }
    if ttl.is_positive() && ttl < Nanos::from_secs(1) {
        return Err(invalid("subject delete marker TTL must be at least 1 second"));
    }
    if pedantic && ttl.is_positive() && !asked.allow_msg_ttl {
        return Err(invalid(
            "subject delete marker cannot be set if message TTLs are disabled",
        ));
    }
    if pedantic && ttl.is_positive() && !asked.allow_rollup_hdrs {
        return Err(invalid(
            "subject delete marker cannot be set if roll-ups are disabled",
        ));
    }
    Ok(())
}

fn check_schedules(asked: &StreamConfig, pedantic: bool) -> Result<(), ApiError> {
    if !asked.allow_msg_schedules {
        return Ok(());
    }
    if asked.discard == DiscardPolicy::New {
        return Err(invalid("message scheduling cannot use discard new"));
    }
    if pedantic && !asked.allow_rollup_hdrs {
        return Err(invalid(
            "message scheduling cannot be set if roll-ups are disabled",
        ));
    }
    Ok(())
}

fn check_persistence(config: &StreamConfig) -> Result<(), ApiError> {
    if config.persist_mode != PersistMode::Async {
        return Ok(());
    }
    if config.storage != StorageType::File {
        return Err(invalid("async persist mode is only supported on file storage"));
    }
    if config.allow_atomic {
        return Err(invalid(
            "async persist mode is not supported with atomic batch publish",
        ));
    }
    Ok(())
}

fn check_subjects(config: &StreamConfig) -> Result<(), ApiError> {
    for (at, subject) in config.subjects.iter().enumerate() {
        let ours = subject.as_bytes();
        if !subject::is_valid_subscription(ours) {
            return Err(invalid("invalid subject"));
        }
        // They stand in tries that are walked a token at a time.
        if subject::token_count(ours) > TOKENS_MAX {
            return Err(invalid(format_args!(
                "a subject has more than {TOKENS_MAX} tokens"
            )));
        }
        if subject == ">" && !config.no_ack {
            return Err(invalid("capturing all subjects requires no-ack to be true"));
        }
        let overlaps = |theirs: &&[u8]| subject::overlaps(ours, theirs);
        let api = [b"$JS.>".as_slice(), b"$JSC.>", b"$NRG.>"].iter().any(overlaps);
        if !config.no_ack && api && !subject::is_subset(ours, b"$JS.EVENT.>") {
            return Err(invalid(
                "subjects that overlap with jetstream api require no-ack to be true",
            ));
        }
        if !config.no_ack
            && subject::overlaps(ours, b"$SYS.>")
            && !subject::is_subset(ours, b"$SYS.ACCOUNT.>")
        {
            return Err(invalid(
                "subjects that overlap with system api require no-ack to be true",
            ));
        }
        let earlier = config.subjects[..at]
            .iter()
            .find(|other| subject::overlaps(ours, other.as_bytes()));
        if let Some(earlier) = earlier {
            return Err(invalid(format_args!(
                "subject {earlier:?} overlaps with {subject:?}"
            )));
        }
    }
    Ok(())
}

fn check_transform(config: &StreamConfig) -> Result<(), ApiError> {
    let Some(transform) = &config.subject_transform else {
        return Ok(());
    };
    let bad_source = |error| ErrorCode::StreamTransformSourceInvalid.with(error);
    if !transform.src.is_empty() && !subject::is_valid_subscription(transform.src.as_bytes()) {
        let subject = transform.src.clone();
        return Err(bad_source(TransformError::Source { subject }));
    }
    if transform.dest.is_empty() {
        return Ok(());
    }
    match Transform::new(&transform.src, &transform.dest) {
        Ok(_) => Ok(()),
        Err(error @ TransformError::Source { .. }) => Err(bad_source(error)),
        Err(error) => Err(ErrorCode::StreamTransformDestinationInvalid.with(error)),
    }
}

fn check_republish(config: &StreamConfig) -> Result<(), ApiError> {
    let Some(republish) = &config.republish else {
        return Ok(());
    };
    let (from, to) = (&republish.src, &republish.dest);
    let cycle = |subject: &String| subject::overlaps(subject.as_bytes(), to.as_bytes());
    if config.subjects.iter().any(cycle) {
        return Err(invalid(
            "stream configuration for republish destination forms a cycle",
        ));
    }
    match Transform::new(from, to) {
        Ok(_) => Ok(()),
        Err(_) => Err(invalid(format_args!(
            "stream configuration for republish with transform from '{from}' to '{to}' not valid"
        ))),
    }
}
