//! Limits of the account and the server that a stream's configuration must fit.

use windjet_protocol::jetstream::{ApiError, ErrorCode, StorageType, StreamConfig};

use crate::options::AccountJetStreamLimits;

/// Limits of an account; `None` for none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    pub(crate) max_memory: Option<u64>,
    pub(crate) max_storage: Option<u64>,
    pub(crate) max_streams: Option<u64>,
    pub(crate) max_consumers: Option<u64>,
    pub(crate) memory_max_stream_bytes: Option<u64>,
    pub(crate) storage_max_stream_bytes: Option<u64>,
    pub(crate) max_bytes_required: bool,
}

impl From<&AccountJetStreamLimits> for Bounds {
    fn from(limits: &AccountJetStreamLimits) -> Self {
        Self {
            max_memory: limits.max_memory,
            max_storage: limits.max_store,
            max_streams: limits.max_streams,
            max_consumers: limits.max_consumers,
            memory_max_stream_bytes: limits.memory_max_stream_bytes,
            storage_max_stream_bytes: limits.store_max_stream_bytes,
            max_bytes_required: limits.max_bytes_required,
        }
    }
}

/// What the other streams reserve, of the kind of storage that the stream has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reserved {
    /// Streams of the account.
    pub(crate) streams: u64,
    /// Bytes in the account.
    pub(crate) account: u64,
    /// Bytes on the server.
    pub(crate) server: u64,
    /// Bytes that the server gives; `None` when it is not known to the configuration.
    pub(crate) server_max: Option<u64>,
}

fn bytes(config: &StreamConfig) -> u64 {
    u64::try_from(config.max_bytes).unwrap_or(0)
}

/// Whether the stream fits; with `old`, whether it grows into something that does not.
pub(super) fn check(
    config: &StreamConfig,
    old: Option<&StreamConfig>,
    bounds: &Bounds,
    reserved: &Reserved,
) -> Result<(), ApiError> {
    if old.is_none() && bounds.max_streams.is_some_and(|max| reserved.streams >= max) {
        return Err(ErrorCode::MaximumStreams.error());
    }
    let consumers = u64::try_from(config.max_consumers).unwrap_or(0);
    let grows = old.is_none_or(|old| config.max_consumers > old.max_consumers);
    if grows && bounds.max_consumers.is_some_and(|max| consumers > max) {
        return Err(ErrorCode::MaximumConsumers.error());
    }
    if old.is_some_and(|old| bytes(config) <= bytes(old)) {
        return Ok(());
    }
    let needed = bytes(config).max(1);
    let (of_account, failure) = match config.storage {
        StorageType::Memory => (bounds.max_memory, ErrorCode::InsufficientMemory),
        StorageType::File => (bounds.max_storage, ErrorCode::InsufficientStorage),
    };
    let full = |used: u64, max: Option<u64>| max.is_some_and(|max| used.saturating_add(needed) > max);
    if full(reserved.account, of_account) || full(reserved.server, reserved.server_max) {
        return Err(failure.error());
    }
    Ok(())
}

/// Whether the bytes of the stream are bounded as the account wants.
pub(super) fn check_bytes(config: &StreamConfig, bounds: &Bounds) -> Result<(), ApiError> {
    if bounds.max_bytes_required && config.max_bytes <= 0 {
        return Err(ErrorCode::MaxBytesRequired.error());
    }
    let max = match config.storage {
        StorageType::Memory => bounds.memory_max_stream_bytes,
        StorageType::File => bounds.storage_max_stream_bytes,
    };
    if max.is_some_and(|max| max > 0 && bytes(config) > max) {
        return Err(ErrorCode::MaxStreamBytesExceeded.error());
    }
    Ok(())
}
