//! `windjet mq`: a store of the message queue on this machine, moved to an operator's cluster while no service has it open.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use windjet_mq::graduate::{GraduateOptions, GraduateReport, Phase, Progress, QueueCount};
use windjet_mq::nats::ExternalNats;
use windjet_mq::{EmbeddedNats, Publisher as _};
use windjet_server::Server;

use crate::nats::{Connection, Output, Sizes, duration, print};

/// The streams of the early package, which a broker with tenants deletes.
const EARLY: [&str; 2] = ["WAVEHOUSE", "WAVEHOUSE_DLQ"];
const SHUTDOWN: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum Mq {
    /// Move everything that is queued and parked to a NATS cluster
    #[command(
        long_about = "Moves what is queued and not written, parked messages and recent idempotency keys out of a store that no \
                      service has open to a NATS cluster, in order and with headers. Ended at any point, it goes on from there \
                      when it is called again. The exit code is 0 when everything was moved and the counts balance, else 1. \
                      Nothing is deleted from the store, but it takes no publishes any more once it is moved."
    )]
    Graduate(Box<Graduate>),
}

#[derive(Debug, Args)]
pub(crate) struct Graduate {
    /// Folder of the store
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The durable whose acknowledgement means that an event is written
    #[arg(long, default_value = "buffer-consumer")]
    consumer: String,
    /// Only count
    #[arg(long)]
    dry_run: bool,
    /// How long one message is tried again while the cluster is full or away
    #[arg(long, value_parser = duration, default_value = "60s")]
    patience: Duration,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    connection: Connection,
    /// How to print what was done
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Mq {
    pub(crate) fn run(self) -> Result<()> {
        let Self::Graduate(graduate) = self;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(graduate.run())
    }
}

impl Graduate {
    async fn run(self) -> Result<()> {
        check(&self.folder).await?;
        let target = ExternalNats::connect(self.connection.config(self.sizes.topology()))
            .await
            .context("the cluster")?;
        let store = EmbeddedNats::open(&self.folder).await?;
        let bar = bar()?;
        let shown = bar.clone();
        // Nobody publishes here, so holding costs nothing.
        let mut options = GraduateOptions::new(self.consumer)
            .patience(self.patience)
            .hold(Duration::from_secs(24 * 3600))
            .observe(move |progress| show(&shown, progress));
        if self.dry_run {
            options = options.dry_run();
        }
        let moved = store.graduate(&target, options).await;
        bar.finish_and_clear();
        let closed = store.close().await;
        // What it stored is confirmed; a connection that does not end in time changes nothing.
        let _ = target.close().await;
        let report = moved.context("nothing is lost, call it again to go on")?;
        print(&match self.output {
            Output::Table => table(&report),
            Output::Json => serde_json::to_string_pretty(&json(&report))? + "\n",
        })?;
        closed.context("the store was moved, but did not close cleanly")
    }
}

/// Looks whether there is a store of the message queue, before a broker makes one or deletes what is another's.
async fn check(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let mut entries =
        std::fs::read_dir(folder).with_context(|| format!("{shown} is no folder that can be read"))?;
    if entries.next().is_none() {
        bail!("{shown} is empty: give the folder of the service's store");
    }
    let server = Server::builder()
        .jetstream(folder)
        .start()
        .await
        .with_context(|| format!("{shown} cannot be opened; end the service that uses it first"))?;
    let streams = server.jetstream().map(|js| js.stream_names()).unwrap_or_default();
    server.shutdown(SHUTDOWN).await;
    if let Some(early) = streams.iter().find(|stream| EARLY.contains(&stream.as_str())) {
        bail!("{shown} is a store of the early package (stream {early}); it cannot be moved");
    }
    let queue = |stream: &String| stream.starts_with("INGEST_") || stream.starts_with("DLQ_");
    if !streams.iter().any(queue) {
        bail!("{shown} has no tenant's queue: give the folder of the service's store");
    }
    Ok(())
}

/// Silent where there is no terminal.
fn bar() -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:8} [{bar:40}] {pos}/{len} {per_sec} {eta} left")?;
    Ok(ProgressBar::new(0).with_style(style.progress_chars("=> ")))
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_message(match progress.phase {
        Phase::Holding => "counting",
        Phase::Switched => "moved",
        _ => "copying",
    });
    bar.set_length(progress.known);
    bar.set_position(progress.done);
}

fn queues(report: &GraduateReport) -> impl Iterator<Item = (&str, &'static str, &QueueCount)> {
    report.tenants.iter().flat_map(|(tenant, count)| {
        let tenant = tenant.as_str();
        [
            (tenant, "events", &count.events),
            (tenant, "dead letters", &count.dead_letters),
        ]
    })
}

const COLUMNS: [&str; 7] = [
    "found",
    "moved",
    "already there",
    "skipped",
    "to move",
    "keys",
    "repeated",
];

fn columns(count: &QueueCount) -> [u64; 7] {
    [
        count.found,
        count.moved,
        count.already_there,
        count.skipped,
        count.to_move(),
        count.keys,
        count.repeated,
    ]
}

fn table(report: &GraduateReport) -> String {
    let totals = report.totals();
    let all = [
        ("all", "events", &totals.events),
        ("all", "dead letters", &totals.dead_letters),
    ];
    let rows: Vec<_> = queues(report).chain(all).collect();
    let width = rows
        .iter()
        .map(|(tenant, ..)| tenant.len())
        .max()
        .unwrap_or(0)
        .max("tenant".len());
    let mut text = format!("{:width$}  {:12}", "tenant", "queue");
    for column in COLUMNS {
        // Writing to a string does not fail.
        let _ = write!(text, "  {column:>13}");
    }
    text.push('\n');
    for (tenant, queue, count) in rows {
        let _ = write!(text, "{tenant:width$}  {queue:12}");
        for number in columns(count) {
            let _ = write!(text, "  {number:>13}");
        }
        text.push('\n');
    }
    for stream in &report.foreign {
        let _ = writeln!(
            text,
            "left where it is: stream {stream}, which is no tenant's queue"
        );
    }
    text.push_str(if report.dry_run {
        "nothing was moved: a dry run\n"
    } else {
        "balanced: everything found is accounted for\n"
    });
    text
}

fn json(report: &GraduateReport) -> Value {
    let mut tenants = serde_json::Map::new();
    for (tenant, queue, count) in queues(report) {
        let names = COLUMNS.iter().map(|column| column.replace(' ', "_"));
        let count: serde_json::Map<_, _> = names.zip(columns(count).map(Value::from)).collect();
        tenants.entry(tenant).or_insert_with(|| json!({}))[queue.replace(' ', "_")] = Value::Object(count);
    }
    json!({
        "dry_run": report.dry_run,
        "balanced": report.is_balanced(),
        "tenants": tenants,
        "foreign": report.foreign,
    })
}
