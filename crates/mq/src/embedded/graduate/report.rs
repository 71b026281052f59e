//! What a move did, and whether it adds up.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::TenantId;

/// Messages of one queue, over all runs of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueueCount {
    /// There, behind the first event that was not written when the move began. Counted in the queue's index.
    pub found: u64,
    /// Stored on the target by the move.
    pub moved: u64,
    /// On the target before: stored by a run that ended before it had noted it, or published there under the same
    /// idempotency key.
    pub already_there: u64,
    /// Not moved: events that were written, parked messages that the full queue dropped.
    pub skipped: u64,
    /// Of those moved, how many may be on the target twice: an earlier run may have stored them too, too long ago to tell.
    pub repeated: u64,
    /// Idempotency keys of events that are written, which the target now remembers too.
    pub keys: u64,
}

impl QueueCount {
    /// Whether everything found is accounted for.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.found == self.done()
    }

    /// Accounted for so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.moved + self.already_there + self.skipped
    }

    /// Still to be moved: what a dry run says.
    #[must_use]
    pub fn to_move(&self) -> u64 {
        self.found.saturating_sub(self.done())
    }

    pub(super) fn add(&mut self, other: Self) {
        self.found += other.found;
        self.moved += other.moved;
        self.already_there += other.already_there;
        self.skipped += other.skipped;
        self.repeated += other.repeated;
        self.keys += other.keys;
    }
}

/// Both queues of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TenantCount {
    /// The ingest queue.
    pub events: QueueCount,
    /// The dead-letter queue.
    pub dead_letters: QueueCount,
}

/// What [`EmbeddedNats::graduate`](crate::EmbeddedNats::graduate) did, over all its runs on the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GraduateReport {
    /// Whether it only looked.
    pub dry_run: bool,
    /// Every tenant that has a queue.
    pub tenants: BTreeMap<TenantId, TenantCount>,
    /// Streams in the store that are no queue of a tenant's. They stay where they are.
    pub foreign: Vec<String>,
    /// How long publishes were held in this run.
    pub held: Duration,
}

impl GraduateReport {
    /// All tenants together.
    #[must_use]
    pub fn totals(&self) -> TenantCount {
        let mut all = TenantCount::default();
        for count in self.tenants.values() {
            all.events.add(count.events);
            all.dead_letters.add(count.dead_letters);
        }
        all
    }

    /// Whether every queue is balanced.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let balanced = |count: &TenantCount| count.events.is_balanced() && count.dead_letters.is_balanced();
        self.tenants.values().all(balanced)
    }
}

/// A move whose counts do not add up: the store was changed behind the broker's back. Publishes go on as before.
///
/// It is the cause of the [`Error`](crate::Error): find it with [`Error::find`](crate::Error::find).
#[derive(Debug, Clone)]
pub struct Unbalanced {
    /// What was counted.
    pub report: GraduateReport,
    pub(super) queues: Vec<String>,
}

impl fmt::Display for Unbalanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.queues.join("; "))
    }
}

impl std::error::Error for Unbalanced {}
