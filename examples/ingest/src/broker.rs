//! Chooses the broker. Nothing else in the service knows which one it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use windjet_mq::coord::Coordinator;
use windjet_mq::nats::{Auth, ExternalConfig, ExternalNats, LeaseTimings, Topology, default_coord_bucket};
use windjet_mq::{Broker, EmbeddedNats, Error};

/// Which broker, and how to reach it.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// `embedded`, or the URLs of a NATS cluster, separated by commas.
    #[arg(long, default_value = "embedded")]
    broker: String,
    /// The user on the cluster; its password is in a file.
    #[arg(long, requires = "nats_password_file")]
    nats_user: Option<String>,
    /// The file with the password.
    #[arg(long, requires = "nats_user")]
    nats_password_file: Option<PathBuf>,
    /// A credentials file, instead of user and password.
    #[arg(long, conflicts_with = "nats_user")]
    nats_creds: Option<PathBuf>,
    /// Subject prefix of the cluster's topology, as given to `windjet nats manifests`.
    #[arg(long, default_value = windjet_mq::nats::DEFAULT_PREFIX)]
    prefix: String,
    /// Partitions of the topology.
    #[arg(long, default_value_t = windjet_mq::nats::DEFAULT_PARTITIONS)]
    partitions: u32,
    /// Shards of each partition.
    #[arg(long, default_value_t = windjet_mq::nats::DEFAULT_SHARDS)]
    shards: u32,
}

/// A broker ready for use.
pub(crate) struct Opened {
    /// The broker.
    pub broker: Arc<dyn Broker>,
    /// Leases, where several processes share the work.
    pub leases: Option<Arc<dyn Coordinator>>,
    /// Whether a publish can get through now.
    pub ready: Box<dyn Fn() -> Result<(), Error> + Send + Sync>,
}

impl Settings {
    /// Opens the broker; `holder` names this process in leases.
    pub(crate) async fn open(&self, data: &Path, holder: &str) -> anyhow::Result<Opened> {
        if self.broker == "embedded" {
            let broker = EmbeddedNats::open(data.join("queue")).await?;
            let asked = broker.clone();
            return Ok(Opened {
                broker: Arc::new(broker),
                leases: None,
                ready: Box::new(move || asked.stats().map(drop)),
            });
        }
        let bucket = default_coord_bucket(&self.prefix);
        let mut config = ExternalConfig::new(self.broker.split(',').map(str::trim));
        config.name = format!("ingest {holder}");
        config.topology = Topology {
            prefix: self.prefix.clone(),
            partitions: self.partitions,
            shards: self.shards,
            coord_bucket: Some(bucket.clone()),
            ..Topology::default()
        };
        config.auth = match (&self.nats_creds, &self.nats_user, &self.nats_password_file) {
            (Some(file), ..) => Auth::CredsFile(file.clone()),
            (None, Some(user), Some(file)) => Auth::Password {
                user: user.clone(),
                file: file.clone(),
            },
            _ => Auth::None,
        };
        let broker = ExternalNats::connect(config)
            .await
            .with_context(|| format!("the broker {}", self.broker_without_secrets()))?;
        let leases = broker.leases(&bucket, holder, LeaseTimings::default()).await?;
        let asked = broker.clone();
        Ok(Opened {
            broker: Arc::new(broker),
            leases: Some(Arc::new(leases)),
            ready: Box::new(move || asked.ready()),
        })
    }

    fn broker_without_secrets(&self) -> String {
        let hosts = self.broker.split(',');
        let hosts: Vec<_> = hosts
            .map(|url| url.rsplit('@').next().unwrap_or(url).trim())
            .collect();
        hosts.join(", ")
    }
}
