//! The official client's errors in the kit's words.

use async_nats::jetstream::ErrorCode;

use crate::error::{Error, ErrorKind};

impl Error {
    /// An error of JetStream's API.
    pub(crate) fn api(what: impl Into<String>, error: async_nats::jetstream::Error) -> Self {
        let code = error.error_code();
        let kind = match code {
            ErrorCode::STREAM_NOT_FOUND => ErrorKind::StreamNotFound,
            ErrorCode::CONSUMER_NOT_FOUND => ErrorKind::ConsumerNotFound,
            ErrorCode::NO_MESSAGE_FOUND | ErrorCode::SEQUENCE_NOT_FOUND => ErrorKind::NotFound,
            ErrorCode::STREAM_WRONG_LAST_SEQUENCE => ErrorKind::WrongLastSequence,
            ErrorCode::STREAM_WRONG_LAST_MESSAGE_ID => ErrorKind::WrongLastMessageId,
            ErrorCode::STREAM_NOT_MATCH => ErrorKind::WrongStream,
            ErrorCode::CONSUMER_ALREADY_EXISTS | ErrorCode::STREAM_NAME_EXIST => ErrorKind::AlreadyExists,
            _ if code.0 == 10_164 => ErrorKind::WrongLastSequence,
            _ => ErrorKind::Api,
        };
        Self::new(kind, what).with_api_code(code.0).because(error)
    }

    /// Nobody answered for JetStream.
    pub(crate) fn unanswered(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::NoResponders, what)
            .because("JetStream is off at this server or for this account, or the domain is another one")
    }

    /// Any error of the official client: an API error somewhere in its sources, a timeout, no responders, or another.
    pub(crate) fn reached<E>(what: impl Into<String>, error: E) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let what = what.into();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        let mut kind = ErrorKind::Api;
        while let Some(here) = cause {
            if let Some(api) = here.downcast_ref::<async_nats::jetstream::Error>() {
                return Self::api(what, api.clone());
            }
            let text = here.to_string();
            if text.contains("timed out") || text.contains("deadline has elapsed") {
                kind = ErrorKind::TimedOut;
            } else if text.contains("no responders") {
                kind = ErrorKind::NoResponders;
            }
            cause = here.source();
        }
        if kind == ErrorKind::NoResponders {
            return Self::unanswered(what);
        }
        Self::new(kind, what).because(error)
    }
}
