//! How much memory waits for clients, and the budget it must stay within.
//!
//! Counted are bytes that a receiver has not taken: output that a socket refused, and messages in mailboxes. What is
//! written within the turn that made it is not counted, so a fast connection costs the counter nothing. When the count is
//! over the budget, the receiver that grows is the one that pays: a connection is closed as a slow consumer, a mailbox
//! drops the message.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Memory {
    waiting: AtomicU64,
    budget: u64,
}

/// Memory held for receivers that are behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// Bytes that wait for connections and in-process subscriptions.
    pub waiting: u64,
    /// Most that may wait; `None` means no bound beyond those of each receiver.
    pub budget: Option<u64>,
}

impl Memory {
    /// Nothing waiting, within `budget`.
    pub(crate) fn new(budget: Option<u64>) -> Self {
        Self {
            waiting: AtomicU64::new(0),
            budget: budget.unwrap_or(u64::MAX),
        }
    }

    /// More or fewer bytes wait for one receiver: it had `before` counted and has `now`. False when it grew and the
    /// whole is over the budget.
    pub(crate) fn changed(&self, before: usize, now: usize) -> bool {
        if now <= before {
            self.waiting.fetch_sub((before - now) as u64, Ordering::Relaxed);
            return true;
        }
        let grown = (now - before) as u64;
        self.waiting.fetch_add(grown, Ordering::Relaxed) + grown <= self.budget
    }

    /// The count now.
    pub(crate) fn report(&self) -> MemoryReport {
        MemoryReport {
            waiting: self.waiting.load(Ordering::Relaxed),
            budget: (self.budget != u64::MAX).then_some(self.budget),
        }
    }
}
