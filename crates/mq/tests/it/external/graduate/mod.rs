//! A store in the process moves to the real nats-server: everything once, in order, whatever happens meanwhile.

mod interrupted;
mod round_trip;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use windjet_mq::graduate::GraduateOptions;
use windjet_mq::{
    Broker as _, ConsumerConfig, ConsumerManager as _, Ctx, DeadLetterer as _, EmbeddedNats, Handler,
    Message, PublishOptions, Publisher as _, TenantId,
};

use super::{Cluster, PATIENCE, topic, until};

const DURABLE: &str = "buffer-consumer";

/// A service's store.
struct Service {
    folder: TempDir,
    broker: EmbeddedNats,
}

impl Service {
    async fn start(tenants: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let broker = EmbeddedNats::open(folder.path()).await.unwrap();
        for tenant in tenants {
            let tenant = TenantId::parse(tenant).unwrap();
            broker
                .set_max_bytes(&Ctx::new(), &tenant, 64 << 20)
                .await
                .unwrap();
        }
        Self { folder, broker }
    }

    /// As after a crash: what the process knew is gone.
    async fn restart(&mut self) {
        self.broker.close().await.unwrap();
        self.broker = EmbeddedNats::open(self.folder.path()).await.unwrap();
    }

    async fn publish(&self, tenant: &str, table: &str, data: impl ToString) {
        self.publish_with(tenant, table, data, PublishOptions::new())
            .await;
    }

    async fn publish_with(&self, tenant: &str, table: &str, data: impl ToString, options: PublishOptions) {
        let published = self
            .broker
            .publish(
                &Ctx::new(),
                &topic(tenant, table),
                data.to_string().into(),
                options,
            )
            .await;
        published.unwrap_or_else(|error| panic!("{tenant}.{table}: {error:?}"));
    }

    /// Has a worker see so many events, does something with each, and stops it.
    async fn work(&self, events: usize, mut each: impl AsyncFnMut(Message)) {
        let (sender, mut messages) = mpsc::unbounded_channel();
        let handler = Handler::new(move |message| {
            // Nobody looks any more once the worker is stopped.
            let _ = sender.send(message);
            async {}
        });
        let consumer = self
            .broker
            .create_consumer(&Ctx::new(), ConsumerConfig::new(DURABLE))
            .await;
        let consuming = consumer.unwrap().consume(handler, 1_000).await.unwrap();
        for _ in 0..events {
            let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
            each(message.expect("waited in vain for an event").unwrap()).await;
        }
        consuming.stop();
    }

    /// A durable that has written nothing.
    async fn idle_worker(&self) {
        self.work(0, async |_| {}).await;
    }
}

/// Publishes rising numbers to a tenant's tables until it is told to stop; gives how many each got.
fn load(
    broker: &EmbeddedNats,
    tenant: &'static str,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<BTreeMap<String, u64>> {
    let (broker, stop) = (broker.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let mut counts = BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            for table in ["t0", "t1", "t2"] {
                let number: &mut u64 = counts.entry(table.to_owned()).or_default();
                let data = format!("load-{number}").into();
                let published = broker
                    .publish(&Ctx::new(), &topic(tenant, table), data, PublishOptions::new())
                    .await;
                published.unwrap_or_else(|error| panic!("{tenant}.{table}: {error:?}"));
                *number += 1;
            }
        }
        counts
    })
}

fn options() -> GraduateOptions {
    GraduateOptions::new(DURABLE)
}

/// A message on the cluster.
#[derive(Debug, Clone)]
struct Row {
    subject: String,
    headers: String,
    data: String,
}

impl Row {
    fn header(&self, name: &str) -> Vec<&str> {
        let prefix = format!("{name}: ");
        self.headers
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .collect()
    }
}

fn text(value: &Value) -> String {
    let bytes = data_encoding::BASE64
        .decode(value.as_str().unwrap_or_default().as_bytes())
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

impl Cluster {
    /// All messages of a stream, in order.
    fn rows(&self, stream: &str) -> Vec<Row> {
        self.operate(|operator| {
            let state = operator.stream(stream).unwrap()["state"].take();
            let (mut next, last) = (
                state["first_seq"].as_u64().unwrap(),
                state["last_seq"].as_u64().unwrap(),
            );
            let mut rows = Vec::new();
            while next <= last {
                let ask = json!({ "seq": next, "next_by_subj": ">" });
                let Ok(got) = operator.api(&format!("STREAM.MSG.GET.{stream}"), &ask) else {
                    break;
                };
                let message = &got["message"];
                next = message["seq"].as_u64().unwrap() + 1;
                rows.push(Row {
                    subject: message["subject"].as_str().unwrap().to_owned(),
                    headers: text(&message["hdrs"]),
                    data: text(&message["data"]),
                });
            }
            rows
        })
    }

    /// Events of all partitions, by the key of their table.
    fn tables(&self) -> BTreeMap<String, Vec<String>> {
        let mut tables = BTreeMap::<String, Vec<String>>::new();
        for row in self.events() {
            let key = row.subject.splitn(5, '.').nth(4).unwrap().to_owned();
            tables.entry(key).or_default().push(row.data);
        }
        tables
    }

    fn events(&self) -> Vec<Row> {
        let partitions = 0..self.topology.partitions;
        partitions
            .flat_map(|partition| self.rows(&self.topology.partition_stream(partition)))
            .collect()
    }

    fn stored(&self) -> u64 {
        let partitions = 0..self.topology.partitions;
        let count = |partition| {
            let stream = self.topology.partition_stream(partition);
            self.operate(|operator| {
                operator.stream(&stream).unwrap()["state"]["messages"]
                    .as_u64()
                    .unwrap()
            })
        };
        partitions.map(count).sum()
    }
}

fn numbers(prefix: &str, count: u64) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

/// A message parked on the embedded broker.
async fn park(service: &Service, message: &Message, reason: &str) {
    let options = PublishOptions::new().header("X-Reason", reason);
    service
        .broker
        .dead_letter(&Ctx::new(), message, options)
        .await
        .unwrap();
    message.double_ack(&Ctx::new()).await.unwrap();
}

/// Long enough that a move cannot need it.
const NEVER: Duration = Duration::from_secs(600);
