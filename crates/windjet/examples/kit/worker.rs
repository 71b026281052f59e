//! A worker that stays healthy: durable pull, dead-letter queue, idempotency, measurements, graceful stop.
//!
//! `cargo run -p windjet --features kit-prometheus --example kit_worker`
//!
//! The worker itself is [`work`]; all around it is its surroundings.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use std::sync::Arc;

use embedded::{Embedded, Result, stream, until};
use windjet::kit::admin::DurableConfig;
use windjet::kit::async_nats::jetstream::kv;
use windjet::kit::consumer::Worker;
use windjet::kit::observe::prometheus::Prometheus;
use windjet::kit::ops::dlq::Dlq;
use windjet::kit::ops::idempotency::{Idempotency, KvStore};
use windjet::kit::{Client, Delivery, HandlerError, Message, ProcessOptions, Stack};

/// Starts the worker.
async fn work(client: &Client) -> Result<Worker> {
    let done = KvStore::new(client.kv().open("orders-done").await?);
    let layers = Stack::new()
        .dlq(Dlq::new(client.publisher(), "dead.orders").max_deliver(3))
        .idempotency(Idempotency::new(done));
    let handler = layers.around(|order: Arc<Delivery>| async move {
        ship(order.decode()?)?; // an error comes again, later and later, and ends in the dead-letter queue
        Ok::<_, HandlerError>(())
    });
    let worker = client.consumer().pull("ORDERS", "worker").await?;
    let options = ProcessOptions::default().concurrency(8).extend_ack_wait(10);
    Ok(worker.start(handler, options))
}

fn ship(order: u32) -> std::io::Result<()> {
    if order == 13 {
        return Err(std::io::Error::other("no ship sails with it"));
    }
    println!("shipping {order}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result {
    run().await
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let prometheus = Prometheus::new()?;
    let mut config = server.config()?;
    config.metrics.sink = prometheus.sink();
    let client = Client::connect(config).await?;
    client.connector().wait_connected().await?;
    // What operations make in production.
    stream(&client, "ORDERS", "orders.>").await?;
    stream(&client, "DEAD", "dead.>").await?;
    let bucket = kv::Config {
        bucket: "orders-done".into(),
        ..kv::Config::default()
    };
    client.kv().create_or_update(bucket).await?;
    client
        .consumers()
        .create_or_update("ORDERS", &DurableConfig::new("worker"))
        .await?;
    for order in [1, 2, 13, 2, 3] {
        let message = Message::json(&order)?.with_header("Order-Attempt", "1");
        client.publisher().publish("orders.new", message).await?;
    }

    let worker = work(&client).await?;
    let vitals = Arc::clone(worker.consumer().vitals());
    until("all orders to find their place", || vitals.succeeded() == 5).await?;
    worker.stop().await?;

    let dead = client.streams().get_last_message("DEAD", "dead.orders").await?;
    println!("dead: {}", String::from_utf8_lossy(&dead.data));
    let text = prometheus.render();
    let acknowledged = text.lines().find(|line| line.starts_with("nats_ack_total{"));
    println!("{}", acknowledged.ok_or("nothing was measured")?);
    server.stop(&client).await
}
