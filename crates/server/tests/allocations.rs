//! Publishing from this process allocates by batch, not by message. All threads of the process are counted, the stream's
//! task and the journal among them, so this is a program of its own with a single test.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::alloc::System;
use std::time::Duration;

use bytes::Bytes;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use windjet_server::Server;
use windjet_server::jetstream::{JetStreamContext, Publish, StreamConfig};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 20;
const BURST: usize = 2000;

async fn publish(js: &JetStreamContext, acks: &mut Vec<Publish>, rounds: usize) {
    let payload = Bytes::from_static(b"a payload of some bytes");
    for _ in 0..rounds {
        for _ in 0..BURST {
            acks.push(js.publish("S", "s.a", payload.clone()).unwrap());
        }
        for ack in acks.drain(..) {
            ack.await.unwrap();
        }
    }
}

/// On one thread a burst is one batch. On several, how many batches it becomes is the scheduler's business, and so would be
/// what is counted.
#[tokio::test(flavor = "current_thread")]
async fn a_publish_costs_no_allocation_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::builder().jetstream(folder.path()).start().await.unwrap();
    let js = server.jetstream().unwrap();
    let config: StreamConfig = serde_json::from_str(r#"{"name":"S","subjects":["s.*"]}"#).unwrap();
    js.create_stream(config).await.unwrap();
    let mut acks = Vec::with_capacity(BURST);
    // What grows to its size once is not counted.
    publish(&js, &mut acks, 5).await;
    let region = Region::new(ALLOCATOR);
    publish(&js, &mut acks, ROUNDS).await;
    let stats = region.change();
    let made = stats.allocations + stats.reallocations;
    let messages = ROUNDS * BURST;
    assert!(
        made < messages / 20,
        "{made} allocations for {messages} messages: something is allocated for each"
    );
    assert!(server.shutdown(Duration::from_secs(20)).await.complete);
}
