//! A child process under observation.
//!
//! [`Process`] starts a program, gathers what it writes line by line, waits for lines or for the end with a
//! deadline, sends signals, and kills the program when dropped. When the owner is panicking, the drop prints what
//! was gathered, so that a failing test shows the log of its server.
//!
//! It starts no runtime and reads no terminal; one thread per output stream lives as long as the child's stream.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::deadline::{until, until_some};

/// Which of its two streams a process wrote a line to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// One line that a process wrote, without its line end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Where it was written.
    pub stream: Stream,
    /// What it says; bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// The signals that a server understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Reload the configuration.
    Hup,
    /// Shut down.
    Int,
    /// End without any chance to react.
    Kill,
    /// Stop running until `Cont`.
    Stop,
    /// Run again.
    Cont,
    /// Shut down.
    Term,
    /// Reopen the log file.
    Usr1,
    /// Enter lame duck mode.
    Usr2,
}

/// A running or ended child process. Dropping it kills the child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    status: Option<ExitStatus>,
    lines: Arc<Mutex<Vec<Line>>>,
    readers: Vec<JoinHandle<()>>,
    name: String,
}

impl Process {
    /// Starts `command` with its output captured and no input.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(gather(Stream::Out, out, Arc::clone(&lines)));
        }
        if let Some(err) = child.stderr.take() {
            readers.push(gather(Stream::Err, err, Arc::clone(&lines)));
        }
        Ok(Self {
            child,
            status: None,
            lines,
            readers,
            name,
        })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All lines written so far, in the order of their arrival.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        locked(&self.lines).clone()
    }

    /// Waits until `pick` finds something in a line already written or yet to come.
    ///
    /// # Errors
    /// When the time is up or the process has ended without such a line; the message carries the output.
    pub fn wait_for_line<T>(
        &mut self,
        what: &str,
        wait: Duration,
        mut pick: impl FnMut(&Line) -> Option<T>,
    ) -> Result<T> {
        let mut seen = 0;
        let found = until_some(what, wait, || {
            // The end is looked at before the lines: what was written before the end is then all there.
            let ended = self.ended();
            let lines = locked(&self.lines);
            let hit = lines[seen..].iter().find_map(&mut pick);
            seen = lines.len();
            hit.map(Some).or_else(|| ended.then_some(None))
        });
        match found {
            Ok(Some(value)) => Ok(value),
            Ok(None) => bail!("{} ended before {what}; it wrote:\n{}", self.name, self.text()),
            Err(error) => bail!("{error}; {} wrote:\n{}", self.name, self.text()),
        }
    }

    /// Sends `signal` to the process.
    ///
    /// # Errors
    /// When the process has ended, and on systems without signals.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.status.is_some() {
            bail!("{} has ended already", self.name);
        }
        send(self.id(), signal).with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Kills the process as `kill -9` does and waits for its end.
    ///
    /// # Errors
    /// When the system refuses either.
    pub fn kill(&mut self) -> Result<()> {
        if self.status.is_none() {
            self.child
                .kill()
                .with_context(|| format!("killing {}", self.name))?;
            self.status = Some(
                self.child
                    .wait()
                    .with_context(|| format!("waiting for {}", self.name))?,
            );
        }
        self.join();
        Ok(())
    }

    /// Waits for the end of the process and of its output.
    ///
    /// # Errors
    /// When the time is up; the message carries the output so far.
    pub fn wait_exit(&mut self, wait: Duration) -> Result<ExitStatus> {
        if let Err(error) = until("the end of the process", wait, || self.status().is_some()) {
            bail!("{error}; {} wrote:\n{}", self.name, self.text());
        }
        self.join();
        self.status.context("an ended process has a status")
    }

    /// Whether the process has ended and all its output is gathered.
    pub fn ended(&mut self) -> bool {
        self.status().is_some() && self.readers.iter().all(JoinHandle::is_finished)
    }

    /// Whether the process has ended; some of its output may still be on its way.
    pub fn has_exited(&mut self) -> bool {
        self.status().is_some()
    }

    fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    fn join(&mut self) {
        for reader in self.readers.drain(..) {
            // A reader only ever ends; it has no result that could be an error.
            let _ = reader.join();
        }
    }

    fn text(&self) -> String {
        let lines = self.lines();
        lines
            .iter()
            .map(|line| line.text.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error here means that the child is gone already.
        let _ = self.kill();
        if thread::panicking() {
            report(&self.name, &self.text());
        }
    }
}

