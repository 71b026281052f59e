//! The operator's streams, consumers and bucket as custom resources of nack, the JetStream controller for Kubernetes.

use std::fmt::Write as _;
use std::time::Duration;

use super::topology::MIN_PINNED_TTL;
use super::{
    DEFAULT_FILE_STORE, METADATA_PARTITION, METADATA_PARTITIONS, METADATA_SHARDS, PRIORITY_GROUP, Topology,
    default_coord_bucket, format_duration, format_store_size,
};
use crate::{Error, ErrorKind};

/// Sizes of what [`write_manifests`] renders. The defaults are where to begin, not advice for any load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOptions {
    /// What to render.
    pub topology: Topology,
    /// Replicas of every stream. Default 3.
    pub replicas: u32,
    /// Each server's `max_file_store`. Servers reserve every stream's `max_bytes` and refuse one that does not fit, so
    /// all of them together must. Default 100 GiB.
    pub file_store: u64,
    /// Bytes of each partition: the backlog that its tenants share. `None`: 15% of the file store, whatever the number
    /// of partitions, so that lowering it never needs more room while the removed ones drain.
    pub partition_max_bytes: Option<u64>,
    /// Messages of one topic in a partition. Default 1,000,000.
    pub max_msgs_per_subject: u64,
    /// How far back a replay reaches: at least the longest gap that a client may have. Default 15 minutes.
    pub history_max_age: Duration,
    /// Bytes of the history. `None`: a tenth of the file store.
    pub history_max_bytes: Option<u64>,
    /// Bytes of the dead-letter stream. `None`: a twentieth of the file store.
    pub dlq_max_bytes: Option<u64>,
    /// Parked messages of one topic. Default 100,000.
    pub dlq_max_msgs_per_subject: u64,
    /// How long a shard's pin outlives its holder's last pull: at least 10 s, and below a lease's 15 s. Default 10 s.
    pub pinned_ttl: Duration,
}

impl Default for ManifestOptions {
    fn default() -> Self {
        Self {
            topology: Topology::default(),
            replicas: 3,
            file_store: DEFAULT_FILE_STORE,
            partition_max_bytes: None,
            max_msgs_per_subject: 1_000_000,
            history_max_age: Duration::from_secs(15 * 60),
            history_max_bytes: None,
            dlq_max_bytes: None,
            dlq_max_msgs_per_subject: 100_000,
            pinned_ttl: MIN_PINNED_TTL,
        }
    }
}

impl ManifestOptions {
    fn partition_bytes(&self) -> u64 {
        self.partition_max_bytes.unwrap_or(self.file_store / 100 * 15)
    }

    fn history_bytes(&self) -> u64 {
        self.history_max_bytes.unwrap_or(self.file_store / 10)
    }

    fn dlq_bytes(&self) -> u64 {
        self.dlq_max_bytes.unwrap_or(self.file_store / 20)
    }

    /// What a server reserves; saturates, and is then refused.
    fn reserved(&self) -> u64 {
        let partitions = self
            .partition_bytes()
            .saturating_mul(u64::from(self.topology.partitions));
        partitions
            .saturating_add(self.history_bytes())
            .saturating_add(self.dlq_bytes())
    }

    fn check(&self) -> Result<(), Error> {
        self.topology.check()?;
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if self.pinned_ttl < MIN_PINNED_TTL {
            let (ttl, min) = (format_duration(self.pinned_ttl), format_duration(MIN_PINNED_TTL));
            return refuse(format!(
                "pinned TTL {ttl}: at least {min}, or a holder that has nothing to do loses its pin"
            ));
        }
        let positive = [
            ("replicas", u64::from(self.replicas)),
            ("partition max bytes", self.partition_bytes()),
            ("history max bytes", self.history_bytes()),
            ("dlq max bytes", self.dlq_bytes()),
            ("max messages per subject", self.max_msgs_per_subject),
            ("dlq max messages per subject", self.dlq_max_msgs_per_subject),
            ("history max age", self.history_max_age.as_secs()),
        ];
        if let Some((what, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return refuse(format!("{what}: more than zero"));
        }
        if self.reserved() > self.file_store {
            return refuse(format!(
                "the streams reserve {} ({} partitions of {}, history {}, dlq {}), more than the {} file store",
                format_store_size(self.reserved()),
                self.topology.partitions,
                format_store_size(self.partition_bytes()),
                format_store_size(self.history_bytes()),
                format_store_size(self.dlq_bytes()),
                format_store_size(self.file_store),
            ));
        }
        Ok(())
    }

    /// The command that renders the same again.
    fn command(&self) -> String {
        let (topology, default) = (&self.topology, Topology::default());
        let mut command = format!(
            "windjet nats manifests --partitions {} --shards {} --prefix {} --replicas {} --file-store {}",
            topology.partitions,
            topology.shards,
            topology.prefix,
            self.replicas,
            format_store_size(self.file_store),
        );
        let mut flag = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                command.push_str(&format!(" --{name} {value}"));
            }
        };
        flag(
            "partition-max-bytes",
            self.partition_max_bytes.map(format_store_size),
        );
        let consumer = &topology.ingest_consumer;
        flag(
            "ingest-consumer",
            (*consumer != default.ingest_consumer).then(|| consumer.clone()),
        );
        flag("history-stream", topology.history_stream.clone());
        let timeout = topology.publish_timeout;
        flag(
            "publish-timeout",
            (timeout != default.publish_timeout).then(|| format_duration(timeout)),
        );
        let lease = topology.dedupe_lease;
        flag("dedupe-lease", (!lease.is_zero()).then(|| format_duration(lease)));
        let bucket = topology.coord_bucket.clone();
        flag(
            "coord-bucket",
            bucket.filter(|bucket| *bucket != default_coord_bucket(&topology.prefix)),
        );
        command
    }
}

