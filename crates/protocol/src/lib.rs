//! The NATS protocol as pure code: no I/O, no clock, no runtime.
//!
//! * [`jetstream`]: the JetStream API as data.
//! * [`subject`]: what a valid subject is, what matches what, and the types [`Subject`] and [`SubjectFilter`].

pub mod jetstream;
pub mod subject;

pub use subject::{QueueFilter, Subject, SubjectError, SubjectFilter};
