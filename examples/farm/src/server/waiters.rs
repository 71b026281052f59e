//! Requests that wait for work, and waking them: one for each unit of work, the next only while work is left.
//!
//! A request reads the generation before it looks for work and parks only if it is unchanged, so that work which becomes
//! ready in between is never missed.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use windjet_bus::subjects::WILDCARD_QUEUE;

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    parked: VecDeque<Parked>,
}

#[derive(Debug)]
struct Parked {
    queue: String,
    /// The generation it has seen: passing on does not wake it twice for one.
    seen: u64,
    wake: oneshot::Sender<()>,
}

impl Waiters {
    /// What to hand to [`Waiters::park`] after looking for work.
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Parks, or answers `None` when something became ready since `seen`.
    pub(crate) fn park(&self, queue: &str, seen: u64) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state.lock();
        if state.generation != seen {
            return None;
        }
        // Those that gave up are dropped here, so that they cannot pile up.
        state.parked.retain(|parked| !parked.wake.is_closed());
        let (wake, woken) = oneshot::channel();
        state.parked.push_back(Parked {
            queue: queue.to_owned(),
            seen,
            wake,
        });
        Some(woken)
    }

    /// How many wait.
    pub(crate) fn parked(&self) -> usize {
        let mut state = self.state.lock();
        state.parked.retain(|parked| !parked.wake.is_closed());
        state.parked.len()
    }

    /// Something became ready in a queue: wakes one request that may have it.
    pub(crate) fn wake(&self, queue: &str) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.wake_one(|parked| parked.queue == queue || parked.queue == WILDCARD_QUEUE);
    }

    /// Something may have become ready anywhere: wakes everybody.
    pub(crate) fn wake_all(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        for parked in state.parked.drain(..) {
            // One that is gone needs no waking.
            let _ = parked.wake.send(());
        }
    }

    /// Work is left after a request was served: wakes another one that has not looked since it became ready.
    pub(crate) fn pass_on(&self) {
        let mut state = self.state.lock();
        let now = state.generation;
        state.wake_one(|parked| parked.seen < now);
    }
}

impl State {
    fn wake_one(&mut self, fits: impl Fn(&Parked) -> bool) {
        while let Some(place) = self.parked.iter().position(&fits) {
            let Some(parked) = self.parked.remove(place) else {
                return;
            };
            if parked.wake.send(()).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k7_waking_a_queue_wakes_one_of_its_requests_and_of_no_other_queue() {
        let waiters = Waiters::default();
        let mut one = waiters.park("q1", 0).unwrap();
        let mut other = waiters.park("q2", 0).unwrap();
        waiters.wake("q1");
        assert!(one.try_recv().is_ok());
        assert!(other.try_recv().is_err());
        let mut any = waiters.park("_any", 1).unwrap();
        waiters.wake("q3");
        assert!(any.try_recv().is_ok());
        waiters.wake_all();
        assert!(other.try_recv().is_ok());
    }

    #[test]
    fn k10_work_between_looking_and_parking_is_not_missed() {
        let waiters = Waiters::default();
        let seen = waiters.generation();
        waiters.wake("q1");
        assert!(waiters.park("q1", seen).is_none());
        assert!(waiters.park("q1", waiters.generation()).is_some());
    }

    #[test]
    fn w11_one_task_wakes_one_of_many_and_a_request_that_is_gone_is_skipped() {
        let waiters = Waiters::default();
        drop(waiters.park("q1", 0).unwrap());
        let mut many: Vec<_> = (0..64).map(|_| waiters.park("q1", 0).unwrap()).collect();
        waiters.wake("q1");
        let woken = many
            .iter_mut()
            .filter_map(|waiting| waiting.try_recv().ok())
            .count();
        assert_eq!(woken, 1);
        waiters.pass_on();
        let woken = many
            .iter_mut()
            .filter_map(|waiting| waiting.try_recv().ok())
            .count();
        assert_eq!(woken, 1);
    }
}