/// Renders the topology as one stream of YAML documents.
///
/// # Errors
/// When the options contradict each other, or the streams do not fit into the file store.
pub fn write_manifests(options: &ManifestOptions) -> Result<String, Error> {
    options.check()?;
    let topology = &options.topology;
    let mut out = header(options);
    for partition in 0..topology.partitions {
        out.push_str(&partition_stream(options, partition));
        for shard in 0..topology.shards {
            out.push_str(&shard_consumer(options, partition, shard));
        }
    }
    let mut history = Resource::new("Stream", &format!("{}-history", topology.prefix));
    history
        .text("name", &topology.history_stream())
        .list("subjects", &[topology.history_subjects()])
        .plain("retention", "limits")
        .plain("discard", "old")
        .plain("maxBytes", options.history_bytes())
        .text("maxAge", &format_duration(options.history_max_age))
        .plain("storage", "file")
        .plain("replicas", options.replicas);
    let mut dlq = Resource::new("Stream", &format!("{}-dlq", topology.prefix));
    dlq.text("name", &topology.dead_letter_stream())
        .list("subjects", &[topology.dead_letter_subjects()])
        .plain("retention", "limits")
        .plain("discard", "old")
        .plain("maxBytes", options.dlq_bytes())
        .plain("maxMsgsPerSubject", options.dlq_max_msgs_per_subject)
        .plain("storage", "file")
        .plain("replicas", options.replicas);
    let mut bucket = Resource::new("KeyValue", &format!("{}-coord", topology.prefix));
    bucket
        .text("bucket", &topology.coord_bucket_name())
        .plain("history", 1)
        .plain("storage", "file")
        .plain("replicas", options.replicas);
    Ok(out + &history.0 + &dlq.0 + &bucket.0)
}

fn partition_stream(options: &ManifestOptions, partition: u32) -> String {
    let topology = &options.topology;
    let window = Duration::from_secs(120)
        .max(topology.min_duplicate_window())
        .max(topology.dedupe_window().unwrap_or_default());
    let mut stream = Resource::new("Stream", &format!("{}-ingest-{partition}", topology.prefix));
    stream
        .text("name", &topology.partition_stream(partition))
        .list("subjects", &[topology.partition_subjects(partition)])
        .plain("retention", "workqueue")
        .plain("discard", "new")
        .plain("discardPerSubject", true)
        .plain("maxBytes", options.partition_bytes())
        .plain("maxMsgsPerSubject", options.max_msgs_per_subject)
        .plain("storage", "file")
        .plain("replicas", options.replicas)
        .text("duplicateWindow", &format_duration(window))
        .plain("denyPurge", true)
        .plain("denyDelete", true)
        .map(
            "metadata",
            &[
                (METADATA_PARTITION, partition.to_string()),
                (METADATA_PARTITIONS, topology.partitions.to_string()),
                (METADATA_SHARDS, topology.shards.to_string()),
            ],
        )
        .plain("preventDelete", true)
        .map(
            "republish",
            &[
                ("source", topology.republish_source(partition)),
                ("destination", topology.history_subjects()),
            ],
        );
    stream.0
}

fn shard_consumer(options: &ManifestOptions, partition: u32, shard: u32) -> String {
    let topology = &options.topology;
    let name = format!("{}-ingest-{partition}-{shard}", topology.prefix);
    let mut consumer = Resource::new("Consumer", &name);
    consumer
        .text("streamName", &topology.partition_stream(partition))
        .text("durableName", &topology.shard_durable(shard))
        .plain("deliverPolicy", "all")
        .plain("ackPolicy", "explicit")
        .text("ackWait", &format_duration(topology.ack_wait))
        .plain("maxDeliver", -1)
        .plain("maxAckPending", topology.max_ack_pending)
        .text("filterSubject", &topology.shard_subjects(partition, shard))
        .plain("priorityPolicy", "pinned_client")
        .list("priorityGroups", &[PRIORITY_GROUP.to_owned()])
        .text("pinnedTtl", &format_duration(options.pinned_ttl))
        .plain("preventDelete", true);
    consumer.0
}

