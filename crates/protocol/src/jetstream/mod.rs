//! The JetStream API as data: every request, answer, advisory, status and error, and the subjects they travel on.
//!
//! Pure types with serde; no I/O, no clock, no policy. What a field may hold, in which order checks run and which
//! error wins is decided by the server crate; here is only how it is written and read.
//!
//! * [`error`]: the table of errors and [`ApiError`].
//! * [`duration`], [`timestamp`]: the two ways in which the API writes time.
//!
//! What is serialised here has the member names, the order and the omission rules of nats-server 2.15, so an answer
//! built from these types is equal, byte for byte, to the one nats-server gives, except that `<`, `>` and `&` are
//! not escaped inside strings (clients accept both) and times are always shown in UTC.

pub mod duration;
pub mod error;
pub mod timestamp;

pub use duration::{InvalidDuration, Nanos};
pub use error::{ApiError, ErrorCode};
pub use timestamp::{InvalidTimestamp, Timestamp};
