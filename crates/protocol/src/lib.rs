//! The NATS protocol as pure code: no I/O, no clock, no runtime.
//!
//! * [`header`]: message headers, as a map and as raw blocks.
//! * [`jetstream`]: the JetStream API as data.
//! * [`reply`]: acknowledgements, their subjects and payloads.
//! * [`subject`]: what a valid subject is, what matches what, and the types [`Subject`] and [`SubjectFilter`].
//! * [`transform`]: rewriting subjects, by streams, account mappings and imports.
//! * [`wire`]: the codec, both directions, over the caller's buffer.
//!
//! ```
//! use windjet_protocol::wire::{ClientDecoder, ClientOp, Step};
//!
//! let mut decoder = ClientDecoder::new();
//! let buf = b"PUB orders.eu 5\r\nhello\r\nPING\r\n";
//! let step = decoder.decode(buf)?;
//! assert_eq!(
//!     step,
//!     Step::Op { op: ClientOp::Pub { subject: b"orders.eu", reply: None, payload: b"hello" }, consumed: 24 }
//! );
//! assert_eq!(decoder.decode(&buf[24..])?, Step::Op { op: ClientOp::Ping, consumed: 6 });
//! # Ok::<(), windjet_protocol::wire::DecodeError>(())
//! ```

pub mod header;
pub mod jetstream;
pub mod reply;
pub mod subject;
pub mod transform;
pub mod wire;

pub use header::{HeaderError, HeaderMap};
pub use reply::{Ack, AckSubject};
pub use subject::{QueueFilter, Subject, SubjectError, SubjectFilter};
pub use transform::{ImportTransform, MappingTable, Transform};
