//! The one error type of the bus.
//!
//! A [`BusError`] says what kind of thing went wrong, during which operation on which subject, and carries its source.
//! Match on [`BusError::kind`], never on text.

use std::fmt;
use std::time::Duration;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What a call into the bus can fail with.
#[derive(Debug)]
pub struct BusError {
    kind: ErrorKind,
    context: String,
    source: Option<Source>,
}

/// What kind of thing went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address is not `host:port`, or its host cannot be resolved.
    BadAddr,
    /// The address would expose an unauthenticated broker to the network, and nobody asked for that.
    Exposed,
    /// Another process listens on the address.
    AddrInUse,
    /// The folder or a file in it cannot be used.
    Storage,
    /// Another broker has the folder open.
    InUse,
    /// The broker was not started, or has stopped.
    NotStarted,
    /// The broker was started before; a broker is started once.
    AlreadyStarted,
    /// The broker did not become ready in time.
    NotReady,
    /// A setting cannot be used.
    Config,
    /// No connection could be made.
    Connect,
    /// The broker refused the credentials.
    AuthRejected,
    /// The credentials do not allow this subject.
    PermissionDenied {
        /// The subject.
        subject: String,
    },
    /// The client is closed.
    Closed,
    /// Nobody serves the subject.
    NoResponders,
    /// Nothing came in time.
    Timeout {
        /// The time that was given.
        limit: Duration,
    },
    /// The caller gave up.
    Cancelled,
    /// No stream stores the subject, or the stream does not exist.
    NoStream,
    /// The stream is full and refuses what is new.
    StoreFull {
        /// The stream, where it is known.
        stream: String,
    },
    /// The message is larger than the broker takes.
    TooLarge {
        /// Most bytes.
        limit: usize,
        /// Bytes of this message, headers included.
        actual: usize,
    },
    /// The identifier cannot be a part of a subject.
    BadToken,
    /// A stream or consumer exists with a setting that cannot be changed in place.
    Incompatible {
        /// The stream.
        stream: String,
        /// The setting, with the value there is and the one that was wanted.
        field: String,
    },
    /// The message left, and whether it was stored is not known. With a message id it may be sent again safely.
    Unknown,
    /// The broker refused the operation for another reason.
    Refused,
    /// The other side's bytes make no sense.
    Decode,
}

impl BusError {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    pub(crate) fn with(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of thing went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Connect
                | ErrorKind::NoResponders
                | ErrorKind::Timeout { .. }
                | ErrorKind::NoStream
                | ErrorKind::StoreFull { .. }
                | ErrorKind::Unknown
                | ErrorKind::NotReady
        )
    }

    /// Whether it may have happened all the same.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(self.kind, ErrorKind::Unknown)
    }
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for BusError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}
