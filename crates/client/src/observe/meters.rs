//! The instruments of one client.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use super::labels::Labels;
use super::sink::Factory;
use crate::config::Config;
use crate::connector::Event;

/// A client's measurements, to be handed to what works beside it. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    meters: Option<Arc<Meters>>,
}

impl Metrics {
    /// As the settings say.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            meters: Factory::new(config).map(|factory| Arc::new(Meters::new(factory, config))),
        }
    }

    /// Whether anything is measured.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.meters.is_some()
    }

    pub(crate) fn get(&self) -> Option<&Arc<Meters>> {
        self.meters.as_ref()
    }

    /// For a component with a switch of its own.
    pub(crate) fn when(&self, allowed: bool) -> Option<Arc<Meters>> {
        self.meters.clone().filter(|_| allowed)
    }

    pub(crate) fn note(&self, what: Counted) {
        if let Some(meters) = &self.meters {
            meters.note(what);
        }
    }

    pub(crate) fn connection(&self, event: &Event) {
        if let Some(meters) = &self.meters {
            meters.connection(event);
        }
    }
}

/// What watchers and supervisors count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Resubscribed,
    GaveUp,
    Stall,
    Slow,
    Anomaly,
    ShadowError,
    ShadowMismatch,
    CircuitOpened,
    HeartbeatMissed,
}

/// What a publisher or a requester measures of one subject.
pub(crate) struct Calling {
    total: Counter,
    errors: Counter,
    latency: Histogram,
    bytes: Histogram,
}

/// What a responder measures of one subject.
pub(crate) struct Replying {
    pub(crate) handled: Counter,
    pub(crate) errors: Counter,
}

/// What a consumer measures of one subject.
pub(crate) struct Delivering {
    pub(crate) received: Counter,
    pub(crate) errors: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) acks: Counter,
    pub(crate) naks: Counter,
    pub(crate) terms: Counter,
    pub(crate) handling: Histogram,
    pub(crate) bytes: Histogram,
}

/// All instruments of a client.
pub(crate) struct Meters {
    pub(super) factory: Factory,
    labels: Labels,
    fixed: bool,
    publishing: Family<Calling>,
    requesting: Family<Calling>,
    replying: Family<Replying>,
    delivering: Family<Delivering>,
    /// Without a label: failed acknowledgements of asynchronous publishes.
    pub(crate) late_publish_errors: Counter,
    /// Without a label: given up for want of room.
    pub(crate) crowded_out: Counter,
    pub(crate) no_room: Counter,
    reconnects: Counter,
    pub(super) in_bytes: Counter,
    pub(super) out_bytes: Counter,
    connection_errors: Counter,
    lame_duck: Counter,
    heartbeats_missed: Counter,
    resubscribed: Counter,
    gave_up: Counter,
    stalls: Counter,
    slow: Counter,
    anomalies: Counter,
    shadow_errors: Counter,
    shadow_mismatches: Counter,
    circuit_opened: Counter,
    fetch_size: Histogram,
    fetch_wait: Histogram,
    pub(crate) batch_process: Histogram,
    pub(crate) batch_inflight: Gauge,
    pub(super) queue_depth: Gauge,
    connection_state: Gauge,
}

impl Meters {
    fn new(factory: Factory, config: &Config) -> Self {
        let counter = |name| factory.counter(name, &[]);
        let histogram = |name| factory.histogram(name, &[]);
        let gauge = |name| factory.gauge(name, &[]);
        Self {
            late_publish_errors: counter("publish_errors"),
            crowded_out: counter("term_total"),
            no_room: counter("slow_consumer_events"),
            reconnects: counter("reconnect_count"),
            in_bytes: counter("connection_in_bytes"),
            out_bytes: counter("connection_out_bytes"),
            connection_errors: counter("connection_errors"),
            lame_duck: counter("lame_duck_events"),
            heartbeats_missed: counter("idle_heartbeat_misses"),
            resubscribed: counter("resubscribe_total"),
            gave_up: counter("supervisor_give_up"),
            stalls: counter("consumer_stall"),
            slow: counter("slow_consumer_detected"),
            anomalies: counter("behavior_fingerprint_anomaly"),
            shadow_errors: counter("shadow_error_total"),
            shadow_mismatches: counter("shadow_mismatch_total"),
            circuit_opened: counter("circuit_open"),
            fetch_size: histogram("fetch_batch_size"),
            fetch_wait: histogram("fetch_wait_seconds"),
            batch_process: histogram("pull_batch_process_seconds"),
            batch_inflight: gauge("pull_batch_inflight"),
            queue_depth: gauge("worker_queue_depth"),
            connection_state: gauge("connection_state"),
            publishing: Family::new(Calling::publishing),
            requesting: Family::new(Calling::requesting),
            replying: Family::new(Replying::new),
            delivering: Family::new(Delivering::new),
            labels: config.metrics.labels.clone(),
            fixed: config.metrics.fixed_cardinality,
            factory,
        }
    }

    pub(crate) fn publishing(&self, subject: &str) -> Arc<Calling> {
        self.publishing.of(self, subject)
    }

    pub(crate) fn requesting(&self, subject: &str) -> Arc<Calling> {
        self.requesting.of(self, subject)
    }

    pub(crate) fn replying(&self, subject: &str) -> Arc<Replying> {
        self.replying.of(self, subject)
    }

    pub(crate) fn delivering(&self, subject: &str) -> Arc<Delivering> {
        self.delivering.of(self, subject)
    }

    pub(crate) fn state(&self, connected: bool) {
        self.connection_state.set(if connected { 1.0 } else { 0.0 });
    }

