//! Messages about workers: registration, farewell, heartbeat, diagnostics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windjet_protocol::jetstream::Timestamp;

use super::{TYPE_DEREGISTER, TYPE_HEARTBEAT, TYPE_REGISTER, is_default, or_default};
use crate::subjects::Layout;
use crate::token::Token;

/// The graphics processors of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInfo {
    /// Vendor.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub vendor: String,
    /// Model.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub model: String,
    /// Memory of one in MiB.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub vram_mb: i64,
    /// How many.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub count: i64,
}

/// Limits of a worker's expression engine; 0 means not advertised.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExprLimits {
    /// Operations.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub operation_limit: i64,
    /// Bytes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub memory_limit: i64,
    /// Positions of one assignment.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub assignment_positions: i64,
    /// Bytes kept by assignments.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub assignment_retained_bytes: i64,
    /// Bytes kept by definitions.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub let_retained_bytes: i64,
}

/// A worker tells what it is: on connecting and after every reconnect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegisterMsg {
    /// Wire version, compared for equality.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    /// Names the kind of message.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// Stable across restarts.
    #[serde(deserialize_with = "or_default")]
    pub worker_id: String,
    /// Random for each process of the worker.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub instance_id: String,
    /// Grows with each start of the worker, so that an older registration that comes late is recognised.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub boot_seq: i64,
    /// Farm; empty when it belongs to none.
    #[serde(deserialize_with = "or_default")]
    pub farm_id: String,
    /// Set when the worker serves exactly one queue.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub queue_id: String,
    /// All queues that the worker serves; empty for any.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub queue_ids: Vec<String>,
    /// Label; the host's name by default.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub name: String,
    /// Host, may be empty.
    #[serde(deserialize_with = "or_default")]
    pub hostname: String,
    /// Preferred address.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub ip_address: String,
    /// Named site.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub compute_location: String,
    /// Operating system.
    #[serde(deserialize_with = "or_default")]
    pub os: String,
    /// Its version.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub os_version: String,
    /// `amd64`, `arm64` and so on.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub arch: String,
    /// Build of the worker.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub worker_version: String,
    /// Cores.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub cpu_count: i64,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub ram_mb: i64,
    /// Graphics processors.
    #[serde(deserialize_with = "or_default")]
    pub gpu_info: GpuInfo,
    /// For people only.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub max_concurrent_tasks: i64,
    /// Capabilities.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub tags: BTreeMap<String, String>,
    /// Limits of its expression engine.
    #[serde(skip_serializing_if = "is_default")]
    pub expr_limits: Option<ExprLimits>,
}

impl RegisterMsg {
    /// One with its envelope filled in.
    #[must_use]
    pub fn new(layout: Layout, worker: &Token) -> Self {
        Self {
            version: layout.version().to_owned(),
            kind: TYPE_REGISTER.to_owned(),
            worker_id: worker.to_string(),
            ..Self::default()
        }
    }
}

/// A worker takes its leave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeregisterMsg {
    /// Wire version, compared for equality.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    /// Names the kind of message.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// Who.
    #[serde(deserialize_with = "or_default")]
    pub worker_id: String,
    /// Which process of it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub instance_id: String,
    /// Why.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub reason: String,
}

impl DeregisterMsg {
    /// One with its envelope filled in.
    #[must_use]
    pub fn new(layout: Layout, worker: &Token) -> Self {
        Self {
            version: layout.version().to_owned(),
            kind: TYPE_DEREGISTER.to_owned(),
            worker_id: worker.to_string(),
            ..Self::default()
        }
    }
}

/// A worker lives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeartbeatMsg {
    /// Wire version, compared for equality.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    /// Names the kind of message.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// Who.
    #[serde(deserialize_with = "or_default")]
    pub worker_id: String,
    /// Which process of it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub instance_id: String,
    /// The worker's clock. Information: whether it lives is judged by the server's clock.
    #[serde(deserialize_with = "or_default")]
    pub at: Timestamp,
    /// Tasks that run.
    #[serde(deserialize_with = "or_default")]
    pub active_task_count: i64,
    /// For people only.
    #[serde(deserialize_with = "or_default")]
    pub max_concurrent_tasks: i64,
    /// Tasks that run; the server re-sends cancels for those that are not this worker's any more.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub active_task_ids: Vec<String>,
    /// Since the start of the process.
    #[serde(deserialize_with = "or_default")]
    pub uptime_seconds: f64,
    /// When it last got work.
    #[serde(skip_serializing_if = "is_default")]
    pub last_assignment_at: Option<Timestamp>,
}

impl HeartbeatMsg {
    /// One with its envelope filled in.
    #[must_use]
    pub fn new(layout: Layout, worker: &Token) -> Self {
        Self {
            version: layout.version().to_owned(),
            kind: TYPE_HEARTBEAT.to_owned(),
            worker_id: worker.to_string(),
            ..Self::default()
        }
    }
}

/// One record of a worker's own log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiagLogMsg {
    /// When.
    #[serde(deserialize_with = "or_default")]
    pub ts: Timestamp,
    /// `DEBUG`, `INFO`, `WARN` or `ERROR`; anything else ranks as `INFO`.
    #[serde(deserialize_with = "or_default")]
    pub level: String,
    /// The text.
    #[serde(deserialize_with = "or_default")]
    pub msg: String,
    /// Its fields.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub attrs: BTreeMap<String, String>,
}
