//! From samples to a table and a file.
//!
//! The ratio of a metric is formed within each pair of rounds and then summed up by median and quartiles;
//! it is not the quotient of the two medians. A goal counts as reached when the median of the ratios
//! reaches it; it counts as missed within noise when it lies between the quartiles.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    machine::{Cores, Machine},
    metric::{Better, Metric, Sample},
    scenario::Scenario,
    stats::Quartiles,
};

/// Everything a run found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// When, in RFC 3339.
    pub(crate) taken_at: String,
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    /// Version of our server.
    pub(crate) ours: String,
    /// Version of the other.
    pub(crate) reference: String,
    pub(crate) scenarios: Vec<ScenarioResult>,
}

/// How the rounds were run.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    #[serde(flatten)]
    pub(crate) cores: Cores,
    /// Measured rounds on each server.
    pub(crate) rounds: usize,
    /// Length of one in milliseconds.
    pub(crate) round_ms: u64,
}

/// Samples of a scenario and what they come to.
#[derive(Debug, Serialize)]
pub(crate) struct ScenarioResult {
    name: String,
    about: String,
    summaries: Vec<Summary>,
    ours: Vec<Sample>,
    reference: Vec<Sample>,
}

/// One metric of a scenario over all rounds.
#[derive(Debug, Serialize)]
struct Summary {
    metric: Metric,
    ours: Quartiles,
    reference: Quartiles,
    /// Ours to reference, formed in each pair of rounds.
    ratio: Quartiles,
    goal: Option<f64>,
}

/// The time now in RFC 3339.
pub(crate) fn now() -> String {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0)
        .unwrap_or(now)
        .format(&Rfc3339)
        .unwrap_or_default()
}

impl ScenarioResult {
    /// Sums up the pairs (ours, reference) of `scenario`.
    pub(crate) fn new(scenario: &dyn Scenario, pairs: Vec<(Sample, Sample)>) -> Self {
        let metrics: Vec<Metric> = pairs
            .first()
            .into_iter()
            .flat_map(|(ours, _)| ours.metrics())
            .collect();
        let summaries = metrics
            .into_iter()
            .filter_map(|metric| {
                let goal = scenario
                    .goals()
                    .iter()
                    .find(|(goal, _)| *goal == metric)
                    .map(|(_, value)| *value);
                Summary::of(metric, &pairs, goal)
            })
            .collect();
        let (ours, reference) = pairs.into_iter().unzip();
        Self {
            name: scenario.name(),
            about: scenario.about(),
            summaries,
            ours,
            reference,
        }
    }
}

impl Summary {
    fn of(metric: Metric, pairs: &[(Sample, Sample)], goal: Option<f64>) -> Option<Self> {
        let values: Vec<(f64, f64)> = pairs
            .iter()
            .filter_map(|(ours, reference)| Some((ours.get(metric)?, reference.get(metric)?)))
            .collect();
        let column = |pick: fn(&(f64, f64)) -> f64| values.iter().map(pick).collect::<Vec<_>>();
        Some(Self {
            metric,
            ours: Quartiles::of(&column(|(ours, _)| *ours))?,
            reference: Quartiles::of(&column(|(_, reference)| *reference))?,
            ratio: Quartiles::of(&column(|(ours, reference)| ours / reference))?,
            goal,
        })
    }

    fn verdict(&self) -> String {
        let Some(goal) = self.goal else {
            return String::new();
        };
        let Quartiles { low, median, high } = self.ratio;
        let (sign, reached) = match self.metric.better() {
            Better::Higher => ('≥', median >= goal),
            _ => ('≤', median <= goal),
        };
        let verdict = match reached {
            true => "yes",
            false if (low..=high).contains(&goal) => "within noise",
            false => "**no**",
        };
        format!("{sign} {goal:.1} {verdict}")
    }
}

