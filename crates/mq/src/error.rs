//! What can go wrong at the boundary.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What a caller may want to tell apart.
///
/// One [`Error`] can be of several kinds, because errors wrap each other: ask with [`Error::is`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The queue that holds the topic's tenant is at a byte limit, or cannot be opened yet. Answer with back-pressure
    /// and try again later.
    QueueFull,
    /// The broker cannot be reached or did not answer in time. What was sent may have been stored.
    Unavailable,
    /// The named durable consumer does not exist (yet) on a queue.
    ConsumerNotFound,
    /// A consumer that the broker's operator owns does not fit the configuration asked for.
    ConsumerMismatch,
    /// Units were named on a broker that has none, or one that it does not have.
    UnitsUnsupported,
    /// A consumer still holds the unit, or was active on it too recently to be judged gone.
    UnitHeld,
    /// Delivery of a consumer ended by itself.
    DeliveryEnded,
    /// The tenant has no dead-letter queue: nothing can have been parked for it.
    NoDeadLetterQueue,
    /// The operator's streams, consumers or permissions do not match what is needed.
    Topology,
    /// Somebody holds the lease.
    LeaseHeld,
    /// The lease was lost before it was resigned.
    LeaseLost,
    /// The coordinator or the broker was closed.
    Closed,
    /// The caller's [`Ctx`](crate::Ctx) was cancelled.
    Canceled,
    /// The call itself is wrong: a topic without a tenant, a bad name, a bad option. Nothing was sent.
    Invalid,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// The standing text of the kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "ingest queue is full",
            Self::Unavailable => "message queue unavailable",
            Self::ConsumerNotFound => "consumer not found",
            Self::ConsumerMismatch => "consumer does not match its config",
            Self::UnitsUnsupported => "consumer units not supported",
            Self::UnitHeld => "unit held by a consumer",
            Self::DeliveryEnded => "consumer delivery ended",
            Self::NoDeadLetterQueue => "dead-letter queue not found",
            Self::Topology => "nats topology does not match what is needed",
            Self::LeaseHeld => "lease held",
            Self::LeaseLost => "lease lost",
            Self::Closed => "closed",
            Self::Canceled => "canceled",
            Self::Invalid => "invalid call",
            Self::Other => "message queue failed",
        }
    }
}

/// A failure at the boundary: its kind, what happened, and the cause.
///
/// `{}` prints this error alone, `{:#}` the whole chain. Cloning is cheap.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    text: Cow<'static, str>,
    causes: Vec<Cause>,
}

type Cause = Arc<dyn StdError + Send + Sync>;

impl Error {
    /// An error without a cause.
    pub fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            text: text.into(),
            causes: Vec::new(),
        }))
    }

    /// An error that wraps its cause. When the cause is an [`Error`], this one is of the cause's kinds too.
    pub fn wrap(
        kind: ErrorKind,
        text: impl Into<Cow<'static, str>>,
        cause: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            text: text.into(),
            causes: vec![Arc::new(cause)],
        }))
    }

    /// One error out of several that happened side by side; `None` when there are none. It is of the kinds of all.
    #[must_use]
    pub fn join(mut errors: Vec<Self>) -> Option<Self> {
        if errors.len() < 2 {
            return errors.pop();
        }
        let text = errors
            .iter()
            .map(|error| format!("{error:#}"))
            .collect::<Vec<_>>()
            .join("; ");
        let causes = errors.into_iter().map(|error| Arc::new(error) as Cause).collect();
        Some(Self(Arc::new(Inner {
            kind: ErrorKind::Other,
            text: text.into(),
            causes,
        })))
    }

    pub(crate) fn canceled(what: &'static str) -> Self {
        Self::new(ErrorKind::Canceled, format!("{what}: canceled"))
    }

    /// The kind of this error itself, whatever it wraps.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether this error, or one that it wraps, is of the kind.
    #[must_use]
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.0.kind == kind || self.0.causes.iter().any(|cause| chain_is(cause.as_ref(), kind))
    }

    /// The first cause of the given type, at any depth.
    #[must_use]
    pub fn find<T: StdError + 'static>(&self) -> Option<&T> {
        self.0.causes.iter().find_map(|cause| chain_find(cause.as_ref()))
    }

    /// Whether the same call may succeed later, unchanged.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        [
            ErrorKind::QueueFull,
            ErrorKind::Unavailable,
            ErrorKind::UnitHeld,
            ErrorKind::LeaseHeld,
        ]
        .into_iter()
        .any(|kind| self.is(kind))
    }

    /// Whether the call may have had its effect all the same. Repeat it under the same idempotency key.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.is(ErrorKind::Unavailable) || self.is(ErrorKind::Canceled)
    }
}

fn chain_is(error: &(dyn StdError + 'static), kind: ErrorKind) -> bool {
    match error.downcast_ref::<Error>() {
        Some(error) => error.is(kind),
        None => error.source().is_some_and(|source| chain_is(source, kind)),
    }
}

fn chain_find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    match error.downcast_ref::<Error>() {
        Some(error) => error.find(),
        None => error.source().and_then(chain_find),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)?;
        // A joined error already names its parts.
        if f.alternate() && self.0.causes.len() == 1 {
            let mut cause: Option<&(dyn StdError + 'static)> = self.source();
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self:#})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.causes.as_slice() {
            [cause] => Some(cause.as_ref()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_error_is_of_every_kind_it_wraps() {
        let inner = Error::new(ErrorKind::ConsumerNotFound, "consumer worker-3 does not exist");
        let error = Error::wrap(
            ErrorKind::DeliveryEnded,
            "unit A/worker-3: consumer delivery ended",
            inner,
        );
        assert!(error.is(ErrorKind::DeliveryEnded) && error.is(ErrorKind::ConsumerNotFound));
        assert!(!error.is(ErrorKind::QueueFull));
        assert_eq!(error.to_string(), "unit A/worker-3: consumer delivery ended");
        assert_eq!(
            format!("{error:#}"),
            "unit A/worker-3: consumer delivery ended: consumer worker-3 does not exist"
        );
    }

    #[test]
    fn joined_errors_keep_their_kinds() {
        assert!(Error::join(Vec::new()).is_none());
        let joined = Error::join(vec![
            Error::new(ErrorKind::ConsumerNotFound, "tenant a: no consumer"),
            Error::new(ErrorKind::Canceled, "purge: canceled"),
        ])
        .unwrap();
        assert!(joined.is(ErrorKind::ConsumerNotFound) && joined.is(ErrorKind::Canceled));
        assert_eq!(format!("{joined:#}"), "tenant a: no consumer; purge: canceled");
    }

    #[test]
    fn a_foreign_cause_is_found_by_its_type() {
        let io = std::io::Error::other("disk");
        let error = Error::wrap(
            ErrorKind::Other,
            "outer",
            Error::wrap(ErrorKind::Other, "inner", io),
        );
        assert_eq!(error.find::<std::io::Error>().unwrap().to_string(), "disk");
        assert!(!error.is_retryable() && !error.outcome_unknown());
    }
}
