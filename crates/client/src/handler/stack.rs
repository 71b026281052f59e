//! Layers in their one right order.

use std::sync::Arc;

use super::{Handler, Layer, Outcome, PanicGuard};
use crate::delivery::Delivery;
use crate::ops::dlq::Dlq;
use crate::ops::idempotency::Idempotency;
use crate::ops::incidents::CapsuleAuto;
use crate::ops::schema::SchemaCheck;
use crate::ops::shadow::Shadow;

/// A handler with a layer or without.
#[derive(Debug, Clone)]
pub enum Maybe<L, H> {
    /// With it.
    With(L),
    /// Without it.
    Without(H),
}

impl<L: Handler, H: Handler> Handler for Maybe<L, H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        match self {
            Self::With(handler) => handler.handle(delivery).await,
            Self::Without(handler) => handler.handle(delivery).await,
        }
    }
}

/// A layer that may be left out.
impl<H: Handler, L: Layer<H>> Layer<H> for Option<L> {
    type Handler = Maybe<L::Handler, H>;

    fn layer(self, inner: H) -> Self::Handler {
        match self {
            Some(layer) => Maybe::With(layer.layer(inner)),
            None => Maybe::Without(inner),
        }
    }
}

/// The standard layers, put around a handler in the order that keeps their promises.
///
/// A dead-letter queue outside of idempotency: a message that was routed is not marked as done. The innermost guard turns
/// a panic into an error that all of them see.
#[derive(Debug, Default)]
#[must_use]
pub struct Stack {
    incidents: Option<CapsuleAuto>,
    dlq: Option<Dlq>,
    idempotency: Option<Idempotency>,
    schema: Option<SchemaCheck>,
    shadow: Option<Shadow>,
}

impl Stack {
    /// No layers but the panic guard.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes incident capsules of failures.
    pub fn incidents(mut self, layer: CapsuleAuto) -> Self {
        self.incidents = Some(layer);
        self
    }

    /// Routes what cannot be handled into a dead-letter queue.
    pub fn dlq(mut self, layer: Dlq) -> Self {
        self.dlq = Some(layer);
        self
    }

    /// Handles each message id once.
    pub fn idempotency(mut self, layer: Idempotency) -> Self {
        self.idempotency = Some(layer);
        self
    }

    /// Checks the schema headers.
    pub fn schema(mut self, layer: SchemaCheck) -> Self {
        self.schema = Some(layer);
        self
    }

    /// Runs a second handler on copies and compares.
    pub fn shadow(mut self, layer: Shadow) -> Self {
        self.shadow = Some(layer);
        self
    }

    /// The layers that are there, outermost first.
    #[must_use]
    pub fn order(&self) -> Vec<&'static str> {
        let layers = [
            (self.incidents.is_some(), "incidents"),
            (self.dlq.is_some(), "dlq"),
            (self.idempotency.is_some(), "idempotency"),
            (self.schema.is_some(), "schema"),
            (self.shadow.is_some(), "shadow"),
            (true, "panic guard"),
        ];
        layers
            .into_iter()
            .filter_map(|(there, name)| there.then_some(name))
            .collect()
    }

    /// The layers around a handler.
    pub fn around<H: Handler>(self, handler: H) -> impl Handler {
        let inner = PanicGuard.layer(handler);
        let inner = self.shadow.layer(inner);
        let inner = self.schema.layer(inner);
        let inner = self.idempotency.layer(inner);
        let inner = self.dlq.layer(inner);
        self.incidents.layer(inner)
    }
}
