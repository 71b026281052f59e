//! Events of streams.

use serde::{Deserialize, Serialize};

use super::{ClientInfo, EventBody, event_body};
use crate::jetstream::{StreamState, Timestamp};

/// What happened to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamActionKind {
    /// Created or restored.
    #[default]
    Create,
    /// Updated, maybe without a change.
    Modify,
    /// Deleted, after its consumers.
    Delete,
}

/// A stream was created, updated or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamAction {
    /// The stream.
    pub stream: String,
    /// What happened.
    pub action: StreamActionKind,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

impl EventBody for StreamAction {
    const TYPE: &'static str = "io.nats.jetstream.advisory.v1.stream_action";

    fn subject(&self) -> String {
        let verb = match self.action {
            StreamActionKind::Create => "CREATED",
            StreamActionKind::Modify => "UPDATED",
            StreamActionKind::Delete => "DELETED",
        };
        format!("$JS.EVENT.ADVISORY.STREAM.{verb}.{}", self.stream)
    }
}

/// A snapshot was begun.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotCreate {
    /// The stream.
    pub stream: String,
    /// What the snapshot will hold.
    pub state: StreamState,
    /// Who asked for it.
    pub client: ClientInfo,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(SnapshotCreate, "advisory.v1.snapshot_create", ADVISORY_PREFIX "STREAM.SNAPSHOT_CREATE", stream);

/// A snapshot ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotComplete {
    /// The stream.
    pub stream: String,
    /// When it began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// Who asked for it.
    pub client: ClientInfo,
    /// Why it ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(SnapshotComplete, "advisory.v1.snapshot_complete", ADVISORY_PREFIX "STREAM.SNAPSHOT_COMPLETE", stream);

/// A restore was begun.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreCreate {
    /// The stream.
    pub stream: String,
    /// Who asked for it.
    pub client: ClientInfo,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(RestoreCreate, "advisory.v1.restore_create", ADVISORY_PREFIX "STREAM.RESTORE_CREATE", stream);

/// A restore ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreComplete {
    /// The stream.
    pub stream: String,
    /// When it began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// Bytes that came.
    pub bytes: u64,
    /// Who asked for it.
    pub client: ClientInfo,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(RestoreComplete, "advisory.v1.restore_complete", ADVISORY_PREFIX "STREAM.RESTORE_COMPLETE", stream);

/// Why an atomic batch was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchAbandonReason {
    /// No message came for too long.
    #[default]
    Timeout,
    /// It had too many messages.
    Large,
    /// A message was missing.
    Incomplete,
    /// It asked for a newer server.
    Unsupported,
}

/// An atomic batch was given up; a copy that names the account goes to the system account.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchAbandoned {
    /// The account, in the copy for the system account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The stream.
    pub stream: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Id of the batch.
    pub batch: String,
    /// Why.
    pub reason: BatchAbandonReason,
}
event_body!(BatchAbandoned, "advisory.v1.stream_batch_abandoned", ADVISORY_PREFIX "STREAM.BATCH_ABANDONED", stream);
