//! Spans, and what of them travels with a message.

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use tracing::Span;
use tracing::field::Empty;

use crate::delivery::Metadata;

/// The target of every span, for filters.
const TARGET: &str = "windjet_client::trace";

/// Headers that carry a span's context.
#[derive(Debug, Default)]
pub(crate) struct Carried(Vec<(&'static str, HeaderValue)>);

impl Carried {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes them, in place of those of another context.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        for (name, value) in self.0 {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Makes the spans of one component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spans {
    on: bool,
    semantic: bool,
}

macro_rules! span {
    ($name:literal, $kind:literal) => {
        tracing::info_span!(
            target: TARGET,
            $name,
            otel.kind = $kind,
            otel.status_code = Empty,
            otel.status_description = Empty,
            messaging.system = "nats",
            messaging.operation = Empty,
            messaging.operation.type = Empty,
            messaging.destination = Empty,
            messaging.destination.name = Empty,
            messaging.nats.stream_sequence = Empty,
            messaging.nats.delivery_count = Empty,
        )
    };
}

impl Spans {
    pub(crate) fn new(on: bool, semantic: bool) -> Self {
        Self { on, semantic }
    }

    pub(crate) fn publish(self, subject: &str) -> Span {
        self.make(|| span!("nats.publish", "producer"), ("publish", "send"), subject)
    }

    pub(crate) fn request(self, subject: &str) -> Span {
        self.make(|| span!("nats.request", "client"), ("request", "send"), subject)
    }

    /// The span of an answer, a child of the request's.
    pub(crate) fn reply(self, subject: &str, headers: Option<&HeaderMap>) -> Span {
        let span = self.make(|| span!("nats.reply", "server"), ("reply", "process"), subject);
        adopt(&span, headers);
        span
    }

    /// The span of a delivery, a child of the publish's.
    pub(crate) fn process(
        self,
        subject: &str,
        headers: Option<&HeaderMap>,
        metadata: Option<&Metadata<'_>>,
    ) -> Span {
        let span = self.make(
            || span!("nats.process", "consumer"),
            ("process", "process"),
            subject,
        );
        adopt(&span, headers);
        if let Some(metadata) = metadata.filter(|_| !span.is_disabled()) {
            span.record("messaging.nats.stream_sequence", metadata.stream_sequence);
            span.record("messaging.nats.delivery_count", metadata.delivered);
        }
        span
    }

    fn make(self, make: impl FnOnce() -> Span, (operation, kind): (&str, &str), subject: &str) -> Span {
        if !self.on {
            return Span::none();
        }
        let span = make();
        if self.semantic {
            span.record("messaging.operation.type", kind);
            span.record("messaging.destination.name", subject);
        } else {
            span.record("messaging.operation", operation);
            span.record("messaging.destination", subject);
        }
        span
    }
}

/// Marks a span as failed.
pub(crate) fn failed(span: &Span, error: &dyn std::fmt::Display) {
    if !span.is_disabled() {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", tracing::field::display(error));
    }
}

/// What of a span travels; nothing when it is not recorded.
#[cfg(feature = "otel")]
pub(crate) fn carried(span: &Span) -> Carried {
    if span.is_disabled() {
        return Carried::default();
    }
    Carried(super::otel::context_headers(span))
}

/// What of a span travels: nothing without OpenTelemetry.
#[cfg(not(feature = "otel"))]
pub(crate) fn carried(_: &Span) -> Carried {
    Carried::default()
}

#[cfg(feature = "otel")]
fn adopt(span: &Span, headers: Option<&HeaderMap>) {
    if !span.is_disabled()
        && let Some(headers) = headers
    {
        super::otel::adopt(span, headers);
    }
}

#[cfg(not(feature = "otel"))]
fn adopt(_: &Span, _: Option<&HeaderMap>) {}