/// The table rows of a scenario.
pub(crate) fn rows(result: &ScenarioResult) -> String {
    let mut rows = String::new();
    for (at, summary) in result.summaries.iter().enumerate() {
        let name = if at == 0 { result.name.as_str() } else { "" };
        let Quartiles { low, median, high } = summary.ratio;
        let ratio = match summary.metric.better() {
            Better::Neither => String::new(),
            _ => format!("**{median:.2}** ({low:.2}–{high:.2})"),
        };
        let _infallible = writeln!(
            rows,
            "| {name} | {} | {} | {} | {ratio} | {} |",
            summary.metric.label(),
            figure(summary.ours.median),
            figure(summary.reference.median),
            summary.verdict(),
        );
    }
    rows
}

/// Three to four significant digits, thousands grouped.
pub(crate) fn figure(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 1000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

impl Report {
    /// The whole report as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let Settings {
            cores,
            rounds,
            round_ms,
        } = &self.settings;
        let _infallible = writeln!(
            text,
            "Taken {}. Machine: {} cores, {}, {} MiB, {}.\n\
             Ours: {}. Reference: {}.\n\
             {rounds} pairs of rounds of {round_ms} ms after a warm-up round each; \
             server on {}, load on {}.\n\
             Medians; the ratio is ours to reference within a pair of rounds: median (quartiles).\n\n\
             | scenario | measure | ours | reference | ratio | goal |\n\
             |---|---|--:|--:|--:|---|",
            self.taken_at,
            self.machine.cores,
            self.machine.cpu,
            self.machine.memory_mib,
            self.machine.kernel,
            self.ours,
            self.reference,
            core_names(&cores.server),
            core_names(&cores.load),
        );
        for result in &self.scenarios {
            text.push_str(&rows(result));
        }
        text.push('\n');
        for result in &self.scenarios {
            let _infallible = writeln!(text, "- `{}`: {}", result.name, result.about);
        }
        text
    }

    /// Writes everything, raw samples included, to `path` or to a new file in the target folder.
    pub(crate) fn write_json(&self, path: Option<&Path>) -> Result<PathBuf> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let target =
                    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
                let stamp = self.taken_at.get(..19).unwrap_or("undated").replace(':', "-");
                target.join("bench-results").join(format!("{stamp}.json"))
            }
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let json = serde_json::to_vec_pretty(self)?;
        std::fs::write(&path, json).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

fn core_names(cores: &[usize]) -> String {
    if cores.is_empty() {
        return "any core".to_owned();
    }
    let names: Vec<String> = cores.iter().map(usize::to_string).collect();
    format!("core {}", names.join("+"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_and_short() {
        assert_eq!(figure(0.123), "0.12");
        assert_eq!(figure(123.44), "123.4");
        assert_eq!(figure(1_234_567.8), "1,234,568");
    }

    #[test]
    fn ratios_are_formed_within_pairs() {
        let sample = |rate| Sample::default().with(Metric::Rate, rate);
        let pairs = [(20.0, 10.0), (60.0, 20.0), (10.0, 10.0)];
        let pairs = pairs.map(|(ours, reference)| (sample(ours), sample(reference)));
        let summary = Summary::of(Metric::Rate, &pairs, Some(1.2)).unwrap();
        assert_eq!(summary.ratio.median, 2.0);
        assert_eq!(summary.verdict(), "≥ 1.2 yes");
    }

    #[test]
    fn a_goal_for_a_cost_is_reached_from_below() {
        let sample = |cpu| Sample::default().with(Metric::ServerCpuNs, cpu);
        let summary = Summary::of(Metric::ServerCpuNs, &[(sample(11.0), sample(10.0))], Some(1.0)).unwrap();
        assert_eq!(summary.verdict(), "≤ 1.0 **no**");
        let pairs = [
            (sample(9.0), sample(10.0)),
            (sample(10.5), sample(10.0)),
            (sample(12.0), sample(10.0)),
        ];
        assert_eq!(
            Summary::of(Metric::ServerCpuNs, &pairs, Some(1.0))
                .unwrap()
                .verdict(),
            "≤ 1.0 within noise"
        );
    }

    #[test]
    fn metrics_only_one_side_measured_are_left_out() {
        let pairs = [(Sample::default().with(Metric::Rate, 1.0), Sample::default())];
        assert!(Summary::of(Metric::Rate, &pairs, None).is_none());
    }
}
