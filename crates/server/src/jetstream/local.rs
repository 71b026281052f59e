//! Outcomes of publishes for code in this process, without an allocation, a task or a oneshot per message.
//!
//! A [`Source`] is one publisher into one stream. Outcomes of its publishes come in the order in which they were made, so
//! an outcome is told by its place: successes with consecutive sequences are one run, whatever their number; everything
//! else is an entry of its own. A waiter holds the place of its publish and waits for the runs to reach it. Publishes whose
//! outcome is not known are a ring, one slot each; a run goes when the last waiter of it has gone. A stream tells a run as a
//! run, so that the lock is taken once a turn on its side, and twice a message on the publisher's.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use windjet_protocol::jetstream::ApiError;

/// What a publish came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Stored with this sequence, durably by the stream's mode.
    Stored {
        /// The sequence.
        seq: u64,
    },
    /// It waits for the end of its atomic batch.
    Staged,
    /// Stored before under the same id.
    Duplicate {
        /// The sequence of the original.
        seq: u64,
    },
    /// Refused, nothing was stored.
    Refused(ApiError),
    /// The stream or the journal ended before the outcome was known.
    Unknown,
}

#[derive(Debug)]
struct Run {
    /// Place of the first publish of the run.
    first: u64,
    /// One past the last.
    end: u64,
    /// Waiters that have not gone.
    waiters: u64,
    outcome: Outcome,
}

/// A publish whose outcome is not known.
#[derive(Debug)]
enum Slot {
    /// Somebody waits, and has a waker here once it was polled.
    Waited(Option<Waker>),
    /// Nobody waits any more.
    Left,
}

#[derive(Debug, Default)]
struct State {
    /// Outcomes known: all places below.
    known: u64,
    /// The places from there on.
    ring: VecDeque<Slot>,
    /// Runs that somebody may ask for, in order.
    runs: VecDeque<Run>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Source {
    state: Mutex<State>,
}

impl Source {
    /// Takes the next place; its outcome will come through [`Source::settle`].
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        state.ring.push_back(Slot::Waited(None));
        state.known + state.ring.len() as u64 - 1
    }

    /// Gives the newest place back: the publish was not handed over.
    pub(crate) fn withdraw(&self, place: u64) {
        let mut state = self.state.lock();
        debug_assert_eq!(place + 1, state.known + state.ring.len() as u64);
        state.ring.pop_back();
    }

