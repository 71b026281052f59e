//! What the operator of a NATS cluster provides, and how its parts are named.

use std::time::Duration;

use super::route::{Place, place};
use crate::{Error, ErrorKind, Topic, duplicate_window_for, encode_token};

/// The first token of every subject.
pub const DEFAULT_PREFIX: &str = "wh";
/// Partitions.
pub const DEFAULT_PARTITIONS: u32 = 1;
/// Shards of each partition.
pub const DEFAULT_SHARDS: u32 = 32;
/// Most shards: permissions name every shard's durable, and each is a consumer (with three replicas a Raft group).
pub const MAX_SHARDS: u32 = 256;
/// What the durables' names begin with.
pub const DEFAULT_INGEST_CONSUMER: &str = "wh-ingest";
/// The time of one attempt to publish.
pub const DEFAULT_PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The file store for which manifests are sized unless told otherwise: 100 GiB.
pub const DEFAULT_FILE_STORE: u64 = 100 << 30;

/// The priority group of the durables.
pub const PRIORITY_GROUP: &str = "wavehouse";
/// Metadata of a partition stream: which partition it is.
pub const METADATA_PARTITION: &str = "wavehouse.dev/partition";
/// Metadata of a partition stream: how many partitions there are.
pub const METADATA_PARTITIONS: &str = "wavehouse.dev/partitions";
/// Metadata of a partition stream: how many shards it has.
pub const METADATA_SHARDS: &str = "wavehouse.dev/shards";

/// Attempts to publish, and the time between them.
pub(crate) const PUBLISH_ATTEMPTS: u32 = 3;
pub(crate) const PUBLISH_PAUSE: Duration = Duration::from_millis(250);
/// The shortest time for which a pin must outlive its holder's last pull.
pub(crate) const MIN_PINNED_TTL: Duration = Duration::from_secs(10);
/// How long a lease lives.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);

/// What is expected of an operator-owned JetStream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The first token of every subject, `[a-z0-9_-]+`. Default `wh`.
    pub prefix: String,
    /// N: partition streams. Default 1.
    pub partitions: u32,
    /// V: shards of every partition, 1 to [`MAX_SHARDS`]. A table's events are all in one shard. Default 32.
    pub shards: u32,
    /// The durable of shard s on every partition is this name, a dash and s. Default `wh-ingest`.
    pub ingest_consumer: String,
    /// The history stream. `None`: the prefix in upper case and `_HISTORY`.
    pub history_stream: Option<String>,
    /// Bounds one attempt to publish. Default 5 s.
    pub publish_timeout: Duration,
    /// How long the service holds a claim on an idempotency key whose publish is uncertain. Zero: it holds none.
    pub dedupe_lease: Duration,
    /// The key-value bucket for leases. `None`: this process holds none, and no bucket is checked.
    pub coord_bucket: Option<String>,
    /// What the service's consumer asks of the durables' ack wait. Default 60 s.
    pub ack_wait: Duration,
    /// What it asks of their unacknowledged messages. Default 10,000.
    pub max_ack_pending: usize,
    /// What it fetches at most in one request. Default 500.
    pub prefetch: usize,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            partitions: DEFAULT_PARTITIONS,
            shards: DEFAULT_SHARDS,
            ingest_consumer: DEFAULT_INGEST_CONSUMER.to_owned(),
            history_stream: None,
            publish_timeout: DEFAULT_PUBLISH_TIMEOUT,
            dedupe_lease: Duration::ZERO,
            coord_bucket: None,
            ack_wait: Duration::from_secs(60),
            max_ack_pending: 10_000,
            prefetch: 500,
        }
    }
}

/// The lease bucket that manifests name for a prefix, so that two deployments in one account never share a lease.
#[must_use]
pub fn default_coord_bucket(prefix: &str) -> String {
    format!("{prefix}_coord")
}

pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !name.is_empty() && name.bytes().all(allowed)
}

