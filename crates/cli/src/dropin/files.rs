//! The pid file and the ports file, by which test suites find a server.
//!
//! Both are removed by [`Files::remove`] at a clean shutdown. After a crash they stay behind.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// URLs of the listeners, as the ports file lists them.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Ports {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nats: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) monitoring: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) websocket: Vec<String>,
}

/// URLs under which a listener can be reached: one, or one per address of the machine when it listens on all.
pub(super) fn urls(scheme: &str, listener: Option<SocketAddr>) -> Vec<String> {
    let Some(listener) = listener else {
        return Vec::new();
    };
    let url = |ip: IpAddr| format!("{scheme}://{}", SocketAddr::new(ip, listener.port()));
    if !listener.ip().is_unspecified() {
        return vec![url(listener.ip())];
    }
    interface_addresses()
        .into_iter()
        .filter(|ip| ip.is_ipv4() || listener.is_ipv6())
        .map(url)
        .collect()
}

#[cfg(unix)]
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        return vec![IpAddr::from([127, 0, 0, 1])];
    };
    let mut addresses = Vec::new();
    for address in interfaces.filter_map(|interface| interface.address) {
        if let Some(v4) = address.as_sockaddr_in() {
            addresses.push(IpAddr::from(v4.ip()));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            addresses.push(IpAddr::from(v6.ip()));
        }
    }
    addresses
}

#[cfg(not(unix))]
fn interface_addresses() -> Vec<IpAddr> {
    vec![IpAddr::from([127, 0, 0, 1])]
}

/// The files that this process has written.
#[derive(Debug, Default)]
pub(super) struct Files {
    pid: Option<PathBuf>,
    ports: Option<PathBuf>,
}

impl Files {
    /// Writes the process id, as digits alone.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn write_pid(&mut self, path: &Path) -> io::Result<()> {
        std::fs::write(path, std::process::id().to_string())?;
        self.pid = Some(path.to_owned());
        Ok(())
    }

    /// Path of the ports file.
    pub(super) fn ports_path(folder: &Path, program: &str) -> PathBuf {
        folder.join(format!("{program}_{}.ports", std::process::id()))
    }

    /// Writes the ports file into `folder`. It appears whole or not at all.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn write_ports(&mut self, folder: &Path, program: &str, ports: &Ports) -> io::Result<()> {
        let path = Self::ports_path(folder, program);
        let draft = path.with_extension("ports.tmp");
        let written =
            std::fs::write(&draft, serde_json::to_vec(ports)?).and_then(|()| std::fs::rename(&draft, &path));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&draft);
            return Err(error);
        }
        self.ports = Some(path);
        Ok(())
    }

    /// Removes the pid file and writes it elsewhere, or nowhere.
    ///
    /// # Errors
    ///
    /// The new file cannot be written; the old one stays.
    pub(super) fn move_pid(&mut self, path: Option<&Path>) -> io::Result<()> {
        let before = self.pid.take();
        if let Some(path) = path
            && let Err(error) = self.write_pid(path)
        {
            self.pid = before;
            return Err(error);
        }
        remove(before);
        Ok(())
    }

    /// Removes the ports file.
    pub(super) fn remove_ports(&mut self) {
        remove(self.ports.take());
    }

    /// Removes what was written.
    pub(super) fn remove(&mut self) {
        remove(self.pid.take());
        self.remove_ports();
    }
}

/// A file that is gone already is as good as removed.
fn remove(path: Option<PathBuf>) {
    if let Some(path) = path {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_one_address_has_one_url() {
        let listener = Some("[::1]:4222".parse().unwrap());
        assert_eq!(urls("nats", listener), ["nats://[::1]:4222"]);
        assert!(urls("nats", None).is_empty());
    }

    #[test]
    fn a_listener_on_all_addresses_is_listed_under_each() {
        let all = urls("ws", Some("0.0.0.0:8080".parse().unwrap()));
        assert!(all.contains(&"ws://127.0.0.1:8080".to_owned()), "{all:?}");
        assert!(all.iter().all(|url| !url.contains('[')), "{all:?}");
    }

    #[test]
    fn the_ports_file_omits_what_does_not_listen_and_goes_with_the_pid_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        files.write_pid(&folder.path().join("pid")).unwrap();
        let ports = Ports {
            nats: vec!["nats://127.0.0.1:1".to_owned()],
            ..Ports::default()
        };
        files.write_ports(folder.path(), "nats-server", &ports).unwrap();
        let pid = std::process::id();
        let path = folder.path().join(format!("nats-server_{pid}.ports"));
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            r#"{"nats":["nats://127.0.0.1:1"]}"#
        );
        assert_eq!(
            std::fs::read_to_string(folder.path().join("pid")).unwrap(),
            pid.to_string()
        );
        files.remove();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_pid_file_moves_unless_the_new_place_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        let mut files = Files::default();
        files.write_pid(&old).unwrap();
        assert!(files.move_pid(Some("/nope/pid".as_ref())).is_err());
        assert!(old.exists());
        files.move_pid(Some(&new)).unwrap();
        assert!(new.exists() && !old.exists());
        files.move_pid(None).unwrap();
        assert!(!new.exists());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let mut files = Files::default();
        assert!(
            files
                .write_ports("/nope".as_ref(), "x", &Ports::default())
                .is_err()
        );
        assert!(files.write_pid("/nope/pid".as_ref()).is_err());
    }
}
