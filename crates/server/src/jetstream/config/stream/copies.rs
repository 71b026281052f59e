//! The rules of mirrors and sources.
//!
//! An origin need not exist; what is known of it is respected. Circles are refused when a subject could go round for
//! ever, and only then: two ways from one origin to one stream are fine here, while nats-server takes them for a circle.

use std::collections::HashMap;
use std::sync::Arc;

use windjet_protocol::jetstream::{
    ApiError, ErrorCode, StreamConfig, StreamName, StreamSource, SubjectTransform,
};
use windjet_protocol::subject;
use windjet_protocol::transform::{Transform, TransformError};

use super::{Streams, invalid};

const API: &str = "$JS.API";

/// The codes under which the same mistakes are reported for a mirror and for a source.
struct Codes {
    name: ErrorCode,
    filters: ErrorCode,
    transform_source: ErrorCode,
    transform_destination: ErrorCode,
    overlap: ErrorCode,
    size: ErrorCode,
    consumer: ErrorCode,
}

const MIRROR: Codes = Codes {
    name: ErrorCode::MirrorNameInvalid,
    filters: ErrorCode::MirrorMultipleFilters,
    transform_source: ErrorCode::MirrorTransformSourceInvalid,
    transform_destination: ErrorCode::MirrorTransformDestinationInvalid,
    overlap: ErrorCode::MirrorFiltersOverlap,
    size: ErrorCode::MirrorMessageSizeTooSmall,
    consumer: ErrorCode::MirrorConsumerInvalid,
};

const SOURCE: Codes = Codes {
    name: ErrorCode::SourceNameInvalid,
    filters: ErrorCode::SourceMultipleFilters,
    transform_source: ErrorCode::SourceTransformSourceInvalid,
    transform_destination: ErrorCode::SourceTransformDestinationInvalid,
    overlap: ErrorCode::SourceFiltersOverlap,
    size: ErrorCode::SourceMessageSizeTooSmall,
    consumer: ErrorCode::SourceConsumerInvalid,
};

/// Checks mirror and sources, and takes over whether the origin of a mirror answers direct gets.
pub(super) fn check(
    config: &mut StreamConfig,
    pedantic: bool,
    streams: &dyn Streams,
) -> Result<(), ApiError> {
    if let Some(mirror) = &config.mirror {
        check_mirror(config, mirror, streams)?;
        let origin = mirror
            .external
            .is_none()
            .then(|| streams.config(&mirror.name))
            .flatten();
        if let Some(origin) = origin {
            if pedantic && config.mirror_direct != origin.allow_direct {
                return Err(
                    ErrorCode::Pedantic.with("origin stream has direct get set, mirror has it disabled")
                );
            }
            config.mirror_direct = origin.allow_direct;
        }
    }
    check_sources(config, streams)?;
    if has_cycle(config, streams) {
        return Err(invalid("detected cycle"));
    }
    Ok(())
}

fn check_mirror(config: &StreamConfig, mirror: &StreamSource, streams: &dyn Streams) -> Result<(), ApiError> {
    let refused = [
        (config.first_seq > 0, ErrorCode::MirrorWithFirstSequence),
        (!config.subjects.is_empty(), ErrorCode::MirrorWithSubjects),
        (!config.sources.is_empty(), ErrorCode::MirrorWithSources),
        (config.allow_msg_counter, ErrorCode::MirrorWithCounters),
        (config.allow_atomic, ErrorCode::MirrorWithAtomicPublish),
        (config.allow_batched, ErrorCode::MirrorWithBatchPublish),
        (config.allow_msg_schedules, ErrorCode::MirrorWithSchedules),
    ];
    if let Some((_, code)) = refused.iter().find(|(refused, _)| *refused) {
        return Err(code.error());
    }
    check_filters(mirror, &MIRROR)?;
    if config.subject_delete_marker_ttl.is_positive() {
        return Err(invalid("subject delete markers forbidden on mirrors"));
    }
    check_transforms(mirror, &MIRROR)?;
    check_origin(config, mirror, &MIRROR, streams)?;
    if !valid_filter(mirror) {
        let text = format!(
            "subject filter '{}' for the mirror invalid subject",
            mirror.filter_subject
        );
        return Err(ErrorCode::StreamCreateFailed.with(text));
    }
    check_consumer(mirror, &MIRROR)
}