impl Topology {
    /// Checks names and counts.
    ///
    /// # Errors
    /// Names the first field that cannot be, with what it may be.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if !is_name(&self.prefix) || self.prefix.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return refuse(format!(
                "subject prefix {:?}: use one token of a-z 0-9 _ -",
                self.prefix
            ));
        }
        if self.partitions < 1 {
            return refuse("partitions: at least 1".to_owned());
        }
        if !(1..=MAX_SHARDS).contains(&self.shards) {
            return refuse(format!("shards {}: 1 to {MAX_SHARDS}", self.shards));
        }
        let names = [
            ("ingest consumer", Some(&self.ingest_consumer)),
            ("history stream", self.history_stream.as_ref()),
            ("coord bucket", self.coord_bucket.as_ref()),
        ];
        for (what, name) in names {
            if let Some(name) = name.filter(|name| !is_name(name)) {
                return refuse(format!("{what} {name:?}: use A-Z a-z 0-9 _ -"));
            }
        }
        if self.publish_timeout.is_zero() {
            return refuse("publish timeout: more than zero".to_owned());
        }
        Ok(())
    }

    /// The history stream's name.
    #[must_use]
    pub fn history_stream(&self) -> String {
        let default = || format!("{}_HISTORY", self.prefix.to_uppercase());
        self.history_stream.clone().unwrap_or_else(default)
    }

    /// The lease bucket's name, whether this process uses it or not.
    #[must_use]
    pub fn coord_bucket_name(&self) -> String {
        let default = || default_coord_bucket(&self.prefix);
        self.coord_bucket.clone().unwrap_or_else(default)
    }

    /// The name that manifests give a partition's stream. The broker finds it by its subjects.
    #[must_use]
    pub fn partition_stream(&self, partition: u32) -> String {
        format!("{}_INGEST_{partition}", self.prefix.to_uppercase())
    }

    /// The name that manifests give the dead-letter stream. The broker finds it by its subjects.
    #[must_use]
    pub fn dead_letter_stream(&self) -> String {
        format!("{}_DLQ", self.prefix.to_uppercase())
    }

    /// The durable of a shard.
    #[must_use]
    pub fn shard_durable(&self, shard: u32) -> String {
        format!("{}-{shard}", self.ingest_consumer)
    }

    /// The shard of a durable's name, if it is one.
    pub(crate) fn parse_shard_durable(&self, durable: &str) -> Option<u32> {
        let number = durable.strip_prefix(&self.ingest_consumer)?.strip_prefix('-')?;
        let leading_zero = number.len() > 1 && number.starts_with('0');
        if leading_zero || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        number.parse().ok().filter(|&shard| shard < 1 << 31)
    }

    /// What a partition's stream holds.
    #[must_use]
    pub fn partition_subjects(&self, partition: u32) -> String {
        format!("{}.ingest.{partition}.>", self.prefix)
    }

    /// What a shard's durable is filtered to.
    #[must_use]
    pub fn shard_subjects(&self, partition: u32, shard: u32) -> String {
        format!("{}.ingest.{partition}.{shard}.>", self.prefix)
    }

    /// What the history stream holds, and where partitions republish to.
    #[must_use]
    pub fn history_subjects(&self) -> String {
        format!("{}.hist.>", self.prefix)
    }

    /// What a partition republishes.
    #[must_use]
    pub fn republish_source(&self, partition: u32) -> String {
        format!("{}.ingest.{partition}.*.>", self.prefix)
    }

    /// What the dead-letter stream holds.
    #[must_use]
    pub fn dead_letter_subjects(&self) -> String {
        format!("{}.dlq.>", self.prefix)
    }

    /// What every inbox of this service begins with; the user may subscribe to nothing else.
    #[must_use]
    pub fn inbox_prefix(&self) -> String {
        format!("_INBOX_{}", self.prefix)
    }

    /// Where a topic's events are. The topic has a tenant.
    pub(crate) fn place(&self, topic: &Topic) -> Place {
        let tenant = topic.tenant.as_ref().map_or("", |tenant| tenant.as_str());
        place(
            tenant,
            &encode_token(topic.table.as_bytes()),
            self.partitions,
            self.shards,
        )
    }

    /// The subject of a topic in its place.
    pub(crate) fn ingest_subject(&self, place: Place, topic: &Topic) -> String {
        format!(
            "{}.ingest.{}.{}.{}",
            self.prefix,
            place.partition,
            place.shard,
            topic.key()
        )
    }

    pub(crate) fn history_subject(&self, key: &str) -> String {
        format!("{}.hist.{key}", self.prefix)
    }

    pub(crate) fn dead_letter_subject(&self, key: &str) -> String {
        format!("{}.dlq.{key}", self.prefix)
    }

    /// The topic key of a subject as delivered; a subject that is none of ours is its own key.
    pub(crate) fn topic_key<'a>(&self, subject: &'a str) -> &'a str {
        let key = || {
            let tail = subject.strip_prefix(&self.prefix)?.strip_prefix('.')?;
            if let Some(key) = tail.strip_prefix("dlq.").or_else(|| tail.strip_prefix("hist.")) {
                return Some(key);
            }
            let mut parts = tail.strip_prefix("ingest.")?.splitn(3, '.');
            for _ in 0..2 {
                parts
                    .next()?
                    .parse::<u32>()
                    .ok()
                    .filter(|&number| number < 1 << 31)?;
            }
            parts.next()
        };
        key().filter(|key| !key.is_empty()).unwrap_or(subject)
    }

    /// The shortest duplicate window under which a repeated publish is stored once.
    pub(crate) fn min_duplicate_window(&self) -> Duration {
        self.publish_timeout * PUBLISH_ATTEMPTS + PUBLISH_PAUSE * (PUBLISH_ATTEMPTS - 1)
    }

    /// The shortest duplicate window that goes with the dedupe lease, if there is one.
    pub(crate) fn dedupe_window(&self) -> Option<Duration> {
        (!self.dedupe_lease.is_zero()).then(|| duplicate_window_for(self.dedupe_lease))
    }
}

