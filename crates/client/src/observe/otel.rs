//! OpenTelemetry: spans that carry on over messages, and a sink for measurements.
//!
//! Spans reach OpenTelemetry by the `tracing-opentelemetry` layer of the program's subscriber. Their context travels in
//! the W3C headers, written and read here whatever propagator the program has installed, and its trace id in `Trace-Id`.
//! Only sampled spans travel. A received `Trace-Id` alone makes no parent.
//!
//! [`sink`] hands measurements to a meter, with the buckets of [`bounds`](super::bounds).

use std::collections::HashMap;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{HeaderMap, HeaderValue};
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder};
use metrics::{SharedString, Unit};
use opentelemetry::metrics::Meter;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, KeyValue, metrics as otel};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::Sink;
use crate::message::headers;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The headers that carry a span's context.
pub(super) fn context_headers(span: &tracing::Span) -> Vec<(&'static str, HeaderValue)> {
    let context = span.context();
    let span = context.span();
    let context = span.span_context();
    if !context.is_valid() || !context.is_sampled() {
        return Vec::new();
    }
    let trace_id = context.trace_id().to_string();
    let parent = format!(
        "00-{trace_id}-{}-{:02x}",
        context.span_id(),
        context.trace_flags().to_u8()
    );
    let state = context.trace_state().header();
    [
        (TRACEPARENT, parent),
        (TRACESTATE, state),
        (headers::TRACE_ID, trace_id),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)))
    .collect()
}

/// Makes a span the child of the one that a message carries, if it carries one.
pub(super) fn adopt(span: &tracing::Span, headers: &HeaderMap) {
    let Some(parent) = headers.get(TRACEPARENT) else {
        return;
    };
    let state = headers.get(TRACESTATE).map_or("", HeaderValue::as_str);
    if let Some(remote) = parse(parent.as_str(), state) {
        // Only a span that has ended, or is not OpenTelemetry's, refuses.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }
}

/// Reads the W3C headers; of a later version what it has in common with this one.
fn parse(parent: &str, state: &str) -> Option<SpanContext> {
    let parent = parent.trim();
    let mut parts = parent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let known = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    if !known || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let lower_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if ![version, trace, span, flags].into_iter().all(lower_hex) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let state = TraceState::from_str(state).unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}

/// Hands measurements to a meter.
#[must_use]
pub fn sink(meter: Meter) -> Sink {
    Sink::recorder(Bridge {
        meter,
        made: Mutex::default(),
    })
}

/// The `metrics` facade over an OpenTelemetry meter.
struct Bridge {
    meter: Meter,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    units: HashMap<String, (Option<Unit>, SharedString)>,
    counters: HashMap<String, otel::Counter<u64>>,
    gauges: HashMap<String, otel::Gauge<f64>>,
    histograms: HashMap<String, otel::Histogram<f64>>,
}

impl Bridge {
    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>, help: SharedString) {
        self.made().units.insert(name.as_str().to_owned(), (unit, help));
    }
}

impl Made {
    fn description(&self, name: &str) -> (Option<Unit>, String) {
        self.units
            .get(name)
            .map_or((None, String::new()), |(unit, help)| (*unit, help.to_string()))
    }
}

/// The unit in the notation that OpenTelemetry wants.
fn ucum(unit: Option<Unit>) -> &'static str {
    match unit {
        Some(Unit::Seconds) => "s",
        Some(Unit::Bytes) => "By",
        _ => "1",
    }
}

fn attributes(key: &Key) -> Vec<KeyValue> {
    key.labels()
        .map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned()))
        .collect()
}

impl Recorder for Bridge {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(&name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(&name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(&name, unit, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut made = self.made();
        let (unit, help) = made.description(key.name());
        let counter = made.counters.entry(key.name().to_owned()).or_insert_with(|| {
            let builder = self.meter.u64_counter(key.name().to_owned());
            builder.with_unit(ucum(unit)).with_description(help).build()
        });
        Counter::from_arc(Arc::new(Counting {
            counter: counter.clone(),
            attributes: attributes(key),
            sum: AtomicU64::new(0),
        }))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut made = self.made();
        let (unit, help) = made.description(key.name());
        let gauge = made.gauges.entry(key.name().to_owned()).or_insert_with(|| {
            let builder = self.meter.f64_gauge(key.name().to_owned());
            builder.with_unit(ucum(unit)).with_description(help).build()
        });
        Gauge::from_arc(Arc::new(Gauging {
            gauge: gauge.clone(),
            attributes: attributes(key),
            value: Mutex::new(0.0),
        }))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut made = self.made();
        let (unit, help) = made.description(key.name());
        let histogram = made.histograms.entry(key.name().to_owned()).or_insert_with(|| {
            let builder = self.meter.f64_histogram(key.name().to_owned());
            builder
                .with_unit(ucum(unit))
                .with_description(help)
                .with_boundaries(super::bounds(unit.unwrap_or(Unit::Count)).to_vec())
                .build()
        });
        Histogram::from_arc(Arc::new(Distributing {
            histogram: histogram.clone(),
            attributes: attributes(key),
        }))
    }
}

struct Counting {
    counter: otel::Counter<u64>,
    attributes: Vec<KeyValue>,
    sum: AtomicU64,
}

impl CounterFn for Counting {
    fn increment(&self, by: u64) {
        self.sum.fetch_add(by, Ordering::Relaxed);
        self.counter.add(by, &self.attributes);
    }

    fn absolute(&self, value: u64) {
        let before = self.sum.fetch_max(value, Ordering::Relaxed);
        self.counter.add(value.saturating_sub(before), &self.attributes);
    }
}

struct Gauging {
    gauge: otel::Gauge<f64>,
    attributes: Vec<KeyValue>,
    value: Mutex<f64>,
}

impl Gauging {
    fn change(&self, to: impl FnOnce(f64) -> f64) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        *value = to(*value);
        self.gauge.record(*value, &self.attributes);
    }
}

impl GaugeFn for Gauging {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }

    fn set(&self, to: f64) {
        self.change(|_| to);
    }
}

struct Distributing {
    histogram: otel::Histogram<f64>,
    attributes: Vec<KeyValue>,
}

impl HistogramFn for Distributing {
    fn record(&self, value: f64) {
        self.histogram.record(value, &self.attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_parent_is_read_and_nonsense_is_none() {
        let read = parse(&format!("00-{TRACE}-00f067aa0ba902b7-01"), "a=1,b=2").unwrap();
        assert_eq!(read.trace_id().to_string(), TRACE);
        assert_eq!(read.span_id().to_string(), "00f067aa0ba902b7");
        assert!(read.is_sampled() && read.is_remote());
        assert_eq!(read.trace_state().header(), "a=1,b=2");
        // A later version may have more parts; this one may not.
        assert!(parse(&format!("01-{TRACE}-00f067aa0ba902b7-01-x"), "").is_some());
        for nonsense in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7-01-x"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-+0f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-é"),
        ] {
            assert_eq!(parse(&nonsense, ""), None, "{nonsense}");
        }
    }
}
