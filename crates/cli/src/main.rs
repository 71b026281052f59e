//! The binary `windjet`.
//!
//! `windjet serve` runs a server with defaults for people. Under the name `nats-server` (a link or a copy, in any
//! folder) the same binary takes that program's flags and behaves as it does, so that test suites of clients can
//! start it in the other's place.
//!
//! All behaviour of the server itself is in `windjet-server`; here are the command line, the log, signals and files.

mod config;
mod control;
mod dropin;
mod go_text;
mod logging;
mod mq;
mod nats;
mod process;
mod serve;
mod signals;
mod store;

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// A message broker on the NATS protocol.
#[derive(Debug, Parser)]
#[command(
    name = "windjet",
    version,
    about = "Windjet, a message broker that every NATS client can talk to",
    after_help = "\
Try it:
  windjet serve                    then point any NATS client at nats://127.0.0.1:4222
  windjet help serve               all options of the server

Called nats-server (ln -s windjet nats-server), the program takes that server's flags and files."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    #[command(long_about = "Runs a server until SIGINT or SIGTERM ends it.")]
    Serve(Box<serve::Serve>),
    /// Look into a store on disk
    #[command(subcommand)]
    Store(store::Store),
    /// What an operator's NATS cluster needs for the message queue
    #[command(subcommand)]
    Nats(nats::Nats),
    /// The message queue's store on this machine
    #[command(subcommand)]
    Mq(mq::Mq),
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let program = words.next();
    if is_dropin(program.as_deref()) {
        return dropin::main(words);
    }
    let result = match Cli::parse().command {
        Some(Command::Serve(serve)) => serve.run(),
        Some(Command::Store(store)) => store.run(),
        Some(Command::Nats(nats)) => nats.run(),
        Some(Command::Mq(mq)) => mq.run(),
        None => Cli::command().print_help().map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "windjet: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the program was called by the reference server's name.
fn is_dropin(program: Option<&OsStr>) -> bool {
    program
        .and_then(|program| Path::new(program).file_stem())
        .is_some_and(|name| name == dropin::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_name_alone_decides_whose_flags_are_read() {
        let called = |path: &str| is_dropin(Some(OsStr::new(path)));
        assert!(called("nats-server"));
        assert!(called("/opt/bin/nats-server"));
        assert!(called("nats-server.exe"));
        assert!(!called("windjet"));
        assert!(!called("/nats-server/windjet"));
        assert!(!is_dropin(None));
    }
}
