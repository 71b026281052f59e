//! What each stream must be.

use std::time::Duration;

use windjet_protocol::jetstream::{DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StreamConfig};

use crate::nats::finding::Findings;
use crate::nats::text::format_duration;
use crate::nats::{METADATA_PARTITION, METADATA_PARTITIONS, METADATA_SHARDS, Topology};

pub(super) fn partition(topology: &Topology, partition: u32, config: &StreamConfig, findings: &mut Findings) {
    let object = format!("stream {}", config.name);
    let mut required = |bad: bool, field, problem: String| {
        if bad {
            findings.required(&object, field, problem);
        }
    };
    let subjects = topology.partition_subjects(partition);
    required(
        !config.subjects.contains(&subjects),
        "subjects",
        format!("{:?}; must have {subjects}", config.subjects),
    );
    let work_queue = config.retention == RetentionPolicy::WorkQueue;
    required(
        !work_queue,
        "retention",
        format!("{:?}; use workqueue", config.retention),
    );
    let (source, destination) = (topology.republish_source(partition), topology.history_subjects());
    let republishes = config.republish.as_ref().is_some_and(|republish| {
        republish.src == source && republish.dest == destination && !republish.headers_only
    });
    required(
        !republishes,
        "republish",
        format!("must republish {source} to {destination}, with bodies"),
    );
    required(
        config.discard != DiscardPolicy::New,
        "discard",
        "old drops unwritten rows; use new".into(),
    );
    required(
        config.max_bytes <= 0,
        "max_bytes",
        "not set; without a limit it fills the file store".into(),
    );
    required(
        !config.max_age.is_zero(),
        "max_age",
        "set, and drops unwritten rows; use 0".into(),
    );
    required(
        config.storage != StorageType::File,
        "storage",
        "memory; use file".into(),
    );
    let window = config.duplicate_window.to_std();
    for (needed, why) in [
        (Some(topology.min_duplicate_window()), "all attempts of a publish"),
        (
            topology.dedupe_window(),
            "a publish whose claim was left to lapse",
        ),
    ] {
        if let Some(needed) = needed.filter(|needed| window < *needed) {
            let (window, needed) = (format_duration(window), format_duration(needed));
            required(
                true,
                "duplicate_window",
                format!("{window}; {needed} or more covers {why}"),
            );
        }
    }
    required(
        config.no_ack,
        "no_ack",
        "set, and publishes are not confirmed; unset it".into(),
    );
    required(config.sealed, "sealed", "set, and nothing can be stored".into());
    required(
        config.mirror.is_some(),
        "mirror",
        "a mirror cannot be published to".into(),
    );
    let per_subject = config.max_msgs_per_subject > 0;
    let refuses = config.discard_new_per_subject;
    required(
        per_subject && !refuses,
        "discard_new_per_subject",
        "unset with max_msgs_per_subject, which then drops unwritten rows".into(),
    );
    required(
        config.persist_mode == PersistMode::Async,
        "persist_mode",
        "async confirms what is not on disk; use default".into(),
    );
    let number = partition.to_string();
    let expected = [
        ("metadata", METADATA_PARTITION, number),
        ("metadata", METADATA_PARTITIONS, topology.partitions.to_string()),
        ("metadata", METADATA_SHARDS, topology.shards.to_string()),
    ];
    for (field, key, expected) in &expected {
        if let Some(value) = config.metadata.get(*key).filter(|value| *value != expected) {
            required(
                true,
                field,
                format!("{key} is {value}, and this process is configured with {expected}"),
            );
        }
    }

    if !per_subject {
        let problem = "not set; one topic can fill the partition for all its tenants";
        findings.recommended(&object, "max_msgs_per_subject", problem);
    }
    if !(config.deny_purge && config.deny_delete) {
        let problem = "deny_purge or deny_delete unset; unwritten rows can be removed by hand";
        findings.recommended(&object, "deny_purge", problem);
    }
    match config.num_replicas {
        ..=1 => {
            let problem = "1: rows are on one disk, and safe only with its server's sync_interval; use 3";
            findings.recommended(&object, "num_replicas", problem);
        }
        2 => findings.recommended(&object, "num_replicas", "2 stops at the loss of either; use 3"),
        _ => {}
    }
    let named = [METADATA_PARTITION, METADATA_PARTITIONS];
    if named.iter().any(|key| !config.metadata.contains_key(*key)) {
        let problem = format!(
            "{METADATA_PARTITION} or {METADATA_PARTITIONS} missing; a wrong count then goes unnoticed"
        );
        findings.recommended(&object, "metadata", problem);
    }
    if !config.metadata.contains_key(METADATA_SHARDS) {
        let problem = format!("{METADATA_SHARDS} missing; a wrong count then goes unnoticed");
        findings.recommended(&object, "metadata", problem);
    }
}