fn check_sources(config: &StreamConfig, streams: &dyn Streams) -> Result<(), ApiError> {
    if !config.sources.is_empty() && config.allow_msg_schedules {
        return Err(ErrorCode::SourceWithSchedules.error());
    }
    for (at, source) in config.sources.iter().enumerate() {
        StreamName::new(&source.name).map_err(|_| SOURCE.name.error())?;
        let same = |other: &StreamSource| {
            (
                &other.name,
                &other.external,
                &other.filter_subject,
                &other.subject_transforms,
            ) == (
                &source.name,
                &source.external,
                &source.filter_subject,
                &source.subject_transforms,
            )
        };
        if config.sources[..at].iter().any(same) {
            return Err(ErrorCode::SourceDuplicate.error());
        }
        check_filters(source, &SOURCE)?;
        check_transforms(source, &SOURCE)?;
        check_origin(config, source, &SOURCE, streams)?;
        if !valid_filter(source) {
            let text = format!(
                "subject filter '{}' for the source: invalid subject",
                source.filter_subject
            );
            return Err(ErrorCode::StreamCreateFailed.with(text));
        }
        check_consumer(source, &SOURCE)?;
        let shared = |other: &StreamSource| {
            source.consumer.is_some() && (&other.name, &other.consumer) == (&source.name, &source.consumer)
        };
        if config.sources[..at].iter().any(shared) {
            return Err(ErrorCode::SourceConsumerDuplicate.error());
        }
    }
    Ok(())
}

fn valid_filter(source: &StreamSource) -> bool {
    source.filter_subject.is_empty() || subject::is_valid_subscription(source.filter_subject.as_bytes())
}

fn check_filters(source: &StreamSource, codes: &Codes) -> Result<(), ApiError> {
    if !source.filter_subject.is_empty() && !source.subject_transforms.is_empty() {
        return Err(codes.filters.error());
    }
    Ok(())
}

fn check_transforms(source: &StreamSource, codes: &Codes) -> Result<(), ApiError> {
    let transforms = &source.subject_transforms;
    for (at, SubjectTransform { src, dest }) in transforms.iter().enumerate() {
        if !src.is_empty() && !subject::is_valid_subscription(src.as_bytes()) {
            let subject = src.clone();
            return Err(codes.transform_source.with(TransformError::Source { subject }));
        }
        if !dest.is_empty() {
            Transform::new(src, dest).map_err(|error| codes.transform_destination.with(error))?;
        }
        let collides = |other: &SubjectTransform| {
            subject::overlaps(pattern(src).as_bytes(), pattern(&other.src).as_bytes())
        };
        if transforms[..at].iter().any(collides) {
            return Err(codes.overlap.error());
        }
    }
    Ok(())
}

fn check_origin(
    config: &StreamConfig,
    source: &StreamSource,
    codes: &Codes,
    streams: &dyn Streams,
) -> Result<(), ApiError> {
    if let Some(external) = &source.external {
        let deliver = &external.deliver;
        if subject::has_wildcards(deliver.as_bytes()) {
            return Err(ErrorCode::ExternalDeliverWildcard.with(deliver));
        }
        // As in nats-server it is the subjects of our own stream of the origin's name that are looked at.
        let local = streams.config(&source.name).filter(|_| !deliver.is_empty());
        let taken = |subject: &&String| {
            subject::overlaps(subject.as_bytes(), format!("{deliver}.{subject}").as_bytes())
        };
        if let Some(subject) = local.as_ref().and_then(|local| local.subjects.iter().find(taken)) {
            return Err(ErrorCode::ExternalDeliverOverlap.fill(&[deliver, subject]));
        }
        if subject::overlaps(external.api.as_bytes(), API.as_bytes()) {
            return Err(ErrorCode::ExternalApiOverlap.fill(&[&external.api, &API]));
        }
        return Ok(());
    }
    StreamName::new(&source.name).map_err(|_| codes.name.error())?;
    let Some(origin) = streams.config(&source.name) else {
        return Ok(());
    };
    if config.max_msg_size > 0 && origin.max_msg_size > config.max_msg_size {
        return Err(codes.size.error());
    }
    Ok(())
}

