//! One stream: its owner, its readers, and what lies between.
//!
//! `writer` is the owner's side (stage, submit, commit), `overlay` what is staged, `op` the operations, `reader` the view of
//! committed state, `shared` the meeting point with the pump and the materialiser.

pub(crate) mod message;
pub(crate) mod op;
mod overlay;
pub(crate) mod reader;
pub(crate) mod shared;
pub(crate) mod writer;
