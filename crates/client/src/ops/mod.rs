//! What keeps consumers healthy in production: each thing usable alone.

pub mod adaptive;
pub mod circuit;
pub mod dlq;
pub mod idempotency;
pub mod recorder;
pub mod replay;
pub mod schema;
pub mod shard;
