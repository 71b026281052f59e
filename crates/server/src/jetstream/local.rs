//! Outcomes of publishes for code in this process, without an allocation, a task or a oneshot per message.
//!
//! A [`Source`] is one publisher into one stream. Outcomes of its publishes come in the order in which they were made, so
//! an outcome is told by its place: successes with consecutive sequences are one run, whatever their number; everything
//! else is an entry of its own. A waiter holds the place of its publish and waits for the runs to reach it.

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
    outcome: Outcome,
}

#[derive(Debug, Default)]
struct State {
    /// Publishes made.
    made: u64,
    /// Outcomes known: all places below.
    known: u64,
    runs: VecDeque<Run>,
    /// Places that nobody asks for any more are dropped up to here.
    wakers: Vec<(u64, Waker)>,
    /// Waiters alive, by which runs are kept.
    waiting: std::collections::BTreeMap<u64, u32>,
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
        let place = state.made;
        state.made += 1;
        *state.waiting.entry(place).or_default() += 1;
        place
    }

    /// Gives the newest place back: the publish was not handed over.
    pub(crate) fn withdraw(&self, place: u64) {
        let mut state = self.state.lock();
        debug_assert_eq!(place + 1, state.made);
        state.made -= 1;
        state.waiting.remove(&place);
    }

    /// The outcome of the next place, in the order of the publishes.
    pub(crate) fn settle(&self, outcome: Outcome) {
        let mut wake = Vec::new();
        {
            let mut state = self.state.lock();
            let place = state.known;
            state.known += 1;
            let joined = match (state.runs.back_mut(), &outcome) {
                (
                    Some(Run {
                        first,
                        end,
                        outcome: Outcome::Stored { seq: start },
                    }),
                    Outcome::Stored { seq },
                ) if *end == place && *start + (place - *first) == *seq => {
                    *end += 1;
                    true
                }
                _ => false,
            };
            if !joined {
                state.runs.push_back(Run {
                    first: place,
                    end: place + 1,
                    outcome,
                });
            }
            let known = state.known;
            let mut at = 0;
            while at < state.wakers.len() {
                if state.wakers[at].0 < known {
                    wake.push(state.wakers.swap_remove(at).1);
                } else {
                    at += 1;
                }
            }
            state.trim();
        }
        wake.into_iter().for_each(Waker::wake);
    }

    /// The outcome at `place`, once it is known.
    pub(crate) fn poll(&self, place: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if place >= state.known {
            let waker = cx.waker();
            match state.wakers.iter_mut().find(|(known, _)| *known == place) {
                Some((_, known)) => known.clone_from(waker),
                None => state.wakers.push((place, waker.clone())),
            }
            return Poll::Pending;
        }
        let at = state.runs.partition_point(|run| run.end <= place);
        Poll::Ready(match state.runs.get(at) {
            Some(run) => match &run.outcome {
                Outcome::Stored { seq } => Outcome::Stored {
                    seq: seq + (place - run.first),
                },
                other => other.clone(),
            },
            // Forgotten only after its waiter was.
            None => Outcome::Unknown,
        })
    }

    /// Nobody waits for `place` any more.
    pub(crate) fn forget(&self, place: u64) {
        let mut state = self.state.lock();
        state.wakers.retain(|(known, _)| *known != place);
        state.waiting.remove(&place);
        state.trim();
    }
}

impl State {
    fn trim(&mut self) {
        let oldest = self.waiting.keys().next().copied().unwrap_or(u64::MAX);
        while self
            .runs
            .front()
            .is_some_and(|run| run.end <= oldest && run.end <= self.known)
        {
            self.runs.pop_front();
        }
    }
}
