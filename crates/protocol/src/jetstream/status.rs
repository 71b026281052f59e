//! Statuses: messages without a payload that say how a pull request, a direct get or a snapshot stands.
//!
//! A status is a header block whose first line carries a code and a text: `NATS/1.0 404 No Messages`. Some clients
//! compare the texts exactly, so they are made here only.
//!
//! ```
//! use windjet_protocol::jetstream::status::{Pending, Status};
//!
//! let mut block = Vec::new();
//! Status::RequestTimeout.begin(&mut block);
//! Pending { messages: 5, bytes: 0 }.write(&mut block);
//! Status::end(&mut block);
//! assert_eq!(
//!     block,
//!     b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n\r\n"
//! );
//! ```

use std::borrow::Cow;
use std::fmt;

use crate::jetstream::Nanos;

/// Header with the messages that an ended pull request did not get.
pub const PENDING_MESSAGES: &str = "Nats-Pending-Messages";
/// Header with the bytes that an ended pull request had left.
pub const PENDING_BYTES: &str = "Nats-Pending-Bytes";
/// Header with the last consumer sequence (heartbeats, flow-control answers).
pub const LAST_CONSUMER: &str = "Nats-Last-Consumer";
/// Header with the stream sequence of the consumer's position (heartbeats, flow-control answers).
pub const LAST_STREAM: &str = "Nats-Last-Stream";
/// Header of a heartbeat that names a flow-control request nobody has answered.
pub const CONSUMER_STALLED: &str = "Nats-Consumer-Stalled";
/// Header with the messages that match after this one (direct get).
pub const NUM_PENDING: &str = "Nats-Num-Pending";
/// Header with the sequence of the message before this one (direct get, republish).
pub const LAST_SEQUENCE: &str = "Nats-Last-Sequence";
/// Header with the bound up to which an answer looked (direct get of several last messages).
pub const UP_TO_SEQUENCE: &str = "Nats-UpTo-Sequence";

