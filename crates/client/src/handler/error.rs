//! How a handler fails.

use std::fmt;
use std::time::Duration;

use super::backtrace;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a handler did not do its work, and with it what becomes of the message.
///
/// Made from any error by `?`; that is [`HandlerError::Failed`]. It is not an error type itself, so that this conversion
/// can exist.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// The work failed. The message is handed back, to be tried again.
    Failed(Cause),
    /// The handler panicked. The message is handed back, to be tried again.
    Panicked(String),
    /// The payload could not be expanded or decoded, or has another schema; trying again will not help. What becomes of
    /// it is the consumer's setting.
    Undecodable(crate::Error),
    /// The message belongs into the dead-letter queue. Without that layer it is handed back.
    SendToDlq(Cause),
    /// The message is in the dead-letter queue, and its original was given up as far as that was possible. Counts as
    /// success; nothing is settled.
    DlqRouted(Option<Cause>),
    /// Another worker is at the same message. It is handed back, to be looked at again after this long.
    ClaimInFlight(Duration),
}

impl HandlerError {
    /// The work failed, for a reason that is a text or a boxed error.
    pub fn failed(cause: impl Into<Cause>) -> Self {
        backtrace::capture();
        Self::Failed(cause.into())
    }

    /// The message belongs into the dead-letter queue.
    pub fn send_to_dlq(cause: impl Into<Cause>) -> Self {
        backtrace::capture();
        Self::SendToDlq(cause.into())
    }

    /// Whether the message has found its place.
    #[must_use]
    pub fn is_routed(&self) -> bool {
        matches!(self, Self::DlqRouted(_))
    }

    /// Whether this was an attempt at the work that failed.
    #[must_use]
    pub fn is_failed_attempt(&self) -> bool {
        !matches!(self, Self::DlqRouted(_) | Self::ClaimInFlight(_))
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        backtrace::capture();
        let boxed: Cause = Box::new(error);
        match boxed.downcast::<crate::Error>() {
            Ok(error) if undecodable(&error) => Self::Undecodable(*error),
            Ok(error) => Self::Failed(error),
            Err(other) => Self::Failed(other),
        }
    }
}

fn undecodable(error: &crate::Error) -> bool {
    use crate::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::Decode
            | Kind::SchemaMismatch
            | Kind::InvalidMessageType
            | Kind::UnsupportedContentEncoding
            | Kind::PayloadTooLarge
    )
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(cause) => chain(f, cause.as_ref()),
            Self::Panicked(text) => write!(f, "handler panic: {text}"),
            Self::Undecodable(error) => chain(f, error),
            Self::SendToDlq(cause) => {
                f.write_str("send to dead-letter queue: ")?;
                chain(f, cause.as_ref())
            }
            Self::DlqRouted(None) => f.write_str("routed to the dead-letter queue"),
            Self::DlqRouted(Some(cause)) => {
                f.write_str("routed to the dead-letter queue, and its original not given up: ")?;
                chain(f, cause.as_ref())
            }
            Self::ClaimInFlight(_) => f.write_str("another worker is at this message"),
        }
    }
}

/// An error with what caused it.
fn chain(f: &mut fmt::Formatter<'_>, error: &(dyn std::error::Error + 'static)) -> fmt::Result {
    write!(f, "{error}")?;
    let mut cause = error.source();
    while let Some(here) = cause {
        write!(f, ": {here}")?;
        cause = here.source();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_becomes_a_failure_and_a_decode_error_a_permanent_one() {
        let failed: HandlerError = std::io::Error::other("disk").into();
        assert!(matches!(failed, HandlerError::Failed(_)));
        assert_eq!(failed.to_string(), "disk");
        let decode: HandlerError = crate::message::codec::decode::<u8>(b"x", crate::MessageType::Json)
            .unwrap_err()
            .into();
        assert!(matches!(decode, HandlerError::Undecodable(_)));
        assert!(
            decode
                .to_string()
                .starts_with("decoding JSON: the payload cannot be decoded: expected value")
        );
    }

    #[test]
    fn only_real_attempts_count() {
        assert!(HandlerError::failed("x").is_failed_attempt());
        assert!(HandlerError::send_to_dlq("x").is_failed_attempt());
        assert!(!HandlerError::ClaimInFlight(Duration::ZERO).is_failed_attempt());
        assert!(!HandlerError::DlqRouted(None).is_failed_attempt());
        assert!(HandlerError::DlqRouted(Some("term".into())).is_routed());
    }
}