#[cfg(test)]
mod tests {
    use windjet_testkit::page;

    use super::*;
    use crate::TenantId;
    use crate::nats::units::Unit;

    #[test]
    fn names_follow_the_prefix() {
        let topology = Topology::default();
        let topic = Topic::new(TenantId::parse("acme").unwrap(), "events").scope("eu");
        let place = topology.place(&topic);
        assert_eq!(
            topology.ingest_subject(place, &topic),
            "wh.ingest.0.22.acme.events.eu"
        );
        assert_eq!(topology.partition_stream(3), "WH_INGEST_3");
        assert_eq!(topology.history_stream(), "WH_HISTORY");
        assert_eq!(topology.dead_letter_stream(), "WH_DLQ");
        assert_eq!(topology.coord_bucket_name(), "wh_coord");
        assert_eq!(topology.shard_durable(0), "wh-ingest-0");
        assert_eq!(topology.republish_source(1), "wh.ingest.1.*.>");
        assert_eq!(topology.inbox_prefix(), "_INBOX_wh");
        assert_eq!(topology.min_duplicate_window(), Duration::from_millis(15_500));
    }

    #[test]
    fn the_page_has_the_names() {
        let topology = Topology::default();
        let topic = Topic::new(TenantId::parse("acme").unwrap(), "events").scope("eu");
        let place = Place {
            partition: 2,
            shard: 4,
        };
        let unit = Unit::new(&topology.partition_stream(2), &topology.shard_durable(4));
        let names = [
            topology.ingest_subject(place, &topic),
            topology.partition_subjects(2),
            topology.shard_subjects(2, 4),
            topology.shard_durable(4),
            topology.history_subject(&topic.key()),
            topology.history_subjects(),
            topology.republish_source(2),
            topology.dead_letter_subject(&topic.key()),
            topology.dead_letter_subjects(),
            topology.partition_stream(2),
            topology.history_stream(),
            topology.dead_letter_stream(),
            topology.coord_bucket_name(),
            unit.to_string(),
            topology.inbox_prefix(),
        ];
        let page = page::rows(&page::read("mq-topology.md").unwrap(), "Names").unwrap();
        let page: Vec<_> = page[1..].iter().map(|row| row[1].trim_matches('`')).collect();
        assert_eq!(page[..names.len()], names);
    }

    #[test]
    fn a_durable_is_a_shards_only_with_its_number_unpadded() {
        let topology = Topology::default();
        let shard = |name| topology.parse_shard_durable(name);
        assert_eq!(
            (shard("wh-ingest-0"), shard("wh-ingest-255")),
            (Some(0), Some(255))
        );
        for name in [
            "wh-ingest-",
            "wh-ingest-00",
            "wh-ingest-01",
            "wh-ingest--1",
            "wh-ingest-+1",
            "wh-ingest",
            "x-1",
            "wh-ingest-2147483648",
        ] {
            assert_eq!(shard(name), None, "{name}");
        }
    }

    #[test]
    fn the_key_is_the_tail_behind_our_own_tokens() {
        let topology = Topology::default();
        for (subject, key) in [
            ("wh.ingest.0.22.acme.events", "acme.events"),
            ("wh.hist.acme.events.eu", "acme.events.eu"),
            ("wh.dlq.a.b.c.d", "a.b.c.d"),
            ("wh.ingest.x.22.acme.events", "wh.ingest.x.22.acme.events"),
            ("wh.ingest.0.22", "wh.ingest.0.22"),
            ("wh.dlq.", "wh.dlq."),
            ("other.hist.a.b", "other.hist.a.b"),
        ] {
            assert_eq!(topology.topic_key(subject), key);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refusal = |change: fn(&mut Topology)| {
            let mut topology = Topology::default();
            change(&mut topology);
            topology.check().unwrap_err().to_string()
        };
        Topology::default().check().unwrap();
        assert!(refusal(|t| t.prefix = "W".into()).contains("prefix"));
        assert!(refusal(|t| t.prefix = "a.b".into()).contains("prefix"));
        assert!(refusal(|t| t.partitions = 0).contains("partitions"));
        assert!(refusal(|t| t.shards = 0).contains("shards"));
        assert!(refusal(|t| t.shards = 257).contains("shards"));
        assert!(refusal(|t| t.coord_bucket = Some("a b".into())).contains("bucket"));
        assert!(refusal(|t| t.history_stream = Some("a.b".into())).contains("history"));
    }
}
