//! The client kit against the official client without it, on one server.
//!
//! Every case is a pair of ways to do the same; their rounds alternate, and which comes first changes with each pair. A ratio of the
//! times of one operation is formed within a pair; the table shows the median of the ratios with their quartiles. Nothing is
//! measured or traced by the kit unless the case says so.
//!
//! Two families: `plain/...` compares the kit with the official client, `layer/...` a worker of the kit with a layer around its
//! handler with one that has none.

mod deliver;
mod send;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use regex::Regex;
use tokio::runtime::{Builder, Runtime};
use windjet_client::async_nats::{self, jetstream};
use windjet_client::{Client, Config};

use crate::{
    compare::Pinning,
    machine::{self, Machine},
    report::{figure, now},
    server::{Program, Server},
    stats::Quartiles,
};

/// What the kit may cost over the official client: the median of the ratios, and their upper quartile.
const BOUNDS: (f64, f64) = (1.05, 1.10);
/// Bytes of a payload.
const PAYLOAD: usize = 128;

/// Options of `kit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server program.
    #[arg(long)]
    server: PathBuf,
    /// Run only the cases whose name matches this regular expression.
    #[arg(long)]
    only: Option<String>,
    /// Measured pairs of rounds.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Length of a round of sends in milliseconds.
    #[arg(long, default_value_t = 200)]
    round_ms: u64,
    /// Messages of a round of deliveries.
    #[arg(long, default_value_t = 20_000)]
    messages: usize,
    /// Threads of the runtime; with one, everything of a side runs on the thread that measures.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    pinning: Pinning,
}

/// The two sides' connections, and what they work on.
struct Ground {
    plain: async_nats::Client,
    js: jetstream::Context,
    kit: Client,
    /// A client of the kit that measures for Prometheus.
    measuring: Client,
    length: Duration,
    messages: usize,
}

/// One way to do it: nanoseconds of an operation in one round.
type Way = fn(&Ground) -> LocalBoxFuture<'_, Result<f64>>;

/// Two ways to do the same.
struct Case {
    name: &'static str,
    about: &'static str,
    /// What the second is compared with.
    base: Way,
    other: Way,
}

/// What came of a case.
struct Outcome {
    base: Quartiles,
    other: Quartiles,
    ratio: Quartiles,
    /// Nanoseconds more.
    more: Quartiles,
}

/// Runs the cases and prints their table.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0, "at least one round is needed");
    let only = args
        .only
        .as_deref()
        .map(Regex::new)
        .transpose()
        .context("--only")?;
    let cores = args.pinning.cores();
    machine::pin(&cores.load).context("binding to cores; --no-pin turns it off")?;
    let program = Program::at(&args.server)?;
    let server = program.start(&["-js", "-sd", "store"], None, &cores)?;
    let runtime = runtime(args.threads)?;
    let ground = runtime.block_on(Ground::prepare(&server, args))?;
    let machine = Machine::look();
    println!(
        "Taken {}. Machine: {} cores, {}, {} MiB, {}. Server: {}.\n\
         {} alternating pairs of rounds; {} B a message; {} thread(s) of the runtime.\n\n\
         | case | without, ns | with, ns | more, ns | ratio | |\n|---|--:|--:|--:|--:|---|",
        now(),
        machine.cores,
        machine.cpu,
        machine.memory_mib,
        machine.kernel,
        program.version,
        args.rounds,
        PAYLOAD,
        args.threads,
    );
    let cases: Vec<Case> = send::cases().into_iter().chain(deliver::cases()).collect();
    let mut ran = 0;
    for case in cases {
        if only.as_ref().is_some_and(|only| !only.is_match(case.name)) {
            continue;
        }
        ran += 1;
        eprintln!("{}: {}", case.name, case.about);
        let outcome = runtime
            .block_on(alternate(&ground, &case, args.rounds))
            .with_context(|| case.name)?;
        println!("{}", outcome.row(&case));
    }
    ensure!(ran > 0, "--only matches no case");
    Ok(())
}

