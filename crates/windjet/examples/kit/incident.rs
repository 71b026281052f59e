//! Incidents: a failing handler makes a capsule of what happened around it, which is replayed on a desk.
//!
//! `cargo run -p windjet --features client --example kit_incident`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use std::sync::{Arc, Mutex, PoisonError};

use embedded::{Embedded, Result, stream, until};
use windjet::kit::admin::DurableConfig;
use windjet::kit::ops::incidents::{AutoConfig, Capsule, attach};
use windjet::kit::{Delivery, HandlerError, ProcessOptions};

#[tokio::main]
async fn main() -> Result {
    run().await
}

async fn broken(reading: Arc<Delivery>) -> std::result::Result<(), HandlerError> {
    let value: i32 = reading.decode()?;
    if value > 100 {
        return Err(HandlerError::failed("the sensor is on fire"));
    }
    Ok(())
}

async fn repaired(reading: Arc<Delivery>) -> std::result::Result<(), HandlerError> {
    println!("on the desk: {}", reading.decode::<i32>()?);
    Ok(())
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let client = server.client().await?;
    stream(&client, "SENSORS", "sensors.>").await?;
    client
        .consumers()
        .create_or_update("SENSORS", &DurableConfig::new("watcher"))
        .await?;

    let captured: Arc<Mutex<Vec<Capsule>>> = Arc::default();
    let note = Arc::clone(&captured);
    let config = AutoConfig {
        enabled: true,
        window: 4,
        on_ready: Some(Arc::new(move |capsule: &Capsule| {
            note.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(capsule.clone());
        })),
        ..AutoConfig::default()
    };
    let handler = attach(client.incidents(), "SENSORS", "watcher", config, broken);
    let consumer = client.consumer().pull("SENSORS", "watcher").await?;
    let running = consumer.start(handler, ProcessOptions::default());
    for value in [20, 21, 22, 250, 23, 24] {
        client.publisher().publish_json("sensors.heat", &value).await?;
    }
    let ready = || !captured.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    until("a capsule", ready).await?;
    running.stop().await?;

    // Later, somewhere else: the capsule is found, and given to the handler that should have been.
    let ids = client.incidents().list("SENSORS", "watcher", "").await?;
    let id = ids.first().ok_or("the capsule is in the index")?;
    let capsule = client.incidents().load("", id).await?;
    println!(
        "{}: {} at sequence {}",
        capsule.trigger.as_str(),
        capsule.reason,
        capsule.failing_seq
    );
    if client.incidents().replay_local(&capsule, &broken).await.is_ok() {
        return Err("the broken handler fails on the desk too".into());
    }
    client.incidents().replay_local(&capsule, &repaired).await?;
    server.stop(&client).await
}
