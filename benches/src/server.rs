//! Starting and stopping the servers under test.
//!
//! Both sides are started the same way: through a symbolic link named `nats-server` in a folder of their
//! own, with the reference server's flags, on a port the system picks and the server reports through its
//! ports file. Dropping a [`Server`] kills the process and removes the folder. A killed server can be launched again on
//! the same folder and port.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{
    machine::{self, Cores, Memory},
    wait,
};

const START_LIMIT: Duration = Duration::from_secs(120);

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
    pub(crate) fn start(&self, extra_args: &[&str], config: Option<&str>, cores: &Cores) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("windjet-bench-").tempdir()?;
        place(&self.path, &folder.path().join("nats-server"))?;
        let mut args: Vec<String> = extra_args.iter().map(|&arg| arg.to_owned()).collect();
        if let Some(config) = config {
            std::fs::write(folder.path().join("config"), config)?;
            args.extend(["-c".to_owned(), "config".to_owned()]);
        }
        let mut server = Server {
            child: Mutex::new(None),
            address: ([127, 0, 0, 1], 0).into(),
            args,
            cores: cores.clone(),
            folder,
        };
        server.address = server.launch()?;
        Ok(server)
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
    child: Mutex<Option<Child>>,
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    args: Vec<String>,
    cores: Cores,
    folder: TempDir,
}

impl Server {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process, on the port it had before if it had one, and waits until it serves.
    pub(crate) fn launch(&self) -> Result<SocketAddr> {
        let folder = self.folder.path();
        let log = folder.join("log");
        let port = match self.address.port() {
            0 => "-1".to_owned(),
            port => port.to_string(),
        };
        let mut command = Command::new(folder.join("nats-server"));
        command
            .args(["-a", "127.0.0.1", "-p", &port, "--ports_file_dir"])
            .arg(folder)
            .args(&self.args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        // A child inherits the cores of the thread that starts it, and both runtimes size their pools by it.
        machine::pin(&self.cores.server)?;
        let child = command.spawn().context("starting the server");
        machine::pin(&self.cores.load)?;
        let mut child = child?;
        let found = wait::until(START_LIMIT, || match child.try_wait() {
            Ok(None) => read_ports(folder).map(Some),
            _ => Some(None),
        });
        *self.child() = Some(child);
        match found.flatten() {
            Some(address) => Ok(address),
            None => {
                self.kill()?;
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("the server did not come up; its log:\n{log}")
            }
        }
    }

    /// Ends the process as `kill -9` does.
    pub(crate) fn kill(&self) -> Result<()> {
        let child = self.child().take();
        if let Some(mut child) = child {
            let _already_gone = child.kill();
            child.wait()?;
        }
        // The files that name the ports outlive a process that was killed.
        for entry in std::fs::read_dir(self.folder.path())?.flatten() {
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "ports")
            {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child().as_ref().map_or(0, Child::id)
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
        if let Some(child) = self.child().as_mut() {
            let _already_gone = child.kill();
            let _already_reaped = child.wait();
        }
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
