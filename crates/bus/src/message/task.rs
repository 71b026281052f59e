//! Messages about tasks: changes of state, output, cancels.

use serde::{Deserialize, Serialize};
use windjet_protocol::jetstream::Timestamp;

use super::{TYPE_LOG_CHUNK, TYPE_TASK_STATUS, is_default, or_default};
use crate::subjects::Layout;

/// The `message` of a failure that is the worker's and not the task's: it stopped. The task is given out again.
pub const WORKER_SHUTDOWN: &str = "worker_shutdown";

/// A task changed its state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskStatusMsg {
    /// Wire version, compared for equality.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    /// Names the kind of message.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// The task.
    #[serde(deserialize_with = "or_default")]
    pub task_id: String,
    /// The execution.
    #[serde(deserialize_with = "or_default")]
    pub attempt_id: String,
    /// Its job.
    #[serde(deserialize_with = "or_default")]
    pub job_id: String,
    /// `running`, `succeeded`, `failed` or `canceled`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    /// For `succeeded` and `failed`; -1 after a signal.
    #[serde(skip_serializing_if = "is_default")]
    pub exit_code: Option<i64>,
    /// Session on the worker.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub session_id: String,
    /// The worker's clock; zero means the server's.
    #[serde(deserialize_with = "or_default")]
    pub at: Timestamp,
    /// Who reports.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub worker_id: String,
    /// Percent.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub last_progress: i64,
    /// Reason or live text.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub message: String,
    /// Number of the last chunk of output, with a terminal status; the server marks what is missing.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub last_log_seq: i64,
}

impl TaskStatusMsg {
    /// One with its envelope filled in.
    #[must_use]
    pub fn new(layout: Layout, status: &str) -> Self {
        Self {
            version: layout.version().to_owned(),
            kind: TYPE_TASK_STATUS.to_owned(),
            status: status.to_owned(),
            ..Self::default()
        }
    }

    /// Whether the execution is over.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "failed" | "canceled")
    }

    /// Whether the worker stopped, which is not the task's fault.
    #[must_use]
    pub fn is_worker_shutdown(&self) -> bool {
        self.status == "failed" && self.message == WORKER_SHUTDOWN
    }
}

/// A piece of a task's output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogChunkMsg {
    /// Wire version, compared for equality.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    /// Names the kind of message.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// The task.
    #[serde(deserialize_with = "or_default")]
    pub task_id: String,
    /// The execution.
    #[serde(deserialize_with = "or_default")]
    pub attempt_id: String,
    /// From 1, for each execution, over both streams.
    #[serde(deserialize_with = "or_default")]
    pub seq_num: i64,
    /// The worker's clock; zero means the server's.
    #[serde(deserialize_with = "or_default")]
    pub at: Timestamp,
    /// `stdout` or `stderr`.
    #[serde(deserialize_with = "or_default")]
    pub stream: String,
    /// Lines without the last line break.
    #[serde(deserialize_with = "or_default")]
    pub data: String,
}

impl LogChunkMsg {
    /// One with its envelope filled in.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            version: layout.version().to_owned(),
            kind: TYPE_LOG_CHUNK.to_owned(),
            ..Self::default()
        }
    }
}

/// A task is to end. It has no envelope.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskCancelMsg {
    /// The task.
    #[serde(deserialize_with = "or_default")]
    pub task_id: String,
    /// The one execution that is to end; empty, as in the contract, ends every one. A cancel stays in its stream for those that
    /// listen later, so a server that ends a worker's outlived execution names it: the next execution of the task hears it too.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub attempt_id: String,
    /// Its job.
    #[serde(deserialize_with = "or_default")]
    pub job_id: String,
    /// When the cancel was recorded.
    #[serde(deserialize_with = "or_default")]
    pub canceled_at: Timestamp,
}
