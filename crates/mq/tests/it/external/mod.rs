//! The broker over the real nats-server, as the restricted user, on the generated manifests and permissions.

mod behaviour;
mod checks;
mod failover;
mod gauges;
mod graduate;
mod leases;
mod pitfalls;
mod suite;
mod three;
mod verify;

use std::future::Future;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use windjet_mq::nats::{
    Auth, ExternalConfig, ExternalNats, ManifestOptions, Topology, write_manifests, write_permissions,
};
use windjet_mq::{TenantId, Topic};
use windjet_testkit::Relay;
use windjet_testkit::natstest::{Deployment, Operator, USER};

/// Long enough for anything that should happen; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two partitions of two shards, and a bucket.
fn topology() -> Topology {
    Topology {
        partitions: 2,
        shards: 2,
        coord_bucket: Some("wh_coord".to_owned()),
        ..Topology::default()
    }
}

fn topic(tenant: &str, table: &str) -> Topic {
    Topic::new(TenantId::parse(tenant).unwrap(), table)
}

/// An operator's deployment, and how our user reaches it.
struct Cluster {
    deployment: Mutex<Deployment>,
    topology: Topology,
}

impl Cluster {
    async fn start(topology: Topology) -> Self {
        let granted = topology.clone();
        Self::start_with(topology, granted).await
    }

    /// A cluster whose user has the permissions of another topology.
    async fn start_with(topology: Topology, granted: Topology) -> Self {
        let options = ManifestOptions {
            topology: topology.clone(),
            ..ManifestOptions::default()
        };
        let manifests = write_manifests(&options).unwrap();
        let permissions = write_permissions(&granted, None).unwrap();
        let start = move || Deployment::start(&manifests, &permissions).unwrap();
        let deployment = tokio::task::spawn_blocking(start).await.unwrap();
        Self {
            deployment: Mutex::new(deployment),
            topology,
        }
    }

    fn deployment(&self) -> MutexGuard<'_, Deployment> {
        self.deployment.lock()
    }

    fn operate<T>(&self, act: impl FnOnce(&mut Operator) -> T) -> T {
        act(&mut self.deployment().operator)
    }

    fn config(&self) -> ExternalConfig {
        let deployment = self.deployment();
        let mut config = ExternalConfig::new([deployment.server.url().unwrap()]);
        config.auth = Auth::Password {
            user: USER.to_owned(),
            file: deployment.password_file(),
        };
        config.topology = self.topology.clone();
        config.topology_wait = PATIENCE;
        config
    }

    async fn broker(&self) -> ExternalNats {
        ExternalNats::connect(self.config()).await.unwrap()
    }

    /// A broker whose connection can be disturbed.
    async fn relayed(&self) -> (Relay, ExternalNats) {
        let (relay, config) = self.relay();
        (relay, ExternalNats::connect(config).await.unwrap())
    }

    fn relay(&self) -> (Relay, ExternalConfig) {
        let relay = Relay::to(self.deployment().server.client_addr().unwrap()).unwrap();
        let mut config = self.config();
        config.urls = vec![relay.url()];
        (relay, config)
    }

    /// Every configured unit, as stream and durable.
    fn units(&self) -> Vec<(String, String)> {
        let topology = &self.topology;
        let of = |partition| {
            let stream = topology.partition_stream(partition);
            (0..topology.shards).map(move |shard| (stream.clone(), topology.shard_durable(shard)))
        };
        (0..topology.partitions).flat_map(of).collect()
    }
}

/// Asks again until `condition` gives a value.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
