//! The binary as a process: both names, their flags, files, logs, signals and exit codes.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod backup;
mod batches;
mod config;
mod flags;
mod jetstream;
mod mq;
mod nats;
mod serve;
mod signals;
mod startup;
mod store;

use std::process::{Command, Output};

use windjet_testkit::server::{ServerUnderTest, Setup};

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_windjet");

/// A setup that starts the binary under the name nats-server in a folder of its own.
fn dropin() -> Setup {
    ServerUnderTest::of(BINARY)
}

/// Runs the binary as nats-server to its end.
fn run_dropin(words: &[&str]) -> Output {
    let server = dropin().prepare().unwrap();
    let mut command = server.command();
    command.args(words);
    finish(command)
}

/// Runs the binary as windjet to its end.
fn run_windjet(words: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(words);
    finish(command)
}

fn finish(mut command: Command) -> Output {
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The text of a log line behind `[pid] date time `, if it has that form.
fn text_of(line: &str) -> Option<&str> {
    let mut parts = line.splitn(4, ' ');
    let pid = parts.next()?.strip_prefix('[')?.strip_suffix(']')?;
    let (date, time, text) = (parts.next()?, parts.next()?, parts.next()?);
    let shape = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect()
    };
    let well_formed = pid.bytes().all(|byte| byte.is_ascii_digit())
        && shape(date) == "0000/00/00"
        && shape(time) == "00:00:00.000000";
    well_formed.then_some(text)
}
