//! The one error type of the kit.
//!
//! An [`Error`] says what kind of thing went wrong, during which operation on what, and carries the source. Two questions
//! every caller has are methods: may I try again ([`Error::is_retryable`]), and may it have happened all the same
//! ([`Error::outcome_unknown`]). Match on [`Error::kind`], never on text.

use std::fmt;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What a call into the kit can fail with.
///
/// `{}` says what failed; `{:?}` also its kind and its causes, on one line, for a `main` that returns it.
pub struct Error {
    kind: ErrorKind,
    /// The operation and what it was about, for people.
    context: String,
    details: Vec<String>,
    api_code: Option<u64>,
    source: Option<Source>,
}

/// What kind of thing went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The connection's address is empty.
    EmptyAddress,
    /// More than one way to authenticate is configured.
    ConflictingAuth,
    /// Only one of user and password is configured.
    IncompleteUserPassword,
    /// The seed is none, or has no public key.
    InvalidNKeySeed,
    /// The TLS settings cannot be used.
    InvalidTls,
    /// Another setting cannot be used.
    InvalidConfig,
    /// The subject is empty.
    EmptySubject,
    /// The subject is not well formed, or has wildcards where none may be.
    InvalidSubject,
    /// The name cannot be a stream's.
    InvalidStreamName,
    /// The name cannot be a consumer's.
    InvalidDurableName,
    /// The name cannot be a queue group's.
    InvalidQueueName,
    /// The name cannot be a bucket's.
    InvalidBucketName,
    /// The key cannot be one of a key-value bucket.
    InvalidKvKey,
    /// The name cannot be an object's.
    InvalidObjectName,
    /// A header cannot be written: a line break in its value, or a character that no name may have.
    InvalidHeader,
    /// The message type is not known, or cannot be used this way.
    InvalidMessageType,
    /// A value could not be encoded.
    Encode,
    /// A payload could not be decoded.
    Decode,
    /// The payload is compressed in a way that is not known.
    UnsupportedContentEncoding,
    /// The payload is over a limit: the cap on expanded payloads, the server's, or that of an object in one piece.
    PayloadTooLarge,
    /// The message does not match the schema that is expected.
    SchemaMismatch,
    /// There is no connection.
    NotConnected,
    /// No connection could be made.
    ConnectFailed,
    /// The connection did not drain in time and was abandoned.
    DrainTimeout,
    /// The client is closed.
    Closed,
    /// No stream stores this subject, or the stream does not exist.
    StreamNotFound,
    /// The consumer does not exist.
    ConsumerNotFound,
    /// The message, key, object or bucket does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The stream's, subject's or key's last sequence is another one than expected.
    WrongLastSequence,
    /// The stream's last message id is another one than expected.
    WrongLastMessageId,
    /// Another stream than the expected one stores this subject.
    WrongStream,
    /// As many publishes as allowed are waiting for their acknowledgement.
    AsyncPublishPendingLimit,
    /// The queue of the worker pool is full.
    PoolFull,
    /// The worker pool is stopped.
    PoolStopped,
    /// The change needs the consumer to be made anew; [`Error::details`] names the settings.
    ConsumerRecreateRequired,
    /// Supervision tried as often as it may.
    SupervisorGiveUp,
    /// Messages pile up and none is processed.
    ConsumerStall,
    /// The bounds of a replay contradict each other.
    InvalidReplayBound,
    /// The subscription is closed.
    InvalidSubscription,
    /// A monitoring page could not be fetched.
    Monitoring,
    /// A monitoring page is larger than the cap.
    MonitoringBodyTooLarge,
    /// The address of a monitoring page is not allowed.
    MonitoringBlocked,
    /// Nobody serves this subject.
    NoResponders,
    /// No answer came in time.
    TimedOut,
    /// A pull failed; the source is a [`PullError`](crate::pull::PullError).
    Pull,
    /// A settlement failed; the source is a [`SettleError`](crate::SettleError).
    Settle,
    /// JetStream answered with another error; [`Error::api_code`] has its number.
    Api,
    /// The other side's answer makes no sense.
    Protocol,
    /// The handler of the application failed.
    Handler,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            details: Vec::new(),
            api_code: None,
            source: None,
        }
    }

    #[must_use]
    pub(crate) fn because(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    #[must_use]
    pub(crate) fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    #[must_use]
    pub(crate) fn with_api_code(mut self, code: u64) -> Self {
        self.api_code = Some(code);
        self
    }

    /// What kind of thing went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The number of JetStream's error, when the server answered with one.
    #[must_use]
    pub fn api_code(&self) -> Option<u64> {
        self.api_code
    }

    /// Names that belong to the error: the settings that differ, the schema field that does not match.
    #[must_use]
    pub fn details(&self) -> &[String] {
        &self.details
    }

    /// Whether the same call may succeed later, with nothing changed but time.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        use ErrorKind as Kind;
        match self.kind {
            Kind::NotConnected
            | Kind::ConnectFailed
            | Kind::AsyncPublishPendingLimit
            | Kind::PoolFull
            | Kind::NoResponders
            | Kind::TimedOut => true,
            // 500 and 503 are the server's own trouble; 4xx are the caller's.
            Kind::Api => matches!(self.api_code, Some(10_008 | 10_077 | 10_167)),
            Kind::Pull => self
                .source
                .as_ref()
                .and_then(|source| source.downcast_ref::<crate::pull::PullError>())
                .is_some_and(crate::pull::PullError::is_retryable),
            Kind::Settle => self
                .source
                .as_ref()
                .and_then(|source| source.downcast_ref::<crate::SettleError>())
                .is_some_and(crate::SettleError::is_retryable),
            _ => false,
        }
    }

    /// Whether it may have happened all the same: it was sent, and no answer came.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self.kind {
            ErrorKind::TimedOut => true,
            ErrorKind::Settle => self
                .source
                .as_ref()
                .and_then(|source| source.downcast_ref::<crate::SettleError>())
                .is_some_and(crate::SettleError::outcome_unknown),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.context, self.kind)?;
        if !self.details.is_empty() {
            write!(f, " ({})", self.details.join(", "))?;
        }
        if let Some(code) = self.api_code {
            write!(f, " [{code}]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?})", self.kind)?;
        let mut cause = std::error::Error::source(self);
        while let Some(here) = cause {
            write!(f, ": {here}")?;
            cause = here.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ErrorKind as Kind;
        f.write_str(match self {
            Kind::EmptyAddress => "the address is empty",
            Kind::ConflictingAuth => {
                "set only one of user and password, seed, secret, credentials file, or user info in an address"
            }
            Kind::IncompleteUserPassword => "user and password go together",
            Kind::InvalidNKeySeed => "not an nkey seed",
            Kind::InvalidTls => "the TLS settings cannot be used",
            Kind::InvalidConfig => "a setting cannot be used",
            Kind::EmptySubject => "the subject is empty",
            Kind::InvalidSubject => "not a valid subject here",
            Kind::InvalidStreamName => "not a name for a stream",
            Kind::InvalidDurableName => "not a name for a consumer",
            Kind::InvalidQueueName => "not a name for a queue group",
            Kind::InvalidBucketName => "not a name for a bucket",
            Kind::InvalidKvKey => "not a key",
            Kind::InvalidObjectName => "not a name for an object",
            Kind::InvalidHeader => "not a valid header",
            Kind::InvalidMessageType => "not a message type that can be used here",
            Kind::Encode => "the value cannot be encoded",
            Kind::Decode => "the payload cannot be decoded",
            Kind::UnsupportedContentEncoding => "unsupported content encoding",
            Kind::PayloadTooLarge => "the payload is too large",
            Kind::SchemaMismatch => "the schema does not match",
            Kind::NotConnected => "not connected",
            Kind::ConnectFailed => "no connection could be made",
            Kind::DrainTimeout => "the connection did not drain in time",
            Kind::Closed => "the client is closed",
            Kind::StreamNotFound => "no such stream, or none stores this subject",
            Kind::ConsumerNotFound => "no such consumer",
            Kind::NotFound => "not found",
            Kind::AlreadyExists => "it exists already",
            Kind::WrongLastSequence => "the last sequence is another one",
            Kind::WrongLastMessageId => "the last message id is another one",
            Kind::WrongStream => "another stream stores this subject",
            Kind::AsyncPublishPendingLimit => "too many publishes are waiting for their acknowledgement",
            Kind::PoolFull => "the queue of the worker pool is full",
            Kind::PoolStopped => "the worker pool is stopped",
            Kind::ConsumerRecreateRequired => {
                "the consumer cannot be changed this way; delete and create it to change these settings"
            }
            Kind::SupervisorGiveUp => "gave up after the last retry",
            Kind::ConsumerStall => "messages pile up and none is processed",
            Kind::InvalidReplayBound => "the bounds of the replay contradict each other",
            Kind::InvalidSubscription => "the subscription is closed",
            Kind::Monitoring => "the page could not be fetched",
            Kind::MonitoringBodyTooLarge => "the page is too large",
            Kind::MonitoringBlocked => "this address is not allowed",
            Kind::NoResponders => "nobody serves this subject",
            Kind::TimedOut => "no answer came in time",
            Kind::Pull => "the pull failed",
            Kind::Settle => "the settlement failed",
            Kind::Api => "JetStream refused it",
            Kind::Protocol => "the answer makes no sense",
            Kind::Handler => "the handler failed",
        })
    }
}

/// The result of a call into the kit.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_that_returns_it_tells_the_reader_what_to_do() {
        let cause =
            Error::new(ErrorKind::StreamNotFound, "looking up the stream KV_done").with_api_code(10_059);
        let error = Error::new(ErrorKind::NotFound, "looking up the bucket done").because(cause);
        assert_eq!(error.to_string(), "looking up the bucket done: not found");
        assert_eq!(
            format!("{error:?}"),
            "looking up the bucket done: not found (NotFound): looking up the stream KV_done: no such stream, or none \
             stores this subject [10059]"
        );
        let silent = Error::unanswered("looking up S/c");
        assert_eq!(silent.kind(), ErrorKind::NoResponders);
        assert!(format!("{silent:?}").contains("JetStream is off"), "{silent:?}");
    }
}
