//! Streams: configuration, state, and the requests and answers of `$JS.API.STREAM.…`.
//!
//! * [`config`]: [`StreamConfig`](config::StreamConfig) and what it is made of.
//! * [`defaults`]: what the server makes of members that a request left out.
//! * [`info`]: [`StreamState`](info::StreamState), [`StreamInfo`](info::StreamInfo), mirrors and sources at work.
//! * [`requests`]: bodies and answers of the endpoints, except
//! * [`get`]: reading single messages, by message get and by direct get.
//!
//! The enumerations here are exhaustive on purpose: a server that meets a new policy must not compile until it says
//! what the policy does.

pub mod config;
pub mod defaults;
pub mod get;
pub mod info;
pub mod requests;
