//! Publishing: what is stored when the call returns, what is on its way, what was refused and comes back.
//!
//! `cargo run -p windjet --features client --example kit_publisher`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use embedded::{Embedded, Result, stream};
use serde_json::json;
use windjet::kit::{Fate, Message};

#[tokio::main]
async fn main() -> Result {
    run().await
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let client = server.client().await?;
    stream(&client, "ORDERS", "orders.>").await?;
    let publisher = client.publisher();

    // Stored when it returns.
    let ack = publisher.publish_json("orders.new", &json!({"id": 1})).await?;
    println!("stored as {} of {}", ack.sequence, ack.stream);

    // The same message id is stored once; a retry after a lost answer is safe.
    for _ in 0..2 {
        let order = Message::json(&json!({"id": 2}))?.with_msg_id("order-2");
        let ack = publisher.publish("orders.new", order).await?;
        println!("order 2 is {}, a duplicate: {}", ack.sequence, ack.duplicate);
    }

    // Many at a time: each is on its way when the call returns, and bounded are those that are.
    for id in 3..100 {
        let _on_its_way = publisher
            .publish_async("orders.new", Message::json(&json!({"id": id}))?)
            .await?;
    }
    publisher.publish_async_complete().await?; // the first failure, if there was one

    // A subject that no stream stores is an error of its own, and hands the message back.
    let Err(refused) = publisher.publish_bytes("invoices.new", "42").await else {
        return Err("a stream stores invoices".into());
    };
    println!("{refused}; it is stored: {}", refused.fate() != Fate::NotStored);
    let again = refused.into_message().ok_or("the message comes back")?;
    publisher.publish("orders.invoice", again).await?;

    let stored = client.streams().info("ORDERS").await?.state.messages;
    println!("{stored} messages are stored");
    if stored != 100 {
        return Err("there should be a hundred".into());
    }
    server.stop(&client).await
}
