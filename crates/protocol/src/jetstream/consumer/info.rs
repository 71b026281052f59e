//! Where a consumer stands.

use serde::{Deserialize, Serialize};

use super::config::ConsumerConfig;
use crate::jetstream::serde_util::{is_blank, is_false, non_blank};
use crate::jetstream::{ClusterInfo, Nanos, Timestamp};

/// A position: how many deliveries, and which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SequenceInfo {
    /// Deliveries up to here, repeated ones included.
    pub consumer_seq: u64,
    /// Sequence in the stream.
    pub stream_seq: u64,
    /// Last activity since the server started; `None` before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_active: Option<Timestamp>,
}

/// The state of a priority group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityGroupState {
    /// Name of the group.
    pub group: String,
    /// The pin, if there is one.
    #[serde(skip_serializing_if = "is_blank", deserialize_with = "non_blank")]
    pub pinned_client_id: Option<String>,
    /// Since when, or the zero time.
    pub pinned_ts: Timestamp,
}

/// A consumer as answers show it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerInfo {
    /// Name of the stream.
    pub stream_name: String,
    /// Name of the consumer, given or made up.
    pub name: String,
    /// When it was created; updates keep it.
    pub created: Timestamp,
    /// Its configuration.
    pub config: ConsumerConfig,
    /// The last delivery.
    pub delivered: SequenceInfo,
    /// The point below which everything is settled.
    pub ack_floor: SequenceInfo,
    /// Messages delivered and not yet settled.
    pub num_ack_pending: u64,
    /// Of those, the ones delivered more than once; and messages given up that are still in the stream.
    pub num_redelivered: u64,
    /// Pull requests waiting.
    pub num_waiting: u64,
    /// Messages that match and were not delivered yet.
    pub num_pending: u64,
    /// Who leads it; in clusters only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// Whether somebody listens on the deliver subject.
    #[serde(skip_serializing_if = "is_false")]
    pub push_bound: bool,
    /// Whether it is paused now.
    #[serde(skip_serializing_if = "is_false")]
    pub paused: bool,
    /// How long it will be.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub pause_remaining: Nanos,
    /// When this was put together.
    pub ts: Timestamp,
    /// State of the first priority group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub priority_groups: Vec<PriorityGroupState>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_is_omitted_until_there_is_some() {
        let mut position = SequenceInfo {
            consumer_seq: 2,
            stream_seq: 3,
            last_active: None,
        };
        assert_eq!(
            serde_json::to_string(&position).unwrap(),
            r#"{"consumer_seq":2,"stream_seq":3}"#
        );
        position.last_active = Some(Timestamp::from_unix_nanos(0));
        assert_eq!(
            serde_json::to_string(&position).unwrap(),
            r#"{"consumer_seq":2,"stream_seq":3,"last_active":"1970-01-01T00:00:00Z"}"#
        );
    }

    #[test]
    fn group_without_a_pin_shows_the_zero_time() {
        let group = PriorityGroupState {
            group: "G".into(),
            ..PriorityGroupState::default()
        };
        assert_eq!(
            serde_json::to_string(&group).unwrap(),
            r#"{"group":"G","pinned_ts":"0001-01-01T00:00:00Z"}"#
        );
    }
}
