//! What a call carries: a way to cancel it, and its trace context.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector};
use tokio_util::sync::CancellationToken;

use crate::{Error, Headers};

/// The context of a call or of a message: cancellation and trace context. Cloning is cheap; clones share both.
///
/// For a deadline, wrap the call in `tokio::time::timeout`, or cancel from a timer.
#[derive(Debug, Clone, Default)]
pub struct Ctx {
    cancel: CancellationToken,
    trace: Context,
}

impl Ctx {
    /// A context of its own, without a trace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A context that carries the trace context current on this thread.
    #[must_use]
    pub fn current() -> Self {
        Self::new().with_trace(Context::current())
    }

    /// A context that ends with this one, or before it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            cancel: self.cancel.child_token(),
            trace: self.trace.clone(),
        }
    }

    /// Replaces the trace context.
    #[must_use]
    pub fn with_trace(mut self, trace: Context) -> Self {
        self.trace = trace;
        self
    }

    /// Replaces the token whose cancellation ends this context.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancellationToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// The trace context.
    #[must_use]
    pub fn trace(&self) -> &Context {
        &self.trace
    }

    /// The token whose cancellation ends this context.
    #[must_use]
    pub fn cancel_token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Ends this context, its clones and its children.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_canceled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Returns once the context has ended.
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub async fn canceled(&self) {
        self.cancel.cancelled().await;
    }

    /// An error if the context has ended.
    pub(crate) fn check(&self, what: &'static str) -> Result<(), Error> {
        if self.is_canceled() {
            return Err(Error::canceled(what));
        }
        Ok(())
    }

    /// Writes the trace context into headers, over whatever options put under the same names.
    pub fn inject(&self, headers: &mut Headers) {
        opentelemetry::global::get_text_map_propagator(|propagator| {
            propagator.inject_context(&self.trace, &mut HeaderInjector(headers));
        });
    }

    /// A child of this context with the trace context of the headers, marked as remote.
    #[must_use]
    pub fn extract(&self, headers: &Headers) -> Self {
        let trace = opentelemetry::global::get_text_map_propagator(|propagator| {
            propagator.extract_with_context(&self.trace, &HeaderExtractor(headers))
        });
        self.child().with_trace(trace)
    }
}

struct HeaderInjector<'a>(&'a mut Headers);

impl Injector for HeaderInjector<'_> {
    fn set(&mut self, key: &str, value: String) {
        // A propagator with nothing to say may still set an empty trace state.
        if !value.is_empty() {
            self.0.set(key, value);
        }
    }
}

struct HeaderExtractor<'a>(&'a Headers);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.values(key).first().map(String::as_str)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name).collect()
    }
}
