//! Differences between what is there and what is needed.

use std::fmt;

use crate::{Error, ErrorKind};

/// Whether a finding stops the service from serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The broker refuses to start.
    Required,
    /// Logged as a warning.
    Recommended,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Required => "required",
            Self::Recommended => "recommended",
        })
    }
}

/// One way in which the operator's topology differs from what is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is about, such as `stream WH_INGEST_0`.
    pub object: String,
    /// The setting, by its name in the configuration of streams and consumers, such as `retention`.
    pub field: &'static str,
    /// What is wrong, and what is needed.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            object,
            field,
            problem,
        } = self;
        write!(f, "{severity}: {object}: {field}: {problem}")
    }
}

/// Every finding of a check that did not pass, required ones first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyError {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ErrorKind::Topology.as_str())?;
        self.findings
            .iter()
            .try_for_each(|finding| write!(f, "\n  - {finding}"))
    }
}

impl std::error::Error for TopologyError {}

impl From<TopologyError> for Error {
    fn from(error: TopologyError) -> Self {
        Self::wrap(ErrorKind::Topology, error.to_string(), error)
    }
}

/// Collects findings about one object after another.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn required(&mut self, object: &str, field: &'static str, problem: impl Into<String>) {
        self.add(Severity::Required, object, field, problem.into());
    }

    pub(crate) fn recommended(&mut self, object: &str, field: &'static str, problem: impl Into<String>) {
        self.add(Severity::Recommended, object, field, problem.into());
    }

    fn add(&mut self, severity: Severity, object: &str, field: &'static str, problem: String) {
        let object = object.to_owned();
        self.0.push(Finding {
            severity,
            object,
            field,
            problem,
        });
    }

    /// All of them, required ones first, otherwise in the order found.
    pub(crate) fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.severity);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_findings_come_first_and_the_error_lists_all() {
        let mut findings = Findings::default();
        findings.recommended("stream A", "num_replicas", "1; use 3");
        findings.required("stream A", "retention", "limits; use workqueue");
        let error = Error::from(TopologyError {
            findings: findings.sorted(),
        });
        assert!(error.is(ErrorKind::Topology));
        assert_eq!(
            error.to_string(),
            "nats topology does not match what is needed\
             \n  - required: stream A: retention: limits; use workqueue\
             \n  - recommended: stream A: num_replicas: 1; use 3"
        );
        assert_eq!(error.find::<TopologyError>().unwrap().findings.len(), 2);
    }
}
