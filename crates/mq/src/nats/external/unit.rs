//! What a consumer holds of one unit, shared by the task that pulls, the task that delivers, and the caller.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windjet_client::Delivery;

/// How often a hold without room is renewed.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(5);

/// The state of one unit's consumption.
pub(super) struct Hold {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    /// No more is fetched.
    pub(super) halted: CancellationToken,
    /// Everything fetched has gone through the handler.
    pub(super) drained: CancellationToken,
    /// The hold need not be kept any longer.
    pub(super) let_go: CancellationToken,
    share: usize,
    max_held: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
    ack_wait: Duration,
}

#[derive(Default)]
struct State {
    /// Fetched and not handed to the handler.
    queue: VecDeque<Fetched>,
    /// Handed to the handler and not let go, by number, with the time at which the server redelivers.
    out: BTreeSet<(Instant, u64)>,
    handed: u64,
    fetching_ended: bool,
    pin: Option<String>,
}

impl State {
    /// What is fetched and not let go.
    fn held(&self) -> usize {
        self.queue.len() + self.out.len()
    }
}

/// What the pulling task should do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Do {
    /// Take up to so many.
    Fetch(usize),
    /// Take one past the cap, which keeps the order of redeliveries.
    Overshoot,
    /// Keep the pin, take nothing.
    Renew,
    /// Wait for a change, at most until then.
    Wait(Option<Instant>),
}

/// A message that was fetched, and when.
pub(super) struct Fetched {
    pub(super) delivery: Delivery,
    pub(super) received: SystemTime,
}

/// The next step for the deliverer.
pub(super) enum Popped {
    Message(Box<Fetched>, u64),
    Nothing,
    Ended,
}

impl Hold {
    pub(super) fn new(
        share: usize,
        max_held: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
        ack_wait: Duration,
    ) -> Self {
        Self {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
            halted: CancellationToken::new(),
            drained: CancellationToken::new(),
            let_go: CancellationToken::new(),
            share,
            max_held,
            ack_wait,
        }
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn ack_wait(&self) -> Duration {
        self.ack_wait
    }

    /// Decides what to pull, given when the last pull was made.
    pub(super) fn decide(&self, now: Instant, last_pull: Option<Instant>) -> Do {
        let cap = self.max_held.as_ref().map(|cap| cap());
        let mut state = self.state.lock();
        while let Some(&(until, number)) = state.out.first() {
            if until > now {
                break;
            }
            state.out.remove(&(until, number));
        }
        let room = self.share.saturating_sub(state.queue.len());
        let room = cap.map_or(room, |cap| room.min(cap.saturating_sub(state.held())));
        if room > 0 {
            return Do::Fetch(room);
        }
        let expiry = state.out.first().map(|&(until, _)| until);
        let Some(last_pull) = last_pull.filter(|_| state.pin.is_some()) else {
            return Do::Wait(expiry);
        };
        let renew_at = last_pull + RENEW_EVERY;
        if now < renew_at {
            return Do::Wait(Some(expiry.map_or(renew_at, |expiry| expiry.min(renew_at))));
        }
        // At most as many as renewals fit into one ack wait.
        let bound = (self.ack_wait.as_secs() / RENEW_EVERY.as_secs()).max(1) as usize;
        let over = cap.map(|cap| state.held().saturating_sub(cap));
        if state.queue.is_empty() && over.is_some_and(|over| over < bound) {
            return Do::Overshoot;
        }
        Do::Renew
    }

    /// Takes in what was fetched.
    pub(super) fn push(&self, delivery: Delivery) {
        let mut state = self.state.lock();
        if let Some(pin) = delivery.pin_id()
            && state.pin.as_deref() != Some(pin)
        {
            state.pin = Some(pin.to_owned());
        }
        let received = SystemTime::now();
        state.queue.push_back(Fetched { delivery, received });
        drop(state);
        self.changed.send_replace(());
    }

    pub(super) fn forget_pin(&self) {
        self.state.lock().pin = None;
    }

    pub(super) fn pin(&self) -> Option<String> {
        self.state.lock().pin.clone()
    }

    pub(super) fn end_fetching(&self) {
        self.state.lock().fetching_ended = true;
        self.changed.send_replace(());
    }

    /// The next message for the handler.
    pub(super) fn pop(&self, now: Instant) -> Popped {
        let mut state = self.state.lock();
        let Some(fetched) = state.queue.pop_front() else {
            return if state.fetching_ended {
                Popped::Ended
            } else {
                Popped::Nothing
            };
        };
        state.handed += 1;
        let number = state.handed;
        state.out.insert((now + self.ack_wait, number));
        drop(state);
        self.changed.send_replace(());
        Popped::Message(Box::new(fetched), number)
    }

    /// The handler's message was settled.
    pub(super) fn settled(&self, number: u64) {
        self.state.lock().out.retain(|&(_, out)| out != number);
        self.changed.send_replace(());
    }
}
