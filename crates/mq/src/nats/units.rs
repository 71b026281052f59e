//! The units of the ingest queue: one shard of one partition each.

use std::fmt;

use super::api::{Api, ApiFailure};
use super::topology::Topology;

/// One shard's durable on one stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unit {
    pub(crate) stream: String,
    pub(crate) durable: String,
}

impl Unit {
    pub(crate) fn new(stream: &str, durable: &str) -> Self {
        Self {
            stream: stream.to_owned(),
            durable: durable.to_owned(),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.durable)
    }
}

/// What lies outside of the configured partitions and shards.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Shards' durables, in the order of streams and shards.
    pub(crate) units: Vec<Unit>,
    /// Streams of ingest subjects that are no configured partition and have no shard's durable.
    pub(crate) undrained: Vec<String>,
}

/// Reads what lies outside; `configured` are the streams of the partitions, in order.
pub(crate) async fn outside(
    api: &Api,
    topology: &Topology,
    configured: &[String],
) -> Result<Outside, ApiFailure> {
    let mut outside = Outside::default();
    let mut streams = api.stream_names(&format!("{}.ingest.>", topology.prefix)).await?;
    streams.sort();
    for stream in streams {
        let is_partition = configured.contains(&stream);
        let names = match api.consumer_names(&stream).await {
            Ok(names) => names,
            // Deleted in between.
            Err(failure) if failure.is_gone() => continue,
            Err(failure) => return Err(failure),
        };
        let mut shards: Vec<_> = names
            .iter()
            .filter_map(|name| topology.parse_shard_durable(name))
            .collect();
        shards.sort_unstable();
        if shards.is_empty() && !is_partition {
            outside.undrained.push(stream);
            continue;
        }
        let extra = shards
            .into_iter()
            .filter(|&shard| !is_partition || shard >= topology.shards);
        outside
            .units
            .extend(extra.map(|shard| Unit::new(&stream, &topology.shard_durable(shard))));
    }
    Ok(outside)
}
