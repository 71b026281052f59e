//! One scenario on one server for some time, with the server's process number printed: for a profiler.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{compare::Pinning, machine, metric::Metric, scenario, server::Program};

/// Options of `profile`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server program.
    #[arg(long)]
    server: PathBuf,
    /// Name of the scenario, as `list` prints it.
    #[arg(long)]
    scenario: String,
    /// How long to run.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    #[command(flatten)]
    pinning: Pinning,
}

/// Runs rounds of two seconds until the time is over.
pub(crate) fn run(args: &Args) -> Result<()> {
    let scenario = scenario::all()
        .into_iter()
        .find(|scenario| scenario.name() == args.scenario)
        .with_context(|| format!("no scenario is called {}", args.scenario))?;
    let cores = args.pinning.cores();
    machine::pin(&cores.load)?;
    let server = Program::at(&args.server)?.start(scenario.server_args(), scenario.config(), &cores)?;
    println!("pid {}", server.pid());
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    while Instant::now() < deadline {
        let sample = scenario.round(&server, Duration::from_secs(2))?;
        let value = |metric| {
            sample
                .get(metric)
                .map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
        };
        println!(
            "rate {} server_ns {} server_share {} load_share {} p50 {} p99 {}",
            value(Metric::Rate),
            value(Metric::ServerCpuNs),
            value(Metric::ServerShare),
            value(Metric::LoadShare),
            value(Metric::P50Us),
            value(Metric::P99Us),
        );
    }
    Ok(())
}
