//! The wire codec, both directions, as pure incremental functions over the caller's buffer.
//!
//! | module item | direction |
//! |---|---|
//! | [`ClientDecoder`], [`ClientOp`] | reads what clients send (a server uses it) |
//! | [`ServerDecoder`], [`ServerOp`] | reads what servers send (tests and tools use it) |
//! | [`encode`] | writes both |
//! | [`Connect`], [`ServerInfo`] | the two JSON documents of the handshake |
//! | [`errors`] | the texts of `-ERR` |
//!
//! # How a decoder is driven
//!
//! The caller owns one contiguous buffer and calls `decode` with all of it. The answer is
//!
//! * [`Step::Op`]: one operation, made of slices of the buffer, and how many bytes it took. The caller drops that many
//!   bytes from the front and calls again.
//! * [`Step::Incomplete`]: more bytes are needed. Until the next call the caller may only append. `want` is the least
//!   length of the whole buffer at which a call can make progress, good for sizing the next read.
//! * [`DecodeError`]: the stream cannot be continued. [`DecodeError::reply`] says what to tell the peer, if anything.
//!
//! Between calls a decoder keeps offsets only, so a large payload is awaited without parsing its control line again,
//! and a control line arriving byte by byte is searched once. Errors come as early as they are certain: a wrong verb
//! byte before its line ends, an unterminated line over its limit, a payload over its limit before any of it arrives.
//!
//! # Grammar
//!
//! ```text
//! line = verb [1*(SP|TAB) args] *(SP|TAB) [CR] LF
//! ```
//!
//! Verbs are read in any case. Arguments are separated by runs of SP or TAB; in `SUB` and `UNSUB` a CR separates too, in
//! messages it is an ordinary byte, as in the reference. `CONNECT` and `INFO` do not need the whitespace before their
//! document. After `PING`, `PONG` and `+OK` the rest of the line is ignored. A payload is followed by exactly CR LF.
//! Numbers have one to nine decimal digits.
//!
//! # Bounds, and where they differ from the reference
//!
//! `max_control_line` bounds the argument text: from the first byte after the verb's whitespace to the line end. The
//! reference puts no bound on the whitespace after a verb nor on the ignored text after `PING`; here both have the same
//! bound, because a buffer must not grow for ever. The reference also reads `PUB ` followed by a bare LF as if the
//! arguments began on the next line; here that is an empty argument list.

mod connect;
pub mod encode;
pub mod errors;
mod from_client;
mod from_server;
mod info;
mod line;
#[cfg(test)]
mod tests;

pub use connect::Connect;
pub use from_client::{ClientDecoder, ClientOp};
pub use from_server::{ServerDecoder, ServerOp};
pub use info::ServerInfo;

/// The line end that encoders write.
pub const CRLF: &[u8] = b"\r\n";

/// The default of `max_control_line` on the server side, in bytes.
pub const DEFAULT_MAX_CONTROL_LINE: usize = 4096;

/// The default of `max_payload`, in bytes.
pub const DEFAULT_MAX_PAYLOAD: i64 = 1024 * 1024;

/// What one call of a decoder found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<Op> {
    /// A whole operation.
    Op {
        /// The operation, borrowing from the buffer.
        op: Op,
        /// How many bytes it took from the front of the buffer; at least one.
        consumed: usize,
    },
    /// The buffer ends inside an operation.
    Incomplete {
        /// The least total length of the buffer that can lead further; always more than it has now.
        want: usize,
    },
}

/// Why a byte stream cannot be decoded any further. Asking again with the same buffer gives the same error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Bytes outside the grammar: no such verb, a verb without the space after it, a payload without its CR LF.
    #[error("unknown protocol operation")]
    UnknownOperation,
    /// A control line, finished or not, is over `max_control_line`.
    #[error("control line of at least {len} bytes is over the limit of {limit}")]
    ControlLineTooLong {
        /// How long the counted text was when it was refused, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A message announced on its control line is over `max_payload`. Header bytes count.
    #[error("payload of {size} bytes is over the limit of {limit}")]
    PayloadTooLarge {
        /// The announced size, in bytes.
        size: usize,
        /// The limit, in bytes.
        limit: i64,
    },
    /// A message with headers on a connection that did not negotiate them.
    #[error("message with headers on a connection without header support")]
    HeadersNotNegotiated,
    /// A known operation with unusable arguments.
    #[error("malformed {verb}: {reason}")]
    Malformed {
        /// The verb, in upper case.
        verb: &'static str,
        /// What is wrong with the arguments.
        reason: Malformed,
    },
}

/// What is wrong with the arguments of a known operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Too few or too many words.
    #[error("wrong number of arguments")]
    ArgumentCount,
    /// The message size is not a number of one to nine digits.
    #[error("bad message size")]
    Size,
    /// The header size is not a number of one to nine digits.
    #[error("bad header size")]
    HeaderSize,
    /// The header block would be longer than the message that contains it.
    #[error("header is longer than the message")]
    HeaderOverrun,
}

impl DecodeError {
    /// The text a server sends in `-ERR` before it closes the connection; `None` means it closes without a word.
    #[must_use]
    pub fn reply(&self) -> Option<&'static str> {
        match self {
            Self::UnknownOperation => Some(errors::UNKNOWN_OPERATION),
            Self::ControlLineTooLong { .. } => Some(errors::MAX_CONTROL_LINE),
            Self::PayloadTooLarge { .. } => Some(errors::MAX_PAYLOAD),
            Self::HeadersNotNegotiated | Self::Malformed { .. } => None,
        }
    }
}
