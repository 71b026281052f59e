//! What a round can measure, in which unit, and which direction is the good one.
//!
//! A scenario fills a [`Sample`] with the metrics it can vouch for; metrics it leaves out do not appear
//! in its rows. Shares of a core are measured to judge the run itself (a scenario is about the server
//! only if the server's share is near one) and get no ratio.

use std::collections::BTreeMap;

/// One quantity measured in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Units of work per second: messages published, requests answered, connections made.
    Rate,
    /// Half of the round trips were faster, in microseconds.
    P50Us,
    /// 99 of 100 round trips were faster, in microseconds.
    P99Us,
    /// Processor time of the server process per unit of work, in nanoseconds.
    ServerCpuNs,
    /// Proportional set size of the server process, in MiB.
    PssMib,
    /// Resident set size of the server process, in MiB.
    RssMib,
    /// Growth of the proportional set size for each connection, stream or consumer, in KiB.
    PssEachKib,
    /// From the start of a process to its first right answer, in milliseconds.
    RestartMs,
    /// Processor time of the server per second of the round: 1.0 is one core kept busy.
    ServerShare,
    /// The same for the load generator.
    LoadShare,
}

/// Whether more or less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
    /// Says something about the run, nothing about the server.
    Neither,
}

impl Metric {
    /// What the table calls it.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate, 1/s",
            Self::P50Us => "p50, µs",
            Self::P99Us => "p99, µs",
            Self::ServerCpuNs => "server CPU, ns each",
            Self::PssMib => "PSS, MiB",
            Self::RssMib => "RSS, MiB",
            Self::PssEachKib => "PSS each, KiB",
            Self::RestartMs => "restart, ms",
            Self::ServerShare => "server, cores busy",
            Self::LoadShare => "load, cores busy",
        }
    }

    /// Which direction is the good one.
    pub(crate) fn better(self) -> Better {
        match self {
            Self::Rate => Better::Higher,
            Self::ServerShare | Self::LoadShare => Better::Neither,
            _ => Better::Lower,
        }
    }
}

/// The measurements of one round on one server.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Sample(BTreeMap<Metric, f64>);

impl Sample {
    /// Adds a measurement; `None` (not measurable on this platform) leaves the metric out.
    #[must_use]
    pub(crate) fn with(mut self, metric: Metric, value: impl Into<Option<f64>>) -> Self {
        if let Some(value) = value.into() {
            self.0.insert(metric, value);
        }
        self
    }

    /// The value of `metric`, if this round measured it.
    pub(crate) fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }

    /// The metrics of this round in table order.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.0.keys().copied()
    }
}
