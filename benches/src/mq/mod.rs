//! What the message queue in the process costs: many tenants, bad neighbours, and the rate of durable publishes.
//!
//! Rounds of the two sides alternate, and which comes first changes with each pair; a ratio is formed within a pair, and the
//! table shows the median of the ratios with their quartiles. Every publish waits until its event is durable, and a refused or
//! unconfirmed one is an error of the run, unless a neighbour is there to be refused.

mod alone;
mod neighbours;
mod publish;
mod tenants;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::{runtime::Builder, task::JoinSet};
use windjet_mq::{Broker, Ctx, EmbeddedNats, PublishOptions, Publisher, TenantId, Topic};

use crate::{
    machine::Machine,
    report::{figure, now},
    stats::{Quartiles, quantile_us},
};

/// Bytes of an event.
const PAYLOAD: Bytes = Bytes::from_static(&[b'x'; 128]);
/// More than any run stores.
const BUDGET: u64 = 64 << 30;

/// Options of `mq`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// A publish to one of many tenants with budgets, against one to the only tenant.
    Tenants {
        /// How many there are.
        #[arg(long, default_value_t = 2000)]
        tenants: usize,
        #[command(flatten)]
        rounds: Rounds,
    },
    /// A tenant's publishes beside a tenant at its budget, one with a broken queue and one with a blocked handler, against none
    /// of them.
    Neighbours {
        #[command(flatten)]
        rounds: Rounds,
    },
    /// Publishes in the process, against a broker with one stream for each tenant on nats-server with `sync_interval: always`.
    Publish {
        /// The program nats-server.
        #[arg(long)]
        reference: PathBuf,
        /// How many tenants there are.
        #[arg(long, default_value_t = 256)]
        tenants: usize,
        /// How many tasks publish, each one event at a time.
        #[arg(long, default_value_t = 64)]
        tasks: usize,
        #[command(flatten)]
        rounds: Rounds,
    },
    /// Only the publishes in the process, for a profiler.
    Alone {
        /// How many tenants there are.
        #[arg(long, default_value_t = 256)]
        tenants: usize,
        /// How many tasks publish, each one event at a time.
        #[arg(long, default_value_t = 64)]
        tasks: usize,
        /// How long; each second prints its rate.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
}

#[derive(Debug, Clone, Copy, clap::Args)]
struct Rounds {
    /// Measured pairs of rounds.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Length of a round in milliseconds.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
}

impl Rounds {
    fn length(self) -> Duration {
        Duration::from_millis(self.round_ms)
    }
}

/// Runs one of them and prints its table.
pub(crate) fn run(args: &Args) -> Result<()> {
    // Both cores of a small machine, for the server in the process as for a client of one outside.
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match &args.what {
            What::Tenants { tenants, rounds } => tenants::run(*tenants, *rounds).await,
            What::Neighbours { rounds } => neighbours::run(*rounds).await,
            What::Publish {
                reference,
                tenants,
                tasks,
                rounds,
            } => publish::run(reference, *tenants, *tasks, *rounds).await,
            What::Alone {
                tenants,
                tasks,
                seconds,
            } => alone::run(*tenants, *tasks, *seconds).await,
        }
    })
}

/// A broker in the process, in a folder of its own.
struct Embedded {
    broker: EmbeddedNats,
    _folder: tempfile::TempDir,
}

impl Embedded {
    async fn open() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("windjet-bench-").tempdir()?;
        let broker = EmbeddedNats::open(folder.path()).await?;
        Ok(Self {
            broker,
            _folder: folder,
        })
    }

    /// The same with so many tenants that each have a budget.
    async fn with(tenants: usize) -> Result<Self> {
        let embedded = Self::open().await?;
        for topic in topics(tenants)?.iter() {
            embedded.budget(topic, BUDGET).await?;
        }
        Ok(embedded)
    }

    async fn budget(&self, topic: &Topic, bytes: u64) -> Result<()> {
        let tenant = topic.tenant.as_ref().context("a tenant")?;
        Ok(self.broker.set_max_bytes(&Ctx::new(), tenant, bytes).await?)
    }
}

