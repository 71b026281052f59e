//! Rows over HTTP into SQLite, exactly once: an example on the message-queue boundary.
//!
//! A row is accepted when its publish is durable, and written together with its key in one transaction before it is
//! acknowledged. So it may be handed to the writer more than once and is written once, wherever the process is killed.
//! The service knows `Arc<dyn Broker>`; `broker` alone knows which one it is. See `README.md`.
//!
//! * `api` is the HTTP side: publishing, reading, live events, dead letters, reload.
//! * `worker` writes batches; on a cluster its module `units` shares the units out among processes.
//! * `store` is the SQLite file. `live` hands accepted rows to those who listen.

mod api;
mod broker;
mod config;
mod envelope;
mod live;
mod service;
mod store;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Takes rows over HTTP and writes them to SQLite, exactly once.
#[derive(Debug, Parser)]
#[command(name = "ingest")]
struct Args {
    /// Where HTTP is served; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8088")]
    listen: SocketAddr,
    /// The folder for the queue, the rows and the configuration.
    #[arg(long, default_value = "ingest-data")]
    data: PathBuf,
    /// Tenants with their budgets, and tables; by default `ingest.json` in the data folder, written at the first start.
    #[arg(long)]
    config: Option<PathBuf>,
    /// What this process does. On a cluster any number of processes can do either.
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// The largest row in bytes.
    #[arg(long, default_value_t = 256 << 10, value_parser = clap::value_parser!(u32).range(1..=900 << 10))]
    max_row: u32,
    /// Rows of one tenant that may be on their way into the queue at the same time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_in_flight: u32,
    #[command(flatten)]
    broker: broker::Settings,
}

/// The parts of the service that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Takes and writes.
    All,
    /// Takes rows and leaves them in the queue.
    Api,
    /// Writes; its HTTP side only answers questions.
    Worker,
}

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_env("INGEST_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(service::run(Args::parse()))
}
