//! Replay: the past once more, without touching the worker that made it; and ranges of it, to look at.
//!
//! `cargo run -p windjet --features client --example kit_replay`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use embedded::{Embedded, Result, stream};
use windjet::kit::admin::DurableConfig;
use windjet::kit::ops::replay::ReplayOptions;
use windjet::kit::{Delivery, HandlerError};

#[tokio::main]
async fn main() -> Result {
    run().await
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let client = server.client().await?;
    stream(&client, "PAYMENTS", "payments.>").await?;
    client
        .consumers()
        .create_or_update("PAYMENTS", &DurableConfig::new("ledger"))
        .await?;
    for amount in 1..=10 {
        client.publisher().publish_json("payments.in", &amount).await?;
    }

    // A side-car of the live consumer reads from the third to the seventh, and goes when it is done.
    let sum = Arc::new(AtomicU32::new(0));
    let adding = Arc::clone(&sum);
    let handler = move |payment: Arc<Delivery>| {
        let adding = Arc::clone(&adding);
        async move {
            adding.fetch_add(payment.decode::<u32>()?, Ordering::AcqRel);
            Ok::<_, HandlerError>(())
        }
    };
    let bounds = ReplayOptions::new().from_seq(3).until_seq(7);
    let replayed = client.replay().run("PAYMENTS", "ledger", bounds, handler).await?;
    println!(
        "{} replayed, their sum is {}",
        replayed.handled,
        sum.load(Ordering::Acquire)
    );
    if sum.load(Ordering::Acquire) != 25 {
        return Err("the sum of 3 to 7 is 25".into());
    }

    let (messages, more) = client.replay().get_range("PAYMENTS", 1, 10, 4).await?;
    println!("looked at {}, there are more: {more}", messages.len());

    // The live consumer has not moved.
    let ledger = client.consumers().info("PAYMENTS", "ledger").await?;
    println!("{} still wait for the ledger", ledger.num_pending);
    if ledger.num_pending != 10 || client.consumers().names("PAYMENTS").await?.len() != 1 {
        return Err("the replay should have left nothing".into());
    }
    server.stop(&client).await
}