fn topic(tenant: &str) -> Result<Topic> {
    Ok(Topic::new(TenantId::parse(tenant)?, "events"))
}

/// A table of each of so many tenants.
fn topics(tenants: usize) -> Result<Arc<[Topic]>> {
    (0..tenants)
        .map(|number| topic(&format!("tenant-{number}")))
        .collect()
}

/// What a round of publishes came to.
struct Flood {
    /// Of each publish, in nanoseconds.
    latencies: Vec<u64>,
    took: Duration,
}

impl Flood {
    /// Publishes for some time: so many tasks, each one event at a time, each through all topics in turn.
    async fn run<P: Publisher + Clone + 'static>(
        broker: &P,
        topics: &Arc<[Topic]>,
        tasks: usize,
        length: Duration,
    ) -> Result<Self> {
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let (broker, topics) = (broker.clone(), Arc::clone(topics));
            running.spawn(async move {
                let (ctx, mut latencies) = (Ctx::new(), Vec::new());
                let mut at = task % topics.len();
                while begun.elapsed() < length {
                    let sent = Instant::now();
                    broker
                        .publish(&ctx, &topics[at], PAYLOAD, PublishOptions::new())
                        .await?;
                    latencies.push(sent.elapsed().as_nanos() as u64);
                    at = (at + tasks) % topics.len();
                }
                Ok::<_, windjet_mq::Error>(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = running.join_next().await {
            latencies.extend(done??);
        }
        ensure!(!latencies.is_empty(), "nothing was published");
        Ok(Self {
            latencies,
            took: begun.elapsed(),
        })
    }

    /// Publishes a second.
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// A quantile of the latencies, in microseconds.
    fn quantile(&mut self, q: f64) -> Option<f64> {
        quantile_us(&mut self.latencies, q)
    }
}

/// Pairs of values of the two sides.
#[derive(Default)]
struct Pairs(Vec<(f64, f64)>);

impl Pairs {
    fn add(&mut self, base: f64, other: f64) {
        self.0.push((base, other));
    }

    /// A line of the table: both medians, and the ratio of the second to the first.
    fn row(&self, what: &str, goal: &str) -> Result<String> {
        let of = |values: Vec<f64>| Quartiles::of(&values).context("no rounds");
        let base = of(self.0.iter().map(|pair| pair.0).collect())?;
        let other = of(self.0.iter().map(|pair| pair.1).collect())?;
        let ratio = of(self.0.iter().map(|pair| pair.1 / pair.0).collect())?;
        Ok(format!(
            "| {what} | {} | {} | **{:.2}** ({:.2}–{:.2}) | {goal} |",
            figure(base.median),
            figure(other.median),
            ratio.median,
            ratio.low,
            ratio.high,
        ))
    }
}

/// What stands over every table.
fn header(rounds: Rounds, base: &str, other: &str) -> String {
    let machine = Machine::look();
    format!(
        "Taken {}. Machine: {} cores, {}, {} MiB, {}.\n{} alternating pairs of rounds of {} ms; {} B an event.\n\n\
         | what | {base} | {other} | ratio | goal |\n|---|--:|--:|--:|--:|",
        now(),
        machine.cores,
        machine.cpu,
        machine.memory_mib,
        machine.kernel,
        rounds.rounds,
        rounds.round_ms,
        PAYLOAD.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Rounds = Rounds {
        rounds: 1,
        round_ms: 20,
    };

    #[test]
    fn a_ratio_is_the_median_of_the_pairs_ratios() {
        let mut pairs = Pairs::default();
        for (base, other) in [(10.0, 20.0), (20.0, 60.0), (10.0, 10.0)] {
            pairs.add(base, other);
        }
        let row = pairs.row("x", "≤ 3").unwrap();
        assert_eq!(row, "| x | 10.0 | 20.0 | **2.00** (1.50–2.50) | ≤ 3 |");
        assert!(Pairs::default().row("x", "").is_err());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_tenants_are_measured() {
        tenants::run(3, SHORT).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_neighbour_in_trouble_is_one() {
        // The run fails when a neighbour is not refused, or its handler goes on.
        neighbours::run(SHORT).await.unwrap();
    }
}
