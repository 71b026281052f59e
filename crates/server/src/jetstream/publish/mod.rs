//! Publishing into a stream: everything that can be decided without doing it.
//!
//! Nothing here reads or writes a store, sends a message or asks for the time. The stream's task gives what it knows and does
//! what the answer says, so all of this is tested without a server.
//!
//! * [`headers`]: the headers of a publish that mean something to a stream, found in one pass.
//! * [`rules`]: what the configuration says about publishes.
//! * [`view`]: what must be known about the stream.
//! * [`check`]: the checks of a publish and what follows; [`evict`]: what goes because of limits.
//! * [`ttl`]: life times of single messages; [`expiry`]: their end, and markers in their place.
//! * [`batch`]: atomic batches; [`overlay`]: the stream as the later messages of one see it.
//! * [`fast`]: fast batches.
//! * [`schedule`]: messages that cause later messages; [`cron`]: their expressions.
//! * [`republish`]: what is published again.
//! * [`counter`]: messages that add to a number.

pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod counter;
pub(crate) mod cron;
pub(crate) mod evict;
pub(crate) mod expiry;
pub(crate) mod fast;
pub(crate) mod headers;
mod overlay;
pub(crate) mod republish;
pub(crate) mod rules;
pub(crate) mod schedule;
#[cfg(test)]
mod testing;
pub(crate) mod ttl;
pub(crate) mod view;
