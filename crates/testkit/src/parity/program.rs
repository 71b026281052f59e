//! Steps that run the program beside or instead of the script's server: flags, configuration checks, start attempts.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::deadline::until;
use crate::process::{Line, Process, Stream};

use super::escape::bytes_of;
use super::run::{Run, split};

/// How long a program that is expected to end may run.
const PATIENCE: Duration = Duration::from_secs(8);

impl Run<'_> {
    /// Runs the program with these flags to its end and records exit code and output.
    pub(super) fn program(&mut self, lines: Option<usize>, flags: &str) -> Result<()> {
        let mut command = self.server.command();
        command.args(split(&self.fill(flags)?)?);
        let mut process = Process::spawn(command)?;
        let end = process.wait_exit(PATIENCE).ok();
        let code = match end {
            Some(status) => status
                .code()
                .map_or("a signal".to_owned(), |code| code.to_string()),
            None => "none, it still runs".to_owned(),
        };
        process.kill()?;
        self.record(format!("run {flags}: exit {code}"));
        self.output(&process, lines, |_| true);
        Ok(())
    }

    /// Runs `-t` on a configuration.
    pub(super) fn check(&mut self, config: &str) -> Result<()> {
        self.configuration("check.conf", config)?;
        let mut command = self.server.command();
        command.args(["-t", "-c", "check.conf"]);
        let mut process = Process::spawn(command)?;
        let code = process.wait_exit(PATIENCE)?.code();
        let config = self.normal.text(config);
        self.record(format!("check {config}: exit {}", code.unwrap_or(-1)));
        self.output(&process, None, |_| true);
        Ok(())
    }

    /// Starts a server on a configuration and records whether it gets ready, or how it ends.
    pub(super) fn attempt(&mut self, config: &str) -> Result<()> {
        self.configuration("try.conf", config)?;
        let mut command = self.server.command();
        command.args(["-a", "127.0.0.1", "-p", "-1", "-c", "try.conf"]);
        let mut process = Process::spawn(command)?;
        let ready = |line: &Line| line.text.ends_with("Server is ready");
        until("the server to get ready or to end", PATIENCE, || {
            process.ended() || process.lines().iter().any(ready)
        })
        .with_context(|| format!("{:?}", process.lines()))?;
        let config = self.normal.text(config);
        if process.ended() {
            let code = process.wait_exit(PATIENCE)?.code();
            self.record(format!("try {config}: exit {}", code.unwrap_or(-1)));
        } else {
            process.kill()?;
            self.record(format!("try {config}: ready"));
        }
        self.output(&process, None, |line| {
            !["[INF]", "[DBG]", "[TRC]"]
                .iter()
                .any(|level| line.contains(level))
        });
        Ok(())
    }

    fn configuration(&self, file: &str, config: &str) -> Result<()> {
        fs::write(self.server.dir().join(file), bytes_of(config)?).with_context(|| format!("writing {file}"))
    }

    fn output(&mut self, process: &Process, limit: Option<usize>, wanted: impl Fn(&str) -> bool) {
        for (stream, name) in [(Stream::Out, "out"), (Stream::Err, "err")] {
            let lines = process
                .lines()
                .into_iter()
                .filter(|line| line.stream == stream && wanted(&line.text));
            for line in lines.take(limit.unwrap_or(usize::MAX)) {
                self.record(format!("  {name}| {}", self.normal.text(&line.text)));
            }
        }
    }
}
