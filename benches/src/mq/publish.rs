//! Durable publishes of many tenants in the process, against the obvious broker on a server outside: a stream for each tenant,
//! and `sync_interval: always`, so that it confirms what is on the disk as well.

use std::path::Path;

use anyhow::{Context as _, Result};
use async_nats::jetstream;
use async_trait::async_trait;
use bytes::Bytes;
use windjet_mq::{Ctx, Error, ErrorKind, PublishOptions, Publisher, Topic};

use super::{Embedded, Flood, Pairs, Rounds, header, topics};
use crate::{
    machine::Cores,
    server::{Program, Server},
};

const CONFIG: &str = "jetstream { store_dir: js, sync_interval: always }\n";

pub(super) async fn run(reference: &Path, tenants: usize, tasks: usize, rounds: Rounds) -> Result<()> {
    let anywhere = Cores {
        server: Vec::new(),
        load: Vec::new(),
    };
    let program = Program::at(reference)?;
    let server = program.start(&[], Some(CONFIG), &anywhere)?;
    let topics = topics(tenants)?;
    let (outside, inside) = (
        StreamEach::open(&server, &topics).await?,
        Embedded::with(tenants).await?,
    );
    let theirs = async || Flood::run(&outside, &topics, tasks, rounds.length()).await;
    let ours = async || Flood::run(&inside.broker, &topics, tasks, rounds.length()).await;
    theirs().await.context("warm-up")?;
    ours().await.context("warm-up")?;
    println!(
        "{} tenants, {} tasks, each one event at a time. Outside: {}.\n{}",
        tenants,
        tasks,
        program.version,
        header(rounds, "nats-server, a stream each", "in the process")
    );
    let (mut rate, mut late) = (Pairs::default(), Pairs::default());
    for number in 0..rounds.rounds {
        let (mut base, mut other);
        if number % 2 == 0 {
            base = theirs().await?;
            other = ours().await?;
        } else {
            other = ours().await?;
            base = theirs().await?;
        }
        rate.add(base.rate(), other.rate());
        let p99 = |flood: &mut Flood| flood.quantile(0.99).context("no latencies");
        late.add(p99(&mut base)?, p99(&mut other)?);
    }
    println!("{}", rate.row("publishes a second", "≥ 20")?);
    println!("{}", late.row("p99 of a publish; µs", "")?);
    Ok(())
}

/// A tenant's queue is a stream of its own on a server outside.
#[derive(Clone)]
struct StreamEach {
    js: jetstream::Context,
}

impl StreamEach {
    async fn open(server: &Server, topics: &[Topic]) -> Result<Self> {
        let client = async_nats::connect(format!("nats://{}", server.address)).await?;
        let js = jetstream::new(client);
        for (number, topic) in topics.iter().enumerate() {
            let tenant = topic.tenant.as_ref().context("a tenant")?;
            let config = jetstream::stream::Config {
                name: format!("INGEST_{number}"),
                subjects: vec![format!("ingest.{tenant}.>")],
                discard: jetstream::stream::DiscardPolicy::New,
                ..Default::default()
            };
            js.create_stream(config).await?;
        }
        Ok(Self { js })
    }
}

#[async_trait]
impl Publisher for StreamEach {
    async fn publish(&self, _: &Ctx, topic: &Topic, data: Bytes, _: PublishOptions) -> Result<(), Error> {
        let failed = |error| Error::wrap(ErrorKind::Other, "publish", error);
        let stored = self.js.publish(format!("ingest.{}", topic.key()), data).await;
        stored.map_err(failed)?.await.map_err(failed)?;
        Ok(())
    }

    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}
