//! Latency next to bulk: requests while another connection publishes as fast as the server takes it.
//!
//! What it shows: whether a busy connection keeps the others waiting. The rate counts requests; processor
//! time is not reported, since most of it goes to the flood.

use std::time::Duration;

use anyhow::{Result, anyhow};

use super::{Scenario, publish::batch};
use crate::{
    flood::{Delivery, Flood},
    metric::{Metric, Sample},
    pingpong::PingPong,
    server::Server,
    session::Session,
    stats::quantile_us,
};

const PAYLOAD: &[u8] = b"sixteen bytes ..";

struct RequestsBesideFlood;

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(RequestsBesideFlood)]
}

impl Scenario for RequestsBesideFlood {
    fn name(&self) -> String {
        "request-beside-flood".to_owned()
    }

    fn about(&self) -> String {
        "1 requester, 1 responder, 16 B; meanwhile 1 publisher floods 16 B messages nobody wants".to_owned()
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::P50Us, 1.0), (Metric::P99Us, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let publisher = (Session::open(server.address)?, batch("bench.in", 16));
        let flood = Flood::new(vec![publisher], Vec::new(), Delivery::ToEach, 0)?;
        let requests = PingPong::connect(server.address, 1, PAYLOAD)?;
        let (mut latencies, elapsed) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| flood.run(length));
            let answered = requests.run(length);
            flood.join().map_err(|_| anyhow!("a load thread panicked"))??;
            answered
        })?;
        let count = latencies.len() as f64;
        Ok(Sample::default()
            .with(Metric::Rate, count / elapsed.as_secs_f64())
            .with(Metric::P50Us, quantile_us(&mut latencies, 0.50))
            .with(Metric::P99Us, quantile_us(&mut latencies, 0.99)))
    }
}
