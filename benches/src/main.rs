//! `windjet-bench`: our server and the reference server, measured side by side.
//!
//! What it does: every scenario runs in short rounds that alternate between the two servers (ours,
//! reference, ours, reference, …) in one process on one machine, so that a slow minute of the machine
//! hits both. The result of a round pair is a ratio; what is printed is the median of the ratios with
//! their quartiles, and next to it the medians of both sides. Raw samples go to a JSON file.
//!
//! What it does not do: it never compares figures of different runs, and it prints no ratio for what it
//! could not count exactly. A round in which one message is lost or doubled is an error, not a sample.
//!
//! Where to look: `scenario` says what is measured (one file per family), `flood` and `pingpong` are the
//! two load loops over raw sockets, `frames` and `session` the little they know of the wire, `peer` the same for JetStream, `server`
//! starts and stops the processes, `compare` orders the rounds, `report` writes the table. `kit` compares the
//! client kit with the official client instead, `mq` the message queue in the process with itself and with a broker outside.
//!
//! ```text
//! cargo run --release -p windjet-bench -- compare --ours target/release/windjet --reference nats-server
//! cargo run --release -p windjet-bench -- profile --server target/release/windjet --scenario pubsub/16B
//! ```

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user"
)]

mod compare;
mod flood;
mod frames;
mod kit;
mod machine;
mod metric;
mod mq;
mod peer;
mod pingpong;
mod profile;
mod report;
mod scenario;
mod server;
mod session;
mod stats;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures windjet and nats-server side by side.
#[derive(Debug, Parser)]
#[command(name = "windjet-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the scenarios on both servers in alternating rounds and print the ratios.
    Compare(compare::Args),
    /// Run one scenario on one server for some time, so that a profiler can be attached.
    Profile(profile::Args),
    /// Run the client kit and the official client in alternating rounds on one server, and print the ratios.
    Kit(kit::Args),
    /// Measure the message queue in the process: with many tenants, beside bad neighbours, against a broker outside.
    Mq(mq::Args),
    /// List the scenarios.
    List,
    /// Publish into a server of this very process; started by a scenario.
    #[command(hide = true)]
    Inside(scenario::InsideArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Compare(args) => compare::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Kit(args) => kit::run(&args),
        Command::Mq(args) => mq::run(&args),
        Command::Inside(args) => scenario::run_inside(&args),
        Command::List => {
            for scenario in scenario::all() {
                println!("{:24} {}", scenario.name(), scenario.about());
            }
            Ok(())
        }
    }
}
