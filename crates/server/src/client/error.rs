//! What can go wrong for an in-process client.

use std::time::Duration;

/// Why a message was not published. Nothing was delivered to anybody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The subject has an empty token, white space, or a wildcard.
    #[error("{0:?} is not a subject to publish to")]
    InvalidSubject(String),
    /// Headers plus payload are larger than the client may send.
    #[error("a message of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of headers and payload.
        size: usize,
        /// Largest allowed.
        limit: usize,
    },
    /// The client has no permission for the subject.
    #[error("permissions violation for publish to {0:?}")]
    Denied(String),
    /// The reply subject is reserved for the server.
    #[error("permissions violation for publish with reply of {0:?}")]
    ReplyDenied(String),
    /// The client or the server is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a subscription was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The subject is not a valid pattern, or the queue name has white space.
    #[error("{0:?} is not a subject to subscribe to")]
    InvalidSubject(String),
    /// The client has no permission for the subject.
    #[error("permissions violation for subscription to {0:?}")]
    Denied(String),
    /// The client has as many subscriptions as it may have.
    #[error("maximum subscriptions exceeded")]
    TooMany,
    /// The client or the server is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nobody serves the subject.
    #[error("no responders for {0:?}")]
    NoResponders(String),
    /// No answer within the time; whether somebody acted on the request is unknown.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The request was not published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The inbox for answers could not be made.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
}

impl RequestError {
    /// Whether somebody may have acted on the request although no answer came.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::TimedOut(_))
    }
}

/// Why a client was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The credentials were refused.
    #[error("authorization violation")]
    Unauthorized,
    /// There is no such account.
    #[error("there is no account {0:?}")]
    NoSuchAccount(String),
    /// The account has as many connections as it may have.
    #[error("maximum account active connections exceeded")]
    TooManyConnections,
    /// The server has been told to stop.
    #[error("the server is stopping")]
    Stopping,
}
