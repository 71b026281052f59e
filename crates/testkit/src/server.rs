//! Any nats-server-compatible program, started in a private folder.
//!
//! [`ServerUnderTest`] runs the real server and ours alike: both are started under the name `nats-server`, because
//! the name decides how ours reads its arguments, with the flags and the configuration given, in a folder of their
//! own that is also their working directory. Ports are chosen by the server (`-p -1`) and read from its log. A
//! server can be killed and started again in the same folder on the same port, which is how crash tests restart on
//! one store. Dropping it kills the program and removes the folder.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::binaries::{nats_server_path, windjet_path};
use crate::deadline::{until, until_some};
use crate::process::{Process, Signal, Stream};

/// How long a server may take from its start to `Server is ready`, and from a signal to its effect.
pub const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: &str = "server.conf";

/// What to start, and how. Made by [`ServerUnderTest::of`], [`ServerUnderTest::real`] or [`ServerUnderTest::ours`].
#[derive(Debug, Clone)]
pub struct Setup {
    binary: PathBuf,
    flags: Vec<OsString>,
    env: Vec<(String, String)>,
    files: Vec<(String, Vec<u8>)>,
    log: Option<String>,
    bare: bool,
}

impl Setup {
    /// Adds command line flags behind the standard ones.
    #[must_use]
    pub fn flags<S: AsRef<OsStr>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags
            .extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    /// Gives the server the configuration file `server.conf` with this text.
    #[must_use]
    pub fn config(self, text: impl Into<String>) -> Self {
        self.file(CONFIG, text.into())
    }

    /// Puts a file into the server's folder before it starts.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Tells that flags or configuration send the log to this file in the server's folder. It is then read there.
    #[must_use]
    pub fn log_file(mut self, name: &str) -> Self {
        self.log = Some(name.to_owned());
        self
    }

    /// Leaves the standard flags `-a 127.0.0.1 -p -1` out: flags or configuration say where to listen.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// Makes the private folder, starts the server and waits until it is ready.
    ///
    /// # Errors
    /// When the folder cannot be made, or the server ends or stays silent instead of getting ready; the message
    /// carries its output.
    pub fn start(self) -> Result<ServerUnderTest> {
        let mut server = self.prepare()?;
        server.launch()?;
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Makes the private folder without starting anything; [`ServerUnderTest::launch`] does that.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn prepare(self) -> Result<ServerUnderTest> {
        let folder = TempDir::with_prefix("windjet-")?;
        // Symbolic links in the path of the system's folder would show up in what servers print.
        let dir = folder.path().canonicalize()?;
        for (name, content) in &self.files {
            let path = dir.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
        let programs = TempDir::with_prefix("windjet-bin-")?;
        let program = stand_in(&self.binary, programs.path())?;
        Ok(ServerUnderTest {
            setup: self,
            folder,
            dir,
            programs,
            program,
            process: None,
            ports: Ports::default(),
        })
    }
}

/// A server in its private folder, running or not.
#[derive(Debug)]
pub struct ServerUnderTest {
    setup: Setup,
    process: Option<Process>,
    ports: Ports,
    program: PathBuf,
    dir: PathBuf,
    // Behind the process: a folder is removed when nothing runs in it any more.
    programs: TempDir,
    folder: TempDir,
}

/// Where a server listens, as its log says.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Clients over TCP or TLS.
    pub client: Option<u16>,
    /// Monitoring over HTTP or HTTPS.
    pub monitor: Option<u16>,
    /// Clients over WebSocket.
    pub websocket: Option<u16>,
}

impl ServerUnderTest {
    /// A setup that runs `binary`.
    pub fn of(binary: impl Into<PathBuf>) -> Setup {
        let (flags, env, files) = (Vec::new(), Vec::new(), Vec::new());
        Setup {
            binary: binary.into(),
            flags,
            env,
            files,
            log: None,
            bare: false,
        }
    }

    /// A setup that runs the real nats-server.
    ///
    /// # Errors
    /// When it is not there; the message names the script that fetches it.
    pub fn real() -> Result<Setup> {
        Ok(Self::of(nats_server_path()?))
    }

    /// A setup that runs our own server.
    ///
    /// # Errors
    /// When it is not built; the message names the command.
    pub fn ours() -> Result<Setup> {
        Ok(Self::of(windjet_path()?))
    }

    /// Starts the program in its folder without waiting for anything.
    ///
    /// # Errors
    /// When it runs already or cannot be started.
    pub fn launch(&mut self) -> Result<()> {
        if self.process.as_mut().is_some_and(|process| !process.ended()) {
            bail!("the server is running already");
        }
        let mut command = self.command();
        if !self.setup.bare {
            // After a restart the server comes back where its clients look for it.
            let port = self
                .ports
                .client
                .map_or_else(|| "-1".to_owned(), |port| port.to_string());
            command.args(["-a", "127.0.0.1", "-p", &port]);
        }
        if self.setup.files.iter().any(|(name, _)| name == CONFIG) {
            command.args(["-c", CONFIG]);
        }
        command.args(&self.setup.flags);
        if let Some(log) = &self.setup.log {
            // An earlier run's log would be taken for this one's.
            let _ = fs::remove_file(self.dir.join(log));
        }
        self.process = Some(Process::spawn(command)?);
        Ok(())
    }

