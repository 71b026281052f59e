//! The connections of a server: the live ones by number, and a bounded memory of the closed ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::connection::{CloseReason, Connection, Profile};

/// What is remembered of a closed connection.
#[derive(Debug, Clone)]
pub(crate) struct Closed {
    /// The connection; its task has ended.
    pub(crate) connection: Arc<Connection>,
    /// When it ended.
    pub(crate) stopped: SystemTime,
    /// How old it was then.
    pub(crate) uptime: Duration,
    /// Why it ended.
    pub(crate) reason: CloseReason,
    /// Subscriptions it had at the end.
    pub(crate) subscriptions: usize,
    /// Who it was.
    pub(crate) profile: Option<Arc<Profile>>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    next: AtomicU64,
    live: Mutex<BTreeMap<u64, Arc<Connection>>>,
    closed: Mutex<VecDeque<Closed>>,
}

impl Registry {
    /// A number that was never given out before.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a live connection.
    pub(crate) fn add(&self, connection: Arc<Connection>) {
        self.live.lock().insert(connection.id, connection);
    }

    /// Moves a connection from the live ones to the closed ones, of which `max` are kept. False when it was not live.
    pub(crate) fn retire(&self, closed: Closed, max: usize) -> bool {
        if self.live.lock().remove(&closed.connection.id).is_none() {
            return false;
        }
        let mut ring = self.closed.lock();
        while ring.len() >= max.max(1) {
            ring.pop_front();
        }
        if max > 0 {
            ring.push_back(closed);
        }
        true
    }

    /// Forgets the closed connections, once nobody can ask for them.
    pub(crate) fn clear(&self) {
        self.closed.lock().clear();
    }

    /// Number of live connections.
    pub(crate) fn len(&self) -> usize {
        self.live.lock().len()
    }

    /// One live connection.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Connection>> {
        self.live.lock().get(&id).cloned()
    }

    /// The live connections in the order of their numbers.
    pub(crate) fn live(&self) -> Vec<Arc<Connection>> {
        self.live.lock().values().cloned().collect()
    }

    /// The remembered closed connections, oldest first.
    pub(crate) fn closed(&self) -> Vec<Closed> {
        self.closed.lock().iter().cloned().collect()
    }
}
