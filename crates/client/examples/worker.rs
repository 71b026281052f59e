//! A worker that stays healthy: durable pull, dead-letter queue, idempotency, graceful stop.
//!
//! Needs a NATS server with JetStream, a stream `ORDERS` on `orders.>` with a durable `worker`, a stream for `dead.orders`
//! and a key-value bucket `orders-done`; operations own these:
//!
//! ```sh
//! nats stream add ORDERS --subjects 'orders.>' --defaults && nats consumer add ORDERS worker --pull --defaults
//! nats stream add DEAD --subjects 'dead.>' --defaults && nats kv add orders-done --ttl 24h
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use windjet_client::ops::dlq::{Autopsy, Dlq};
use windjet_client::ops::idempotency::{Idempotency, KvStore};
use windjet_client::{Client, Config, Delivery, HandlerError, ProcessOptions, Stack};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(Config::new("nats://127.0.0.1:4222")).await?;
    client.connector().wait_connected().await?;

    let autopsy = Autopsy {
        enabled: true,
        ..Autopsy::default()
    };
    let layers = Stack::new()
        .dlq(
            Dlq::new(client.publisher(), "dead.orders")
                .max_deliver(5)
                .autopsy(autopsy),
        )
        .idempotency(Idempotency::new(KvStore::new(
            client.kv().open("orders-done").await?,
        )));
    let handler = layers.around(|order: Arc<Delivery>| async move {
        let order: serde_json::Value = order.decode()?;
        ship(&order).await?; // an error comes again, later and later, and ends in the dead-letter queue
        Ok::<_, HandlerError>(())
    });

    let worker = client.consumer().pull("ORDERS", "worker").await?;
    let running = worker.start(
        handler,
        ProcessOptions::default().concurrency(8).extend_ack_wait(10),
    );
    tokio::time::sleep(Duration::from_secs(3600)).await; // until your service is told to stop
    println!("{} orders shipped", worker.vitals().succeeded());
    running.stop().await?;
    println!("{:?}", client.close().await);
    Ok(())
}

async fn ship(order: &serde_json::Value) -> std::io::Result<()> {
    println!("shipping {order}");
    Ok(())
}
