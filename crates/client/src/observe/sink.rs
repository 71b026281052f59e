//! Where measurements go, and the instruments made there.

use std::fmt;
use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};

use super::instruments::{INSTRUMENTS, Kind, instrument};
use crate::config::Config;

const METADATA: Metadata<'static> = Metadata::new("windjet_client", Level::INFO, Some(module_path!()));

type Upkeep = Arc<dyn Fn() + Send + Sync>;

/// Where measurements go.
#[derive(Clone, Default)]
pub struct Sink {
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    upkeep: Option<Upkeep>,
}

impl Sink {
    /// To a recorder that is this client's alone. The default sends to the one that the program has installed.
    pub fn recorder(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self {
            recorder: Some(Arc::new(recorder)),
            upkeep: None,
        }
    }

    /// Calls `upkeep` at each round of the collector, for recorders that have to be emptied now and then.
    #[must_use]
    pub fn with_upkeep(mut self, upkeep: impl Fn() + Send + Sync + 'static) -> Self {
        self.upkeep = Some(Arc::new(upkeep));
        self
    }

    pub(super) fn upkeep(&self) {
        if let Some(upkeep) = &self.upkeep {
            upkeep();
        }
    }

    fn with<T>(&self, work: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => work(recorder.as_ref()),
            None => metrics::with_recorder(work),
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.recorder.is_some() {
            "Sink(own)"
        } else {
            "Sink(installed)"
        })
    }
}

/// Makes instruments.
#[derive(Debug)]
pub(super) struct Factory {
    pub(super) sink: Sink,
    /// Prefix and separator.
    prefix: String,
    lite: bool,
}

impl Factory {
    /// A factory as the settings say; `None` when nothing is measured.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let (metrics, connection) = (&config.metrics, &config.connection);
        if !metrics.allow_metrics && !connection.allow_metrics {
            return None;
        }
        let prefix = [metrics.prefix.as_str(), &connection.metric_prefix, "nats"]
            .into_iter()
            .find(|prefix| !prefix.is_empty())
            .unwrap_or_default();
        let factory = Self {
            sink: metrics.sink.clone(),
            prefix: format!("{prefix}{}", metrics.separator),
            lite: metrics.lite,
        };
        factory.describe();
        Some(factory)
    }

    fn describe(&self) {
        self.sink.with(|recorder| {
            for known in INSTRUMENTS.iter().filter(|known| known.lite || !self.lite) {
                let name = format!("{}{}", self.prefix, known.name).into();
                let (unit, help) = (Some(known.unit), SharedString::const_str(known.help));
                match known.kind {
                    Kind::Counter => recorder.describe_counter(name, unit, help),
                    Kind::Gauge => recorder.describe_gauge(name, unit, help),
                    Kind::Histogram => recorder.describe_histogram(name, unit, help),
                }
            }
        });
    }

    fn key(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Key {
        debug_assert!(instrument(name).is_some(), "{name} is not in the table");
        let labels: Vec<Label> = labels
            .iter()
            .map(|(name, value)| Label::new(*name, (*value).to_owned()))
            .collect();
        Key::from_parts(format!("{}{name}", self.prefix), labels)
    }

    pub(super) fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        let key = self.key(name, labels);
        self.sink
            .with(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(super) fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        let key = self.key(name, labels);
        self.sink
            .with(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    pub(super) fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        let key = self.key(name, labels);
        self.sink
            .with(|recorder| recorder.register_histogram(&key, &METADATA))
    }
}
