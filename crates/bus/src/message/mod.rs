//! What the messages say: JSON bodies with exact field names, omission rules and versions.
//!
//! Encoders omit optional fields instead of sending `null` or empty values. Decoders ignore unknown fields, take missing
//! ones, read `null` as absent, and never panic. A body is versioned by equality: [`is_current`] compares, and a receiver
//! drops what differs.

mod assign;
mod lease;
mod task;
#[cfg(test)]
mod tests;
mod worker;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

pub use assign::{
    Action, AssignMsg, Cancelation, EmbeddedFile, Environment, Isolation, PathDelivery, PathMapRule,
    StageEntry,
};
pub use lease::{LeaseReply, LeaseRequest, RawLeaseReply};
pub use task::{LogChunkMsg, TaskCancelMsg, TaskStatusMsg, WORKER_SHUTDOWN};
pub use windjet_protocol::jetstream::Timestamp;
pub use worker::{DeregisterMsg, DiagLogMsg, ExprLimits, GpuInfo, HeartbeatMsg, RegisterMsg};

use crate::error::{BusError, ErrorKind};
use crate::subjects::Layout;

/// `type` of a registration.
pub const TYPE_REGISTER: &str = "register";
/// `type` of a farewell.
pub const TYPE_DEREGISTER: &str = "deregister";
/// `type` of a heartbeat.
pub const TYPE_HEARTBEAT: &str = "heartbeat";
/// `type` of an assignment.
pub const TYPE_ASSIGN: &str = "assign";
/// `type` of a change of state.
pub const TYPE_TASK_STATUS: &str = "task_status";
/// `type` of a piece of output.
pub const TYPE_LOG_CHUNK: &str = "log_chunk";
/// A name only: the body of a cancel has no envelope.
pub const TYPE_TASK_CANCEL: &str = "task_cancel";

/// Whether a message of this version may be acted on. An empty version is a mismatch too.
#[must_use]
pub fn is_current(version: &str, layout: Layout) -> bool {
    version == layout.version()
}

/// Encodes a message.
///
/// # Errors
/// [`ErrorKind::Decode`] when it cannot be written as JSON, which happens for no type of this module.
pub fn encode<T: Serialize>(message: &T) -> crate::Result<Bytes> {
    match serde_json::to_vec(message) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => Err(BusError::new(ErrorKind::Decode, "cannot encode a message").with(error)),
    }
}

/// Decodes a message.
///
/// # Errors
/// [`ErrorKind::Decode`] when the bytes are not such a message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> crate::Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| BusError::new(ErrorKind::Decode, "cannot read a message").with(error))
}

/// Reads `null` as the default.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// For fields that are left out when they have their default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
