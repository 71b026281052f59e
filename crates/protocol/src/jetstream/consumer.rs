//! Consumers: configuration, state, and the requests and answers of `$JS.API.CONSUMER.…`.
//!
//! * [`config`]: [`ConsumerConfig`](config::ConsumerConfig) and its policies.
//! * [`defaults`]: what the server makes of members that a request left out.
//! * [`info`]: [`ConsumerInfo`](info::ConsumerInfo), where a consumer stands.
//! * [`requests`]: bodies and answers of the endpoints, except
//! * [`pull`]: the request for messages, which has forms of its own and is answered by messages and statuses.
//!
//! The enumerations here are exhaustive on purpose, like those of streams.

pub mod config;
pub mod defaults;
pub mod info;
pub mod pull;
pub mod requests;