/// A status of JetStream.
///
/// `Display` is the line without the protocol version: `409 Exceeded MaxWaiting`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// `100 Idle Heartbeat`: the request or subscription is alive.
    IdleHeartbeat,
    /// `100 FlowControl Request`: the receiver answers to its reply subject when it has come this far.
    FlowControlRequest,
    /// `204 EOB`: end of a batch of direct gets.
    EndOfBatch,
    /// `204` without a text: end of a snapshot.
    EndOfSnapshot,
    /// `400 Bad Request - …`: the pull request cannot be served.
    BadRequest(Cow<'static, str>),
    /// `404 No Messages`: a pull request that does not wait got all there is.
    NoMessages,
    /// `404 Message Not Found`: of a direct get.
    MessageNotFound,
    /// `404 No Results`: no subject matches a direct get of several last messages.
    NoResults,
    /// `408 Request Timeout`: the pull request expired.
    RequestTimeout,
    /// `408 Requests Pending`: other requests wait for the messages there are.
    RequestsPending,
    /// `408 Interest Expired`: nobody listens to the reply subject of the pull request any more.
    InterestExpired,
    /// `408 Empty Request`: a direct get that asks for nothing.
    EmptyRequest,
    /// `408 Malformed Request`: a direct get that is not JSON.
    MalformedRequest,
    /// `408 Bad Request`: a direct get that asks for two things.
    ContradictingRequest,
    /// `408 No Flow Response`: the receiver of a snapshot stopped answering.
    NoFlowResponse,
    /// `408 No Interest`: nobody listens for a snapshot.
    NoInterest,
    /// `409 Consumer is push based`.
    PushBased,
    /// `409 Exceeded MaxRequestBatch of n`.
    MaxRequestBatch(i64),
    /// `409 Exceeded MaxRequestExpires of d`.
    MaxRequestExpires(Nanos),
    /// `409 Exceeded MaxRequestMaxBytes of n`.
    MaxRequestMaxBytes(i64),
    /// `409 Exceeded MaxWaiting`: as many pull requests wait as may.
    MaxWaiting,
    /// `409 Message Size Exceeds MaxBytes`: the next message is over the rest of the byte budget.
    MessageSizeExceedsMaxBytes,
    /// `409 Batch Completed`: all messages of the request were sent, bytes are left.
    BatchCompleted,
    /// `409 Consumer Deleted`: the consumer or its stream is gone.
    ConsumerDeleted,
    /// `409 Server Shutdown`.
    ServerShutdown,
    /// `409 Leadership Change`; in clusters only.
    LeadershipChange,
    /// `412 Required Api Level`: the request asks for a newer server.
    RequiredApiLevel,
    /// `413 Too Many Results`: more subjects match than one answer holds.
    TooManyResults,
    /// `423 Nats-Pin-Id mismatch`: the request names a pin that is not the current one.
    PinMismatch,
    /// `423 Nats-Wrong-Pin-Id`: the pin that a waiting request names is over.
    WrongPin,
    /// `429 Too Many Requests`: a publish was refused because the stream is behind.
    TooManyRequests,
    /// `500 …`: reading a snapshot failed.
    Failed(Cow<'static, str>),
}

impl Status {
    /// `400 Bad Request - heartbeat value too large`.
    pub const HEARTBEAT_TOO_LARGE: Self = Self::BadRequest(Cow::Borrowed("heartbeat value too large"));
    /// `400 Bad Request - Not a Overflow Priority consumer`.
    pub const NOT_OVERFLOW: Self = Self::BadRequest(Cow::Borrowed("Not a Overflow Priority consumer"));
    /// `400 Bad Request - Not a Pinned Client Priority consumer`.
    pub const NOT_PINNED: Self = Self::BadRequest(Cow::Borrowed("Not a Pinned Client Priority consumer"));
    /// `400 Bad Request - Priority must be between 0 and 9`.
    pub const PRIORITY_OUT_OF_RANGE: Self =
        Self::BadRequest(Cow::Borrowed("Priority must be between 0 and 9"));
    /// `400 Bad Request - Priority Group missing`.
    pub const PRIORITY_GROUP_MISSING: Self = Self::BadRequest(Cow::Borrowed("Priority Group missing"));
    /// `400 Bad Request - Invalid Priority Group`.
    pub const PRIORITY_GROUP_INVALID: Self = Self::BadRequest(Cow::Borrowed("Invalid Priority Group"));

    /// The code of the status.
    pub const fn code(&self) -> u16 {
        match self {
            Self::IdleHeartbeat | Self::FlowControlRequest => 100,
            Self::EndOfBatch | Self::EndOfSnapshot => 204,
            Self::BadRequest(_) => 400,
            Self::NoMessages | Self::MessageNotFound | Self::NoResults => 404,
            Self::RequestTimeout
            | Self::RequestsPending
            | Self::InterestExpired
            | Self::EmptyRequest
            | Self::MalformedRequest
            | Self::ContradictingRequest
            | Self::NoFlowResponse
            | Self::NoInterest => 408,
            Self::PushBased
            | Self::MaxRequestBatch(_)
            | Self::MaxRequestExpires(_)
            | Self::MaxRequestMaxBytes(_)
            | Self::MaxWaiting
            | Self::MessageSizeExceedsMaxBytes
            | Self::BatchCompleted
            | Self::ConsumerDeleted
            | Self::ServerShutdown
            | Self::LeadershipChange => 409,
            Self::RequiredApiLevel => 412,
            Self::TooManyResults => 413,
            Self::PinMismatch | Self::WrongPin => 423,
            Self::TooManyRequests => 429,
            Self::Failed(_) => 500,
        }
    }

    /// Appends the first line of a header block. Header lines may follow, then [`Status::end`].
    pub fn begin(&self, block: &mut Vec<u8>) {
        block.extend_from_slice(b"NATS/1.0 ");
        // Writing to memory does not fail.
        let _ = std::io::Write::write_fmt(block, format_args!("{self}"));
        block.extend_from_slice(b"\r\n");
    }

    /// Appends the empty line that ends a header block.
    pub fn end(block: &mut Vec<u8>) {
        block.extend_from_slice(b"\r\n");
    }

    /// The whole header block of a status without further headers.
    pub fn block(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(48);
        self.begin(&mut block);
        Self::end(&mut block);
        block
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code())?;
        let text = match self {
            Self::EndOfSnapshot => return Ok(()),
            Self::BadRequest(text) => return write!(f, " Bad Request - {}", OneLine(text)),
            Self::MaxRequestBatch(max) => return write!(f, " Exceeded MaxRequestBatch of {max}"),
            Self::MaxRequestExpires(max) => return write!(f, " Exceeded MaxRequestExpires of {max}"),
            Self::MaxRequestMaxBytes(max) => return write!(f, " Exceeded MaxRequestMaxBytes of {max}"),
            Self::Failed(text) => return write!(f, " {}", OneLine(text)),
            Self::IdleHeartbeat => "Idle Heartbeat",
            Self::FlowControlRequest => "FlowControl Request",
            Self::EndOfBatch => "EOB",
            Self::NoMessages => "No Messages",
            Self::MessageNotFound => "Message Not Found",
            Self::NoResults => "No Results",
            Self::RequestTimeout => "Request Timeout",
            Self::RequestsPending => "Requests Pending",
            Self::InterestExpired => "Interest Expired",
            Self::EmptyRequest => "Empty Request",
            Self::MalformedRequest => "Malformed Request",
            Self::ContradictingRequest => "Bad Request",
            Self::NoFlowResponse => "No Flow Response",
            Self::NoInterest => "No Interest",
            Self::PushBased => "Consumer is push based",
            Self::MaxWaiting => "Exceeded MaxWaiting",
            Self::MessageSizeExceedsMaxBytes => "Message Size Exceeds MaxBytes",
            Self::BatchCompleted => "Batch Completed",
            Self::ConsumerDeleted => "Consumer Deleted",
            Self::ServerShutdown => "Server Shutdown",
            Self::LeadershipChange => "Leadership Change",
            Self::RequiredApiLevel => "Required Api Level",
            Self::TooManyResults => "Too Many Results",
            Self::PinMismatch => "Nats-Pin-Id mismatch",
            Self::WrongPin => "Nats-Wrong-Pin-Id",
            Self::TooManyRequests => "Too Many Requests",
        };
        write!(f, " {text}")
    }
}

