//! A worker bus on an embedded JetStream broker: fixed subjects and streams, a typed client, work leases.
//!
//! * [`subjects`]: every subject, in the plain and the identity layout; [`Token`]s are their validated parts.
//! * [`message`]: what the messages say, with exact JSON forms.
//! * [`BusError`]: what went wrong, of which kind.

pub mod error;
pub mod message;
pub mod subjects;
mod token;

pub use error::{BusError, ErrorKind};
pub use subjects::{Layout, Subjects};
pub use token::{TOKEN_MAX, Token};

/// What calls of this crate answer.
pub type Result<T, E = BusError> = std::result::Result<T, E>;