    fn connection(&self, event: &Event) {
        match event {
            Event::Connected => self.state(true),
            Event::Reconnected => {
                self.state(true);
                self.reconnects.increment(1);
            }
            Event::Disconnected(_) | Event::Closed => self.state(false),
            Event::LameDuck => self.lame_duck.increment(1),
            Event::Error(_) => self.connection_errors.increment(1),
        }
    }

    pub(crate) fn note(&self, what: Counted) {
        self.watch(what).increment(1);
    }

    fn watch(&self, what: Counted) -> &Counter {
        match what {
            Counted::Resubscribed => &self.resubscribed,
            Counted::GaveUp => &self.gave_up,
            Counted::Stall => &self.stalls,
            Counted::Slow => &self.slow,
            Counted::Anomaly => &self.anomalies,
            Counted::ShadowError => &self.shadow_errors,
            Counted::ShadowMismatch => &self.shadow_mismatches,
            Counted::CircuitOpened => &self.circuit_opened,
            Counted::HeartbeatMissed => &self.heartbeats_missed,
        }
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters")
            .field("factory", &self.factory)
            .finish_non_exhaustive()
    }
}

type Labelled<'a> = &'a [(&'static str, &'a str)];

impl Calling {
    fn publishing(factory: &Factory, label: Labelled<'_>) -> Self {
        Self {
            total: factory.counter("publish_total", label),
            errors: factory.counter("publish_errors", label),
            latency: factory.histogram("publish_latency_seconds", label),
            bytes: factory.histogram("publish_bytes", label),
        }
    }

    fn requesting(factory: &Factory, label: Labelled<'_>) -> Self {
        Self {
            total: factory.counter("request_total", label),
            errors: factory.counter("request_errors", label),
            latency: factory.histogram("request_latency_seconds", label),
            bytes: factory.histogram("request_bytes", label),
        }
    }

    /// A call has ended: of one that succeeded, what it sent and, where it waited for an answer, for how long.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a histogram takes a float, whatever it shows"
    )]
    pub(crate) fn note<T, E>(&self, result: &Result<T, E>, bytes: usize, waited: Option<Duration>) {
        if result.is_err() {
            return self.failed();
        }
        self.total.increment(1);
        self.bytes.record(bytes as f64);
        if let Some(waited) = waited {
            self.latency.record(waited.as_secs_f64());
        }
    }

    /// Nothing could be sent.
    pub(crate) fn failed(&self) {
        self.errors.increment(1);
    }
}

impl Replying {
    fn new(factory: &Factory, label: Labelled<'_>) -> Self {
        Self {
            handled: factory.counter("reply_handled", label),
            errors: factory.counter("reply_errors", label),
        }
    }
}

impl Delivering {
    fn new(factory: &Factory, label: Labelled<'_>) -> Self {
        Self {
            received: factory.counter("messages_received", label),
            errors: factory.counter("messages_errors", label),
            redelivered: factory.counter("redelivery_total", label),
            acks: factory.counter("ack_total", label),
            naks: factory.counter("nak_total", label),
            terms: factory.counter("term_total", label),
            handling: factory.histogram("message_handling_seconds", label),
            bytes: factory.histogram("message_bytes", label),
        }
    }
}

/// The instruments of one component, by label. Labels are bounded, so the map is.
struct Family<T> {
    make: fn(&Factory, Labelled<'_>) -> T,
    by_label: RwLock<HashMap<Box<str>, Arc<T>>>,
}

impl<T> Family<T> {
    fn new(make: fn(&Factory, Labelled<'_>) -> T) -> Self {
        Self {
            make,
            by_label: RwLock::default(),
        }
    }

    /// The instruments for a subject. Allocates only for a label that is new here.
    fn of(&self, meters: &Meters, subject: &str) -> Arc<T> {
        if meters.fixed {
            return self.find("").unwrap_or_else(|| self.add(meters, "", &[]));
        }
        let label = meters.labels.label(subject);
        if let Some(found) = self.find(&label) {
            return found;
        }
        let admitted = meters.labels.admit(&label);
        self.find(admitted)
            .unwrap_or_else(|| self.add(meters, admitted, &[("subject", admitted)]))
    }

    fn find(&self, label: &str) -> Option<Arc<T>> {
        let known = self.by_label.read().unwrap_or_else(PoisonError::into_inner);
        known.get(label).cloned()
    }

    fn add(&self, meters: &Meters, label: &str, labels: Labelled<'_>) -> Arc<T> {
        let mut known = self.by_label.write().unwrap_or_else(PoisonError::into_inner);
        let made = || Arc::new((self.make)(&meters.factory, labels));
        Arc::clone(known.entry(label.into()).or_insert_with(made))
    }
}

/// What a puller measures: one record for each request that it sends.
#[derive(Debug)]
pub(crate) struct Fetching {
    meters: Arc<Meters>,
    /// A request is under way.
    open: bool,
    got: u32,
    waited: Duration,
}

impl Fetching {
    pub(crate) fn new(meters: Arc<Meters>) -> Self {
        Self {
            meters,
            open: false,
            got: 0,
            waited: Duration::ZERO,
        }
    }

    /// A request goes out; what came before belongs to the one before.
    pub(crate) fn request(&mut self) {
        self.finish();
        self.open = true;
    }

    pub(crate) fn message(&mut self) {
        self.got = self.got.saturating_add(1);
    }

    pub(crate) fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    pub(crate) fn heartbeat_missed(&self) {
        self.meters.heartbeats_missed.increment(1);
    }

    /// Nothing more is counted for the last request.
    pub(crate) fn finish(&mut self) {
        if self.open {
            self.meters.fetch_size.record(f64::from(self.got));
            self.meters.fetch_wait.record(self.waited.as_secs_f64());
        }
        (self.open, self.got, self.waited) = (false, 0, Duration::ZERO);
    }
}