fn header(options: &ManifestOptions) -> String {
    let topology = &options.topology;
    format!(
        "\
# The JetStream topology of a message queue, as resources of nack. Generated; generate it anew instead of editing:
#   {command}
#
# {partitions} partition(s) with {shards} shard(s) each. The durable of shard s is {durable}-s on every partition.
# History: {history}. Leases: bucket {bucket}.
#
# Sized for a file store of {store} on each server: the streams reserve {reserved} of it, and JetStream refuses a
# stream that does not fit. Sizes are where to begin; change them to the load. The history's maximal age must cover
# the longest gap that a client may have between two connections. The order in which the resources are applied
# does not matter.
",
        command = options.command(),
        partitions = topology.partitions,
        shards = topology.shards,
        durable = topology.ingest_consumer,
        history = topology.history_stream(),
        bucket = topology.coord_bucket_name(),
        store = format_store_size(options.file_store),
        reserved = format_store_size(options.reserved()),
    )
}

/// One custom resource, written line by line.
struct Resource(String);

impl Resource {
    fn new(kind: &str, name: &str) -> Self {
        // Names in Kubernetes have no underscore; the prefix may.
        let name = name.replace('_', "-");
        Self(format!(
            "---\napiVersion: jetstream.nats.io/v1beta2\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n"
        ))
    }

    fn plain(&mut self, field: &str, value: impl std::fmt::Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "  {field}: {value}");
        self
    }

    fn text(&mut self, field: &str, value: &str) -> &mut Self {
        self.plain(field, quoted(value))
    }

    fn list(&mut self, field: &str, values: &[String]) -> &mut Self {
        let _ = writeln!(self.0, "  {field}:");
        for value in values {
            let _ = writeln!(self.0, "    - {}", quoted(value));
        }
        self
    }

    fn map(&mut self, field: &str, entries: &[(&str, String)]) -> &mut Self {
        let _ = writeln!(self.0, "  {field}:");
        for (name, value) in entries {
            let _ = writeln!(self.0, "    {name}: {}", quoted(value));
        }
        self
    }
}

/// All values are names, subjects, durations and numbers: nothing in them needs escaping.
pub(super) fn quoted(value: &str) -> String {
    format!("\"{value}\"")
}

#[cfg(test)]
mod tests {
    use windjet_testkit::page;

    use super::*;

    fn options(partitions: u32, shards: u32) -> ManifestOptions {
        ManifestOptions {
            topology: Topology {
                partitions,
                shards,
                ..Topology::default()
            },
            ..ManifestOptions::default()
        }
    }

    #[test]
    fn the_defaults_reserve_three_quarters_at_four_partitions_and_fit_up_to_five() {
        assert_eq!(options(4, 8).reserved(), 75 << 30);
        write_manifests(&options(5, 8)).unwrap();
        let error = write_manifests(&options(6, 8)).unwrap_err();
        assert!(error.is(ErrorKind::Invalid));
        let text =
            "reserve 105Gi (6 partitions of 15Gi, history 10Gi, dlq 5Gi), more than the 100Gi file store";
        assert!(error.to_string().contains(text), "{error}");
    }

    #[test]
    fn the_page_has_the_sizes() {
        let text = write_manifests(&options(4, 8)).unwrap();
        let page = page::rows(&page::read("mq-topology.md").unwrap(), "Sizes").unwrap();
        for row in &page[1..] {
            let resource = match row[0].split_once(" of ").map(|(_, of)| of) {
                None | Some("a partition") => "wh-ingest-3",
                Some("a durable") => "wh-ingest-3-7",
                Some("the history") => "wh-history",
                Some("dead letters") => "wh-dlq",
                Some("the bucket") => "wh-coord",
                Some(other) => panic!("{other}"),
            };
            let of = |document: &&str| document.contains(&format!("\n  name: {resource}\n"));
            let document = text.split("---\n").find(of).unwrap();
            let line = format!("\n  {}: {}\n", page::code(&row[0])[0], row[1]);
            assert!(document.contains(&line), "{line}{document}");
        }
        assert_eq!(page.len(), 13);
    }

