//! Which idempotency keys the target may remember because of this move.
//!
//! A queue remembers a key for its window only, and each tenant's for itself; on a partition a key is one for all, and a whole
//! backlog arrives within moments. Two messages that were both accepted here must both be stored there: the first has the
//! key, the other goes under an id of the move's own, as long as the target may remember the key.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The keys in use, as hashes of 64 bits: two that meet cost a message its key and nothing else.
pub(super) struct Keys {
    kept: Duration,
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    owners: HashMap<u64, Owner>,
    order: VecDeque<(Instant, u64)>,
}

struct Owner {
    message: u64,
    since: Instant,
}

impl Keys {
    /// Keys are remembered for so long.
    pub(super) fn new(kept: Duration) -> Self {
        Self {
            kept,
            hasher: RandomState::new(),
            state: Mutex::default(),
        }
    }

    /// Whether the message may use the key on the stream; from now on it is the one that does.
    pub(super) fn claim(&self, stream: &str, key: &str, message: (&str, u64)) -> bool {
        let (key, message) = (self.hasher.hash_one((stream, key)), self.hasher.hash_one(message));
        let now = Instant::now();
        let mut state = self.state.lock();
        while let Some((since, old)) = state.order.front().copied() {
            if now.duration_since(since) < self.kept {
                break;
            }
            state.order.pop_front();
            if state.owners.get(&old).is_some_and(|owner| owner.since == since) {
                state.owners.remove(&old);
            }
        }
        if let Some(owner) = state.owners.get(&key) {
            return owner.message == message;
        }
        state.owners.insert(key, Owner { message, since: now });
        state.order.push_back((now, key));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_one_messages_until_it_is_forgotten() {
        let keys = Keys::new(Duration::from_secs(10));
        assert!(keys.claim("P", "k", ("INGEST_a", 1)));
        assert!(keys.claim("P", "k", ("INGEST_a", 1)), "its own");
        assert!(
            !keys.claim("P", "k", ("INGEST_a", 2)),
            "a later message of the queue"
        );
        assert!(!keys.claim("P", "k", ("INGEST_b", 1)), "another tenant's");
        assert!(
            keys.claim("Q", "k", ("INGEST_b", 1)),
            "another partition remembers its own"
        );
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(keys.claim("P", "k", ("INGEST_a", 2)));
        assert!(!keys.claim("P", "k", ("INGEST_a", 1)));
    }
}
