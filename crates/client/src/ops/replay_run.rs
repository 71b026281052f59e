//! A replay from its beginning to its end: a side-car is made, worked off up to its bounds, and deleted.
//!
//! The end is that of the stream when the run begins, or an earlier bound; what is published meanwhile is not replayed. A
//! message that fails comes again as usual, and the run waits for it, until it succeeds, finds another place or is
//! delivered as often as its consumer may. Called by [`Replay::run`](super::replay::Replay::run).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::Info;
use tokio::sync::Notify;

use crate::delivery::Delivery;
use crate::handler::{Disposition, Handler, HandlerError, Outcome};

/// How often the server is asked whether anything is left.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A side-car whose run was dropped goes by itself after this.
pub(super) const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What a replay came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Messages that were handled, or found another place.
    pub handled: u64,
    /// Attempts that failed.
    pub failed: u64,
}

/// Hands the messages within the bounds to the handler, and knows where it stands.
pub(super) struct Bounded<H> {
    inner: H,
    course: Arc<Course>,
}

/// How far a run is.
#[derive(Debug)]
pub(super) struct Course {
    state: Mutex<State>,
    pub(super) moved: Notify,
}

#[derive(Debug)]
struct State {
    /// The last sequence to replay.
    until: u64,
    /// Messages that may still begin.
    left: Option<u64>,
    /// Whether something past the end has come: all before it has, too.
    past: bool,
    /// Messages that have begun and are not done.
    open: HashSet<u64>,
    counts: Replayed,
}

impl Course {
    pub(super) fn new(until: u64, limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                until,
                left: limit,
                past: false,
                open: HashSet::new(),
                counts: Replayed {
                    handled: 0,
                    failed: 0,
                },
            }),
            moved: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the message is part of the replay.
    fn admits(&self, sequence: u64) -> bool {
        let mut state = self.lock();
        if sequence > state.until {
            state.past = true;
            return false;
        }
        // A message whose ack was lost may begin again when all that may begin have.
        if state.open.insert(sequence)
            && let Some(left) = state.left.filter(|left| *left > 0)
        {
            state.left = Some(left - 1);
            if left == 1 {
                state.until = sequence;
            }
        }
        true
    }

    fn done(&self, sequence: u64, outcome: &Outcome) {
        let mut state = self.lock();
        match outcome {
            Ok(Disposition::Nak(_)) | Err(HandlerError::ClaimInFlight(_)) => return,
            Err(error) if error.is_failed_attempt() => {
                state.counts.failed += 1;
                return;
            }
            _ => {}
        }
        if state.open.remove(&sequence) {
            state.counts.handled += 1;
        }
    }

    /// Whether the end has come, as far as this side knows.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.past && state.open.is_empty()
    }

    /// Whether the end has come, as the server has it. Messages that were given up for good are not open there.
    pub(super) fn is_over_by(&self, info: &Info) -> bool {
        let nothing_left = info.num_pending == 0 && info.num_ack_pending == 0;
        nothing_left || info.ack_floor.stream_sequence >= self.lock().until
    }

    pub(super) fn counts(&self) -> Replayed {
        self.lock().counts
    }
}

impl<H> Bounded<H> {
    pub(super) fn new(inner: H, course: &Arc<Course>) -> Self {
        Self {
            inner,
            course: Arc::clone(course),
        }
    }
}

impl<H: Handler> Handler for Bounded<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let sequence = delivery.metadata().map_or(0, |found| found.stream_sequence);
        if !self.course.admits(sequence) {
            self.course.moved.notify_one();
            return Ok(Disposition::Ack);
        }
        let outcome = crate::handler::guarded(|| self.inner.handle(delivery)).await;
        self.course.done(sequence, &outcome);
        self.course.moved.notify_one();
        outcome
    }
}
