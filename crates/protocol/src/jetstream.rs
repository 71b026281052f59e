//! The JetStream API as data: every request, answer, advisory, status and error, and the subjects they travel on.
//!
//! Pure types with serde; no I/O, no clock, no policy. What a field may hold, in which order checks run and which
//! error wins is decided by the server crate; here is only how it is written and read.
//!
//! * [`error`]: the table of errors and [`ApiError`].
//! * [`duration`], [`timestamp`]: the two ways in which the API writes time.
//! * [`names`]: names of streams and consumers.
//! * [`request`], [`response`]: the rules that all bodies and all answers share.
//! * [`level`]: API level and the metadata that records it.
//! * [`api`]: which call a subject means.
//! * [`account`], [`stream`], [`consumer`]: the bodies by endpoint.
//! * [`advisory`]: what is published about streams, consumers and the server.
//! * [`publish`]: answers to publishes.
//! * [`backup`]: what is in the chunks of a snapshot.
//! * [`status`]: statuses of pull requests, direct gets and snapshots.
//!
//! What is serialised here has the member names, the order and the omission rules of nats-server 2.15, so an answer
//! built from these types is equal, byte for byte, to the one nats-server gives, except that `<`, `>` and `&` are
//! not escaped inside strings (clients accept both) and times are always shown in UTC. Bodies captured from a real
//! server are held against this in `tests/fixtures/jetstream`.
//!
//! Structs have public fields and a `Default` that is the server's; write `StreamConfig { name, ..Default::default() }`.
//! A member that this version does not have is ignored when reading an answer.

pub mod account;
pub mod advisory;
pub mod api;
pub mod backup;
pub mod consumer;
pub mod duration;
pub mod error;
#[cfg(test)]
mod fixtures;
pub mod level;
pub mod names;
pub mod publish;
pub mod request;
pub mod response;
mod serde_util;
pub mod status;
pub mod stream;
pub mod timestamp;

pub use api::{ApiCall, ConsumerVerb, StreamVerb};
pub use consumer::config::{AckPolicy, ConsumerConfig, DeliverPolicy, PriorityPolicy, ReplayPolicy};
pub use consumer::info::{ConsumerInfo, PriorityGroupState, SequenceInfo};
pub use consumer::pull::PullRequest;
pub use duration::{InvalidDuration, Nanos};
pub use error::{ApiError, ErrorCode};
pub use level::{API_LEVEL, Metadata};
pub use names::{ConsumerName, InvalidName, StreamName};
pub use publish::PubAck;
pub use request::{ApiRequest, BodyRule};
pub use response::{ApiResponse, Page, Response};
pub use status::Status;
pub use stream::config::{
    Compression, ConsumerLimits, DiscardPolicy, ExternalStream, PersistMode, Placement, Republish,
    RetentionPolicy, SourceConsumer, StorageType, StreamConfig, StreamSource, SubjectTransform,
};
pub use stream::info::{
    ClusterInfo, DeletedSequences, LostMessages, StreamInfo, StreamSourceInfo, StreamState,
};
pub use timestamp::{InvalidTimestamp, Timestamp};
