//! What can be measured: one file per family, one value per scenario.
//!
//! A scenario gets a running server and the length of a round, and returns what it measured. It knows
//! nothing of sides, rounds and ratios. To add one: implement [`Scenario`] in the family's file and list
//! it in that file's `all`.

mod connections;
mod jetstream;
mod mixed;
mod official;
mod publish;
mod pubsub;
mod request;
mod subjects;

use std::time::{Duration, Instant};

use anyhow::Result;

pub(crate) use jetstream::{InsideArgs, run_inside};

use crate::{
    flood::{Flood, Moved},
    machine::{self, Cores},
    metric::{Metric, Sample},
    server::Server,
};

/// One thing that is measured in rounds.
pub(crate) trait Scenario {
    /// `family/variant`; what `--only` is matched against.
    fn name(&self) -> String;

    /// Clients, payload and shape in a few words.
    fn about(&self) -> String;

    /// Runs one round of about `length` against `server`.
    ///
    /// # Errors
    /// When the round could not be counted exactly: it is then no sample, and the run stops.
    fn round(&self, server: &Server, length: Duration) -> Result<Sample>;

    /// Flags the servers are started with on top of the usual ones.
    fn server_args(&self) -> &[&str] {
        &[]
    }

    /// Configuration file the servers are started with, if they need one.
    fn config(&self) -> Option<&str> {
        None
    }

    /// Our side's round where it is not run against a server process of its own but inside this machine's `cores`.
    fn inside(&self, _cores: &Cores, _length: Duration) -> Option<Result<Sample>> {
        None
    }

    /// Rounds on each server at most, where one takes long.
    fn rounds_at_most(&self) -> usize {
        usize::MAX
    }

    /// Whether each round needs a server that has served nobody yet.
    fn fresh_server(&self) -> bool {
        false
    }

    /// What the ratio ours to reference is to reach (or stay below, where less is better).
    fn goals(&self) -> &[(Metric, f64)] {
        &[]
    }
}

/// All scenarios, in the order of the table.
pub(crate) fn all() -> Vec<Box<dyn Scenario>> {
    let mut all = Vec::new();
    all.extend(publish::all());
    all.extend(pubsub::all());
    all.extend(subjects::all());
    all.extend(request::all());
    all.extend(mixed::all());
    all.extend(connections::all());
    all.extend(official::all());
    all.extend(jetstream::all());
    all
}

/// Processor time of server and load generator over a stretch of a round.
#[derive(Debug)]
struct CpuMeter<'a> {
    server: &'a Server,
    start: Instant,
    server_before: Option<Duration>,
    load_before: Option<Duration>,
}

impl<'a> CpuMeter<'a> {
    fn start(server: &'a Server) -> Self {
        Self {
            server,
            start: Instant::now(),
            server_before: server.cpu_time(),
            load_before: machine::cpu_time(std::process::id()),
        }
    }

    /// Adds processor time per unit of work and both shares to `sample`.
    fn finish(self, sample: Sample, units: u64) -> Sample {
        let wall = self.start.elapsed().as_secs_f64();
        let used = |before: Option<Duration>, after: Option<Duration>| Some((after? - before?).as_secs_f64());
        let server = used(self.server_before, self.server.cpu_time());
        let load = used(self.load_before, machine::cpu_time(std::process::id()));
        sample
            .with(
                Metric::ServerCpuNs,
                server.map(|seconds| seconds * 1e9 / units.max(1) as f64),
            )
            .with(Metric::ServerShare, server.map(|seconds| seconds / wall))
            .with(Metric::LoadShare, load.map(|seconds| seconds / wall))
    }
}

/// Runs a prepared flood and turns what it moved into a sample; the unit is the published message.
fn measure_flood(server: &Server, flood: Flood, length: Duration) -> Result<Sample> {
    let meter = CpuMeter::start(server);
    let Moved { published, elapsed } = flood.run(length)?;
    let sample = Sample::default().with(Metric::Rate, published as f64 / elapsed.as_secs_f64());
    Ok(meter.finish(sample, published))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        let names: BTreeSet<String> = all().iter().map(|scenario| scenario.name()).collect();
        assert_eq!(names.len(), all().len());
    }
}
