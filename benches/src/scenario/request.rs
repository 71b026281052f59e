//! Requests and replies: how long one takes, and how many go through.
//!
//! With one requester the figure is the latency of an idle server; with sixteen it shows how well
//! small messages of several connections are served together.

use std::time::Duration;

use anyhow::Result;

use super::{CpuMeter, Scenario};
use crate::{
    metric::{Metric, Sample},
    pingpong::PingPong,
    server::Server,
    stats::quantile_us,
};

const PAYLOAD: &[u8] = b"sixteen bytes ..";

struct Request {
    concurrent: usize,
}

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(Request { concurrent: 1 }),
        Box::new(Request { concurrent: 16 }),
    ]
}

impl Scenario for Request {
    fn name(&self) -> String {
        format!("request/{}", self.concurrent)
    }

    fn about(&self) -> String {
        format!(
            "{} requester(s) with one request each on its way, 1 responder, 16 B payload",
            self.concurrent
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::P50Us, 1.0), (Metric::ServerCpuNs, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let load = PingPong::connect(server.address, self.concurrent, PAYLOAD)?;
        let meter = CpuMeter::start(server);
        let (mut latencies, elapsed) = load.run(length)?;
        let count = latencies.len() as u64;
        let sample = Sample::default()
            .with(Metric::Rate, count as f64 / elapsed.as_secs_f64())
            .with(Metric::P50Us, quantile_us(&mut latencies, 0.50))
            .with(Metric::P99Us, quantile_us(&mut latencies, 0.99));
        Ok(meter.finish(sample, count))
    }
}
