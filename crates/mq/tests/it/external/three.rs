//! An operator's deployment on three servers, with three copies of everything.

use parking_lot::{Mutex, MutexGuard};
use windjet_mq::nats::{Auth, ExternalConfig, ManifestOptions, Topology, write_manifests, write_permissions};
use windjet_testkit::natstest::{self, USER};

use super::PATIENCE;

/// The cluster, and how our user reaches it.
pub(super) struct Three {
    cluster: Mutex<natstest::Cluster>,
    urls: Vec<String>,
    topology: Topology,
}

impl Three {
    pub(super) async fn start(topology: Topology) -> Self {
        let options = ManifestOptions {
            topology: topology.clone(),
            ..ManifestOptions::default()
        };
        let manifests = write_manifests(&options).unwrap();
        let permissions = write_permissions(&topology, None).unwrap();
        let start = move || natstest::Cluster::start(&manifests, &permissions).unwrap();
        let cluster = tokio::task::spawn_blocking(start).await.unwrap();
        Self {
            urls: cluster.urls().unwrap(),
            cluster: Mutex::new(cluster),
            topology,
        }
    }

    pub(super) fn cluster(&self) -> MutexGuard<'_, natstest::Cluster> {
        self.cluster.lock()
    }

    /// Does something that waits for the servers, while everything else goes on.
    pub(super) fn operate<T>(&self, act: impl FnOnce(&mut natstest::Cluster) -> T) -> T {
        tokio::task::block_in_place(|| act(&mut self.cluster()))
    }

    pub(super) fn config(&self) -> ExternalConfig {
        let mut config = ExternalConfig::new(&self.urls);
        config.auth = Auth::Password {
            user: USER.to_owned(),
            file: self.cluster().password_file(),
        };
        config.topology = self.topology.clone();
        config.topology_wait = PATIENCE * 3;
        config
    }
}
