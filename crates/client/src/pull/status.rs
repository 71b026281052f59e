//! The status messages that answer a pull request.

use async_nats::{HeaderMap, Message};

use super::error::PullErrorKind;

/// What a status says about its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// The request is alive.
    Heartbeat,
    /// The request is over, as it was meant to end.
    Over(Over),
    /// The request is over, for a reason worth knowing.
    Failed(PullErrorKind),
}

/// How a request ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Its time was up, or others are in front of it.
    Time,
    /// Nothing is there.
    Nothing,
    /// Its bytes are used up, or the next message is larger than what is left.
    Bytes,
    /// It has all its messages, and bytes to spare.
    Filled,
}

/// Reads a status. A message without a status line on an inbox is none, and says nothing.
pub(super) fn read(message: &Message) -> Status {
    let Some(code) = message.status else {
        return Status::Failed(PullErrorKind::UnknownStatus);
    };
    let text = message.description.as_deref().unwrap_or_default();
    let has = |words: &str| contains(text, words);
    match code.as_u16() {
        100 => Status::Heartbeat,
        400 => Status::Failed(PullErrorKind::BadRequest),
        404 => Status::Over(Over::Nothing),
        408 => Status::Over(Over::Time),
        409 if has("consumer deleted") => Status::Failed(PullErrorKind::ConsumerDeleted),
        409 if has("push based") => Status::Failed(PullErrorKind::PushConsumer),
        409 if has("batch completed") => Status::Over(Over::Filled),
        409 if has("message size exceeds maxbytes") => Status::Over(Over::Bytes),
        409 if has("leadership change") => Status::Failed(PullErrorKind::LeadershipChange),
        409 if has("server shutdown") => Status::Failed(PullErrorKind::ServerShutdown),
        409 if has("exceeded maxwaiting") => Status::Failed(PullErrorKind::TooManyWaiting),
        409 if has("exceeded maxrequest") => Status::Failed(PullErrorKind::LimitExceeded),
        412 => Status::Failed(PullErrorKind::BadRequest),
        423 => Status::Failed(PullErrorKind::PinLost),
        503 => Status::Failed(PullErrorKind::NoResponders),
        _ => Status::Failed(PullErrorKind::UnknownStatus),
    }
}

/// What the request still wanted when it ended, if the status says so.
pub(super) fn still_wanted(headers: Option<&HeaderMap>) -> Option<usize> {
    let value = headers?.get("Nats-Pending-Messages")?;
    // The reference gives -1 for a request that named no batch.
    value
        .as_str()
        .trim()
        .parse::<i64>()
        .ok()
        .map(|n| usize::try_from(n).unwrap_or(0))
}

fn contains(text: &str, lower: &str) -> bool {
    text.len() >= lower.len()
        && text
            .as_bytes()
            .windows(lower.len())
            .any(|window| window.eq_ignore_ascii_case(lower.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::StatusCode;

    fn status(code: u16, text: &str) -> Message {
        Message {
            subject: "_INBOX.a.1".into(),
            reply: None,
            payload: bytes::Bytes::new(),
            headers: None,
            status: StatusCode::from_u16(code).ok(),
            description: Some(text.to_owned()),
            length: 0,
        }
    }

    #[test]
    fn every_status_of_the_protocol_is_known() {
        use PullErrorKind as Kind;
        let table = [
            (100, "Idle Heartbeat", Status::Heartbeat),
            (
                400,
                "Bad Request - heartbeat value too large",
                Status::Failed(Kind::BadRequest),
            ),
            (404, "No Messages", Status::Over(Over::Nothing)),
            (408, "Request Timeout", Status::Over(Over::Time)),
            (408, "Requests Pending", Status::Over(Over::Time)),
            (409, "Consumer is push based", Status::Failed(Kind::PushConsumer)),
            (
                409,
                "Exceeded MaxRequestBatch of 10",
                Status::Failed(Kind::LimitExceeded),
            ),
            (
                409,
                "Exceeded MaxRequestExpires of 10s",
                Status::Failed(Kind::LimitExceeded),
            ),
            (
                409,
                "Exceeded MaxRequestMaxBytes of 7",
                Status::Failed(Kind::LimitExceeded),
            ),
            (409, "Exceeded MaxWaiting", Status::Failed(Kind::TooManyWaiting)),
            (409, "Message Size Exceeds MaxBytes", Status::Over(Over::Bytes)),
            (409, "Batch Completed", Status::Over(Over::Filled)),
            (409, "Consumer Deleted", Status::Failed(Kind::ConsumerDeleted)),
            (409, "Server Shutdown", Status::Failed(Kind::ServerShutdown)),
            (409, "Leadership Change", Status::Failed(Kind::LeadershipChange)),
            (409, "Something new", Status::Failed(Kind::UnknownStatus)),
            (412, "Required Api Level", Status::Failed(Kind::BadRequest)),
            (423, "Nats-Pin-Id mismatch", Status::Failed(Kind::PinLost)),
            (423, "Nats-Wrong-Pin-Id", Status::Failed(Kind::PinLost)),
            (503, "", Status::Failed(Kind::NoResponders)),
        ];
        for (code, text, expected) in table {
            assert_eq!(read(&status(code, text)), expected, "{code} {text}");
        }
    }

    #[test]
    fn a_negative_remainder_is_none_left() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Pending-Messages", "-1");
        assert_eq!(still_wanted(Some(&headers)), Some(0));
        headers.insert("Nats-Pending-Messages", "17");
        assert_eq!(still_wanted(Some(&headers)), Some(17));
        headers.insert("Nats-Pending-Messages", "many");
        assert_eq!(still_wanted(Some(&headers)), None);
        assert_eq!(still_wanted(None), None);
    }
}
