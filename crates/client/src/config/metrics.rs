//! What is measured, and under which names.

use std::time::Duration;

use crate::observe::{Labels, Sink};

/// A durable whose figures the collector asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TrackedConsumer {
    /// Its stream.
    pub stream: String,
    /// Its name.
    pub durable: String,
}

/// Settings of measurements and spans.
#[derive(Debug, Clone)]
pub struct MetricsConfig {
    /// Measure. On; [`Connection::allow_metrics`](super::Connection::allow_metrics) switches it on too.
    pub allow_metrics: bool,
    /// Make spans. On.
    pub allow_tracing: bool,
    /// What names begin with; empty for [`Connection::metric_prefix`](super::Connection::metric_prefix). `nats`.
    pub prefix: String,
    /// What stands between prefix and name; Prometheus makes `_` of it. `/`.
    pub separator: String,
    /// How often the collector looks at the connection and asks the server; zero means 15 s. 15 s.
    pub collect_interval: Duration,
    /// Measure nothing that needs a question to the server. Off.
    pub lite: bool,
    /// Measure without labels for subjects. Off.
    pub fixed_cardinality: bool,
    /// Streams whose figures the collector asks for. None.
    pub tracked_streams: Vec<String>,
    /// Durables whose figures the collector asks for. None.
    pub tracked_consumers: Vec<TrackedConsumer>,
    /// Which subjects become labels. The first hundred of this process; see [`Labels`].
    pub labels: Labels,
    /// Name streams and consumers with the label `subject` as well, and a consumer as `stream.durable`, as the kit's
    /// model does. Off: they have the labels `stream` and `consumer`.
    pub names_as_subject: bool,
    /// Give spans the attributes of the current semantic conventions instead of those of the kit's model. Off.
    pub semantic_names: bool,
    /// Where measurements go. To the recorder that the program has installed when the client is built.
    pub sink: Sink,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            allow_metrics: true,
            allow_tracing: true,
            prefix: "nats".to_owned(),
            separator: "/".to_owned(),
            collect_interval: Duration::from_secs(15),
            lite: false,
            fixed_cardinality: false,
            tracked_streams: Vec::new(),
            tracked_consumers: Vec::new(),
            labels: Labels::default(),
            names_as_subject: false,
            semantic_names: false,
            sink: Sink::default(),
        }
    }
}

impl MetricsConfig {
    /// The interval in force.
    pub(crate) fn collect_interval(&self) -> Duration {
        if self.collect_interval.is_zero() {
            Duration::from_secs(15)
        } else {
            self.collect_interval
        }
    }
}