    /// A command that runs the program once more in the same folder, with no flags yet.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.dir)
            .envs(self.setup.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Waits until the server says that it is ready, and learns its ports.
    ///
    /// # Errors
    /// When it ends or stays silent instead; the message carries its output.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.wait_for_log("the server to be ready", PATIENCE, |text| {
            text.ends_with("Server is ready").then_some(())
        })?;
        self.ports = Ports::read(&self.log());
        Ok(())
    }

    /// Waits until `pick` finds something in a line of the log, from its beginning on.
    ///
    /// # Errors
    /// When the time is up or the server has ended without such a line; the message carries the log.
    pub fn wait_for_log<T>(
        &mut self,
        what: &str,
        wait: Duration,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        if self.setup.log.is_none() {
            return self.running()?.wait_for_line(what, wait, |line| {
                (line.stream == Stream::Err).then(|| pick(&line.text)).flatten()
            });
        }
        let found = until_some(what, wait, || {
            let ended = self.process.as_mut().is_none_or(Process::ended);
            let hit = self.log().iter().find_map(|text| pick(text));
            hit.map(Some).or_else(|| ended.then_some(None))
        });
        match found {
            Ok(Some(value)) => Ok(value),
            Ok(None) => bail!(
                "the server ended before {what}; its log:\n{}",
                self.log().join("\n")
            ),
            Err(error) => bail!("{error}; the log:\n{}", self.log().join("\n")),
        }
    }

    /// The lines of the log so far: of the log file when there is one, else of standard error.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        if let Some(file) = &self.setup.log {
            let text = fs::read(self.dir.join(file)).unwrap_or_default();
            return String::from_utf8_lossy(&text)
                .lines()
                .map(str::to_owned)
                .collect();
        }
        let lines = self.process.as_ref().map(Process::lines).unwrap_or_default();
        lines
            .into_iter()
            .filter(|line| line.stream == Stream::Err)
            .map(|line| line.text)
            .collect()
    }

    /// Where the server listens.
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// The address for clients.
    ///
    /// # Errors
    /// When the server has not said where it listens.
    pub fn client_addr(&self) -> Result<SocketAddr> {
        local(self.ports.client.context("the server has no port for clients")?)
    }

    /// The address of the monitoring pages.
    ///
    /// # Errors
    /// When monitoring is not on.
    pub fn monitor_addr(&self) -> Result<SocketAddr> {
        local(self.ports.monitor.context("the server has no monitoring port")?)
    }

    /// The address for WebSocket clients.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn websocket_addr(&self) -> Result<SocketAddr> {
        local(self.ports.websocket.context("the server has no WebSocket port")?)
    }

    /// The address for NATS client libraries, `nats://127.0.0.1:PORT`.
    ///
    /// # Errors
    /// When the server has not said where it listens.
    pub fn url(&self) -> Result<String> {
        Ok(format!("nats://{}", self.client_addr()?))
    }

    /// The server's private folder and working directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process, for anything beyond the methods here.
    ///
    /// # Errors
    /// When the server was never started.
    pub fn running(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("the server was not started")
    }

    /// Writes a new configuration file; [`ServerUnderTest::signal`] with `Hup` makes the server read it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_config(&self, text: &str) -> Result<()> {
        fs::write(self.dir.join(CONFIG), text).context("writing the configuration")
    }

    /// Sends a signal to the server.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.running()?.signal(signal)
    }

    /// Kills the server as `kill -9` does; its folder stays.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill()
    }

    /// Asks the server to shut down and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::Term)?;
        self.running()?.wait_exit(PATIENCE)
    }

    /// Starts the server again in the same folder, on the same client port, killing it first if it runs.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_until_ready()
    }

    /// Waits until the server does not accept connections any more.
    ///
    /// # Errors
    /// When it still does after the usual patience.
    pub fn wait_until_refusing(&self) -> Result<()> {
        let addr = self.client_addr()?;
        until("the listener to close", PATIENCE, || {
            std::net::TcpStream::connect(addr).is_err()
        })
    }

    /// The folders in which the server and its stand-in program live, for texts that must not depend on them.
    #[must_use]
    pub fn private_paths(&self) -> [&Path; 2] {
        [self.folder.path(), self.programs.path()]
    }
}

impl Ports {
    fn read(log: &[String]) -> Self {
        let after = |mark: &str| {
            let line = log.iter().rev().find(|line| line.contains(mark))?;
            line.rsplit_once(':')?.1.trim().parse().ok()
        };
        Self {
            client: after("Listening for client connections on "),
            monitor: after("Starting http monitor on ").or_else(|| after("Starting https monitor on ")),
            websocket: after("Listening for websocket clients on "),
        }
    }
}

fn local(port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// Makes the binary runnable under the name `nats-server`.
fn stand_in(binary: &Path, folder: &Path) -> Result<PathBuf> {
    let binary = binary
        .canonicalize()
        .with_context(|| format!("no program at {}", binary.display()))?;
    let name = Path::new("nats-server").with_extension(std::env::consts::EXE_EXTENSION);
    let program = folder.join(name);
    #[cfg(unix)]
    std::os::unix::fs::symlink(&binary, &program)?;
    #[cfg(not(unix))]
    fs::copy(&binary, &program)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_the_log_and_the_last_word_counts() {
        let log = [
            "[1] 2026/12/02 03:28:36.608778 [INF] Starting http monitor on 127.0.0.1:46589",
            "[1] 2026/12/02 03:28:36.609073 [INF] Listening for websocket clients on ws://0.0.0.0:38449",
            "[1] 2026/12/02 03:28:36.610192 [INF] Listening for client connections on 127.0.0.1:4",
            "[1] 2026/12/02 03:28:37.610192 [INF] Listening for client connections on 127.0.0.1:41965",
        ];
        let ports = Ports::read(&log.map(str::to_owned));
        assert_eq!(
            ports,
            Ports {
                client: Some(41965),
                monitor: Some(46589),
                websocket: Some(38449)
            }
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = ServerUnderTest::of("/no/such/server").start().unwrap_err();
        assert!(format!("{error:#}").contains("/no/such/server"));
    }
}
