//! Publishing, and requests with their answers.

use std::{collections::VecDeque, future::IntoFuture as _, sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use windjet_client::Message;
use windjet_client::rpc::{Call, RespondOptions};

use super::{Case, Ground, payload};

const SUBJECT: &str = "sent.a";
/// Publishes under way at a time, where nobody waits for each.
const WINDOW: usize = 256;
/// Operations between two looks at the clock.
const STRIDE: u32 = 32;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "plain/publish",
            about: "publish into a stream, and wait for each",
            base: |ground| Box::pin(plain_publish(ground)),
            other: |ground| Box::pin(kit_publish(ground)),
        },
        Case {
            name: "plain/publish-async",
            about: "publish into a stream, 256 under way at a time",
            base: |ground| Box::pin(plain_window(ground)),
            other: |ground| Box::pin(kit_window(ground)),
        },
        Case {
            name: "plain/request",
            about: "request and answer, both ends on one connection",
            base: |ground| Box::pin(plain_request(ground)),
            other: |ground| Box::pin(kit_request(ground)),
        },
    ]
}

/// Subscriptions of both sides that answer requests.
pub(super) async fn serve(ground: &Ground) -> Result<()> {
    let mut requests = ground.plain.subscribe("plain.echo").await?;
    let plain = ground.plain.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            if let Some(reply) = request.reply {
                // A server that is gone ends the measurement elsewhere.
                let _ = plain.publish(reply, request.payload).await;
            }
        }
    });
    let echo = |call: Arc<Call>| async move { call.respond_bytes(call.message().payload.clone()).await };
    // It lasts as long as its client.
    let _lasting = ground
        .kit
        .responder()
        .subscribe("kit.echo", RespondOptions::default(), echo)
        .await?;
    ground
        .kit
        .requester()
        .request_bytes("kit.echo", payload())
        .await?;
    while ground.plain.request("plain.echo", payload()).await.is_err() {}
    Ok(())
}

/// Repeats `once` for the length of a round; nanoseconds of each.
async fn repeated(ground: &Ground, mut once: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < ground.length {
        for _ in 0..STRIDE {
            once().await?;
        }
        count += STRIDE;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(count))
}

async fn plain_publish(ground: &Ground) -> Result<f64> {
    repeated(ground, async || {
        ground.js.publish(SUBJECT, payload()).await?.await?;
        Ok(())
    })
    .await
}

async fn kit_publish(ground: &Ground) -> Result<f64> {
    let publisher = ground.kit.publisher();
    repeated(ground, async || {
        publisher.publish_bytes(SUBJECT, payload()).await?;
        Ok(())
    })
    .await
}

async fn plain_window(ground: &Ground) -> Result<f64> {
    let mut window = VecDeque::with_capacity(WINDOW);
    let each = repeated(ground, async || {
        if window.len() == WINDOW {
            let oldest: async_nats::jetstream::context::PublishAckFuture =
                window.pop_front().context("an empty window")?;
            oldest.into_future().await?;
        }
        window.push_back(ground.js.publish(SUBJECT, payload()).await?);
        Ok(())
    })
    .await?;
    for rest in window {
        rest.await?;
    }
    Ok(each)
}

async fn kit_window(ground: &Ground) -> Result<f64> {
    let publisher = ground.kit.publisher();
    let mut window = VecDeque::with_capacity(WINDOW);
    let each = repeated(ground, async || {
        if window.len() == WINDOW {
            let oldest: windjet_client::publisher::Pending = window.pop_front().context("an empty window")?;
            oldest.await?;
        }
        window.push_back(publisher.publish_async(SUBJECT, Message::raw(payload())).await?);
        Ok(())
    })
    .await?;
    for rest in window {
        rest.await?;
    }
    Ok(each)
}

async fn plain_request(ground: &Ground) -> Result<f64> {
    repeated(ground, async || {
        ground.plain.request("plain.echo", payload()).await?;
        Ok(())
    })
    .await
}

async fn kit_request(ground: &Ground) -> Result<f64> {
    let requester = ground.kit.requester();
    repeated(ground, async || {
        requester.request_bytes("kit.echo", payload()).await?;
        Ok(())
    })
    .await
}
