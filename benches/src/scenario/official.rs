//! The official Rust client, unchanged, on both servers.
//!
//! What it shows: what a program written against async-nats gets. The client has one core
//! for both of its ends and is usually the slower side, so the rates say less about the server than those of the
//! raw sockets do; processor time of the server per message says as much.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_nats::{Client, ConnectOptions};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::LocalSet,
    time::timeout,
};

use super::{CpuMeter, Scenario};
use crate::{
    metric::{Metric, Sample},
    server::Server,
    session::PATIENCE,
    stats::quantile_us,
};

/// How far the publisher may be ahead of the subscriber, below the client's own buffer.
const WINDOW: u64 = 16 * 1024;

/// How many messages are published between two looks at the clock and the window.
const STRIDE: u64 = 256;

const SUBJECT: &str = "bench.data";

/// Payload of the messages that stand before and after the counted ones.
const MARK: Bytes = Bytes::from_static(b"mark");

struct PubSub {
    payload_len: usize,
}

struct Request {
    concurrent: usize,
}

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(PubSub { payload_len: 16 }),
        Box::new(PubSub { payload_len: 1024 }),
        Box::new(Request { concurrent: 1 }),
        Box::new(Request { concurrent: 16 }),
    ]
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

async fn connect(server: &Server) -> Result<Client> {
    let options = ConnectOptions::new()
        .subscription_capacity(4 * WINDOW as usize)
        .client_capacity(4096);
    options
        .connect(format!("nats://{}", server.address))
        .await
        .context("connecting with async-nats")
}

impl Scenario for PubSub {
    fn name(&self) -> String {
        format!("async-nats/pubsub/{}B", self.payload_len)
    }

    fn about(&self) -> String {
        format!(
            "async-nats: 1 publisher, 1 subscriber on connections of their own, {} B",
            self.payload_len
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::ServerCpuNs, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let runtime = runtime()?;
        LocalSet::new().block_on(&runtime, async {
            let receiving = connect(server).await?;
            let publishing = connect(server).await?;
            let mut messages = receiving.subscribe(SUBJECT).await?;
            // The client's flush does not wait for the server. A message that went the same way as the
            // subscription, and came back, proves that the server knows it.
            receiving.publish(SUBJECT, MARK).await?;
            timeout(PATIENCE, messages.next())
                .await
                .context("the subscription does not work")?;
            let received = Rc::new(Cell::new(0));
            let moved = Rc::new(Notify::new());
            let counter = tokio::task::spawn_local({
                let (received, moved) = (Rc::clone(&received), Rc::clone(&moved));
                async move {
                    while let Some(message) = messages.next().await {
                        received.set(received.get() + 1);
                        let marked = message.payload == MARK;
                        if marked || received.get() % STRIDE == 0 {
                            moved.notify_one();
                        }
                        if marked {
                            break;
                        }
                    }
                }
            });
            let meter = CpuMeter::start(server);
            let start = Instant::now();
            let payload = bytes_of(self.payload_len);
            let mut published = 0;
            while start.elapsed() < length {
                for _ in 0..STRIDE {
                    publishing.publish(SUBJECT, payload.clone()).await?;
                }
                published += STRIDE;
                while published - received.get() > WINDOW {
                    timeout(PATIENCE, moved.notified())
                        .await
                        .context("the subscriber got stuck")?;
                }
            }
            publishing.publish(SUBJECT, MARK).await?;
            published += 1;
            timeout(PATIENCE, counter)
                .await
                .context("messages are missing")??;
            let elapsed = start.elapsed();
            let received = received.get();
            ensure!(
                received == published,
                "{received} messages arrived, {published} were published"
            );
            let sample = Sample::default().with(Metric::Rate, published as f64 / elapsed.as_secs_f64());
            Ok(meter.finish(sample, published))
        })
    }
}

fn bytes_of(len: usize) -> Bytes {
    vec![b'x'; len].into()
}

impl Scenario for Request {
    fn name(&self) -> String {
        format!("async-nats/request/{}", self.concurrent)
    }

    fn about(&self) -> String {
        format!(
            "async-nats: {} requests at a time over one connection, 1 responder, 16 B",
            self.concurrent
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::P50Us, 1.0), (Metric::ServerCpuNs, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let runtime = runtime()?;
        LocalSet::new().block_on(&runtime, async {
            let serving = connect(server).await?;
            let asking = connect(server).await?;
            let mut requests = serving.subscribe("svc.echo").await?;
            let responder = tokio::task::spawn_local(async move {
                while let Some(request) = requests.next().await {
                    if let Some(reply) = request.reply {
                        serving.publish(reply, request.payload).await?;
                    }
                }
                anyhow::Ok(())
            });
            timeout(PATIENCE, first_answer(&asking))
                .await
                .context("the responder does not answer")?;
            let meter = CpuMeter::start(server);
            let start = Instant::now();
            let askers: Vec<_> = (0..self.concurrent)
                .map(|_| tokio::task::spawn_local(ask_until(asking.clone(), start + length)))
                .collect();
            let mut latencies = Vec::new();
            for asker in askers {
                latencies.extend(asker.await??);
            }
            let elapsed = start.elapsed();
            responder.abort();
            let count = latencies.len() as u64;
            let sample = Sample::default()
                .with(Metric::Rate, count as f64 / elapsed.as_secs_f64())
                .with(Metric::P50Us, quantile_us(&mut latencies, 0.50))
                .with(Metric::P99Us, quantile_us(&mut latencies, 0.99));
            Ok(meter.finish(sample, count))
        })
    }
}

/// Asks until the server knows the responder.
async fn first_answer(client: &Client) {
    while client.request("svc.echo", MARK).await.is_err() {}
}

async fn ask_until(client: Client, deadline: Instant) -> Result<Vec<u64>> {
    let payload = bytes_of(16);
    let mut latencies = Vec::new();
    while Instant::now() < deadline {
        let sent_at = Instant::now();
        client.request("svc.echo", payload.clone()).await?;
        latencies.push(u64::try_from(sent_at.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(latencies)
}
