//! What a store remembers of a move to another broker: the bucket of its records, and whether the move is over.
//!
//! The records themselves are [`graduate`](super::graduate)'s. A store is opened also by programs that cannot move anything;
//! they must know whether the queues are elsewhere by now.

use std::sync::Arc;

use serde_json::Value;

use super::engine::{Engine, failed};
use crate::Error;

/// The bucket of the records.
pub(super) const BUCKET: &str = "mq_graduate";
/// The record of the move as a whole.
pub(super) const MOVE: &str = "move";
/// Its member that says how far the move is, and the value once publishes go elsewhere.
pub(super) const PHASE: &str = "phase";
pub(super) const SWITCHED: &str = "switched";

/// Why this store takes nothing any more, if it does not.
pub(super) async fn found(engine: &Engine) -> Result<Option<Arc<str>>, Error> {
    let stream = format!("KV_{BUCKET}");
    if !engine.streams().contains(&stream) {
        return Ok(None);
    }
    let what = "the record of a move to another broker";
    let last = engine
        .handle()
        .last_message(&stream, &format!("$KV.{BUCKET}.{MOVE}"))
        .await;
    let Some(last) = last.map_err(|error| failed(what, error))? else {
        return Ok(None);
    };
    let record: Value = serde_json::from_slice(&last.payload).map_err(|error| failed(what, error))?;
    if record[PHASE] != SWITCHED {
        return Ok(None);
    }
    let target = record["target"]["dead_letters"].as_str().unwrap_or("unknown");
    let text = format!(
        "this store was moved to an operator's cluster (dead-letter stream {target}) and takes nothing any more: \
         configure the service for that broker"
    );
    Ok(Some(text.into()))
}