fn check_consumer(source: &StreamSource, codes: &Codes) -> Result<(), ApiError> {
    let Some(consumer) = &source.consumer else {
        return Ok(());
    };
    let selective = source.opt_start_seq > 0
        || source.opt_start_time.is_some()
        || !source.filter_subject.is_empty()
        || !source.subject_transforms.is_empty();
    let named = StreamName::new(&consumer.name).is_ok();
    if selective || !named || !subject::is_literal(consumer.deliver_subject.as_bytes()) {
        return Err(codes.consumer.error());
    }
    Ok(())
}

fn pattern(subject: &str) -> &str {
    if subject.is_empty() { ">" } else { subject }
}

/// The narrower of two patterns that overlap; where neither holds the other, one that holds what both match.
fn narrow<'p>(wanted: &'p str, offered: &'p str) -> &'p str {
    if subject::is_subset(wanted.as_bytes(), offered.as_bytes()) {
        wanted
    } else {
        offered
    }
}

/// A pattern of all subjects that a destination can give.
fn outcome(destination: &str) -> String {
    let mut tokens = Vec::new();
    for token in destination.split('.') {
        if token == ">" || token.starts_with("{{") {
            // A function may give several tokens.
            tokens.push(">");
            break;
        }
        tokens.push(if token.starts_with('$') { "*" } else { token });
    }
    tokens.join(".")
}

/// Where messages that a stream stores under `wanted` may come from: origins and their stored subjects.
fn upstream(config: &StreamConfig, wanted: &str) -> Vec<(String, String)> {
    let mut before = vec![wanted.to_owned()];
    if let Some(transform) = config.subject_transform.as_ref().filter(|t| !t.dest.is_empty())
        && subject::overlaps(outcome(&transform.dest).as_bytes(), wanted.as_bytes())
    {
        before.push(pattern(&transform.src).to_owned());
    }
    let origins = config
        .mirror
        .iter()
        .chain(&config.sources)
        .filter(|source| source.external.is_none());
    let mut found = Vec::new();
    for source in origins {
        let filter = SubjectTransform {
            src: source.filter_subject.clone(),
            dest: String::new(),
        };
        let rules = if source.subject_transforms.is_empty() {
            std::slice::from_ref(&filter)
        } else {
            &source.subject_transforms
        };
        for wanted in &before {
            for rule in rules {
                let src = pattern(&rule.src);
                if rule.dest.is_empty() {
                    if subject::overlaps(src.as_bytes(), wanted.as_bytes()) {
                        found.push((source.name.clone(), narrow(wanted, src).to_owned()));
                    }
                } else if subject::overlaps(outcome(&rule.dest).as_bytes(), wanted.as_bytes()) {
                    found.push((source.name.clone(), src.to_owned()));
                }
            }
        }
    }
    found
}

/// Whether some subject can go round for ever: a way back from the stream to a state it came from.
fn has_cycle(config: &StreamConfig, streams: &dyn Streams) -> bool {
    if config.mirror.is_none() && config.sources.is_empty() {
        return false;
    }
    let own = Arc::new(config.clone());
    let origins = |(name, wanted): &(String, String)| {
        let config = if *name == own.name {
            Some(own.clone())
        } else {
            streams.config(name)
        };
        config.map(|config| upstream(&config, wanted)).unwrap_or_default()
    };
    // Depth first without recursion; `true` marks the states on the way to the present one.
    let start = (config.name.clone(), ">".to_owned());
    let mut states = HashMap::from([(start.clone(), true)]);
    let mut path = vec![(start.clone(), origins(&start))];
    while let Some((state, rest)) = path.last_mut() {
        let Some(next) = rest.pop() else {
            states.insert(state.clone(), false);
            path.pop();
            continue;
        };
        match states.get(&next) {
            Some(true) => return true,
            Some(false) => {}
            None => {
                states.insert(next.clone(), true);
                let origins = origins(&next);
                path.push((next, origins));
            }
        }
    }
    false
}
