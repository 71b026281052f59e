//! The collector: now and then, what nobody else measures.
//!
//! One task for each client. A question that fails leaves out its own values and nothing else. It stops when the client
//! begins to close.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::stream;
use tokio::time::{Instant, sleep_until};

use super::meters::Meters;
use crate::client::Inner;

/// How long to wait for the round trip.
const RTT_PATIENCE: Duration = Duration::from_secs(5);

/// Runs until the client begins to close, or goes.
pub(crate) async fn collect(weak: Weak<Inner>, meters: Arc<Meters>) {
    let Some((every, sample, stop)) = weak.upgrade().map(|inner| {
        let config = &inner.config;
        let sample = config.backpressure.queue_depth_sample_interval;
        (config.metrics.collect_interval(), sample, inner.intake.clone())
    }) else {
        return;
    };
    let sample = if sample.is_zero() {
        Duration::from_secs(5)
    } else {
        sample
    };
    let mut bytes = Bytes::default();
    let mut next = Instant::now() + jittered(every);
    let mut next_sample = Instant::now() + sample;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep_until(next.min(next_sample)) => {}
        }
        let Some(inner) = weak.upgrade() else { return };
        let now = Instant::now();
        if now >= next_sample {
            next_sample = now + sample;
            if let Some(depth) = inner.pool_depth() {
                meters.queue_depth.set(number(depth as u64));
            }
        }
        if now >= next {
            next = now + jittered(every);
            bytes.count(&inner, &meters);
            meters.factory.sink.upkeep();
            let round = look(&inner, &meters);
            tokio::select! {
                () = stop.cancelled() => return,
                () = round => {}
            }
        }
    }
}

/// Clients that were built together do not ask together.
fn jittered(every: Duration) -> Duration {
    every + every.mul_f64(0.1 * rand::random::<f64>())
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float, whatever it shows")]
fn number(value: u64) -> f64 {
    value as f64
}

/// The connection's counters as they were last seen.
#[derive(Default)]
struct Bytes {
    received: u64,
    sent: u64,
}

impl Bytes {
    fn count(&mut self, inner: &Inner, meters: &Meters) {
        let now = inner.nats.statistics();
        let (received, sent) = (
            now.in_bytes.load(Ordering::Relaxed),
            now.out_bytes.load(Ordering::Relaxed),
        );
        meters.in_bytes.increment(growth(&mut self.received, received));
        meters.out_bytes.increment(growth(&mut self.sent, sent));
    }
}

/// By how much a counter has grown; nothing when it began anew.
fn growth(last: &mut u64, now: u64) -> u64 {
    now.saturating_sub(std::mem::replace(last, now))
}

async fn look(inner: &Inner, meters: &Meters) {
    let connected = inner.nats.connection_state() == State::Connected;
    meters.state(connected);
    let config = &inner.config.metrics;
    if !connected || config.lite {
        return;
    }
    let factory = &meters.factory;
    if let Some(time) = inner.round_trip(RTT_PATIENCE).await {
        factory
            .histogram("connection_rtt_seconds", &[])
            .record(time.as_secs_f64());
    }
    if let Ok(account) = inner.js.query_account().await {
        factory
            .gauge("jetstream_memory_bytes", &[])
            .set(number(account.memory));
        factory
            .gauge("jetstream_storage_bytes", &[])
            .set(number(account.storage));
    }
    let mut ends = HashMap::new();
    for name in &config.tracked_streams {
        if let Some(info) = stream_info(inner, name).await {
            ends.insert(name.as_str(), info.state.last_sequence);
            stream_gauges(meters, config.names_as_subject, &info);
        }
    }
    for tracked in &config.tracked_consumers {
        let (stream, durable) = (tracked.stream.as_str(), tracked.durable.as_str());
        let Ok(info) = inner.consumer_info(stream, durable).await else {
            continue;
        };
        if !ends.contains_key(stream)
            && let Some(found) = stream_info(inner, stream).await
        {
            ends.insert(stream, found.state.last_sequence);
        }
        let both = format!("{stream}.{durable}");
        let old = [("subject", both.as_str())];
        let new = [("stream", stream), ("consumer", durable)];
        let labels: &[_] = if config.names_as_subject { &old } else { &new };
        let set = |name, value: u64| factory.gauge(name, labels).set(number(value));
        set("consumer_num_pending", info.num_pending);
        set("consumer_num_ack_pending", info.num_ack_pending as u64);
        set("consumer_num_redelivered", info.num_redelivered as u64);
        set("consumer_ack_floor", info.ack_floor.stream_sequence);
        if let Some(end) = ends.get(stream) {
            set(
                "consumer_lag_messages",
                crate::ops::slow::lag(*end, info.delivered.stream_sequence),
            );
        }
    }
}

async fn stream_info(inner: &Inner, name: &str) -> Option<stream::Info> {
    let what = format!("looking up {name}");
    inner
        .api(&what, format!("STREAM.INFO.{name}"), &serde_json::json!({}))
        .await
        .ok()
}

fn stream_gauges(meters: &Meters, names_as_subject: bool, info: &stream::Info) {
    let key = if names_as_subject { "subject" } else { "stream" };
    let labels = [(key, info.config.name.as_str())];
    let set = |name, value: u64| meters.factory.gauge(name, &labels).set(number(value));
    set("stream_messages", info.state.messages);
    set("stream_bytes", info.state.bytes);
    set("stream_first_seq", info.state.first_sequence);
    set("stream_last_seq", info.state.last_sequence);
    set("stream_consumer_count", info.state.consumer_count as u64);
    if let Some(cluster) = info.cluster.as_ref().filter(|cluster| cluster.name.is_some()) {
        set("stream_replica_count", cluster.replicas.len() as u64 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new connection begins to count from nothing; what it has counted by then is not added once more.
    #[test]
    fn a_counter_that_began_anew_adds_nothing() {
        let mut last = 0;
        let grown = [10, 25, 25, 7, 9].map(|now| growth(&mut last, now));
        assert_eq!(grown, [10, 15, 0, 0, 2]);
    }
}
