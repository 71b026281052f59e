//! A tenant beside others that are in trouble, against the same tenant alone.
//!
//! The trouble of a round: a tenant at its budget whose four publishers try again every millisecond, a tenant whose queue cannot be
//! opened with as many, and a tenant with a thousand events whose handler does not come back. All of them are there in the other rounds
//! too, and do nothing.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::{sync::watch, task::JoinSet};
use windjet_mq::{
    ConsumerConfig, ConsumerManager as _, Ctx, ErrorKind, Handler, PublishOptions, Publisher as _, Topic,
};
use windjet_server::jetstream::StreamConfig;

use super::{BUDGET, Embedded, Flood, PAYLOAD, Pairs, Rounds, header, topic};
use crate::{session::PATIENCE, stats::quantile_us};

const TASKS: usize = 4;
/// Events whose handler waits.
const STUCK: u64 = 1000;

pub(super) async fn run(rounds: Rounds) -> Result<()> {
    let ground = Ground::prepare().await?;
    println!("{}", header(rounds, "alone", "beside the three"));
    ground.round(rounds.length(), false).await.context("warm-up")?;
    ground.round(rounds.length(), true).await.context("warm-up")?;
    let mut pairs: [Pairs; 4] = Default::default();
    for number in 0..rounds.rounds {
        let (base, other);
        if number % 2 == 0 {
            base = ground.round(rounds.length(), false).await?;
            other = ground.round(rounds.length(), true).await?;
        } else {
            other = ground.round(rounds.length(), true).await?;
            base = ground.round(rounds.length(), false).await?;
        }
        for (pairs, (base, other)) in pairs.iter_mut().zip(base.into_iter().zip(other)) {
            pairs.add(base, other);
        }
    }
    let names = [
        "publish, p50",
        "publish, p99",
        "publish to handler, p50",
        "publish to handler, p99",
    ];
    for (pairs, name) in pairs.iter().zip(names) {
        println!("{}", pairs.row(&format!("{name}; µs"), "1")?);
    }
    Ok(())
}

struct Ground {
    embedded: Embedded,
    begun: Instant,
    seen: Arc<Seen>,
    stuck: watch::Sender<bool>,
    good: Arc<[Topic]>,
    full: Topic,
    broken: Topic,
    blocked: Topic,
    _consuming: windjet_mq::Consuming,
}

/// What handlers saw.
#[derive(Default)]
struct Seen {
    /// From publish to handler, in nanoseconds.
    latencies: Mutex<Vec<u64>>,
    blocked: AtomicU64,
}

impl Ground {
    async fn prepare() -> Result<Self> {
        let embedded = Embedded::open().await?;
        let (good, full) = (topic("good")?, topic("full")?);
        let (broken, blocked) = (topic("broken")?, topic("blocked")?);
        embedded.budget(&good, BUDGET).await?;
        embedded.budget(&blocked, BUDGET).await?;
        embedded.budget(&full, 64 << 10).await?;
        // Somebody else's stream on its subjects keeps its queue from being made.
        let js = embedded.broker.server().jetstream().context("no JetStream")?;
        js.create_stream(StreamConfig {
            name: "ROGUE".into(),
            subjects: vec!["ingest.broken.>".into()],
            ..StreamConfig::default()
        })
        .await?;
        ensure!(
            embedded.budget(&broken, BUDGET).await.is_err(),
            "the broken queue was opened"
        );

        let (begun, seen, stuck) = (Instant::now(), Arc::<Seen>::default(), watch::Sender::new(false));
        let config = ConsumerConfig::new("worker").ack_wait(Duration::from_secs(300));
        let consumer = embedded.broker.create_consumer(&Ctx::new(), config).await?;
        let handler = {
            let (seen, stuck) = (Arc::clone(&seen), stuck.clone());
            Handler::new(move |message| {
                let (seen, mut stuck) = (Arc::clone(&seen), stuck.subscribe());
                async move {
                    let key = message.topic_key();
                    if key.starts_with("blocked.") {
                        // The sender lives as long as the handler.
                        let _ = stuck.wait_for(|stuck| !stuck).await;
                        seen.blocked.fetch_add(1, Ordering::Relaxed);
                    } else if let Some(sent) = message.data().first_chunk().copied().map(u64::from_le_bytes)
                        && key.starts_with("good.")
                    {
                        let now = begun.elapsed().as_nanos() as u64;
                        let mut latencies = seen.latencies.lock().unwrap_or_else(PoisonError::into_inner);
                        latencies.push(now.saturating_sub(sent));
                    }
                    // One that is not acknowledged now comes again after minutes.
                    let _ = message.ack().await;
                }
            })
        };
        let consuming = consumer.consume(handler, 500).await?;
        Ok(Self {
            embedded,
            begun,
            seen,
            stuck,
            good: Arc::from([good]),
            full,
            broken,
            blocked,
            _consuming: consuming,
        })
    }

