//! What keeps consumers healthy in production: each thing usable alone.

pub mod adaptive;
pub mod circuit;
pub mod dlq;
pub mod fingerprint;
pub mod idempotency;
pub mod incidents;
pub mod liveness;
pub mod recorder;
pub mod replay;
mod replay_run;
pub mod schedule;
pub mod schema;
pub mod shadow;
pub mod shard;
pub mod slow;
pub mod supervise;
mod supervise_push;
pub mod watch;
