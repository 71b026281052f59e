//! Starting and stopping the servers under test.
//!
//! Both sides are started the same way: through a symbolic link named `nats-server` in a folder of their
//! own, with the reference server's flags, on a port the system picks and the server reports through its
//! ports file. Dropping a [`Server`] kills the process and removes the folder.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{
    machine::{self, Cores, Memory},
    wait,
};

const START_LIMIT: Duration = Duration::from_secs(10);

/// A program that can be started as a server.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    /// What it answers to `--version`.
    pub(crate) version: String,
}

impl Program {
    /// Looks at the program behind `path`.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        let path = path
            .canonicalize()
            .with_context(|| format!("no program at {}", path.display()))?;
        let output = Command::new(&path).arg("--version").output()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { path, version })
    }

    /// Starts the program on the server's cores; afterwards the calling thread is on the load's cores.
    pub(crate) fn start(&self, extra_args: &[&str], cores: &Cores) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("windjet-bench-").tempdir()?;
        let link = folder.path().join("nats-server");
        place(&self.path, &link)?;
        let log = folder.path().join("log");
        let mut command = Command::new(&link);
        command
            .args(["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir"])
            .arg(folder.path())
            .args(extra_args)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        // A child inherits the cores of the thread that starts it, and both runtimes size their pools by it.
        machine::pin(&cores.server)?;
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", self.path.display()));
        machine::pin(&cores.load)?;
        let mut child = child?;
        let found = wait::until(START_LIMIT, || match child.try_wait() {
            Ok(None) => read_ports(folder.path()).map(Some),
            _ => Some(None),
        });
        match found.flatten() {
            Some(address) => Ok(Server {
                child,
                address,
                _folder: folder,
            }),
            None => {
                let _already_gone = child.kill();
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("{} did not come up; its log:\n{log}", self.path.display())
            }
        }
    }
}

#[cfg(unix)]
fn place(program: &Path, link: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(program, link)?)
}

#[cfg(not(unix))]
fn place(program: &Path, link: &Path) -> Result<()> {
    std::fs::copy(program, link.with_extension("exe"))?;
    Ok(())
}

#[derive(serde::Deserialize)]
struct Ports {
    nats: Vec<String>,
}

/// The address in the ports file, once it is there and complete.
fn read_ports(folder: &Path) -> Option<SocketAddr> {
    let entries = std::fs::read_dir(folder).ok()?;
    let path = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "ports"))?;
    let ports: Ports = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    ports.nats.first()?.strip_prefix("nats://")?.parse().ok()
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Server {
    /// The server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        machine::cpu_time(self.pid())
    }

    /// Memory held now.
    pub(crate) fn memory(&self) -> Option<Memory> {
        machine::memory(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_read_once_the_ports_file_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_ports(folder.path()), None);
        let ports = folder.path().join("nats-server_7.ports");
        std::fs::write(&ports, r#"{"nats":["nats://127.0"#).unwrap();
        assert_eq!(read_ports(folder.path()), None);
        std::fs::write(&ports, r#"{"nats":["nats://127.0.0.1:4567"],"monitoring":[]}"#).unwrap();
        assert_eq!(read_ports(folder.path()), Some(([127, 0, 0, 1], 4567).into()));
    }
}
