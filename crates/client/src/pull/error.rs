//! Why a pull failed, and what that means for the caller.

use std::fmt;
use std::sync::Arc;

use super::Target;

/// A pull that failed. No message is lost by it: what had arrived is handed out first.
#[derive(Debug, Clone, thiserror::Error)]
#[error("pulling from {target}: {kind}{}", words(.description))]
pub struct PullError {
    kind: PullErrorKind,
    target: Arc<Target>,
    description: Option<String>,
}

/// What went wrong with a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PullErrorKind {
    /// There is no connection now, or it was lost while the request was under way.
    Disconnected,
    /// The server's heartbeats stopped.
    HeartbeatMissed,
    /// The request ran out of time and the server did not even say so.
    NoAnswer,
    /// Nobody serves this consumer: it does not exist, or JetStream is not available at the moment.
    NoResponders,
    /// Another server of the cluster leads the consumer now.
    LeadershipChange,
    /// The server is going down.
    ServerShutdown,
    /// The consumer has as many pull requests waiting as it accepts.
    TooManyWaiting,
    /// The pin of this puller is not valid any more; it has been forgotten.
    PinLost,
    /// The consumer asks for smaller requests than this one.
    LimitExceeded,
    /// The consumer, or its stream, was deleted.
    ConsumerDeleted,
    /// The consumer is a push consumer.
    PushConsumer,
    /// The server does not accept the request as it is.
    BadRequest,
    /// The request makes no sense and was not sent.
    InvalidRequest,
    /// The connection was closed for good.
    Closed,
    /// The server answered with a status this version does not know.
    UnknownStatus,
}

impl PullError {
    pub(super) fn new(kind: PullErrorKind, target: &Arc<Target>, description: Option<String>) -> Self {
        Self {
            kind,
            target: Arc::clone(target),
            description: description.filter(|text| !text.is_empty()),
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> PullErrorKind {
        self.kind
    }

    /// The server's own words, when it had some.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The consumer that was asked.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whether the same request may succeed later, with nothing changed but time.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl PullErrorKind {
    /// Whether the same request may succeed later, with nothing changed but time.
    ///
    /// [`PullErrorKind::NoResponders`] counts as retryable, because it also means "not at the moment"; who gets it
    /// twice in a row should look the consumer up.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Disconnected
            | Self::HeartbeatMissed
            | Self::NoAnswer
            | Self::NoResponders
            | Self::LeadershipChange
            | Self::ServerShutdown
            | Self::TooManyWaiting
            | Self::PinLost
            | Self::UnknownStatus => true,
            Self::LimitExceeded
            | Self::ConsumerDeleted
            | Self::PushConsumer
            | Self::BadRequest
            | Self::InvalidRequest
            | Self::Closed => false,
        }
    }
}

impl fmt::Display for PullErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disconnected => "not connected",
            Self::HeartbeatMissed => "heartbeats stopped",
            Self::NoAnswer => "no answer",
            Self::NoResponders => "no responders, does the consumer exist?",
            Self::LeadershipChange => "leadership change",
            Self::ServerShutdown => "server shutdown",
            Self::TooManyWaiting => "too many pull requests are waiting",
            Self::PinLost => "another client is pinned",
            Self::LimitExceeded => "the request is over a limit of the consumer",
            Self::ConsumerDeleted => "consumer deleted",
            Self::PushConsumer => "this is a push consumer",
            Self::BadRequest => "bad request",
            Self::InvalidRequest => "invalid request",
            Self::Closed => "connection closed",
            Self::UnknownStatus => "unknown status",
        })
    }
}

fn words(description: &Option<String>) -> String {
    description
        .as_ref()
        .map(|text| format!(" ({text})"))
        .unwrap_or_default()
}
