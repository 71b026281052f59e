//! Configuration of a stream.
//!
//! [`StreamConfig`] has the members of nats-server 2.15 under their names, in its order and with its omission rules.
//! A configuration as a client sends it may have zeros where it means "default"; [`StreamConfig::fill_defaults`]
//! turns it into the form that is stored and shown. `StreamConfig::default()` is already in that form, apart from
//! what depends on other members (subjects, duplicate window).
//!
//! Checks of a configuration are the server's; nothing here refuses a value that has the right type.

use serde::{Deserialize, Deserializer, Serialize};

use crate::jetstream::level::Metadata;
use crate::jetstream::serde_util::{is_false, is_zero};
use crate::jetstream::{Nanos, Timestamp};

/// Which event removes a message, beside limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetentionPolicy {
    /// None: only limits remove messages.
    #[default]
    Limits,
    /// A message goes when every consumer that matches it has acknowledged it.
    Interest,
    /// A message goes when the one consumer that matches it has acknowledged it.
    WorkQueue,
}

/// What happens to a message that would exceed a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiscardPolicy {
    /// The oldest messages make room.
    #[default]
    Old,
    /// The new message is refused.
    New,
}

impl<'de> Deserialize<'de> for DiscardPolicy {
    /// Reads `old` and `new` in any case, as nats-server does for this enumeration only.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        match word.to_ascii_lowercase().as_str() {
            "old" => Ok(Self::Old),
            "new" => Ok(Self::New),
            _ => Err(serde::de::Error::unknown_variant(&word, &["old", "new"])),
        }
    }
}

/// Where messages are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageType {
    /// On disk.
    #[default]
    File,
    /// In memory; stream and messages are gone after a restart.
    Memory,
}

/// Compression of stored messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// Blocks are compressed; the name is that of nats-server's codec.
    S2,
}

/// When a publish is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PersistMode {
    /// When the message is as durable as the server is configured to make it.
    #[default]
    Default,
    /// Maybe before the message is written at all; killing the process may lose it. File storage only.
    Async,
}

impl PersistMode {
    fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// Configuration of a stream.
///
/// Counts and byte sizes are −1 for "unlimited"; a client may send 0 or any other negative number for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamConfig {
    /// Name, unique in the account. Required.
    pub name: String,
    /// Free text of at most 4096 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Subjects whose messages the stream stores. Default: the name, unless there is a mirror or a source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// What removes messages beside limits. Default `limits`.
    pub retention: RetentionPolicy,
    /// Most consumers. Default −1.
    pub max_consumers: i64,
    /// Most messages. Default −1.
    pub max_msgs: i64,
    /// Most bytes, counted as in [`StreamState::bytes`](super::info::StreamState::bytes); also reserves that much of
    /// the account's storage. Default −1.
    pub max_bytes: i64,
    /// Age at which messages are removed. Default 0: never.
    pub max_age: Nanos,
    /// Most messages of one subject. Default −1.
    pub max_msgs_per_subject: i64,
    /// Most bytes of one message, headers included. Default −1.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_msg_size: i32,
    /// What happens at `max_msgs` and `max_bytes`. Default `old`.
    pub discard: DiscardPolicy,
    /// Where messages are kept. Default `file`. Never changes.
    pub storage: StorageType,
    /// Copies in a cluster. Default 1, and nothing else on a single node.
    pub num_replicas: i64,
    /// Whether publishes get no acknowledgement at all, not even of an error. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub no_ack: bool,
    /// How long a `Nats-Msg-Id` is remembered. Default 2 minutes or `max_age` if that is shorter; 0 with a mirror or
    /// sources.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub duplicate_window: Nanos,
    /// Wish for a place in a cluster; kept and shown, without effect on a single node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The stream this one is a copy of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<StreamSource>,
    /// Streams whose messages this one collects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<StreamSource>,
    /// Compression on disk. Default `none`.
    pub compression: Compression,
    /// Sequence of the first message. Default 0, which means 1. Counts on creation only.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_seq: u64,
    /// Change of subjects before anything else is done with a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_transform: Option<SubjectTransform>,
    /// Publishing again of what was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub republish: Option<Republish>,
    /// Whether the stream answers direct gets. Default false.
    pub allow_direct: bool,
    /// Whether a mirror answers direct gets for its origin. Default false.
    pub mirror_direct: bool,
    /// Whether `max_msgs_per_subject` refuses new messages too. Needs `discard` new. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub discard_new_per_subject: bool,
    /// Whether the stream accepts nothing any more. Default false; set by an update only, and then for ever.
    pub sealed: bool,
    /// Whether deleting messages over the API is refused. Default false; once set, for ever.
    pub deny_delete: bool,
    /// Whether purging over the API is refused. Default false; once set, for ever.
    pub deny_purge: bool,
    /// Whether a message may replace others by `Nats-Rollup`. Default false.
    pub allow_rollup_hdrs: bool,
    /// Defaults and bounds for the stream's consumers.
    pub consumer_limits: ConsumerLimits,
    /// Whether `Nats-TTL` counts. Default false; once set, for ever.
    pub allow_msg_ttl: bool,
    /// Life of the marker that takes the place of the last message of a subject when its time is over; at least a
    /// second. Default 0: no markers.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub subject_delete_marker_ttl: Nanos,
    /// Whether messages are increments of a number per subject. Default false. Never changes.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_msg_counter: bool,
    /// Whether atomic batches are accepted. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_atomic: bool,
    /// Whether messages may ask for later messages by `Nats-Schedule`. Default false; once set, for ever.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_msg_schedules: bool,
    /// When a publish is acknowledged. Default `default`, shown as absent. Never changes.
    #[serde(
        skip_serializing_if = "PersistMode::is_default",
        deserialize_with = "persist_mode"
    )]
    pub persist_mode: PersistMode,
    /// Whether fast batches are accepted. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_batched: bool,
    /// Data of the user, and keys of the server: [`crate::jetstream::level`].
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

