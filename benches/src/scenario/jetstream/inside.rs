//! Publishing by typed calls in the server's own process, against the reference over the wire.
//!
//! Our side runs in a process of its own, this program with the command `inside`: the server is a library there and the
//! load is a task beside it. It has all cores that server and load generator have together on the other side.

use std::{
    collections::VecDeque,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use mio::Poll;
use serde_json::Value;
use windjet_server::{Server as Library, jetstream::StreamConfig};

use super::publish::{Until, connect, publish};
use super::{DEFAULT, PAYLOAD, STREAM, check_messages, empty_stream};
use crate::{
    machine::{self, Cores},
    metric::{Metric, Sample},
    peer::Admin,
    scenario::Scenario,
    server::Server,
};

/// Publishes without an acknowledgement at a time, on both sides. What is under way must outlast a sync of the disk.
const UNDER_WAY: u64 = 98_304;

/// Options of the hidden command `inside`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the store.
    #[arg(long)]
    folder: PathBuf,
    /// How long to publish.
    #[arg(long)]
    millis: u64,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Outcome {
    messages: u64,
    seconds: f64,
}

/// Starts a server, publishes into it, and prints what came of it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let length = Duration::from_millis(args.millis);
    let outcome = runtime.block_on(async {
        let server = Library::builder().jetstream(&args.folder).start().await?;
        let context = server.jetstream().context("the server has no JetStream")?;
        let config = StreamConfig {
            name: STREAM.to_owned(),
            subjects: vec!["bench.>".to_owned()],
            ..StreamConfig::default()
        };
        context
            .create_stream(config)
            .await
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let publishing = context.clone();
        let load = tokio::spawn(async move {
            let payload = Bytes::from_static(&[b'x'; PAYLOAD]);
            let mut on_the_way = VecDeque::with_capacity(UNDER_WAY as usize);
            let start = Instant::now();
            let mut messages: u64 = 0;
            loop {
                let go_on = start.elapsed() < length;
                if go_on {
                    while on_the_way.len() < UNDER_WAY as usize {
                        on_the_way.push_back(publishing.publish(STREAM, "bench.in", payload.clone())?);
                    }
                }
                // An eighth of the window at a time: looking at the clock for each message would be measured too.
                for _ in 0..UNDER_WAY / 8 {
                    let Some(publish) = on_the_way.pop_front() else {
                        break;
                    };
                    let stored = publish.await?;
                    messages += 1;
                    ensure!(
                        stored.seq == messages,
                        "sequence {} for publish {messages}",
                        stored.seq
                    );
                }
                if on_the_way.is_empty() && !go_on {
                    let seconds = start.elapsed().as_secs_f64();
                    return anyhow::Ok(Outcome { messages, seconds });
                }
            }
        });
        let outcome = load.await??;
        let info = context
            .stream_info(STREAM)
            .await
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        ensure!(
            info.state.messages == outcome.messages,
            "the stream holds {} messages",
            info.state.messages
        );
        server.shutdown(Duration::from_secs(10)).await;
        anyhow::Ok(outcome)
    })?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

struct Inside;

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(Inside)]
}

impl Scenario for Inside {
    fn name(&self) -> String {
        "js/inside".to_owned()
    }

    fn about(&self) -> String {
        format!(
            "ours: typed publishes in the process, durable; the reference: over the wire, by its default; 1 publisher with \
             up to {UNDER_WAY} unacknowledged, {PAYLOAD} B payload"
        )
    }

    fn config(&self) -> Option<&str> {
        Some(DEFAULT)
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::Rate, 8.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        empty_stream(&mut Admin::open(server.address)?, &Value::Null)?;
        let mut poll = Poll::new()?;
        let mut publishers = connect(server, &poll, 1, UNDER_WAY)?;
        let start = Instant::now();
        let count = publish(&mut poll, &mut publishers, Until::Time(length))?;
        let elapsed = start.elapsed();
        check_messages(server, count)?;
        Ok(Sample::default().with(Metric::Rate, count as f64 / elapsed.as_secs_f64()))
    }

    fn inside(&self, cores: &Cores, length: Duration) -> Option<Result<Sample>> {
        Some(outside(cores, length))
    }
}

fn outside(cores: &Cores, length: Duration) -> Result<Sample> {
    let folder = tempfile::Builder::new().prefix("windjet-bench-").tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("inside")
        .arg("--folder")
        .arg(folder.path())
        .arg("--millis")
        .arg(length.as_millis().to_string())
        .stderr(Stdio::inherit());
    machine::pin(&[cores.server.as_slice(), cores.load.as_slice()].concat())?;
    let output = command.output();
    machine::pin(&cores.load)?;
    let output = output.context("starting this program again")?;
    ensure!(
        output.status.success(),
        "publishing inside failed: {}",
        output.status
    );
    let outcome: Outcome = serde_json::from_slice(&output.stdout).context("what the process printed")?;
    Ok(Sample::default().with(Metric::Rate, outcome.messages as f64 / outcome.seconds))
}