#[expect(clippy::print_stderr, reason = "a failing test shows what its server wrote")]
fn report(name: &str, text: &str) {
    eprintln!("--- {name} wrote:\n{text}\n---");
}

fn gather(
    stream: Stream,
    source: impl Read + Send + 'static,
    lines: Arc<Mutex<Vec<Line>>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        while source.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                bytes.pop();
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            locked(&lines).push(Line { stream, text });
            bytes.clear();
        }
    })
}

fn locked(lines: &Mutex<Vec<Line>>) -> MutexGuard<'_, Vec<Line>> {
    // A list of lines is whole at every moment; a panic elsewhere cannot have broken it.
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
fn send(id: u32, signal: Signal) -> Result<()> {
    use rustix::process::{Pid, Signal as Raw, kill_process};
    let raw = match signal {
        Signal::Hup => Raw::HUP,
        Signal::Int => Raw::INT,
        Signal::Kill => Raw::KILL,
        Signal::Stop => Raw::STOP,
        Signal::Cont => Raw::CONT,
        Signal::Term => Raw::TERM,
        Signal::Usr1 => Raw::USR1,
        Signal::Usr2 => Raw::USR2,
    };
    let pid = i32::try_from(id)
        .ok()
        .and_then(Pid::from_raw)
        .context("a process id")?;
    Ok(kill_process(pid, raw)?)
}

#[cfg(not(unix))]
fn send(_id: u32, _signal: Signal) -> Result<()> {
    bail!("this system has no signals")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Process> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn(command)
    }

    #[test]
    fn lines_of_both_streams_are_gathered() {
        let mut process = shell("echo one; echo two >&2; printf three").unwrap();
        assert!(process.wait_exit(Duration::from_secs(10)).unwrap().success());
        let of = |stream| -> Vec<String> {
            process
                .lines()
                .into_iter()
                .filter(|l| l.stream == stream)
                .map(|l| l.text)
                .collect()
        };
        assert_eq!(of(Stream::Out), ["one", "three"]);
        assert_eq!(of(Stream::Err), ["two"]);
    }

    #[test]
    fn waiting_for_a_line_fails_at_once_when_the_process_ends_without_it() {
        let mut process = shell("echo nothing to see").unwrap();
        let error = process
            .wait_for_line("a miracle", Duration::from_secs(60), |_| None::<()>)
            .unwrap_err();
        assert!(error.to_string().contains("ended before a miracle"), "{error}");
        assert!(error.to_string().contains("nothing to see"), "{error}");
    }

    #[test]
    fn a_signal_arrives_and_the_exit_code_is_kept() {
        let mut process = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done").unwrap();
        let ready = |line: &Line| (line.text == "ready").then_some(());
        process
            .wait_for_line("the trap", Duration::from_secs(10), ready)
            .unwrap();
        process.signal(Signal::Term).unwrap();
        assert_eq!(
            process.wait_exit(Duration::from_secs(10)).unwrap().code(),
            Some(7)
        );
        assert!(process.signal(Signal::Term).is_err());
    }

    #[test]
    fn a_killed_process_ends_although_it_ignores_other_signals() {
        let mut process = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done").unwrap();
        let ready = |line: &Line| (line.text == "ready").then_some(());
        process
            .wait_for_line("the trap", Duration::from_secs(10), ready)
            .unwrap();
        process.signal(Signal::Term).unwrap();
        process.kill().unwrap();
        assert!(process.ended());
    }
}
