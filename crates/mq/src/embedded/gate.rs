//! The door that every publish of the broker goes through: open, shut for a moment, or leading to another broker.
//!
//! What holds:
//!
//! * When [`Gate::shut`] has returned, no publish is under way: the streams end where they end until the door opens again.
//!   A publish counts until its outcome is known, also when its caller has gone away: it may still be stored.
//! * A publish that finds the door shut waits. It fails only with its own context, or when the broker is closed.
//! * A door that leads to another broker never opens again.

#![cfg_attr(
    not(feature = "external"),
    allow(dead_code, reason = "only a move shuts the door")
)]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use windjet_server::jetstream::{Publish, PublishError, Stored};

use crate::{Broker, Ctx, Error, ErrorKind};

/// Where publishes go.
#[derive(Clone)]
enum Door {
    Open,
    Shut,
    /// To the broker that has the queues now; without it, nowhere, and why.
    Elsewhere(Result<Arc<dyn Broker>, Arc<str>>),
}

/// See the module's page.
pub(super) struct Gate {
    /// What most publishes look at.
    open: AtomicBool,
    door: watch::Sender<Door>,
    inside: AtomicUsize,
    left: Notify,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("open", &self.open)
            .field("inside", &self.inside)
            .finish_non_exhaustive()
    }
}

/// Which way a publish goes.
pub(super) enum Way {
    Here(Pass),
    There(Arc<dyn Broker>),
}

/// A publish that is under way.
#[derive(Debug)]
pub(super) struct Pass(Arc<Gate>);

impl Clone for Pass {
    fn clone(&self) -> Self {
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.0.inside.fetch_sub(1, Ordering::SeqCst) == 1 && !self.0.open.load(Ordering::SeqCst) {
            self.0.left.notify_waiters();
        }
    }
}

impl Gate {
    /// An open door, or one that leads nowhere any more.
    pub(super) fn new(gone: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self {
            open: AtomicBool::new(gone.is_none()),
            door: watch::Sender::new(gone.map_or(Door::Open, |why| Door::Elsewhere(Err(why)))),
            inside: AtomicUsize::new(0),
            left: Notify::new(),
        })
    }

    /// Goes in, or learns where else to go.
    pub(super) async fn enter(self: &Arc<Self>, ctx: &Ctx, closed: &CancellationToken) -> Result<Way, Error> {
        loop {
            // Counted first, looked at second: who shuts the door looks in the other order.
            self.inside.fetch_add(1, Ordering::SeqCst);
            let pass = Pass(Arc::clone(self));
            if self.open.load(Ordering::SeqCst) {
                return Ok(Way::Here(pass));
            }
            drop(pass);
            let mut door = self.door.subscribe();
            let found = tokio::select! {
                found = door.wait_for(|door| !matches!(door, Door::Shut)) => found.map(|door| door.clone()),
                () = ctx.canceled() => return Err(Error::canceled("publish")),
                () = closed.cancelled() => return Err(Error::new(ErrorKind::Closed, "the broker is closed")),
            };
            match found {
                Ok(Door::Elsewhere(Ok(broker))) => return Ok(Way::There(broker)),
                Ok(Door::Elsewhere(Err(why))) => return Err(Error::new(ErrorKind::Closed, why.to_string())),
                // Just opened; or the sender went, which it does not while somebody has the gate.
                Ok(Door::Open | Door::Shut) | Err(_) => {}
            }
        }
    }

    /// Shuts the door and waits until nobody is inside. Opens again when what it returns is dropped.
    pub(super) async fn shut(self: &Arc<Self>) -> Held {
        let held = Held(Arc::clone(self));
        self.set(Door::Shut);
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            // Listening before looking, so that nobody leaves unnoticed.
            left.as_mut().enable();
            if self.inside.load(Ordering::SeqCst) == 0 {
                return held;
            }
            left.await;
        }
    }

    fn set(&self, door: Door) {
        let open = matches!(door, Door::Open);
        self.door.send_if_modified(|now| {
            let stays = matches!(now, Door::Elsewhere(Ok(_)));
            if !stays {
                self.open.store(open, Ordering::SeqCst);
                *now = door;
            }
            !stays
        });
    }

    /// From now on everything goes to another broker.
    pub(super) fn lead_to(&self, broker: Arc<dyn Broker>) {
        self.set(Door::Elsewhere(Ok(broker)));
    }
}

