//! Answers to requests: one inbox for the whole client, and a slot for each request that waits.
//!
//! The official client keeps the slot of a request that was never answered for as long as it lives. Here a slot goes
//! when its [`Ticket`] goes, or when its time is up for one that nobody holds any more.
//!
//! Called by: the publisher, for acknowledgements; the requester.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subject, Subscriber};
use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Called with the answer, or with nothing when none came.
type Late = Box<dyn FnOnce(Option<Message>) + Send>;

enum Slot {
    Awaited(oneshot::Sender<Message>),
    /// Nobody waits; whoever let go wants to know by then.
    Late(Instant, Late),
}

/// The slots of one client.
pub(crate) struct Replies {
    prefix: String,
    next: AtomicU64,
    slots: Mutex<HashMap<u64, Slot>>,
}

/// A request that waits for its answer. Dropped, its slot goes.
pub(crate) struct Ticket {
    replies: Arc<Replies>,
    token: u64,
    answer: oneshot::Receiver<Message>,
}

impl Replies {
    /// Subscribes an inbox.
    pub(crate) async fn open(
        nats: &async_nats::Client,
    ) -> Result<(Arc<Self>, Subscriber), async_nats::SubscribeError> {
        let inbox = nats.new_inbox();
        let subscriber = nats.subscribe(format!("{inbox}.*")).await?;
        let replies = Self {
            prefix: format!("{inbox}."),
            next: AtomicU64::new(0),
            slots: Mutex::default(),
        };
        Ok((Arc::new(replies), subscriber))
    }

    /// A slot for one answer, and the subject it has to come to.
    pub(crate) fn ticket(self: &Arc<Self>) -> (Subject, Ticket) {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.lock().insert(token, Slot::Awaited(sender));
        let ticket = Ticket {
            replies: Arc::clone(self),
            token,
            answer,
        };
        (Subject::from(format!("{}{token}", self.prefix)), ticket)
    }

    /// Requests whose answer is still to come.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// Hands answers out until the subscription ends.
    pub(crate) async fn serve(self: Arc<Self>, mut subscriber: Subscriber) {
        const LOOK: Duration = Duration::from_millis(200);
        let mut look = Instant::now() + LOOK;
        loop {
            match timeout_at(look, subscriber.next()).await {
                Ok(Some(message)) => self.hand_out(message),
                Ok(None) => break,
                Err(_) => {
                    self.expire(Instant::now());
                    look = Instant::now() + LOOK;
                }
            }
        }
        // Nothing comes any more: whoever waits learns it by the end of the channel.
        let slots = std::mem::take(&mut *self.lock());
        for slot in slots.into_values() {
            if let Slot::Late(_, tell) = slot {
                tell(None);
            }
        }
    }

    fn hand_out(&self, message: Message) {
        let token = message
            .subject
            .strip_prefix(self.prefix.as_str())
            .and_then(|token| token.parse().ok());
        let Some(token) = token else { return };
        let slot = self.lock().remove(&token);
        match slot {
            Some(Slot::Awaited(waiting)) => {
                // It may have stopped waiting just now.
                let _ = waiting.send(message);
            }
            Some(Slot::Late(_, tell)) => tell(Some(message)),
            None => {}
        }
    }

    fn expire(&self, now: Instant) {
        let expired: Vec<Slot> = {
            let mut slots = self.lock();
            let over = |slot: &Slot| matches!(slot, Slot::Late(until, _) if *until <= now);
            let tokens: Vec<u64> = slots
                .iter()
                .filter(|(_, slot)| over(slot))
                .map(|(token, _)| *token)
                .collect();
            tokens.iter().filter_map(|token| slots.remove(token)).collect()
        };
        for slot in expired {
            if let Slot::Late(_, tell) = slot {
                tell(None);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Waits for the answer until `deadline`. `Ok(None)` when the time was up, an error when none can come any more.
    pub(crate) async fn answer(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<Message>, oneshot::error::RecvError> {
        match timeout_at(deadline, &mut self.answer).await {
            Ok(answer) => answer.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Lets go of the slot: `tell` is called with the answer when it comes by `deadline`, else with nothing.
    pub(crate) fn let_go(mut self, deadline: Instant, tell: impl FnOnce(Option<Message>) + Send + 'static) {
        let tell = {
            let mut slots = self.replies.lock();
            match slots.get_mut(&self.token) {
                Some(slot) => {
                    *slot = Slot::Late(deadline, Box::new(tell));
                    // From here on the slot is not this ticket's any more.
                    self.token = u64::MAX;
                    return;
                }
                None => tell,
            }
        };
        // The answer is here already, or none can come any more.
        tell(self.answer.try_recv().ok());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.token != u64::MAX {
            self.replies.lock().remove(&self.token);
        }
    }
}

impl std::fmt::Debug for Replies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies")
            .field("prefix", &self.prefix)
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
