//! A work queue from end to end: published, acknowledged, fetched, acknowledged and so removed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mio::{Events, Poll};
use serde_json::json;

use super::publish::Publisher;
use super::read::Puller;
use super::{ALWAYS, PAYLOAD, STREAM, empty_stream, messages};
use crate::{
    metric::{Metric, Sample},
    peer::{Admin, Peer, Watch, wait},
    scenario::{CpuMeter, Scenario},
    server::Server,
    session::PATIENCE,
    wait::until,
};

/// Publishes on their way.
const WINDOW: u64 = 1000;
/// Messages that may lie in the queue.
const BACKLOG: u64 = 4000;
/// Messages that one request asks for.
const BATCH: u64 = 500;

struct WorkQueue;

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(WorkQueue)]
}

impl Scenario for WorkQueue {
    fn name(&self) -> String {
        "js/work-queue/always".to_owned()
    }

    fn about(&self) -> String {
        format!(
            "1 publisher with up to {WINDOW} unacknowledged, 1 worker that pulls {BATCH} at a time and acknowledges each, \
             {PAYLOAD} B; both sync before they acknowledge a publish"
        )
    }

    fn config(&self) -> Option<&str> {
        Some(ALWAYS)
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::Rate, 15.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let mut admin = Admin::open(server.address)?;
        empty_stream(&mut admin, &json!({"retention": "workqueue"}))?;
        let config = json!({"durable_name": "WORKER", "ack_policy": "explicit", "max_ack_pending": 10_000});
        let body = json!({"stream_name": STREAM, "config": config});
        admin.api(&format!("CONSUMER.DURABLE.CREATE.{STREAM}.WORKER"), &body)?;

        let mut poll = Poll::new()?;
        let peer = Peer::open(server.address, "_INBOX.p", &poll, 0)?;
        let mut publisher = Publisher::plain(peer, "_INBOX.p", WINDOW);
        let peer = Peer::open(server.address, "_INBOX.w", &poll, 1)?;
        let mut worker = Puller::new(peer, "_INBOX.w", "WORKER", true, BATCH, BATCH);
        let mut events = Events::with_capacity(16);
        let mut watch = Watch::start();
        let meter = CpuMeter::start(server);
        let start = Instant::now();
        loop {
            let go_on = start.elapsed() < length;
            let limit = if go_on { worker.received + BACKLOG } else { 0 };
            let moved =
                publisher.turn(limit)? | worker.turn(BATCH, go_on || worker.received < publisher.sent())?;
            if !go_on && publisher.acked() == publisher.sent() && worker.received == publisher.sent() {
                break;
            }
            watch.look(moved)?;
            wait(&mut poll, &mut events, moved, |at, event| {
                let peer = if at == 0 {
                    &mut publisher.peer
                } else {
                    &mut worker.peer
                };
                peer.ready(event);
            })?;
        }
        let elapsed = start.elapsed();
        let sample = Sample::default().with(Metric::Rate, worker.received as f64 / elapsed.as_secs_f64());
        let sample = meter.finish(sample, worker.received);
        // The last acknowledgements may still be on their way out of the socket.
        let empty = until(PATIENCE, || {
            worker.peer.flush().ok()?;
            (messages(&mut admin).ok()? == Some(0)).then_some(())
        });
        ensure!(empty.is_some(), "messages stay in the queue");
        empty.context("messages stay in the queue")?;
        Ok(sample)
    }
}