/// A text that came from elsewhere, with line ends as spaces so that it cannot end the status line.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.split(['\r', '\n']).enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

/// What a pull request that ends did not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pending {
    /// Messages asked for and not delivered.
    pub messages: u64,
    /// Bytes left of the budget; 0 without a budget.
    pub bytes: u64,
}

impl Pending {
    /// Appends the two header lines.
    pub fn write(self, block: &mut Vec<u8>) {
        write_number(block, PENDING_MESSAGES, self.messages);
        write_number(block, PENDING_BYTES, self.bytes);
    }
}

/// Appends a header line with a number.
pub fn write_number(block: &mut Vec<u8>, name: &str, value: u64) {
    write_header(block, name, itoa::Buffer::new().format(value));
}

/// Appends a header line. Neither part may have a line end.
pub fn write_header(block: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name.as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        block.extend_from_slice(part);
    }
}

/// The header block of an idle heartbeat.
///
/// `last_consumer` is the last consumer sequence given out, `last_stream` the stream sequence of the consumer's
/// position; `stalled` is the subject of a flow-control request that nobody has answered.
pub fn heartbeat(last_consumer: u64, last_stream: u64, stalled: Option<&str>) -> Vec<u8> {
    let mut block = Vec::with_capacity(128);
    Status::IdleHeartbeat.begin(&mut block);
    write_number(&mut block, LAST_CONSUMER, last_consumer);
    write_number(&mut block, LAST_STREAM, last_stream);
    if let Some(subject) = stalled {
        write_header(&mut block, CONSUMER_STALLED, subject);
    }
    Status::end(&mut block);
    block
}