fn runtime(threads: usize) -> Result<Runtime> {
    let mut builder = if threads > 1 {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads);
        builder
    } else {
        Builder::new_current_thread()
    };
    Ok(builder.enable_all().build()?)
}

async fn alternate(ground: &Ground, case: &Case, rounds: usize) -> Result<Outcome> {
    (case.base)(ground).await.context("warm-up")?;
    (case.other)(ground).await.context("warm-up")?;
    let (mut base, mut other) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            base.push((case.base)(ground).await?);
            other.push((case.other)(ground).await?);
        } else {
            other.push((case.other)(ground).await?);
            base.push((case.base)(ground).await?);
        }
    }
    let pairs = || base.iter().zip(&other);
    let ratios: Vec<f64> = pairs().map(|(base, other)| other / base).collect();
    let more: Vec<f64> = pairs().map(|(base, other)| other - base).collect();
    let quartiles = |values: &[f64]| Quartiles::of(values).context("no rounds");
    Ok(Outcome {
        base: quartiles(&base)?,
        other: quartiles(&other)?,
        ratio: quartiles(&ratios)?,
        more: quartiles(&more)?,
    })
}

impl Outcome {
    fn row(&self, case: &Case) -> String {
        let Quartiles { low, median, high } = self.ratio;
        let verdict = match (
            case.name.starts_with("plain/"),
            median <= BOUNDS.0 && high <= BOUNDS.1,
        ) {
            (false, _) => "",
            (true, true) => "within",
            (true, false) => "**over**",
        };
        format!(
            "| `{}` | {} | {} | {} | **{median:.3}** ({low:.3}–{high:.3}) | {verdict} |",
            case.name,
            figure(self.base.median),
            figure(self.other.median),
            if self.more.median < 0.0 {
                format!("-{}", figure(-self.more.median))
            } else {
                figure(self.more.median)
            },
        )
    }
}

impl Ground {
    async fn prepare(server: &Server, args: &Args) -> Result<Self> {
        let address = format!("nats://{}", server.address);
        let plain = async_nats::connect(&address).await.context("connecting")?;
        let js = jetstream::new(plain.clone());
        let mut measured = Config::new(&address);
        measured.metrics.sink = windjet_client::observe::prometheus::Prometheus::new()?.sink();
        let ground = Self {
            kit: connect(quiet(&address)).await?,
            measuring: connect(measured).await?,
            plain,
            js,
            length: Duration::from_millis(args.round_ms),
            messages: args.messages,
        };
        for (name, keep) in [("SENT", 10_000), ("READ", -1)] {
            let config = jetstream::stream::Config {
                name: name.into(),
                subjects: vec![format!("{}.>", name.to_lowercase())],
                storage: jetstream::stream::StorageType::Memory,
                max_messages: keep,
                ..Default::default()
            };
            ground.js.create_stream(config).await?;
        }
        let mut acks = Vec::new();
        for _ in 0..ground.messages {
            acks.push(ground.js.publish("read.a", payload()).await?);
            if acks.len() == 1000 {
                for ack in acks.drain(..) {
                    ack.await?;
                }
            }
        }
        for ack in acks {
            ack.await?;
        }
        send::serve(&ground).await?;
        Ok(ground)
    }
}

/// The kit's settings with nothing measured and nothing traced.
fn quiet(address: &str) -> Config {
    let mut config = Config::new(address);
    config.metrics.allow_metrics = false;
    config.connection.allow_metrics = false;
    config.publisher.allow_metrics = false;
    config.publisher.allow_tracing = false;
    config.requester.allow_metrics = false;
    config.requester.allow_tracing = false;
    config.responder.allow_metrics = false;
    config.responder.allow_tracing = false;
    config.consumer.allow_metrics = false;
    config.consumer.allow_tracing = false;
    config
}

async fn connect(config: Config) -> Result<Client> {
    let client = Client::connect(config).await?;
    client.connector().wait_connected().await?;
    Ok(client)
}

fn payload() -> Bytes {
    Bytes::from_static(&[b'x'; PAYLOAD])
}