/// A door that is shut.
#[derive(Debug)]
pub(super) struct Held(Arc<Gate>);

impl Drop for Held {
    fn drop(&mut self) {
        if matches!(*self.0.door.borrow(), Door::Shut) {
            self.0.set(Door::Open);
        }
    }
}

/// A publish on its way to a stream, with its pass. Dropped early, it is waited for in the background, so that the pass
/// lasts until the message is stored or not.
pub(super) struct Outlasting {
    publish: Option<Publish>,
    pass: Option<Pass>,
}

impl Outlasting {
    pub(super) fn new(publish: Publish, pass: Option<&Pass>) -> Self {
        Self {
            publish: Some(publish),
            pass: pass.cloned(),
        }
    }
}

impl Future for Outlasting {
    type Output = Result<Stored, PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(publish) = &mut self.publish else {
            return Poll::Ready(Err(PublishError::OutcomeUnknown));
        };
        let outcome = std::task::ready!(Pin::new(publish).poll(cx));
        self.publish = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Outlasting {
    fn drop(&mut self) {
        if let (Some(publish), Some(pass)) = (self.publish.take(), self.pass.take()) {
            // Without a runtime nothing is moved either.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move {
                    // Nobody asks for the outcome any more; only that there is one counts.
                    let _ = publish.await;
                    drop(pass);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn enters(gate: &Arc<Gate>) -> bool {
        let (ctx, closed) = (Ctx::new(), CancellationToken::new());
        let entered = gate.enter(&ctx, &closed);
        matches!(
            futures_util::poll!(std::pin::pin!(entered)),
            Poll::Ready(Ok(Way::Here(_)))
        )
    }

    #[tokio::test]
    async fn a_shut_door_waits_for_those_inside_and_opens_when_it_is_let_go() {
        let gate = Gate::new(None);
        let Way::Here(pass) = gate.enter(&Ctx::new(), &CancellationToken::new()).await.unwrap() else {
            panic!("an open door leads in");
        };
        let mut shutting = Box::pin(gate.shut());
        assert!(
            futures_util::poll!(&mut shutting).is_pending(),
            "somebody is inside"
        );
        assert!(!enters(&gate).await, "nobody comes in any more");
        drop(pass);
        let held = shutting.await;
        assert!(!enters(&gate).await);
        drop(held);
        assert!(enters(&gate).await);
    }

    #[tokio::test]
    async fn a_shut_that_is_given_up_opens_again() {
        let gate = Gate::new(None);
        let entered = gate.enter(&Ctx::new(), &CancellationToken::new()).await;
        let mut shutting = Box::pin(gate.shut());
        assert!(futures_util::poll!(&mut shutting).is_pending());
        drop(shutting);
        assert!(enters(&gate).await);
        drop(entered);
    }

    #[tokio::test]
    async fn a_door_to_nowhere_says_why_and_whoever_waits_may_give_up() {
        let gate = Gate::new(Some("moved".into()));
        let refused = gate.enter(&Ctx::new(), &CancellationToken::new()).await;
        let error = refused.err().unwrap();
        assert!(error.is(ErrorKind::Closed) && error.to_string() == "moved");
        let gate = Gate::new(None);
        let _held = gate.shut().await;
        let ctx = Ctx::new();
        ctx.cancel();
        let error = gate.enter(&ctx, &CancellationToken::new()).await.err().unwrap();
        assert!(error.is(ErrorKind::Canceled), "{error:?}");
    }
}
