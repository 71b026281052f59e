//! Errors, one enum per family of operation.

use std::io;

use crate::disk::LockError;

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another store has the directory.
    #[error("store directory not available")]
    Lock(#[from] LockError),
    /// The store was written by a newer version. Nothing was changed.
    #[error("store has format {found}, this program reads up to {known}")]
    NewerFormat {
        /// The version found.
        found: u32,
        /// The newest version this program reads.
        known: u32,
    },
    /// There are manifest files and none of them can be read, or there is data without a manifest. Nothing was changed.
    #[error("the manifest of the store cannot be read in either copy")]
    ManifestUnreadable,
    /// There is no store to check in the directory. Opening one there would make it.
    #[error("there is no store in the directory")]
    Missing,
    /// The medium reported an error.
    #[error("i/o while opening the store")]
    Io(#[from] io::Error),
}

/// Why an operation was not staged. Nothing was changed, no sequence was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// A bound on bytes in memory or in the journal is reached. The stream's waker is called when it is worth trying again.
    #[error("waiting for earlier operations")]
    Busy,
    /// A staged purge is not committed yet; nothing else is staged on the stream before it is. The waker is called then.
    #[error("waiting for a purge")]
    Barrier,
    /// The operation is longer than the store takes.
    #[error("operation of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the operation's records.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The stream was deleted.
    #[error("stream is deleted")]
    Deleted,
    /// The disk is full: appends are refused, what frees space goes on.
    #[error("no space left on the device")]
    DiskFull,
    /// A write or sync of the journal failed; nothing is written until the store is opened anew.
    #[error("store stopped writing after an i/o failure")]
    Failed,
    /// The operation contradicts itself or the stream: a sequence that was given out, an empty group.
    #[error("invalid operation")]
    Invalid,
}

impl StageError {
    /// Whether the same call can succeed later without anything else being done.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy | Self::Barrier | Self::DiskFull)
    }
}

/// A stream was not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A living stream has the name.
    #[error("stream name in use")]
    Exists,
    /// The creation could not be staged.
    #[error(transparent)]
    Stage(#[from] StageError),
}

/// What was staged has an unknown outcome: the journal failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("journal failed; the outcome of unanswered operations is unknown")]
pub struct CommitError;

/// Why a message could not be read from disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The medium reported an error; the message may be readable later.
    #[error("read failed")]
    Io(#[from] io::Error),
    /// The message is live and its bytes are damaged. The stream's owner should stage [`crate::Op::Lost`].
    #[error("record of sequence {seq} is damaged")]
    Damaged {
        /// The message's sequence.
        seq: u64,
    },
}
