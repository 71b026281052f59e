//! Configuration of a consumer.
//!
//! [`ConsumerConfig`] has the members of nats-server 2.15 under their names, in its order and with its omission
//! rules. "Omitted" is load-bearing: clients take a pull consumer that shows an empty `deliver_subject` for a push
//! consumer. Texts that may be missing are therefore `Option`s here; an empty text reads as `None` and is never
//! written.
//!
//! A configuration as a client sends it may have zeros where it means "default";
//! [`ConsumerConfig::fill_defaults`] turns it into the form that is stored and shown. Checks are the server's.

use serde::{Deserialize, Serialize};

use crate::jetstream::level::Metadata;
use crate::jetstream::serde_util::{is_blank, is_false, is_zero, non_blank};
use crate::jetstream::{Nanos, Timestamp};

/// Where in the stream a new consumer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliverPolicy {
    /// At the first message.
    #[default]
    #[serde(alias = "undefined")]
    All,
    /// At the last message that matches.
    Last,
    /// Behind the last message.
    New,
    /// At `opt_start_seq`.
    ByStartSequence,
    /// At the first message stored at or after `opt_start_time`.
    ByStartTime,
    /// At the last message of each subject that matches, then go on with all.
    LastPerSubject,
}

/// How messages are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckPolicy {
    /// Not at all: delivered is done.
    #[default]
    None,
    /// Acknowledging one acknowledges all before it.
    All,
    /// Each by itself.
    Explicit,
    /// By answers to flow-control requests; for copying streams.
    FlowControl,
}

/// How fast stored messages are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayPolicy {
    /// As fast as possible.
    #[default]
    Instant,
    /// With the pauses there were between them when they were stored.
    Original,
}

/// How several clients share the pull requests of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriorityPolicy {
    /// In order of arrival.
    #[default]
    None,
    /// A request may wait until there is more than others can handle.
    Overflow,
    /// One client gets everything until it falls silent.
    PinnedClient,
    /// Requests of higher urgency first.
    Prioritized,
}

impl PriorityPolicy {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Configuration of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerConfig {
    /// Set on durable consumers, and then equal to `name`. An ephemeral consumer goes when it is not used.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub durable_name: Option<String>,
    /// Name, unique in the stream. Default: the name in the subject of the request, or one the server makes up,
    /// which is shown in [`ConsumerInfo::name`](super::info::ConsumerInfo::name) only.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub name: Option<String>,
    /// Free text of at most 4096 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Where to begin. Default `all`. Never changes.
    pub deliver_policy: DeliverPolicy,
    /// First sequence, with `by_start_sequence` only. Never changes.
    #[serde(skip_serializing_if = "is_zero")]
    pub opt_start_seq: u64,
    /// Time of the first message, with `by_start_time` only. Never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<Timestamp>,
    /// How messages are acknowledged. Default `none`; clients ask for `explicit`. Never changes.
    pub ack_policy: AckPolicy,
    /// Time after which a message that was not acknowledged is delivered again. Default 30 s with `explicit` and
    /// `all`; the first of `backoff` if there is one.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub ack_wait: Nanos,
    /// Most deliveries of one message. Default −1: no bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_deliver: i64,
    /// Times from one delivery to the next, the last one repeated; in the place of `ack_wait`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backoff: Vec<Nanos>,
    /// Messages wanted. Default: all. Not together with `filter_subjects`.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub filter_subject: Option<String>,
    /// Messages wanted, by several subjects none of which contains another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filter_subjects: Vec<String>,
    /// How fast stored messages are delivered. Default `instant`. Never changes.
    pub replay_policy: ReplayPolicy,
    /// Bits per second, push only. Default 0: no bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate_limit_bps: u64,
    /// Per cent of acknowledgements that are reported, with or without `%`.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub sample_freq: Option<String>,
    /// Most pull requests waiting. Default 512 for pull. Never changes.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_waiting: i64,
    /// Most messages delivered and not acknowledged. Default 1000 except with `none`; −1 for no bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_ack_pending: i64,
    /// Whether the server asks the receiver now and then how far it has come; push only. Never changes.
    #[serde(skip_serializing_if = "is_false")]
    pub flow_control: bool,
    /// Whether payloads are left out and only their size told. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub headers_only: bool,
    /// Most messages of one pull request. Default 0: no bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_batch: i64,
    /// Longest life of a pull request. Default 0: no bound.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub max_expires: Nanos,
    /// Most bytes of one pull request. Default 0: no bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_bytes: i64,
    /// Where messages are sent; makes a push consumer.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub deliver_subject: Option<String>,
    /// Queue group whose interest counts; push only.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub deliver_group: Option<String>,
    /// Silence after which a sign of life is sent, at least 100 ms; push only. Default 0: none. Never changes.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub idle_heartbeat: Nanos,
    /// Time without use after which the consumer is deleted. Default 5 s for ephemeral ones; 0 for never.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub inactive_threshold: Nanos,
    /// Copies in a cluster. Default 0: as the stream.
    pub num_replicas: i64,
    /// Whether the state is kept in memory only, and is gone after a restart. Default false. Never changes.
    #[serde(skip_serializing_if = "is_false")]
    pub mem_storage: bool,
    /// Whether this serves another stream and shows up nowhere; between servers only. Never changes.
    #[serde(skip_serializing_if = "is_false")]
    pub direct: bool,
    /// Whether this serves a mirror or source; between servers only. Never changes.
    #[serde(skip_serializing_if = "is_false")]
    pub sourcing: bool,
    /// Data of the user, and keys of the server: [`crate::jetstream::level`].
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// Nothing is delivered before this time. Changed by pause requests only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_until: Option<Timestamp>,
    /// Names that pull requests must give, with a priority policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub priority_groups: Vec<String>,
    /// How clients share the pull requests. Default `none`, shown as absent.
    #[serde(skip_serializing_if = "PriorityPolicy::is_none")]
    pub priority_policy: PriorityPolicy,
    /// Silence after which a pinned client loses its pin. Default 2 minutes with `pinned_client`.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub priority_timeout: Nanos,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            durable_name: None,
            name: None,
            description: String::new(),
            deliver_policy: DeliverPolicy::default(),
            opt_start_seq: 0,
            opt_start_time: None,
            ack_policy: AckPolicy::default(),
            ack_wait: Nanos::ZERO,
            max_deliver: -1,
            backoff: Vec::new(),
            filter_subject: None,
            filter_subjects: Vec::new(),
            replay_policy: ReplayPolicy::default(),
            rate_limit_bps: 0,
            sample_freq: None,
            max_waiting: 0,
            max_ack_pending: 0,
            flow_control: false,
            headers_only: false,
            max_batch: 0,
            max_expires: Nanos::ZERO,
            max_bytes: 0,
            deliver_subject: None,
            deliver_group: None,
            idle_heartbeat: Nanos::ZERO,
            inactive_threshold: Nanos::ZERO,
            num_replicas: 0,
            mem_storage: false,
            direct: false,
            sourcing: false,
            metadata: Metadata::new(),
            pause_until: None,
            priority_groups: Vec::new(),
            priority_policy: PriorityPolicy::default(),
            priority_timeout: Nanos::ZERO,
        }
    }
}