    /// Quantiles of one round: of publishes, and of the ways to the handler.
    async fn round(&self, length: Duration, trouble: bool) -> Result<[f64; 4]> {
        let (over, refused) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicU64>::default());
        let mut noise = JoinSet::new();
        let before = self.seen.blocked.load(Ordering::Relaxed);
        if trouble {
            self.stuck.send_replace(true);
            for _ in 0..STUCK {
                let options = PublishOptions::new();
                self.embedded
                    .broker
                    .publish(&Ctx::new(), &self.blocked, PAYLOAD, options)
                    .await?;
            }
            for topic in [&self.full, &self.broken] {
                for _ in 0..TASKS {
                    noise.spawn(self.refused(topic.clone(), Arc::clone(&over), Arc::clone(&refused)));
                }
            }
            // From then on both are refused.
            let wait = tokio::time::timeout(PATIENCE, async {
                let mut ticks = tokio::time::interval(Duration::from_millis(10));
                while refused.load(Ordering::Relaxed) < 100 {
                    ticks.tick().await;
                }
            });
            wait.await.context("the neighbours are not refused")?;
        }
        self.latencies().clear();
        let mut flood = self.flood(length).await?;
        over.store(true, Ordering::Relaxed);
        while let Some(done) = noise.join_next().await {
            done??;
        }
        let seen = self.seen.blocked.load(Ordering::Relaxed);
        ensure!(seen == before, "the blocked handler went on");
        self.stuck.send_replace(false);
        self.drained(flood.latencies.len(), before + if trouble { STUCK } else { 0 })
            .await?;
        let mut arrived = std::mem::take(&mut *self.latencies());
        let quantiles = [
            flood.quantile(0.5),
            flood.quantile(0.99),
            quantile_us(&mut arrived, 0.5),
            quantile_us(&mut arrived, 0.99),
        ];
        let [Some(a), Some(b), Some(c), Some(d)] = quantiles else {
            anyhow::bail!("a round without events");
        };
        Ok([a, b, c, d])
    }

    fn latencies(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.seen.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The good tenant's publishes, each with its moment.
    async fn flood(&self, length: Duration) -> Result<Flood> {
        let (begun, end) = (self.begun, Instant::now() + length);
        let mut running = JoinSet::new();
        for _ in 0..TASKS {
            let (broker, good) = (self.embedded.broker.clone(), Arc::clone(&self.good));
            running.spawn(async move {
                let mut latencies = Vec::new();
                while Instant::now() < end {
                    let sent = begun.elapsed().as_nanos() as u64;
                    let mut data = PAYLOAD.to_vec();
                    data[..8].copy_from_slice(&sent.to_le_bytes());
                    broker
                        .publish(&Ctx::new(), &good[0], Bytes::from(data), PublishOptions::new())
                        .await?;
                    latencies.push(begun.elapsed().as_nanos() as u64 - sent);
                }
                Ok::<_, windjet_mq::Error>(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = running.join_next().await {
            latencies.extend(done??);
        }
        Ok(Flood {
            latencies,
            took: length,
        })
    }

    /// Publishes that are refused, until the round is over.
    fn refused(
        &self,
        topic: Topic,
        over: Arc<AtomicBool>,
        refused: Arc<AtomicU64>,
    ) -> impl Future<Output = Result<()>> + use<> {
        let broker = self.embedded.broker.clone();
        async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(1));
            while !over.load(Ordering::Relaxed) {
                ticks.tick().await;
                match broker
                    .publish(&Ctx::new(), &topic, PAYLOAD, PublishOptions::new())
                    .await
                {
                    Err(error) if error.is(ErrorKind::QueueFull) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    // Up to its budget.
                    Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        }
    }

    /// Waits until everything has gone through the handler.
    async fn drained(&self, good: usize, blocked: u64) -> Result<()> {
        let wait = tokio::time::timeout(PATIENCE, async {
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            while self.latencies().len() < good || self.seen.blocked.load(Ordering::Relaxed) < blocked {
                ticks.tick().await;
            }
        });
        wait.await.context("events did not reach the handler")
    }
}
