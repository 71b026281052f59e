//! Whether JetStream works, for health checks: one probe of the disk for everybody who asks, and what did not come back at
//! the start.
//!
//! The disk is asked once a second at most, however many ask: whoever comes while a probe runs waits for it, whoever comes
//! soon after gets its outcome. Asking blocks the thread, for [`PATIENCE`] at most.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use windjet_store::{Probe, ProbeError};

use super::JetStream;

/// How long an outcome holds.
const FRESH: Duration = Duration::from_secs(1);
/// How long the disk may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something that the store has and that could not be taken up at the start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lost {
    /// Its account.
    pub(crate) account: String,
    /// The stream.
    pub(crate) stream: String,
    /// The consumer, where the stream itself is there.
    pub(crate) consumer: Option<String>,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Health {
    probe: Probe,
    last: Mutex<Last>,
    answered: Condvar,
    lost: Mutex<BTreeSet<Lost>>,
}

#[derive(Debug, Default)]
struct Last {
    running: bool,
    outcome: Option<(Instant, Result<(), ProbeError>)>,
}

impl Health {
    /// Of the store that `probe` asks.
    pub(super) fn new(probe: Probe) -> Self {
        Self {
            probe,
            last: Mutex::default(),
            answered: Condvar::new(),
            lost: Mutex::default(),
        }
    }

    /// Whether something can be made durable now, or could be less than a second ago. Blocks the thread.
    pub(crate) fn is_durable(&self) -> Result<(), ProbeError> {
        let end = Instant::now() + PATIENCE;
        let mut last = self.last.lock();
        loop {
            if let Some((at, outcome)) = last.outcome
                && !last.running
                && at.elapsed() < FRESH
            {
                return outcome;
            }
            if !last.running {
                break;
            }
            if self.answered.wait_until(&mut last, end).timed_out() && last.running {
                return Err(ProbeError::TimedOut(PATIENCE));
            }
        }
        last.running = true;
        drop(last);
        let outcome = self.probe.run(PATIENCE);
        let mut last = self.last.lock();
        *last = Last {
            running: false,
            outcome: Some((Instant::now(), outcome)),
        };
        drop(last);
        self.answered.notify_all();
        outcome
    }

    /// Something did not come back.
    pub(super) fn lose(&self, lost: Lost) {
        self.lost.lock().insert(lost);
    }
}

impl JetStream {
    /// What did not come back and was not made anew since.
    pub(crate) fn lost(&self) -> Vec<Lost> {
        let mut lost: Vec<Lost> = self.health.lost.lock().iter().cloned().collect();
        lost.retain(|lost| {
            let account = self.account(&lost.account);
            let stream = account.and_then(|account| account.stream(&lost.stream));
            match (&lost.consumer, stream) {
                (None, stream) => stream.is_none(),
                (Some(consumer), Some(stream)) => stream.consumer(consumer).is_none(),
                (Some(_), None) => false,
            }
        });
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windjet_store::{SimClock, SimDisk, Store, StoreOptions};

    use super::*;

    fn store() -> (Arc<SimDisk>, Store) {
        let disk = Arc::new(SimDisk::new(1));
        let options = StoreOptions {
            ballast: false,
            ..StoreOptions::default()
        };
        let (mut store, _) = Store::open(options, disk.clone(), Arc::new(SimClock::new(1))).unwrap();
        store.start().unwrap();
        (disk, store)
    }

    #[test]
    fn many_who_ask_share_one_probe_of_the_disk() {
        let (_, store) = store();
        let health = Health::new(store.probe());
        let before = store.metrics().syncs;
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| assert_eq!(health.is_durable(), Ok(())));
            }
        });
        for _ in 0..100 {
            assert_eq!(health.is_durable(), Ok(()));
        }
        // One probe, and what the store covers it with when it is idle; on a slow machine a second may pass meanwhile.
        let syncs = store.metrics().syncs - before;
        assert!((1..=8).contains(&syncs), "{syncs} syncs for 116 questions");
    }

    #[test]
    fn an_outcome_is_not_kept_for_longer_than_a_second() {
        let (disk, store) = store();
        let health = Health::new(store.probe());
        assert_eq!(health.is_durable(), Ok(()));
        disk.fail_syncs(Some(("journal", std::io::ErrorKind::Other)));
        let end = Instant::now() + Duration::from_secs(30);
        while health.is_durable() != Err(ProbeError::Failed) {
            assert!(Instant::now() < end, "the failure is not noticed");
            std::thread::yield_now();
        }
    }
}
