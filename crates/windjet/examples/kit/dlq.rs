//! The dead-letter queue and the way back: poison is routed with what is known about it, and redriven once it can be handled.
//!
//! `cargo run -p windjet --features client --example kit_dlq`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use embedded::{Embedded, Result, stream, until};
use windjet::kit::admin::DurableConfig;
use windjet::kit::consumer::RetryDelay;
use windjet::kit::ops::dlq::{
    Autopsy, Dlq, HEADER_AUTOPSY_ERROR, HEADER_AUTOPSY_STACK, HEADER_NUM_DELIVERED, HEADER_ORIGINAL_SUBJECT,
};
use windjet::kit::{Client, Delivery, HandlerError, Message, ProcessOptions, Stack};

/// Puts every dead message back where it came from. Its id makes a second redrive harmless.
async fn redrive(client: &Client) -> Result<usize> {
    let (mut last, mut redriven) = (0, 0);
    while let Ok(dead) = client.streams().get_next_message_after("DEAD", last).await {
        let header = |name: &str| {
            let values = dead.headers.get(name);
            values.map_or_else(|| "unknown".to_owned(), |value| value.as_str().to_owned())
        };
        println!(
            "dead after {} deliveries: {} ({})",
            header(HEADER_NUM_DELIVERED),
            header(HEADER_AUTOPSY_ERROR),
            header(HEADER_AUTOPSY_STACK).chars().take(60).collect::<String>()
        );
        let again = Message::raw(dead.data.clone()).with_msg_id(&format!("redrive-{}", dead.sequence));
        client
            .publisher()
            .publish(&header(HEADER_ORIGINAL_SUBJECT), again)
            .await?;
        (last, redriven) = (dead.sequence, redriven + 1);
    }
    client.streams().purge("DEAD", None).await?;
    Ok(redriven)
}

#[tokio::main]
async fn main() -> Result {
    run().await
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let client = server.client().await?;
    stream(&client, "ORDERS", "orders.>").await?;
    stream(&client, "DEAD", "dead.>").await?;
    client
        .consumers()
        .create_or_update("ORDERS", &DurableConfig::new("worker"))
        .await?;

    let repaired = Arc::new(AtomicBool::new(false));
    let fixed = Arc::clone(&repaired);
    let autopsy = Autopsy {
        enabled: true,
        include_stack: true,
        ..Autopsy::default()
    };
    let dlq = Dlq::new(client.publisher(), "dead.orders")
        .max_deliver(3)
        .autopsy(autopsy);
    let handler = Stack::new().dlq(dlq).around(move |order: Arc<Delivery>| {
        let fixed = fixed.load(Ordering::Acquire);
        async move {
            if order.payload == "poison" && !fixed {
                return Err(HandlerError::failed("cannot be shipped"));
            }
            Ok(())
        }
    });
    let worker = client.consumer().pull("ORDERS", "worker").await?;
    let vitals = Arc::clone(worker.vitals());
    let running = worker.start(handler, ProcessOptions::default().retry_delay(RetryDelay::None));
    for order in ["good", "poison", "good"] {
        client.publisher().publish_bytes("orders.new", order).await?;
    }
    until("the poison to be routed", || vitals.routed() == 1).await?;
    until("the others", || vitals.succeeded() == 3).await?;

    repaired.store(true, Ordering::Release);
    println!("{} redriven", redrive(&client).await?);
    until("the one that was poison", || vitals.succeeded() == 4).await?;
    running.stop().await?;
    println!("{} handled, {} routed", vitals.succeeded(), vitals.routed());
    server.stop(&client).await
}
