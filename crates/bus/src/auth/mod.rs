//! Who a worker is and what it may do: keys, join tokens, permissions.
//!
//! A worker makes its key itself and keeps the seed; the broker knows public keys only. Permissions are static patterns, so
//! they confine a worker only in the identity layout, where its id is part of every subject it publishes on.

mod join;
mod key;
mod permissions;

pub use join::{JoinToken, JoinTokens};
pub use key::WorkerKey;
pub use permissions::{inbox_prefix, permissions_of};

use crate::token::Token;

/// An enrolled worker: its id and its public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The worker.
    pub worker: Token,
    /// Its public key, an nkey of a user (`U…`).
    pub public_key: String,
}
