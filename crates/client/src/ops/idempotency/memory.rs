//! Ids in memory: for one process, up to a number of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Claim, ClaimStore, DedupStore, StoreFuture};

/// Ids in memory. When it is full, the ids that were done first are forgotten.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    capacity: usize,
    lease: Duration,
}

#[derive(Debug, Default)]
struct State {
    ids: HashMap<String, Entry>,
    done: VecDeque<String>,
    revision: u64,
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Done,
    Claimed { revision: u64, until: Instant },
}

impl MemoryStore {
    /// Remembers at most `capacity` ids that are done; a claim lasts for `lease`.
    #[must_use]
    pub fn new(capacity: usize, lease: Duration) -> Self {
        Self {
            state: Mutex::default(),
            capacity: capacity.max(1),
            lease,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, id: &str) -> u64 {
        let mut state = self.lock();
        state.revision += 1;
        let revision = state.revision;
        let until = Instant::now() + self.lease;
        state
            .ids
            .insert(id.to_owned(), Entry::Claimed { revision, until });
        revision
    }
}

impl DedupStore for MemoryStore {
    fn seen<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        let seen = matches!(self.lock().ids.get(id), Some(Entry::Done));
        Box::pin(std::future::ready(Ok(seen)))
    }

    fn mark<'a>(&'a self, id: &'a str) -> StoreFuture<'a, ()> {
        let mut state = self.lock();
        if !matches!(state.ids.insert(id.to_owned(), Entry::Done), Some(Entry::Done)) {
            state.done.push_back(id.to_owned());
        }
        while state.done.len() > self.capacity {
            if let Some(oldest) = state.done.pop_front() {
                state.ids.remove(&oldest);
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

impl ClaimStore for MemoryStore {
    fn claim<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Claim> {
        let now = Instant::now();
        let entry = self.lock().ids.get(id).copied();
        let claim = match entry {
            Some(Entry::Done) => Claim::Done,
            Some(Entry::Claimed { until, .. }) if until > now => Claim::InFlight(until - now),
            _ => Claim::Acquired(self.put(id)),
        };
        Box::pin(std::future::ready(Ok(claim)))
    }

    fn renew<'a>(&'a self, id: &'a str, revision: u64) -> StoreFuture<'a, Option<u64>> {
        let ours = matches!(self.lock().ids.get(id), Some(Entry::Claimed { revision: found, .. }) if *found == revision);
        let renewed = ours.then(|| self.put(id));
        Box::pin(std::future::ready(Ok(renewed)))
    }

    fn release<'a>(&'a self, id: &'a str, revision: u64) -> StoreFuture<'a, ()> {
        let mut state = self.lock();
        if matches!(state.ids.get(id), Some(Entry::Claimed { revision: found, .. }) if *found == revision) {
            state.ids.remove(id);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn lease(&self) -> Duration {
        self.lease
    }
}