impl ConsumerConfig {
    /// Whether messages are pushed to a subject; otherwise they are pulled.
    pub fn is_push(&self) -> bool {
        self.deliver_subject.is_some()
    }

    /// Whether the consumer stays when nobody uses it.
    pub fn is_durable(&self) -> bool {
        self.durable_name.is_some()
    }

    /// The subjects wanted, from whichever member has them; none for all.
    pub fn filters(&self) -> impl Iterator<Item = &str> {
        self.filter_subject
            .iter()
            .chain(&self.filter_subjects)
            .map(String::as_str)
    }

    /// The API level that a server needs to run this consumer.
    pub fn required_level(&self) -> u8 {
        if self.ack_policy == AckPolicy::FlowControl {
            return 4;
        }
        let paused = self.pause_until.is_some_and(|until| !until.is_zero());
        let priorities = !self.priority_groups.is_empty()
            || !self.priority_policy.is_none()
            || !self.priority_timeout.is_zero();
        u8::from(paused || priorities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_consumer_shows_no_empty_member() {
        let expected = concat!(
            r#"{"deliver_policy":"all","ack_policy":"none","max_deliver":-1,"replay_policy":"instant","#,
            r#""num_replicas":0}"#
        );
        let text = |config: &ConsumerConfig| serde_json::to_string(config).unwrap();
        assert_eq!(text(&ConsumerConfig::default()), expected);
        let body = r#"{"durable_name":"","name":"","filter_subject":"","deliver_subject":"","deliver_group":"","sample_freq":""}"#;
        let config: ConsumerConfig = serde_json::from_str(body).unwrap();
        assert_eq!(config, ConsumerConfig::default());
        let blank = ConsumerConfig {
            deliver_subject: Some(String::new()),
            ..ConsumerConfig::default()
        };
        assert_eq!(text(&blank), expected);
    }

    #[test]
    fn policies_are_written_in_the_words_of_the_api() {
        for (policy, word) in [
            (DeliverPolicy::ByStartSequence, "by_start_sequence"),
            (DeliverPolicy::LastPerSubject, "last_per_subject"),
        ] {
            assert_eq!(serde_json::to_value(policy).unwrap(), word);
        }
        assert_eq!(
            serde_json::to_value(AckPolicy::FlowControl).unwrap(),
            "flow_control"
        );
        assert_eq!(
            serde_json::to_value(PriorityPolicy::PinnedClient).unwrap(),
            "pinned_client"
        );
        assert_eq!(
            serde_json::from_str::<DeliverPolicy>("\"undefined\"").unwrap(),
            DeliverPolicy::All
        );
        for body in [
            r#"{"ack_policy":"Explicit"}"#,
            r#"{"deliver_policy":null}"#,
            r#"{"priority_policy":""}"#,
        ] {
            assert!(serde_json::from_str::<ConsumerConfig>(body).is_err(), "{body}");
        }
    }

    #[test]
    fn level_grows_with_the_features_in_use() {
        let level = |change: fn(&mut ConsumerConfig)| {
            let mut config = ConsumerConfig::default();
            change(&mut config);
            config.required_level()
        };
        assert_eq!(level(|_| {}), 0);
        assert_eq!(level(|c| c.pause_until = Some(Timestamp::ZERO)), 0);
        assert_eq!(level(|c| c.pause_until = Some(Timestamp::from_unix_nanos(0))), 1);
        assert_eq!(level(|c| c.priority_policy = PriorityPolicy::Overflow), 1);
        assert_eq!(level(|c| c.priority_groups = vec!["A".into()]), 1);
        assert_eq!(level(|c| c.ack_policy = AckPolicy::FlowControl), 4);
    }

    #[test]
    fn filters_come_from_whichever_member_has_them() {
        let one = ConsumerConfig {
            filter_subject: Some("a".into()),
            ..ConsumerConfig::default()
        };
        assert_eq!(one.filters().collect::<Vec<_>>(), ["a"]);
        let two = ConsumerConfig {
            filter_subjects: vec!["a".into(), "b".into()],
            ..ConsumerConfig::default()
        };
        assert_eq!(two.filters().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(ConsumerConfig::default().filters().count(), 0);
    }
}
