//! How much memory waits for clients, and the budget it must stay within.
//!
//! Counted are bytes that a receiver has not taken: output that a socket refused, and messages in mailboxes. What is
//! written within the turn that made it is not counted, so a fast connection costs the counter nothing. When the count is
//! over the budget, the receiver that grows is the one that pays: a connection is closed as a slow consumer, a mailbox
//! drops the message.
//!
//! With JetStream half of the budget is the store's: a quarter each bounds its cache and its tails, which it keeps to by
//! itself (`jetstream/open.rs`). They are part of the report.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windjet_store::Metrics;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Memory {
    waiting: AtomicU64,
    /// Most that may wait.
    waiting_max: AtomicU64,
    budget: Option<u64>,
}

/// Memory that the budget covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// Bytes that wait for connections and in-process subscriptions.
    pub waiting: u64,
    /// Bytes of JetStream messages that are not in segments yet: submitted to the journal, or in the tails of streams.
    pub tails: u64,
    /// Bytes of blocks that JetStream keeps for reading.
    pub cache: u64,
    /// Most that all of it may take; `None` means no bound beyond those of each receiver and of the store.
    pub budget: Option<u64>,
}

/// What the files of JetStream's folder take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageReport {
    /// Bytes of all files together: journal, segments, manifest, ballast.
    pub used: u64,
    /// Most that they may take; `None` means no bound but the disk's.
    pub budget: Option<u64>,
}

/// What JetStream of a server runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JetStreamReport {
    /// Its folder.
    pub folder: PathBuf,
    /// Most bytes of memory streams: as configured, else three quarters of the machine's memory.
    pub max_memory: u64,
    /// Most bytes of file streams: as configured, else three quarters of what was free when it started.
    pub max_storage: u64,
    /// Level of the API.
    pub api_level: u32,
    /// How long its start took, with the recovery of its streams.
    pub took: Duration,
}

impl Memory {
    /// Nothing waiting, within `budget`.
    pub(crate) fn new(budget: Option<u64>, jetstream: bool) -> Self {
        let memory = Self {
            waiting: AtomicU64::new(0),
            waiting_max: AtomicU64::new(u64::MAX),
            budget,
        };
        memory.share(jetstream);
        memory
    }

    /// Gives JetStream its half, or takes it back.
    pub(crate) fn share(&self, jetstream: bool) {
        let share = |budget: u64| if jetstream { budget / 2 } else { budget };
        let max = self.budget.map_or(u64::MAX, share);
        self.waiting_max.store(max, Ordering::Relaxed);
    }

    /// More or fewer bytes wait for one receiver: it had `before` counted and has `now`. False when it grew and the
    /// whole is over the budget.
    pub(crate) fn changed(&self, before: usize, now: usize) -> bool {
        if now <= before {
            self.waiting.fetch_sub((before - now) as u64, Ordering::Relaxed);
            return true;
        }
        let grown = (now - before) as u64;
        self.waiting.fetch_add(grown, Ordering::Relaxed) + grown <= self.waiting_max.load(Ordering::Relaxed)
    }

    /// The count now.
    pub(crate) fn report(&self, store: Option<Metrics>) -> MemoryReport {
        MemoryReport {
            waiting: self.waiting.load(Ordering::Relaxed),
            tails: store.map_or(0, |store| store.staged_bytes + store.tail_bytes),
            cache: store.map_or(0, |store| store.cache_bytes),
            budget: self.budget,
        }
    }
}
