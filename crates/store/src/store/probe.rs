//! A question to the disk: does the journal still become durable?
//!
//! [`Store::health`](super::Store::health) tells what the store has noticed by itself, which is nothing while nobody
//! writes. A [`Probe`] makes the journal thread write an empty frame and sync it. It holds no store open: when the store is
//! gone, a probe says so. Whoever may ask often shares the answer; the store does not.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::pump::Step;
use super::{Core, Store};

/// Why nothing could be made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The store is closed, or its threads do not run.
    #[error("the store is closed")]
    Closed,
    /// The journal failed; nothing is written until the store is opened anew.
    #[error("the store stopped writing after an i/o failure; restart after mending the disk")]
    Failed,
    /// The disk is full: appends are refused until there is space again.
    #[error("the disk is full; free space or raise the limit")]
    DiskFull,
    /// Nothing was durable within the time given.
    #[error("the disk made nothing durable within {0:?}")]
    TimedOut(Duration),
}

/// Probes that were asked for and done, under the lock of the journal thread's list.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    asked: u64,
    done: u64,
    failed: Option<ProbeError>,
}

impl Probes {
    /// Whether one waits.
    pub(crate) fn waiting(&self) -> bool {
        self.done < self.asked
    }
}

/// Asks the disk. Cheap to clone, and not what keeps a store open.
#[derive(Debug, Clone)]
pub struct Probe(Weak<Core>);

impl Store {
    /// What asks whether the journal still becomes durable.
    pub fn probe(&self) -> Probe {
        Probe(Arc::downgrade(&self.core))
    }
}

impl Probe {
    /// Has the journal thread write and sync an empty frame, and waits for that, at most as long as `timeout`.
    ///
    /// Blocks the thread.
    ///
    /// # Errors
    /// Why nothing became durable.
    pub fn run(&self, timeout: Duration) -> Result<(), ProbeError> {
        let core = self.0.upgrade().ok_or(ProbeError::Closed)?;
        if core.has_failed() {
            return Err(ProbeError::Failed);
        }
        let end = Instant::now() + timeout;
        let running = core.keeper_thread.lock().is_some();
        let mut list = core.list.lock();
        if list.stop || !running {
            return Err(ProbeError::Closed);
        }
        list.probes.asked += 1;
        let mine = list.probes.asked;
        if list.sleeping {
            core.wakeup.notify_one();
        }
        while list.probes.done < mine {
            let late = core.probed.wait_until(&mut list, end).timed_out();
            if list.stop {
                return Err(ProbeError::Closed);
            }
            if late && list.probes.done < mine {
                return Err(ProbeError::TimedOut(timeout));
            }
        }
        match list.probes.failed {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}

impl Core {
    /// Answers the probes that wait. Called by the journal thread between its steps.
    pub(crate) fn answer_probes(&self) {
        let asked = {
            let list = self.list.lock();
            if !list.probes.waiting() {
                return;
            }
            list.probes.asked
        };
        let failed = match self.probe_step() {
            _ if self.has_failed() => Some(ProbeError::Failed),
            // The journal is full of what cannot be let go yet; the next turn tries again.
            Ok(Step::Blocked) => return,
            Err(_) => Some(ProbeError::Failed),
            Ok(_) if self.disk_full.load(std::sync::atomic::Ordering::Relaxed) => Some(ProbeError::DiskFull),
            Ok(_) => None,
        };
        let mut list = self.list.lock();
        list.probes.done = asked;
        list.probes.failed = failed;
        drop(list);
        self.probed.notify_all();
    }
}
