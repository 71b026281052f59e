//! The order of the rounds.
//!
//! For each scenario: one unmeasured round on each server, then `rounds` pairs, ours first, the reference
//! right after. Ratios are formed within a pair. Both servers live through all rounds of a scenario
//! (the one that is not being measured is idle), unless the scenario wants them fresh.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use regex::Regex;

use crate::{
    machine::{self, Cores, Machine},
    metric::Sample,
    report::{self, Report, ScenarioResult, Settings},
    scenario::{self, Scenario},
    server::{Program, Server},
};

/// Options of `compare`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Our server program.
    #[arg(long)]
    ours: PathBuf,
    /// The server program it is compared with.
    #[arg(long)]
    reference: PathBuf,
    /// Run only the scenarios whose name matches this regular expression.
    #[arg(long)]
    only: Option<String>,
    /// Measured rounds on each server.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Length of a round in milliseconds.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
    /// Where raw samples go; default: a file in `bench-results` of the target folder.
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    pinning: Pinning,
}

/// Which cores are used.
#[derive(Debug, clap::Args)]
pub(crate) struct Pinning {
    /// Cores of the server, as a list like 0,1.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    server_cores: Vec<usize>,
    /// Cores of the load generator.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    load_cores: Vec<usize>,
    /// Bind nothing to cores.
    #[arg(long)]
    no_pin: bool,
}

impl Pinning {
    /// The cores as chosen.
    pub(crate) fn cores(&self) -> Cores {
        if self.no_pin {
            return Cores {
                server: Vec::new(),
                load: Vec::new(),
            };
        }
        Cores {
            server: self.server_cores.clone(),
            load: self.load_cores.clone(),
        }
    }
}

/// Runs the comparison and prints its table.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0, "at least one round is needed");
    let only = args
        .only
        .as_deref()
        .map(Regex::new)
        .transpose()
        .context("--only")?;
    let cores = args.pinning.cores();
    let machine = Machine::look();
    machine::pin(&cores.load).context("binding to cores; --no-pin turns it off")?;
    let (ours, reference) = (Program::at(&args.ours)?, Program::at(&args.reference)?);
    let length = Duration::from_millis(args.round_ms);
    let mut results = Vec::new();
    for scenario in scenario::all() {
        if only.as_ref().is_some_and(|only| !only.is_match(&scenario.name())) {
            continue;
        }
        eprintln!("{}: {}", scenario.name(), scenario.about());
        let pairs = Rounds {
            scenario: &*scenario,
            cores: &cores,
            length,
            rounds: args.rounds.min(scenario.rounds_at_most()),
        }
        .run(&ours, &reference)
        .with_context(|| scenario.name())?;
        let result = ScenarioResult::new(&*scenario, pairs);
        eprint!("{}", report::rows(&result));
        results.push(result);
    }
    ensure!(!results.is_empty(), "--only matches no scenario");
    let report = Report {
        taken_at: report::now(),
        machine,
        settings: Settings {
            cores,
            rounds: args.rounds,
            round_ms: args.round_ms,
        },
        ours: ours.version,
        reference: reference.version,
        scenarios: results,
    };
    let json = report.write_json(args.json.as_deref())?;
    print!("{}", report.markdown());
    eprintln!("raw samples: {}", json.display());
    Ok(())
}

struct Rounds<'a> {
    scenario: &'a dyn Scenario,
    cores: &'a Cores,
    length: Duration,
    rounds: usize,
}

impl Rounds<'_> {
    /// All rounds of one scenario: (ours, reference) for each pair.
    fn run(&self, ours: &Program, reference: &Program) -> Result<Vec<(Sample, Sample)>> {
        if self.scenario.fresh_server() {
            return (0..self.rounds)
                .map(|_| {
                    Ok((
                        self.round(&self.start(ours)?)?,
                        self.round(&self.start(reference)?)?,
                    ))
                })
                .collect();
        }
        let (ours, reference) = (self.start(ours)?, self.start(reference)?);
        self.our_round(&ours).context("warm-up")?;
        self.round(&reference).context("warm-up")?;
        (0..self.rounds)
            .map(|_| Ok((self.our_round(&ours)?, self.round(&reference)?)))
            .collect()
    }

    fn start(&self, program: &Program) -> Result<Server> {
        program.start(self.scenario.server_args(), self.scenario.config(), self.cores)
    }

    fn our_round(&self, server: &Server) -> Result<Sample> {
        match self.scenario.inside(self.cores, self.length) {
            Some(inside) => inside,
            None => self.round(server),
        }
    }

    fn round(&self, server: &Server) -> Result<Sample> {
        self.scenario.round(server, self.length)
    }
}