    /// The outcome of the next place, in the order of the publishes.
    pub(crate) fn settle(&self, outcome: Outcome) {
        let waker = self.state.lock().settle(outcome);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next `count` places are stored, with sequences from `seq` on.
    pub(crate) fn settle_stored(&self, seq: u64, count: u64) {
        let mut wakers = Vec::new();
        let mut state = self.state.lock();
        for seq in seq..seq + count {
            wakers.extend(state.settle(Outcome::Stored { seq }));
        }
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// Takes the outcome at `place`, once it is known: who got it need not call [`Source::forget`].
    pub(crate) fn poll(&self, place: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if let Some(ahead) = place.checked_sub(state.known) {
            let at = usize::try_from(ahead).unwrap_or(usize::MAX);
            if let Some(Slot::Waited(waker)) = state.ring.get_mut(at) {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
            }
            return Poll::Pending;
        }
        // Runs are kept as long as they have waiters.
        Poll::Ready(state.take(place).unwrap_or(Outcome::Unknown))
    }

    /// Nobody waits for `place` any more.
    pub(crate) fn forget(&self, place: u64) {
        let mut state = self.state.lock();
        if let Some(ahead) = place.checked_sub(state.known) {
            let at = usize::try_from(ahead).unwrap_or(usize::MAX);
            if let Some(slot) = state.ring.get_mut(at) {
                *slot = Slot::Left;
            }
            return;
        }
        drop(state.take(place));
    }

    #[cfg(test)]
    fn runs(&self) -> usize {
        self.state.lock().runs.len()
    }
}

impl State {
    fn settle(&mut self, outcome: Outcome) -> Option<Waker> {
        let place = self.known;
        let slot = self.ring.pop_front()?;
        self.known += 1;
        let Slot::Waited(waker) = slot else {
            return None;
        };
        if let Some(run) = self.runs.back_mut()
            && let (Outcome::Stored { seq: start }, Outcome::Stored { seq }) = (&run.outcome, &outcome)
            && *start + (place - run.first) == *seq
        {
            // Places between that nobody waits for are in it as well; their sequences fit.
            run.end = place + 1;
            run.waiters += 1;
        } else {
            self.runs.push_back(Run {
                first: place,
                end: place + 1,
                waiters: 1,
                outcome,
            });
        }
        waker
    }

    /// The outcome at a place whose waiter goes with it.
    fn take(&mut self, place: u64) -> Option<Outcome> {
        let at = self.find(place)?;
        let run = self.runs.get_mut(at)?;
        run.waiters = run.waiters.saturating_sub(1);
        let outcome = match &run.outcome {
            Outcome::Stored { seq } => Outcome::Stored {
                seq: seq + (place - run.first),
            },
            other => other.clone(),
        };
        // Mostly the first. The newest run may grow further and takes its waiters with it.
        if run.waiters == 0 {
            self.runs.remove(at);
        }
        Some(outcome)
    }

    /// Where the run is that has a place.
    fn find(&self, place: u64) -> Option<usize> {
        let at = self.runs.partition_point(|run| run.end <= place);
        self.runs.get(at).filter(|run| run.first <= place).map(|_| at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    fn stored(seq: u64) -> Outcome {
        Outcome::Stored { seq }
    }

    fn poll(source: &Source, place: u64) -> Poll<Outcome> {
        source.poll(place, &mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn outcomes_come_by_place_and_successes_in_a_row_are_one_run() {
        let source = Source::default();
        let places: Vec<u64> = (0..6).map(|_| source.begin()).collect();
        assert_eq!(places, [0, 1, 2, 3, 4, 5]);
        assert_eq!(poll(&source, 0), Poll::Pending);
        source.settle_stored(7, 3);
        source.settle(Outcome::Duplicate { seq: 3 });
        source.settle(stored(10));
        assert_eq!(source.runs(), 3);
        assert_eq!(poll(&source, 1), Poll::Ready(stored(8)));
        assert_eq!(poll(&source, 3), Poll::Ready(Outcome::Duplicate { seq: 3 }));
        assert_eq!(poll(&source, 4), Poll::Ready(stored(10)));
        assert_eq!(poll(&source, 5), Poll::Pending);
        assert_eq!(source.runs(), 1);
        for place in [0, 2] {
            source.forget(place);
        }
        assert_eq!(source.runs(), 0);
        source.settle(Outcome::Unknown);
        assert_eq!(poll(&source, 5), Poll::Ready(Outcome::Unknown));
    }

    #[test]
    fn who_waits_within_a_run_is_woken() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let source = Source::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        for place in 0..5 {
            assert_eq!(source.begin(), place);
        }
        for place in [1, 3, 4] {
            assert_eq!(
                source.poll(place, &mut Context::from_waker(&waker)),
                Poll::Pending
            );
        }
        source.settle_stored(1, 4);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(poll(&source, 3), Poll::Ready(stored(4)));
        assert_eq!(poll(&source, 4), Poll::Pending);
    }

    #[test]
    fn what_nobody_waits_for_leaves_nothing() {
        let source = Source::default();
        for place in 0..100 {
            assert_eq!(source.begin(), place);
            source.forget(place);
        }
        let waited = source.begin();
        for seq in 1..=101 {
            source.settle(stored(seq));
        }
        assert_eq!(source.runs(), 1);
        assert_eq!(poll(&source, waited), Poll::Ready(stored(101)));
        assert_eq!(source.runs(), 0);
    }

    #[test]
    fn a_publish_that_is_taken_back_has_no_place() {
        let source = Source::default();
        let first = source.begin();
        let second = source.begin();
        source.withdraw(second);
        assert_eq!(source.begin(), second);
        source.settle(stored(1));
        source.settle(Outcome::Duplicate { seq: 1 });
        assert_eq!(poll(&source, first), Poll::Ready(stored(1)));
        assert_eq!(poll(&source, second), Poll::Ready(Outcome::Duplicate { seq: 1 }));
    }
}
