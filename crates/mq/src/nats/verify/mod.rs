//! Checks the operator's topology, every difference at once.
//!
//! The tables of what is needed are in [`stream`] and [`consumer`]: pure functions of what the server reports. [`verify`]
//! asks the server and calls them. What is missing is a finding; an error is a check that could not be made.

mod consumer;
mod probe;
mod server;
mod stream;

use futures_util::{StreamExt as _, TryStreamExt as _};
use windjet_protocol::jetstream::{ConsumerInfo, StreamInfo};

pub(crate) use self::probe::Probe;
use super::api::{Api, ApiFailure};
use super::finding::{Finding, Findings};
use super::topology::Topology;
use super::units::{self, Unit};

/// Requests under way at once.
const PARALLEL: usize = 32;

/// Compares what is there with what is needed. With a probe it also tries whether the user may pull from each durable.
pub(crate) async fn verify(
    api: &Api,
    topology: &Topology,
    probe: Option<Probe<'_>>,
) -> Result<Vec<Finding>, ApiFailure> {
    let mut findings = Findings::default();
    server::check(&api.client().server_info().version, &mut findings);
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for partition in 0..topology.partitions {
        let probe_subject = format!("{}.ingest.{partition}.x", topology.prefix);
        let object = format!("ingest partition {partition}");
        let Some(info) = holder(api, &probe_subject, &object, &mut findings).await? else {
            continue;
        };
        let name = info.config.name.clone();
        if seen.contains(&name) {
            let problem =
                format!("also holds partition {partition}; give each partition a stream of its own");
            findings.required(&format!("stream {name}"), "subjects", problem);
        }
        stream::partition(topology, partition, &info.config, &mut findings);
        for (shard, durable) in durables(api, topology, &name).await? {
            let unit = Unit::new(&name, &topology.shard_durable(shard));
            match durable {
                Some(info) => {
                    if consumer::check(topology, partition, shard, &unit, &info, &mut findings) {
                        found.push(unit);
                    }
                }
                None => findings.required(&format!("consumer {unit}"), "durable_name", "does not exist"),
            }
        }
        seen.push(name);
    }
    extras(api, topology, &seen, &mut findings).await?;
    if let Some(probe) = probe {
        probe.run(api, topology, &found, &mut findings).await?;
    }
    let history = topology.history_stream();
    match api.stream(&history).await? {
        Some(info) => stream::history(topology, &info.config, &mut findings),
        None => findings.required(&format!("stream {history}"), "name", "does not exist"),
    }
    let probe_subject = format!("{}.dlq.x", topology.prefix);
    if let Some(info) = holder(api, &probe_subject, "dead-letter stream", &mut findings).await? {
        stream::dead_letters(topology, &info.config, &mut findings);
    }
    if let Some(bucket) = &topology.coord_bucket {
        match api.stream(&format!("KV_{bucket}")).await? {
            Some(info) => stream::bucket(bucket, &info.config, &mut findings),
            None => findings.required(&format!("kv bucket {bucket}"), "bucket", "does not exist"),
        }
    }
    Ok(findings.sorted())
}

/// The one stream that holds a subject.
async fn holder(
    api: &Api,
    subject: &str,
    object: &str,
    findings: &mut Findings,
) -> Result<Option<StreamInfo>, ApiFailure> {
    let names = api.stream_names(subject).await?;
    let [name] = names.as_slice() else {
        findings.required(
            object,
            "subjects",
            if names.is_empty() {
                format!("no stream holds {subject}")
            } else {
                format!("several streams hold {subject}: {}; one must", names.join(", "))
            },
        );
        return Ok(None);
    };
    let info = api.stream(name).await?;
    if info.is_none() {
        findings.required(&format!("stream {name}"), "name", "is listed and does not exist");
    }
    Ok(info)
}

/// Every shard's durable on a stream.
async fn durables(
    api: &Api,
    topology: &Topology,
    stream: &str,
) -> Result<Vec<(u32, Option<ConsumerInfo>)>, ApiFailure> {
    let infos = futures_util::stream::iter(0..topology.shards).map(|shard| async move {
        match api.consumer(stream, &topology.shard_durable(shard)).await {
            Ok(info) => Ok((shard, Some(info))),
            Err(failure) if failure.is_gone() => Ok((shard, None)),
            Err(failure) => Err(failure),
        }
    });
    infos.buffered(PARALLEL).try_collect().await
}

/// What is outside of the configured partitions and shards and still holds rows.
async fn extras(
    api: &Api,
    topology: &Topology,
    configured: &[String],
    findings: &mut Findings,
) -> Result<(), ApiFailure> {
    let outside = units::outside(api, topology, configured).await?;
    for unit in outside.units {
        let info = match api.consumer(&unit.stream, &unit.durable).await {
            Ok(info) => info,
            Err(failure) if failure.is_gone() => continue,
            Err(failure) => return Err(failure),
        };
        let rows = info.num_pending + info.num_ack_pending;
        let problem =
            format!("outside of the configured partitions and shards; drain its {rows} rows, then delete it");
        findings.recommended(&format!("consumer {unit}"), "durable_name", problem);
    }
    for stream in outside.undrained {
        let rows = api.stream(&stream).await?.map_or(0, |info| info.state.messages);
        let problem = format!("no configured partition, and nothing drains its {rows} rows");
        findings.recommended(&format!("stream {stream}"), "subjects", problem);
    }
    Ok(())
}
