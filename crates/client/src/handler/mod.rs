//! Handlers, and layers around them.
//!
//! A [`Handler`] is given a [`Delivery`] and answers with an [`Outcome`]: what to do with the message, or
//! an error. It settles nothing itself unless it wants to; whatever it settles stands. Any
//! `Fn(Arc<Delivery>) -> Future<Output = Result<R, E>>` is a handler, where `R` is `()` (acknowledge) or a
//! [`Disposition`], and `E` any error (hand back) or a [`HandlerError`].
//!
//! A [`Layer`] wraps a handler into another one, in the manner of tower but without readiness: waiting for room is the
//! consumer's business. Layers compose statically; a consumer boxes the result once, so that a message costs one
//! allocation for its future however many layers there are.
//!
//! # Order
//!
//! Outermost first: settle, panic guard, expansion (all three are the consumer's, always there), incident capture,
//! dead-letter queue, idempotency, schema check, shadow, and innermost a second panic guard, so that layers see a panic as
//! an ordinary error. [`Stack`] puts them in this order and [`Stack::order`] tells it.
//!
//! Called by: consumers of this crate.

pub(crate) mod backtrace;
mod error;
mod guard;
mod stack;
mod typed;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use error::HandlerError;
pub(crate) use guard::guarded;
pub use guard::{Guarded, PanicGuard};
pub use stack::{Maybe, Stack};
pub use typed::{Typed, TypedProto, typed, typed_proto};

use crate::delivery::Delivery;

/// What to do with a handled message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Disposition {
    /// Acknowledge it.
    #[default]
    Ack,
    /// Hand it back, at once or after a while.
    Nak(Option<Duration>),
    /// Give it up, with a reason if there is one.
    Term(Option<String>),
    /// Nothing: the handler keeps the delivery and settles it later.
    InHand,
}

impl From<()> for Disposition {
    fn from((): ()) -> Self {
        Self::Ack
    }
}

/// What a handler answers.
pub type Outcome = Result<Disposition, HandlerError>;

/// Handles deliveries.
pub trait Handler: Send + Sync + 'static {
    /// Handles one delivery.
    fn handle(&self, delivery: Arc<Delivery>) -> impl Future<Output = Outcome> + Send;
}

impl<F, Fut, R, E> Handler for F
where
    F: Fn(Arc<Delivery>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Disposition>,
    E: Into<HandlerError>,
{
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        self(delivery).await.map(Into::into).map_err(Into::into)
    }
}

/// Wraps a handler into another one.
pub trait Layer<H: Handler> {
    /// The wrapped handler.
    type Handler: Handler;

    /// Wraps `inner`.
    fn layer(self, inner: H) -> Self::Handler;
}

type BoxedOutcome<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

trait Erased: Send + Sync {
    fn handle_boxed(&self, delivery: Arc<Delivery>) -> BoxedOutcome<'_>;
}

impl<H: Handler> Erased for H {
    fn handle_boxed(&self, delivery: Arc<Delivery>) -> BoxedOutcome<'_> {
        Box::pin(self.handle(delivery))
    }
}

/// A handler of any type.
#[derive(Clone)]
pub struct BoxHandler(Arc<dyn Erased>);

impl BoxHandler {
    /// Boxes a handler.
    pub fn new(handler: impl Handler) -> Self {
        Self(Arc::new(handler))
    }
}

impl Handler for BoxHandler {
    fn handle(&self, delivery: Arc<Delivery>) -> impl Future<Output = Outcome> + Send {
        self.0.handle_boxed(delivery)
    }
}

impl std::fmt::Debug for BoxHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BoxHandler")
    }
}
