//! The custom resources of nack, as far as the message queue uses them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::operator::Operator;

const API_VERSION: &str = "jetstream.nats.io/v1beta2";

/// One document of the manifests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Resource {
    api_version: String,
    kind: Kind,
    metadata: Metadata,
    spec: Value,
}

#[derive(Debug, Deserialize)]
enum Kind {
    Stream,
    Consumer,
    KeyValue,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StreamSpec {
    name: String,
    subjects: Vec<String>,
    retention: String,
    discard: String,
    #[serde(default)]
    discard_per_subject: bool,
    max_bytes: i64,
    max_msgs_per_subject: Option<i64>,
    max_age: Option<String>,
    storage: String,
    replicas: u32,
    duplicate_window: Option<String>,
    #[serde(default)]
    deny_purge: bool,
    #[serde(default)]
    deny_delete: bool,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[allow(dead_code, reason = "of the controller itself")]
    #[serde(default)]
    prevent_delete: bool,
    republish: Option<Republish>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Republish {
    source: String,
    destination: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConsumerSpec {
    stream_name: String,
    durable_name: String,
    deliver_policy: String,
    ack_policy: String,
    ack_wait: String,
    max_deliver: i64,
    max_ack_pending: i64,
    filter_subject: String,
    priority_policy: String,
    priority_groups: Vec<String>,
    pinned_ttl: String,
    #[allow(dead_code, reason = "of the controller itself")]
    prevent_delete: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyValueSpec {
    bucket: String,
    history: i64,
    storage: String,
    replicas: u32,
}

/// How many copies of each stream there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replicas {
    /// One, whatever is said.
    One,
    /// As the resource says.
    AsSaid,
}

impl Replicas {
    fn of(self, said: u32) -> u32 {
        match self {
            Self::One => 1,
            Self::AsSaid => said,
        }
    }
}

impl Resource {
    /// Reads a stream of documents.
    pub(super) fn read(text: &str) -> Result<Vec<Self>> {
        let resources: Vec<Self> =
            serde_saphyr::from_multiple(text).context("manifests are no YAML of resources")?;
        ensure!(!resources.is_empty(), "no resources in the manifests");
        for resource in &resources {
            let (version, name) = (&resource.api_version, &resource.metadata.name);
            ensure!(version == API_VERSION, "{name}: apiVersion {version}");
            let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            ensure!(
                name.bytes().all(allowed),
                "{name} is no name of a Kubernetes object"
            );
        }
        Ok(resources)
    }

    pub(super) fn apply(self, operator: &mut Operator, replicas: Replicas) -> Result<()> {
        let name = self.metadata.name;
        match self.kind {
            Kind::Stream => stream(serde_json::from_value(self.spec)?, operator, replicas),
            Kind::Consumer => consumer(&serde_json::from_value(self.spec)?, operator),
            Kind::KeyValue => key_value(&serde_json::from_value(self.spec)?, operator, replicas),
        }
        .with_context(|| format!("resource {name}"))
    }
}

fn stream(spec: StreamSpec, operator: &mut Operator, replicas: Replicas) -> Result<()> {
    let mut config = json!({
        "name": spec.name,
        "subjects": spec.subjects,
        "retention": spec.retention,
        "discard": spec.discard,
        "discard_new_per_subject": spec.discard_per_subject,
        "max_bytes": spec.max_bytes,
        "max_msgs_per_subject": spec.max_msgs_per_subject.unwrap_or(-1),
        "max_age": nanos(spec.max_age.as_deref())?,
        "storage": spec.storage,
        "num_replicas": replicas.of(spec.replicas),
        "duplicate_window": nanos(spec.duplicate_window.as_deref())?,
        "deny_purge": spec.deny_purge,
        "deny_delete": spec.deny_delete,
        "metadata": spec.metadata,
    });
    if let Some(republish) = spec.republish {
        config["republish"] = json!({ "src": republish.source, "dest": republish.destination });
    }
    operator.api(&format!("STREAM.CREATE.{}", spec.name), &config)?;
    Ok(())
}

fn consumer(spec: &ConsumerSpec, operator: &mut Operator) -> Result<()> {
    let config = json!({
        "durable_name": spec.durable_name,
        "name": spec.durable_name,
        "deliver_policy": spec.deliver_policy,
        "ack_policy": spec.ack_policy,
        "ack_wait": nanos(Some(&spec.ack_wait))?,
        "max_deliver": spec.max_deliver,
        "max_ack_pending": spec.max_ack_pending,
        "filter_subject": spec.filter_subject,
        "replay_policy": "instant",
        "priority_policy": spec.priority_policy,
        "priority_groups": spec.priority_groups,
        "priority_timeout": nanos(Some(&spec.pinned_ttl))?,
    });
    let call = format!(
        "CONSUMER.CREATE.{}.{}.{}",
        spec.stream_name, spec.durable_name, spec.filter_subject
    );
    operator.api(
        &call,
        &json!({ "stream_name": spec.stream_name, "config": config, "action": "create" }),
    )?;
    Ok(())
}

/// A bucket as client libraries make it.
fn key_value(spec: &KeyValueSpec, operator: &mut Operator, replicas: Replicas) -> Result<()> {
    let (bucket, history) = (&spec.bucket, spec.history);
    let config = json!({
        "name": format!("KV_{bucket}"),
        "subjects": [format!("$KV.{bucket}.>")],
        "max_msgs_per_subject": history,
        "storage": spec.storage,
        "num_replicas": replicas.of(spec.replicas),
        "discard": "new",
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "allow_direct": true,
        "max_bytes": -1,
    });
    operator.api(&format!("STREAM.CREATE.KV_{bucket}"), &config)?;
    Ok(())
}

/// Reads a duration as Go writes it; nothing is 0.
fn nanos(text: Option<&str>) -> Result<u64> {
    let Some(mut rest) = text else { return Ok(0) };
    let whole = rest;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number: f64 = rest[..end]
            .parse()
            .with_context(|| format!("duration {whole:?}"))?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            other => anyhow::bail!("duration {whole:?}: unit {other:?}"),
        };
        rest = &rest[end..];
        total += Duration::from_secs_f64(number * unit);
    }
    Ok(u64::try_from(total.as_nanos())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, millis) in [
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("15.5s", 15_500),
            ("250ms", 250),
            ("1h", 3_600_000),
        ] {
            assert_eq!(nanos(Some(text)).unwrap(), millis * 1_000_000, "{text}");
        }
        assert_eq!(nanos(None).unwrap(), 0);
        assert!(nanos(Some("5")).is_err() && nanos(Some("x")).is_err());
    }

    #[test]
    fn an_unknown_field_is_an_error() {
        let text = "---\napiVersion: jetstream.nats.io/v1beta2\nkind: KeyValue\nmetadata:\n  name: a\nspec:\n  bucket: b\n  extra: 1\n";
        let resource = Resource::read(text).unwrap().pop().unwrap();
        let spec: Result<KeyValueSpec, _> = serde_json::from_value(resource.spec);
        assert!(spec.is_err());
        assert!(Resource::read("a: 1\n").is_err());
    }
}
