//! Events of consumers.
//!
//! There is none for the update of a consumer.

use serde::{Deserialize, Serialize};

use super::{EventBody, event_body};
use crate::jetstream::{Nanos, Timestamp};

/// What happened to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsumerActionKind {
    /// Created; not for updates, nor when it was there already.
    #[default]
    Create,
    /// Deleted, by a request or for lack of use.
    Delete,
}

/// A consumer was created or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerAction {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// What happened.
    pub action: ConsumerActionKind,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

impl EventBody for ConsumerAction {
    const TYPE: &'static str = "io.nats.jetstream.advisory.v1.consumer_action";

    fn subject(&self) -> String {
        let verb = match self.action {
            ConsumerActionKind::Create => "CREATED",
            ConsumerActionKind::Delete => "DELETED",
        };
        format!(
            "$JS.EVENT.ADVISORY.CONSUMER.{verb}.{}.{}",
            self.stream, self.consumer
        )
    }
}

/// A consumer was paused, or goes on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerPause {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// Whether it is paused now.
    pub paused: bool,
    /// Until when it is or was; the zero time for never.
    pub pause_until: Timestamp,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(ConsumerPause, "advisory.v1.consumer_pause", ADVISORY_PREFIX "CONSUMER.PAUSE", stream, consumer);

/// A message was delivered as often as it may be, and is given up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MaxDeliveries {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub stream_seq: u64,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(MaxDeliveries, "advisory.v1.max_deliver", ADVISORY_PREFIX "CONSUMER.MAX_DELIVERIES", stream, consumer);

/// A client asked for a message again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageNaked {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// The delivery that was refused.
    pub consumer_seq: u64,
    /// The message.
    pub stream_seq: u64,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(MessageNaked, "advisory.v1.nak", ADVISORY_PREFIX "CONSUMER.MSG_NAKED", stream, consumer);

/// A message was settled without success: by a client, or because it is gone from the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageTerminated {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// The delivery; the first one when the message is gone.
    pub consumer_seq: u64,
    /// The message.
    pub stream_seq: u64,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Why, if the client said so; one of the constants when the message is gone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(MessageTerminated, "advisory.v1.terminated", ADVISORY_PREFIX "CONSUMER.MSG_TERMINATED", stream, consumer);

impl MessageTerminated {
    /// Reason when a message that was delivered is deleted, expires or makes room.
    pub const DELETED: &'static str = "Unacknowledged message was deleted";
    /// Reason when a delivered message is found below the stream's first.
    pub const BELOW_FIRST: &'static str = "Message deleted by stream limits";
}

/// A client was pinned.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupPinned {
    /// The account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The priority group.
    pub group: String,
    /// The pin.
    pub pinned_id: String,
}
event_body!(GroupPinned, "advisory.v1.consumer_group_pinned", ADVISORY_PREFIX "CONSUMER.PINNED", stream, consumer);

/// Why a pin ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnpinReason {
    /// The client fell silent.
    #[default]
    Timeout,
    /// An unpin request.
    Admin,
}

/// A pin ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupUnpinned {
    /// The account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The priority group.
    pub group: String,
    /// Why.
    pub reason: UnpinReason,
}
event_body!(GroupUnpinned, "advisory.v1.consumer_group_unpinned", ADVISORY_PREFIX "CONSUMER.UNPINNED", stream, consumer);

/// Metric: a sampled acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageAcked {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// The delivery that was acknowledged.
    pub consumer_seq: u64,
    /// The message.
    pub stream_seq: u64,
    /// Time since the last delivery.
    pub ack_time: Nanos,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(MessageAcked, "metric.v1.consumer_ack", METRIC_PREFIX "CONSUMER.ACK", stream, consumer);