/// `""` is the default too.
fn persist_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PersistMode, D::Error> {
    let word = String::deserialize(deserializer)?;
    match word.as_str() {
        "" | "default" => Ok(PersistMode::Default),
        "async" => Ok(PersistMode::Async),
        _ => Err(serde::de::Error::unknown_variant(&word, &["default", "async"])),
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            subjects: Vec::new(),
            retention: RetentionPolicy::default(),
            max_consumers: -1,
            max_msgs: -1,
            max_bytes: -1,
            max_age: Nanos::ZERO,
            max_msgs_per_subject: -1,
            max_msg_size: -1,
            discard: DiscardPolicy::default(),
            storage: StorageType::default(),
            num_replicas: 1,
            no_ack: false,
            duplicate_window: Nanos::ZERO,
            placement: None,
            mirror: None,
            sources: Vec::new(),
            compression: Compression::default(),
            first_seq: 0,
            subject_transform: None,
            republish: None,
            allow_direct: false,
            mirror_direct: false,
            discard_new_per_subject: false,
            sealed: false,
            deny_delete: false,
            deny_purge: false,
            allow_rollup_hdrs: false,
            consumer_limits: ConsumerLimits::default(),
            allow_msg_ttl: false,
            subject_delete_marker_ttl: Nanos::ZERO,
            allow_msg_counter: false,
            allow_atomic: false,
            allow_msg_schedules: false,
            persist_mode: PersistMode::default(),
            allow_batched: false,
            metadata: Metadata::new(),
        }
    }
}

impl StreamConfig {
    /// The API level that a server needs to run this stream.
    pub fn required_level(&self) -> u8 {
        if self.allow_batched {
            4
        } else if self.allow_msg_counter
            || self.allow_atomic
            || self.allow_msg_schedules
            || self.persist_mode == PersistMode::Async
        {
            2
        } else {
            u8::from(self.allow_msg_ttl || self.subject_delete_marker_ttl.is_positive())
        }
    }
}

/// Wish for a place in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Tags that servers must have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Server that should lead. Not allowed in a stream's configuration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preferred: String,
}

