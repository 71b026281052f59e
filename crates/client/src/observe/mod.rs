//! What can be seen from outside: measurements and spans.
//!
//! Measurements go through the `metrics` facade to a [`Sink`]: the recorder that the program has installed, or one of its
//! own for this client. With the feature `prometheus` there is one that renders and serves Prometheus' text, with the
//! feature `otel` one that hands everything to an OpenTelemetry meter. The names are those of [`INSTRUMENTS`], after the
//! configured prefix. How many series there can be is bounded: see [`Labels`] and the switches of
//! [`MetricsConfig`](crate::config::MetricsConfig). Measuring allocates nothing once a subject is known.
//!
//! Spans are made with `tracing`: `nats.publish`, `nats.request`, `nats.reply`, `nats.process`, all with the target
//! `windjet_client::trace`. With the feature `otel`, and a subscriber that has the `tracing-opentelemetry` layer, their
//! context travels in the headers `traceparent`, `tracestate` and `Trace-Id`, and a receiver's span is the sender's child.
//!
//! Called by: the whole kit. Watchers of a consumer count by themselves; a [`Supervisor`](crate::ops::supervise::Supervisor)
//! and a [`Shadow`](crate::ops::shadow::Shadow) are told where, by [`Client::metrics`](crate::Client::metrics).

mod collector;
mod instruments;
mod labels;
mod meters;
#[cfg(feature = "otel")]
pub mod otel;
#[cfg(feature = "prometheus")]
pub mod prometheus;
mod sink;
mod trace;

pub(crate) use collector::collect;
pub use instruments::{INSTRUMENTS, Instrument, Kind, bounds};
pub use labels::Labels;
pub use meters::Metrics;
pub(crate) use meters::{Counted, Delivering, Fetching, Meters};
pub use sink::Sink;
pub(crate) use trace::{Carried, Spans, carried, failed};
