//! Asking for work, and the answer.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{AssignMsg, is_default, or_default};

/// A worker asks for work. Only the worker is required.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseRequest {
    /// Who asks.
    #[serde(deserialize_with = "or_default")]
    pub worker_id: String,
    /// Which process of it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub instance_id: String,
    /// Wire version.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub version: String,
    /// Most tasks of the batch; 0 for no limit.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub max_tasks: i64,
    /// Most bytes of the reply; 0 for the server's limit.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub max_bytes: i64,
    /// How long the worker waits for the reply.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub timeout_ms: i64,
    /// For people.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub request_id: String,
}

/// The answer: a batch of assignments that are recorded as the worker's already. An empty one means: nothing now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseReply {
    /// The batch; always there, never `null`.
    #[serde(deserialize_with = "or_default")]
    pub assignments: Vec<AssignMsg>,
    /// Do not ask again sooner than this.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub retry_after_ms: i64,
    /// Why there is nothing, for a refusal.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub reason: String,
}

/// An answer whose assignments are not decoded yet, so that one broken assignment does not take the others with it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RawLeaseReply {
    /// The batch, each as its JSON.
    #[serde(deserialize_with = "or_default")]
    pub assignments: Vec<Box<RawValue>>,
    /// Do not ask again sooner than this.
    #[serde(deserialize_with = "or_default")]
    pub retry_after_ms: i64,
    /// Why there is nothing, for a refusal.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
}
