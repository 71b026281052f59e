//! The two threads of a running store: loops of a few lines around the steps.
//!
//! `windjet-journal` writes what is submitted and syncs it; it sleeps when there is nothing. `windjet-materialise` does one
//! bounded step after the other and sleeps a moment when there is nothing to do. Both end when the store is closed or
//! dropped, after the step in hand.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Core;
use super::pump::Step;

/// How long the journal waits, with nothing to do, before it covers its last batch with an empty frame.
const IDLE: Duration = Duration::from_millis(100);

/// How long the materialiser waits when it had nothing to do.
const PAUSE: Duration = Duration::from_millis(25);

/// How long it waits for an owner to apply what it is about to move.
const SHORT_PAUSE: Duration = Duration::from_millis(2);

/// How long it rests between two steps while nothing presses, so that syncs of the journal get their turn at the disk.
const PACE: Duration = Duration::from_millis(4);

/// Frames written before a sync at most, when the disk syncs them fast enough.
const BURST_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Threads {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    journal: Option<JoinHandle<()>>,
    materialise: Option<JoinHandle<()>>,
}

impl Threads {
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        core.list.lock().stop = false;
        let stop = Arc::new(AtomicBool::new(false));
        let journal = {
            let core = core.clone();
            std::thread::Builder::new()
                .name("windjet-journal".into())
                .spawn(move || journal(&core))?
        };
        let materialise = {
            let (core, stop) = (core.clone(), stop.clone());
            std::thread::Builder::new()
                .name("windjet-materialise".into())
                .spawn(move || materialise(&core, &stop))?
        };
        *core.keeper_thread.lock() = Some(materialise.thread().clone());
        Ok(Self {
            core: core.clone(),
            stop,
            journal: Some(journal),
            materialise: Some(materialise),
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        *self.core.keeper_thread.lock() = None;
        self.core.list.lock().stop = true;
        self.core.wakeup.notify_all();
        self.core.probed.notify_all();
        if let Some(t) = self.materialise.take() {
            t.thread().unpark();
            let _ = t.join();
        }
        if let Some(t) = self.journal.take() {
            let _ = t.join();
        }
    }
}

fn journal(core: &Core) {
    let mut burst = 1;
    loop {
        let mut wrote = false;
        let mut blocked = false;
        for _ in 0..burst {
            match core.write_step() {
                Ok(Step::Worked) => wrote = true,
                Ok(Step::Idle) => break,
                Ok(Step::Blocked) => {
                    blocked = true;
                    break;
                }
                // The store has failed and told everyone; the loop goes on waiting for its end.
                Err(_) => break,
            }
        }
        let now = core.clock.monotonic();
        if core.pump.lock().wants_sync(now) {
            let _ = core.sync_step();
            // More in one sync while the disk does it fast.
            let took = core.clock.monotonic().saturating_sub(now);
            burst = if took < Duration::from_millis(5) {
                (burst + 1).min(BURST_MAX)
            } else {
                (burst / 2).max(1)
            };
        }
        core.answer_probes();
        if wrote && !blocked {
            continue;
        }
        let sync_due = core.pump.lock().sync_due;
        let until_sync = sync_due.map_or(IDLE, |due| due.saturating_sub(core.clock.monotonic()));
        let mut list = core.list.lock();
        if list.stop {
            return;
        }
        if blocked || (list.streams.is_empty() && !list.probes.waiting()) {
            list.sleeping = true;
            let due = if blocked {
                Duration::from_millis(1)
            } else {
                IDLE.min(until_sync)
            };
            let timed_out = core.wakeup.wait_for(&mut list, due).timed_out();
            list.sleeping = false;
            drop(list);
            if timed_out && !blocked {
                let _ = core.idle_step();
            }
        }
    }
}

fn materialise(core: &Core, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        // The current file is ended early when the tail holds most of what it may.
        let force = core.tail.load(Ordering::Relaxed) > core.options.tail_max / 2;
        match core.materialise_step(force) {
            Ok(Step::Worked) => {
                if core.is_at_ease() {
                    std::thread::park_timeout(PACE);
                }
            }
            Ok(Step::Blocked) => std::thread::park_timeout(SHORT_PAUSE),
            Ok(Step::Idle) | Err(_) => std::thread::park_timeout(PAUSE),
        }
    }
}