pub(super) fn history(topology: &Topology, config: &StreamConfig, findings: &mut Findings) {
    let object = format!("stream {}", config.name);
    let subjects = topology.history_subjects();
    if config.subjects != [subjects.as_str()] {
        findings.required(
            &object,
            "subjects",
            format!("{:?}; must be {subjects} alone", config.subjects),
        );
    }
    if config.mirror.is_some() || !config.sources.is_empty() {
        findings.required(
            &object,
            "sources",
            "set; only the partitions may feed the history",
        );
    }
    if config.retention != RetentionPolicy::Limits {
        findings.required(
            &object,
            "retention",
            format!("{:?}; use limits", config.retention),
        );
    }
    if config.max_age.to_std() == Duration::ZERO {
        findings.required(&object, "max_age", "not set; the history grows without end");
    }
    if config.discard != DiscardPolicy::Old {
        findings.recommended(&object, "discard", "new loses the newest rows when full; use old");
    }
    if config.max_bytes <= 0 {
        findings.recommended(&object, "max_bytes", "not set; only max_age bounds the history");
    }
    replicas(&object, config, findings);
}

pub(super) fn dead_letters(topology: &Topology, config: &StreamConfig, findings: &mut Findings) {
    let object = format!("stream {}", config.name);
    let subjects = topology.dead_letter_subjects();
    if !config.subjects.contains(&subjects) {
        findings.required(
            &object,
            "subjects",
            format!("{:?}; must have {subjects}", config.subjects),
        );
    }
    if config.retention != RetentionPolicy::Limits {
        findings.required(
            &object,
            "retention",
            format!("{:?}; use limits", config.retention),
        );
    }
    if config.discard != DiscardPolicy::Old {
        findings.required(
            &object,
            "discard",
            "new refuses to park when full, and ingest stops; use old",
        );
    }
    if config.storage != StorageType::File {
        findings.required(&object, "storage", "memory; use file");
    }
    if config.max_bytes <= 0 {
        findings.required(
            &object,
            "max_bytes",
            "not set; without a limit it fills the file store",
        );
    }
    if config.max_msgs_per_subject <= 0 {
        findings.recommended(
            &object,
            "max_msgs_per_subject",
            "not set; one topic can push out all others",
        );
    }
    if config.persist_mode == PersistMode::Async {
        findings.recommended(
            &object,
            "persist_mode",
            "async confirms what is not on disk; use default",
        );
    }
    replicas(&object, config, findings);
}

pub(super) fn bucket(bucket: &str, config: &StreamConfig, findings: &mut Findings) {
    let object = format!("kv bucket {bucket}");
    if config.max_msgs_per_subject < 1 {
        findings.required(&object, "history", "not set; 1 is enough");
    }
    if !config.allow_direct {
        findings.required(&object, "allow_direct", "unset; leases are read by direct get");
    }
    if !config.max_age.is_zero() {
        findings.required(&object, "ttl", "set, and a lease that is held vanishes; use none");
    }
    if config.storage != StorageType::File {
        findings.recommended(&object, "storage", "memory; use file");
    }
    replicas(&object, config, findings);
}

fn replicas(object: &str, config: &StreamConfig, findings: &mut Findings) {
    if config.num_replicas < 3 {
        findings.recommended(object, "num_replicas", format!("{}; use 3", config.num_replicas));
    }
}
