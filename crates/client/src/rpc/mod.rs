//! Requests and replies over core NATS, without JetStream.
//!
//! [`Requester`] sends a request and waits for one reply; [`Responder`] answers. A request to a subject that a stream
//! stores is answered by the stream's acknowledgement: the `_into` methods notice that and say so.
//!
//! Nothing is acknowledged here. A handler that fails or panics sends no reply, and its caller runs into the timeout, unless
//! [`RespondOptions::error_replies`] is on.

mod requester;
mod responder;

pub use requester::Requester;
pub use responder::{
    Call, RespondOptions, Responder, Subscription, respond_bytes, respond_json, respond_msgpack,
    respond_proto,
};

/// The error text in a reply, as NATS services have it.
pub const HEADER_SERVICE_ERROR: &str = "Nats-Service-Error";
/// The error's number in a reply.
pub const HEADER_SERVICE_ERROR_CODE: &str = "Nats-Service-Error-Code";