    #[test]
    fn history_dead_letters_and_bucket_say_everything_that_is_checked() {
        let text = write_manifests(&options(4, 8)).unwrap();
        let rest = "\
---
apiVersion: jetstream.nats.io/v1beta2
kind: Stream
metadata:
  name: wh-history
spec:
  name: \"WH_HISTORY\"
  subjects:
    - \"wh.hist.>\"
  retention: limits
  discard: old
  maxBytes: 10737418240
  maxAge: \"15m\"
  storage: file
  replicas: 3
---
apiVersion: jetstream.nats.io/v1beta2
kind: Stream
metadata:
  name: wh-dlq
spec:
  name: \"WH_DLQ\"
  subjects:
    - \"wh.dlq.>\"
  retention: limits
  discard: old
  maxBytes: 5368709120
  maxMsgsPerSubject: 100000
  storage: file
  replicas: 3
---
apiVersion: jetstream.nats.io/v1beta2
kind: KeyValue
metadata:
  name: wh-coord
spec:
  bucket: \"wh_coord\"
  history: 1
  storage: file
  replicas: 3
";
        assert!(text.ends_with(rest), "{text}");
    }

    #[test]
    fn every_resource_is_there_in_order() {
        let text = write_manifests(&options(2, 2)).unwrap();
        let names: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("  name: "))
            .collect();
        let names: Vec<_> = names.into_iter().filter(|name| !name.starts_with('"')).collect();
        assert_eq!(
            names,
            [
                "wh-ingest-0",
                "wh-ingest-0-0",
                "wh-ingest-0-1",
                "wh-ingest-1",
                "wh-ingest-1-0",
                "wh-ingest-1-1",
                "wh-history",
                "wh-dlq",
                "wh-coord"
            ]
        );
        assert!(text.starts_with('#'));
    }

    #[test]
    fn a_partition_and_its_durable_say_everything_that_is_checked() {
        let text = write_manifests(&options(4, 8)).unwrap();
        let stream = "\
---
apiVersion: jetstream.nats.io/v1beta2
kind: Stream
metadata:
  name: wh-ingest-0
spec:
  name: \"WH_INGEST_0\"
  subjects:
    - \"wh.ingest.0.>\"
  retention: workqueue
  discard: new
  discardPerSubject: true
  maxBytes: 16106127360
  maxMsgsPerSubject: 1000000
  storage: file
  replicas: 3
  duplicateWindow: \"2m\"
  denyPurge: true
  denyDelete: true
  metadata:
    wavehouse.dev/partition: \"0\"
    wavehouse.dev/partitions: \"4\"
    wavehouse.dev/shards: \"8\"
  preventDelete: true
  republish:
    source: \"wh.ingest.0.*.>\"
    destination: \"wh.hist.>\"
---
apiVersion: jetstream.nats.io/v1beta2
kind: Consumer
metadata:
  name: wh-ingest-0-0
spec:
  streamName: \"WH_INGEST_0\"
  durableName: \"wh-ingest-0\"
  deliverPolicy: all
  ackPolicy: explicit
  ackWait: \"1m\"
  maxDeliver: -1
  maxAckPending: 10000
  filterSubject: \"wh.ingest.0.0.>\"
  priorityPolicy: pinned_client
  priorityGroups:
    - \"wavehouse\"
  pinnedTtl: \"10s\"
  preventDelete: true
";
        assert!(text.contains(stream), "{}", &text[..2000]);
    }

    #[test]
    fn the_command_in_the_header_names_what_is_not_the_default() {
        let mut options = options(4, 8);
        let short =
            "windjet nats manifests --partitions 4 --shards 8 --prefix wh --replicas 3 --file-store 100Gi";
        assert_eq!(options.command(), short);
        options.topology.ingest_consumer = "rows".to_owned();
        options.topology.dedupe_lease = Duration::from_secs(90);
        options.topology.coord_bucket = Some("wh_coord".to_owned());
        assert_eq!(
            options.command(),
            format!("{short} --ingest-consumer rows --dedupe-lease 1m30s")
        );
    }

    #[test]
    fn the_window_covers_retries_and_claims() {
        let window = |change: fn(&mut Topology)| {
            let mut options = options(1, 1);
            change(&mut options.topology);
            let text = write_manifests(&options).unwrap();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("  duplicateWindow: "));
            line.unwrap().to_owned()
        };
        assert_eq!(window(|_| {}), "\"2m\"");
        assert_eq!(
            window(|t| t.publish_timeout = Duration::from_secs(60)),
            "\"3m0.5s\""
        );
        assert_eq!(window(|t| t.dedupe_lease = Duration::from_secs(90)), "\"3m1s\"");
    }

    #[test]
    fn kubernetes_names_have_no_underscore() {
        let mut options = options(1, 1);
        options.topology.prefix = "my_app".to_owned();
        let text = write_manifests(&options).unwrap();
        assert!(text.contains("  name: my-app-ingest-0\n") && text.contains("\"MY_APP_INGEST_0\""));
        options.pinned_ttl = Duration::from_secs(9);
        assert!(write_manifests(&options).is_err());
    }
}
