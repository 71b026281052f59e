//! A panic becomes an error.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::{Handler, HandlerError, Layer, Outcome};
use crate::delivery::Delivery;

/// The layer that turns a panic of the handler into [`HandlerError::Panicked`].
#[derive(Debug, Clone, Copy, Default)]
pub struct PanicGuard;

/// A handler that does not panic.
#[derive(Debug, Clone)]
pub struct Guarded<H>(H);

impl<H: Handler> Layer<H> for PanicGuard {
    type Handler = Guarded<H>;

    fn layer(self, inner: H) -> Guarded<H> {
        Guarded(inner)
    }
}

impl<H: Handler> Handler for Guarded<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        guarded(|| self.0.handle(delivery)).await
    }
}

/// Runs `make` and its future; a panic in either becomes an error.
pub(crate) async fn guarded<F: Future<Output = Outcome>>(make: impl FnOnce() -> F) -> Outcome {
    // The handler is shared with other messages, which run on whatever happens: what it leaves half done behind its own
    // locks is its own business, as with any task that panics.
    let run = async { make().await };
    AssertUnwindSafe(run)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(HandlerError::Panicked(text(panic.as_ref()))))
}

fn text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}
