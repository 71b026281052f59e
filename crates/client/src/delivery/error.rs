//! Why a settlement failed.

use std::fmt;

/// A settlement that failed.
#[derive(Debug)]
pub struct SettleError {
    kind: SettleErrorKind,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What went wrong with a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SettleErrorKind {
    /// The delivery is settled, or another settlement of it is under way. Nothing was sent.
    AlreadySettled,
    /// The message has no reply subject; it did not come from a consumer that wants acknowledgements.
    NoReply,
    /// It could not be handed to the connection. Nothing was sent.
    NotSent,
    /// It was sent, and the answer that was asked for did not come in time.
    NotConfirmed,
    /// It was sent, and nobody serves this consumer any more.
    NoResponders,
}

impl SettleError {
    pub(super) fn already() -> Self {
        Self::plain(SettleErrorKind::AlreadySettled)
    }

    pub(super) fn no_reply() -> Self {
        Self::plain(SettleErrorKind::NoReply)
    }

    pub(super) fn plain(kind: SettleErrorKind) -> Self {
        Self { kind, source: None }
    }

    pub(crate) fn with(
        kind: SettleErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            source: Some(source.into()),
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> SettleErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            SettleErrorKind::NotSent | SettleErrorKind::NotConfirmed
        )
    }

    /// Whether the server may have carried it out all the same.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.kind == SettleErrorKind::NotConfirmed
    }
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            SettleErrorKind::AlreadySettled => "the delivery is settled already",
            SettleErrorKind::NoReply => "the message wants no acknowledgement",
            SettleErrorKind::NotSent => "the settlement could not be sent",
            SettleErrorKind::NotConfirmed => "the server did not confirm the acknowledgement in time",
            SettleErrorKind::NoResponders => "nobody serves the consumer of this message any more",
        })
    }
}

impl std::error::Error for SettleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
