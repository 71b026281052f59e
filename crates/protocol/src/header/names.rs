//! Header names with a meaning in the protocol, spelled exactly as they are compared.

/// Identity of a message for duplicate detection.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// Name the stream must have.
pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Last sequence the stream must have.
pub const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
/// Last sequence the subject must have.
pub const EXPECTED_LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
/// Filter that [`EXPECTED_LAST_SUBJECT_SEQUENCE`] is about instead of the subject.
pub const EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
/// Identity the last message must have.
pub const EXPECTED_LAST_MSG_ID: &str = "Nats-Expected-Last-Msg-Id";
/// `sub` or `all`: what this message replaces.
pub const ROLLUP: &str = "Nats-Rollup";
/// Life time of the message.
pub const TTL: &str = "Nats-TTL";
/// Increment of a counter.
pub const INCREMENT: &str = "Nats-Incr";
/// Identity of a batch.
pub const BATCH_ID: &str = "Nats-Batch-Id";
/// Place of the message in its batch.
pub const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
/// Marks the last message of a batch.
pub const BATCH_COMMIT: &str = "Nats-Batch-Commit";
/// When to publish the message.
pub const SCHEDULE: &str = "Nats-Schedule";
/// Where to publish it.
pub const SCHEDULE_TARGET: &str = "Nats-Schedule-Target";
/// Subject whose last message is published instead.
pub const SCHEDULE_SOURCE: &str = "Nats-Schedule-Source";
/// Life time of what is published.
pub const SCHEDULE_TTL: &str = "Nats-Schedule-TTL";
/// Time zone of the schedule.
pub const SCHEDULE_TIME_ZONE: &str = "Nats-Schedule-Time-Zone";
/// Rollup of what is published.
pub const SCHEDULE_ROLLUP: &str = "Nats-Schedule-Rollup";
/// Subject of the schedule that made a message.
pub const SCHEDULER: &str = "Nats-Scheduler";
/// Next time of the schedule, or `purge`.
pub const SCHEDULE_NEXT: &str = "Nats-Schedule-Next";
/// Why a delete marker was made.
pub const MARKER_REASON: &str = "Nats-Marker-Reason";
/// Counter values of the sources, as JSON.
pub const COUNTER_SOURCES: &str = "Nats-Counter-Sources";
/// Origin of a sourced message.
pub const STREAM_SOURCE: &str = "Nats-Stream-Source";
/// Stream of a message read directly or republished.
pub const STREAM: &str = "Nats-Stream";
/// Its subject; also the request's subject in a no-responders answer.
pub const SUBJECT: &str = "Nats-Subject";
/// Its sequence.
pub const SEQUENCE: &str = "Nats-Sequence";
/// Its time, RFC 3339.
pub const TIME_STAMP: &str = "Nats-Time-Stamp";
/// Sequence of the message before it, in the batch or on the subject.
pub const LAST_SEQUENCE: &str = "Nats-Last-Sequence";
/// Messages still to come.
pub const NUM_PENDING: &str = "Nats-Num-Pending";
/// Up to which sequence a multi-subject read was made.
pub const UP_TO_SEQUENCE: &str = "Nats-UpTo-Sequence";
/// Payload length of a message delivered without its payload.
pub const MSG_SIZE: &str = "Nats-Msg-Size";
/// API level a request needs.
pub const REQUIRED_API_LEVEL: &str = "Nats-Required-Api-Level";
/// Identity of the stream that a sourcing consumer belongs to.
pub const STREAM_IDENTITY: &str = "Nats-Stream-Identity";
/// Consumer sequence in a heartbeat.
pub const LAST_CONSUMER: &str = "Nats-Last-Consumer";
/// Stream sequence in a heartbeat.
pub const LAST_STREAM: &str = "Nats-Last-Stream";
/// Flow-control subject in a heartbeat of a stalled consumer.
pub const CONSUMER_STALLED: &str = "Nats-Consumer-Stalled";
/// Messages a pull request still had to get.
pub const PENDING_MESSAGES: &str = "Nats-Pending-Messages";
/// Bytes a pull request still had to get.
pub const PENDING_BYTES: &str = "Nats-Pending-Bytes";
/// Identity of the pinned client.
pub const PIN_ID: &str = "Nats-Pin-Id";
/// Type of an API response.
pub const RESPONSE_TYPE: &str = "Nats-Response-Type";
/// Who made a request that crossed accounts; removed before storing.
pub const REQUEST_INFO: &str = "Nats-Request-Info";
/// Where the trace of a message goes.
pub const TRACE_DEST: &str = "Nats-Trace-Dest";
/// Trace without delivery.
pub const TRACE_ONLY: &str = "Nats-Trace-Only";
/// Hop of a traced message between servers.
pub const TRACE_HOP: &str = "Nats-Trace-Hop";
/// Account that a traced message came from.
pub const TRACE_ORIGIN_ACCOUNT: &str = "Nats-Trace-Origin-Account";
/// `DEL` or `PURGE`: a key-value removal.
pub const KV_OPERATION: &str = "KV-Operation";
