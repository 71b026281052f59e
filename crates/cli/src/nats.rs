//! `windjet nats`: what an operator's NATS cluster must have for the message queue, written and checked.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use windjet_mq::nats::{
    Auth, DEFAULT_INGEST_CONSUMER, DEFAULT_PREFIX, DEFAULT_SHARDS, ExternalConfig, Finding, ManifestOptions,
    Severity, Topology, check_topology, parse_store_size, write_manifests, write_permissions,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Nats {
    /// Write the streams, consumers and bucket as resources of nack
    Manifests(Manifests),
    /// Write the permissions of the service's user, for the values of the NATS Helm chart
    Permissions(Permissions),
    /// Compare a cluster with what is needed; exit code 1 when the broker would not start
    Verify(Box<Verify>),
}

/// What all commands need to know of the topology.
#[derive(Debug, Args)]
struct Shape {
    /// Shards of each partition
    #[arg(long, default_value_t = DEFAULT_SHARDS)]
    shards: u32,
    /// First token of every subject
    #[arg(long, default_value = DEFAULT_PREFIX)]
    prefix: String,
    /// What the durables' names begin with
    #[arg(long, default_value = DEFAULT_INGEST_CONSUMER)]
    ingest_consumer: String,
    /// The history stream [default: the prefix in upper case and _HISTORY]
    #[arg(long)]
    history_stream: Option<String>,
    /// The key-value bucket for leases [default: the prefix and _coord]
    #[arg(long)]
    coord_bucket: Option<String>,
}

/// What also matters beyond permissions.
#[derive(Debug, Args)]
pub(crate) struct Sizes {
    #[command(flatten)]
    shape: Shape,
    /// Partition streams
    #[arg(long, default_value_t = 1)]
    partitions: u32,
    /// Time of one attempt to publish
    #[arg(long, value_parser = duration, default_value = "5s")]
    publish_timeout: Duration,
    /// How long the service holds a claim on an idempotency key; 0s for none
    #[arg(long, value_parser = duration, default_value = "0s")]
    dedupe_lease: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Manifests {
    #[command(flatten)]
    sizes: Sizes,
    /// Replicas of every stream
    #[arg(long, default_value_t = 3)]
    replicas: u32,
    /// Each server's file store, such as 100Gi
    #[arg(long, value_parser = parse_store_size, default_value = "100Gi")]
    file_store: u64,
    /// Bytes of each partition [default: 15% of the file store]
    #[arg(long, value_parser = parse_store_size)]
    partition_max_bytes: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Permissions {
    #[command(flatten)]
    shape: Shape,
    /// The JetStream domain of the connection
    #[arg(long)]
    js_domain: Option<String>,
}

/// How to reach a cluster.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// A server; give several
    #[arg(long = "server", required = true)]
    servers: Vec<String>,
    /// The user, with --password-file
    #[arg(long, requires = "password_file")]
    user: Option<String>,
    /// A file with the password
    #[arg(long, requires = "user")]
    password_file: Option<PathBuf>,
    /// A credentials file
    #[arg(long, conflicts_with_all = ["user", "nkey_file"])]
    creds: Option<PathBuf>,
    /// A file with the seed of an nkey
    #[arg(long, conflicts_with = "user")]
    nkey_file: Option<PathBuf>,
    /// The JetStream domain
    #[arg(long)]
    js_domain: Option<String>,
    /// How long to wait for the cluster
    #[arg(long, value_parser = duration, default_value = "5s")]
    wait: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    connection: Connection,
    /// How to print what was found
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

impl Shape {
    fn topology(&self) -> Topology {
        Topology {
            shards: self.shards,
            prefix: self.prefix.clone(),
            ingest_consumer: self.ingest_consumer.clone(),
            history_stream: self.history_stream.clone(),
            coord_bucket: self.coord_bucket.clone(),
            ..Topology::default()
        }
    }
}

impl Sizes {
    pub(crate) fn topology(&self) -> Topology {
        Topology {
            partitions: self.partitions,
            publish_timeout: self.publish_timeout,
            dedupe_lease: self.dedupe_lease,
            ..self.shape.topology()
        }
    }
}

impl Nats {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Manifests(manifests) => print(&manifests.render()?),
            Self::Permissions(permissions) => {
                let topology = permissions.shape.topology();
                print(&write_permissions(&topology, permissions.js_domain.as_deref())?)
            }
            Self::Verify(verify) => verify.run(),
        }
    }
}

