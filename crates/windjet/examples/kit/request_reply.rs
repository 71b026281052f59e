//! Requests and replies, over core NATS: a queue group answers, and errors arrive as errors.
//!
//! `cargo run -p windjet --features client --example kit_request_reply`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod embedded;

use std::sync::Arc;

use embedded::{Embedded, Result, stream};
use windjet::kit::rpc::{Call, RespondOptions};
use windjet::kit::{ErrorKind, HandlerError};

#[tokio::main]
async fn main() -> Result {
    run().await
}

async fn root(call: Arc<Call>) -> std::result::Result<(), HandlerError> {
    let number: f64 = call.decode()?;
    if number < 0.0 {
        return Err(HandlerError::failed("no root of a negative number"));
    }
    call.respond_json(&number.sqrt()).await?;
    Ok(())
}

pub(crate) async fn run() -> Result {
    let server = Embedded::start().await?;
    let client = server.client().await?;
    let options = RespondOptions::default().concurrency(4).error_replies();
    let first = client
        .responder()
        .queue_subscribe("roots", "math.root", options, root)
        .await?;
    let _second = client
        .responder()
        .queue_subscribe("roots", "math.root", options, root)
        .await?;

    let requester = client.requester();
    let answer: f64 = requester.request_json_into("math.root", &1764.0).await?;
    println!("the root of 1764 is {answer}");

    // A service's error, nobody there, and a subject that a stream stores: three different things.
    let failed = requester.request_json("math.root", &-1.0).await;
    let nobody = requester.request_json("math.log", &1.0).await;
    stream(&client, "EVENTS", "events.>").await?;
    let stored = requester.request_json_into::<_, f64>("events.root", &1.0).await;
    for (outcome, expected) in [
        (failed.map(drop), ErrorKind::Handler),
        (nobody.map(drop), ErrorKind::NoResponders),
        (stored.map(drop), ErrorKind::Decode), // the reply is the stream's acknowledgement, and the error says so
    ] {
        let Err(error) = outcome else {
            return Err("it should fail".into());
        };
        println!("{error}");
        if error.kind() != expected {
            return Err(format!("{error:?} is not {expected:?}").into());
        }
    }
    first.drain(std::time::Duration::from_secs(5)).await;
    server.stop(&client).await
}
