//! Message headers: an ordered map, and allocation-free functions over raw header blocks.
//!
//! A header block is the front part of an `HPUB` or `HMSG` message:
//!
//! ```text
//! NATS/1.0[ status[ description]] CR LF
//! *(name ":" *SP value CR LF)
//! CR LF
//! ```
//!
//! Rules that hold for everything here, and that are the JetStream engine's:
//!
//! * Names are compared byte for byte: `nats-msg-id` and `Orig-Nats-Msg-Id` are not `Nats-Msg-Id`.
//! * Names may repeat; [`HeaderMap::get`] and [`block::find`] give the first one.
//! * A value is what follows the colon with leading spaces skipped, up to CR LF. Trailing spaces belong to it.
//! * Order and case are kept.
//!
//! The core never validates a block that a client publishes, so reading is tolerant: lines without a colon are passed
//! over, a missing last line end is forgiven, and nothing panics on any bytes.
//!
//! Use [`block`] on the publish path, where one or two values are wanted and the bytes must stay as they are; use
//! [`HeaderMap`] where headers are built or handed to an application. [`names`] has the names with a meaning.

pub mod block;
mod map;
pub mod names;
#[cfg(test)]
mod tests;

pub use map::{HeaderError, HeaderMap, Status};

/// What the first line of a header block begins with.
pub const VERSION: &[u8] = b"NATS/1.0";

/// The shortest whole block: no status, no fields.
pub const EMPTY_BLOCK: &[u8] = b"NATS/1.0\r\n\r\n";