/// A stream to copy from, as mirror or as one of several sources.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamSource {
    /// Name of the origin.
    pub name: String,
    /// Sequence at the origin to begin with; 0 for none. Wins over `opt_start_time`.
    #[serde(skip_serializing_if = "is_zero")]
    pub opt_start_seq: u64,
    /// Time of the first message to take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<Timestamp>,
    /// Messages to take; all when empty. Not together with `subject_transforms`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_subject: String,
    /// Messages to take, and the subjects under which they are stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subject_transforms: Vec<SubjectTransform>,
    /// Where the origin is, when it is not in this account and domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalStream>,
    /// A consumer that exists at the origin and is used instead of one made for the purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<SourceConsumer>,
}

/// How a stream in another account or domain is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExternalStream {
    /// Prefix of its API, in the place of `$JS.API`.
    pub api: String,
    /// Prefix for deliveries.
    pub deliver: String,
}

/// A consumer made by somebody else, to copy through.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceConsumer {
    /// Name of the consumer.
    pub name: String,
    /// Its deliver subject.
    pub deliver_subject: String,
}

/// A change of subjects.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SubjectTransform {
    /// Subjects that are changed; empty for all.
    pub src: String,
    /// What they are changed to; empty for no change, which leaves a filter.
    pub dest: String,
}

/// Publishing again of stored messages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Republish {
    /// Stored subjects that are published again. Default `>`, all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub src: String,
    /// Subjects under which they are published.
    pub dest: String,
    /// Whether the payload is left out and only its size told. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub headers_only: bool,
}

/// Defaults and bounds that a stream sets for its consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerLimits {
    /// Default and longest `inactive_threshold`. Default 0: none.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub inactive_threshold: Nanos,
    /// Default and highest `max_ack_pending`. Default 0: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_ack_pending: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_configuration_has_the_shape_of_the_real_server() {
        let config = StreamConfig {
            name: "A".into(),
            subjects: vec!["A".into()],
            ..StreamConfig::default()
        };
        let expected = concat!(
            r#"{"name":"A","subjects":["A"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"#,
            r#""max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","#,
            r#""num_replicas":1,"compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,"#,
            r#""deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"#,
            r#""allow_msg_ttl":false}"#
        );
        assert_eq!(serde_json::to_string(&config).unwrap(), expected);
        assert_eq!(serde_json::from_str::<StreamConfig>(expected).unwrap(), config);
    }

    #[test]
    fn enumerations_accept_their_words_only() {
        for body in [
            r#"{"retention":"Limits"}"#,
            r#"{"storage":"FILE"}"#,
            r#"{"storage":""}"#,
            r#"{"storage":null}"#,
            r#"{"compression":"S2"}"#,
            r#"{"persist_mode":"sync"}"#,
            r#"{"persist_mode":null}"#,
            r#"{"discard":"newest"}"#,
        ] {
            assert!(serde_json::from_str::<StreamConfig>(body).is_err(), "{body}");
        }
        let config: StreamConfig = serde_json::from_str(r#"{"discard":"NEW","persist_mode":""}"#).unwrap();
        assert_eq!(
            (config.discard, config.persist_mode),
            (DiscardPolicy::New, PersistMode::Default)
        );
    }

    #[test]
    fn level_grows_with_the_features_in_use() {
        let level = |change: fn(&mut StreamConfig)| {
            let mut config = StreamConfig::default();
            change(&mut config);
            config.required_level()
        };
        assert_eq!(level(|_| {}), 0);
        assert_eq!(level(|c| c.allow_msg_ttl = true), 1);
        assert_eq!(level(|c| c.subject_delete_marker_ttl = Nanos::from_secs(1)), 1);
        assert_eq!(level(|c| c.allow_msg_counter = true), 2);
        assert_eq!(level(|c| c.allow_atomic = true), 2);
        assert_eq!(level(|c| c.allow_msg_schedules = true), 2);
        assert_eq!(level(|c| c.persist_mode = PersistMode::Async), 2);
        assert_eq!(level(|c| (c.allow_batched, c.allow_msg_ttl) = (true, true)), 4);
    }
}
