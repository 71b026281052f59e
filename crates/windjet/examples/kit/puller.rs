//! Pulling by hand: batches, every way to settle a message, and what happens to what is not settled.
//!
//! `cargo run -p windjet --features client --example kit_puller`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use std::time::Duration;

use embedded::{Embedded, Result, stream};
use windjet::kit::admin::DurableConfig;
use windjet::kit::consumer::FetchOptions;

#[tokio::main]
async fn main() -> Result {
    run().await
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let client = server.client().await?;
    stream(&client, "JOBS", "jobs.>").await?;
    client
        .consumers()
        .create_or_update("JOBS", &DurableConfig::new("puller"))
        .await?;
    for job in ["done", "later", "never", "left"] {
        client.publisher().publish_bytes("jobs.new", job).await?;
    }

    let puller = client.consumer().pull("JOBS", "puller").await?;
    let batch = puller.fetch(4, FetchOptions::default()).await?;
    for job in batch.deliveries {
        let name = String::from_utf8_lossy(&job.payload).into_owned();
        println!(
            "{name}: delivery {}",
            job.metadata().map_or(0, |found| found.delivered)
        );
        match name.as_str() {
            "done" => job.ack_confirmed(Duration::from_secs(5)).await?, // the server has it when this returns
            "later" => job.nak_after(Duration::from_millis(50)).await?,
            "never" => job.term_with_reason("nobody can do this").await?,
            _ => drop(job), // handed back at once
        }
    }

    // The two that were handed back come again.
    for _ in 0..2 {
        let batch = puller.fetch(1, FetchOptions::default()).await?;
        let job = batch.deliveries.first().ok_or("a job comes again")?;
        println!("{} once more", String::from_utf8_lossy(&job.payload));
        job.ack_confirmed(Duration::from_secs(5)).await?;
    }
    let nothing = puller.fetch_no_wait(10).await?;
    println!("left: {}", nothing.deliveries.len());
    let info = puller.info().await?;
    if info.num_pending + info.num_ack_pending as u64 > 0 {
        return Err("there should be nothing left".into());
    }
    server.stop(&client).await
}