/// The header block that ends a batch of direct gets.
///
/// `pending` messages match after the last one sent, which had the sequence `last`; `up_to` is the bound of a get of
/// several last messages.
pub fn end_of_batch(pending: u64, last: u64, up_to: Option<u64>) -> Vec<u8> {
    let mut block = Vec::with_capacity(96);
    Status::EndOfBatch.begin(&mut block);
    write_number(&mut block, NUM_PENDING, pending);
    write_number(&mut block, LAST_SEQUENCE, last);
    if let Some(bound) = up_to {
        write_number(&mut block, UP_TO_SEQUENCE, bound);
    }
    Status::end(&mut block);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_exact() {
        for (status, line) in [
            (Status::IdleHeartbeat, "100 Idle Heartbeat"),
            (Status::FlowControlRequest, "100 FlowControl Request"),
            (Status::EndOfSnapshot, "204"),
            (
                Status::HEARTBEAT_TOO_LARGE,
                "400 Bad Request - heartbeat value too large",
            ),
            (
                Status::NOT_OVERFLOW,
                "400 Bad Request - Not a Overflow Priority consumer",
            ),
            (
                Status::NOT_PINNED,
                "400 Bad Request - Not a Pinned Client Priority consumer",
            ),
            (
                Status::PRIORITY_OUT_OF_RANGE,
                "400 Bad Request - Priority must be between 0 and 9",
            ),
            (
                Status::PRIORITY_GROUP_MISSING,
                "400 Bad Request - Priority Group missing",
            ),
            (
                Status::PRIORITY_GROUP_INVALID,
                "400 Bad Request - Invalid Priority Group",
            ),
            (Status::NoMessages, "404 No Messages"),
            (Status::MessageNotFound, "404 Message Not Found"),
            (Status::NoResults, "404 No Results"),
            (Status::RequestTimeout, "408 Request Timeout"),
            (Status::RequestsPending, "408 Requests Pending"),
            (Status::InterestExpired, "408 Interest Expired"),
            (Status::EmptyRequest, "408 Empty Request"),
            (Status::MalformedRequest, "408 Malformed Request"),
            (Status::ContradictingRequest, "408 Bad Request"),
            (Status::NoFlowResponse, "408 No Flow Response"),
            (Status::NoInterest, "408 No Interest"),
            (Status::PushBased, "409 Consumer is push based"),
            (Status::MaxRequestBatch(5), "409 Exceeded MaxRequestBatch of 5"),
            (
                Status::MaxRequestExpires(Nanos::from_millis(1500)),
                "409 Exceeded MaxRequestExpires of 1.5s",
            ),
            (
                Status::MaxRequestMaxBytes(1024),
                "409 Exceeded MaxRequestMaxBytes of 1024",
            ),
            (Status::MaxWaiting, "409 Exceeded MaxWaiting"),
            (
                Status::MessageSizeExceedsMaxBytes,
                "409 Message Size Exceeds MaxBytes",
            ),
            (Status::BatchCompleted, "409 Batch Completed"),
            (Status::ConsumerDeleted, "409 Consumer Deleted"),
            (Status::ServerShutdown, "409 Server Shutdown"),
            (Status::LeadershipChange, "409 Leadership Change"),
            (Status::RequiredApiLevel, "412 Required Api Level"),
            (Status::TooManyResults, "413 Too Many Results"),
            (Status::PinMismatch, "423 Nats-Pin-Id mismatch"),
            (Status::WrongPin, "423 Nats-Wrong-Pin-Id"),
            (Status::TooManyRequests, "429 Too Many Requests"),
            (Status::Failed("disk".into()), "500 disk"),
        ] {
            assert_eq!(status.to_string(), line);
            assert_eq!(status.block(), format!("NATS/1.0 {line}\r\n\r\n").into_bytes());
        }
    }

    #[test]
    fn text_from_elsewhere_cannot_end_the_line() {
        let status = Status::BadRequest("a\r\nX: y".into());
        assert_eq!(status.block(), b"NATS/1.0 400 Bad Request - a  X: y\r\n\r\n");
    }

    #[test]
    fn heartbeats_tell_the_position() {
        assert_eq!(
            heartbeat(3, 9, None),
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 9\r\n\r\n"
        );
        let stalled = heartbeat(3, 9, Some("$JS.FC.S.C.abcd"));
        assert!(stalled.ends_with(b"Nats-Last-Stream: 9\r\nNats-Consumer-Stalled: $JS.FC.S.C.abcd\r\n\r\n"));
    }

    #[test]
    fn end_of_a_batch_tells_what_is_left() {
        assert_eq!(
            end_of_batch(7, 12, None),
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 7\r\nNats-Last-Sequence: 12\r\n\r\n"
        );
        assert_eq!(
            end_of_batch(0, 12, Some(40)),
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 12\r\nNats-UpTo-Sequence: 40\r\n\r\n"
        );
    }
}