impl Manifests {
    fn render(self) -> Result<String> {
        let options = ManifestOptions {
            topology: self.sizes.topology(),
            replicas: self.replicas,
            file_store: self.file_store,
            partition_max_bytes: self.partition_max_bytes,
            ..ManifestOptions::default()
        };
        Ok(write_manifests(&options)?)
    }
}

impl Connection {
    /// What the broker needs to connect, and finds there.
    pub(crate) fn config(self, topology: Topology) -> ExternalConfig {
        let mut config = ExternalConfig::new(self.servers);
        config.topology = topology;
        config.domain = self.js_domain;
        config.topology_wait = self.wait;
        config.auth = match (self.user, self.password_file, self.creds, self.nkey_file) {
            (Some(user), Some(file), ..) => Auth::Password { user, file },
            (_, _, Some(file), _) => Auth::CredsFile(file),
            (_, _, _, Some(file)) => Auth::NkeySeedFile(file),
            _ => Auth::None,
        };
        config
    }
}

impl Verify {
    fn run(self) -> Result<()> {
        let mut topology = self.sizes.topology();
        topology.coord_bucket = Some(topology.coord_bucket_name());
        let config = self.connection.config(topology);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let findings = runtime.block_on(check_topology(config))?;
        print(&match self.output {
            Output::Table => table(&findings),
            Output::Json => json(&findings)?,
        })?;
        let required = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Required)
            .count();
        if required > 0 {
            bail!("{required} required finding(s): the broker would not start");
        }
        Ok(())
    }
}

fn table(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "everything is as needed\n".to_owned();
    }
    let rows = findings.iter().map(|finding| {
        [
            finding.severity.to_string(),
            finding.object.clone(),
            finding.field.to_owned(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let (severity, object, field) = (width(0), width(1), width(2));
    let lines = rows
        .iter()
        .zip(findings)
        .map(|([a, b, c], finding)| format!("{a:severity$}  {b:object$}  {c:field$}  {}\n", finding.problem));
    lines.collect()
}

fn json(findings: &[Finding]) -> Result<String> {
    let all: Vec<_> = findings
        .iter()
        .map(|finding| {
            serde_json::json!({
                "severity": finding.severity.to_string(),
                "object": finding.object,
                "field": finding.field,
                "problem": finding.problem,
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

pub(crate) fn print(text: &str) -> Result<()> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("writing to standard output")
}

/// Reads a number with `ms`, `s`, `m` or `h` behind it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is no duration: write a whole number with ms, s, m or h behind it, such as 5s");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..split].parse().map_err(|_| wrong())?;
    let millis = match &text[split..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    Ok(Duration::from_millis(number.saturating_mul(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "5", "s", "5d", "1.5s", "-1s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_table_lines_up_and_says_when_there_is_nothing() {
        assert_eq!(table(&[]), "everything is as needed\n");
        let finding = |severity, object: &str, problem: &str| Finding {
            severity,
            object: object.to_owned(),
            field: "retention",
            problem: problem.to_owned(),
        };
        let findings = [
            finding(Severity::Required, "stream LONGER", "limits; use workqueue"),
            finding(Severity::Recommended, "stream A", "x"),
        ];
        assert_eq!(
            table(&findings),
            "required     stream LONGER  retention  limits; use workqueue\nrecommended  stream A       retention  x\n"
        );
    }
}
