//! What streams and durable consumers hold while nothing happens: memory for each, and processor time of all together.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::{DEFAULT, STREAM, empty_stream};
use crate::{
    metric::{Metric, Sample},
    peer::Admin,
    scenario::{CpuMeter, Scenario},
    server::Server,
    wait::until,
};

/// Requests under way while they are made.
const WINDOW: usize = 64;
/// How long a server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(10);
/// How long its processor time is watched after that.
const WATCHED: Duration = Duration::from_secs(30);

enum Idle {
    Durables(usize),
    Streams(usize),
}

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(Idle::Durables(100_000)), Box::new(Idle::Streams(10_000))]
}

impl Idle {
    fn requests(&self) -> Box<dyn Iterator<Item = (String, Value)>> {
        match *self {
            Self::Durables(count) => Box::new((0..count).map(|number| {
                let name = format!("worker-{number:06}");
                let config = json!({
                    "durable_name": name, "ack_policy": "explicit", "filter_subject": format!("bench.{number:06}"),
                });
                (
                    format!("CONSUMER.DURABLE.CREATE.{STREAM}.{name}"),
                    json!({"stream_name": STREAM, "config": config}),
                )
            })),
            Self::Streams(count) => Box::new((0..count).map(|number| {
                let name = format!("IDLE-{number:06}");
                let config = json!({"name": name, "subjects": [format!("idle.{number:06}")], "storage": "file"});
                (format!("STREAM.CREATE.{name}"), config)
            })),
        }
    }
}

impl Scenario for Idle {
    fn name(&self) -> String {
        match self {
            Self::Durables(_) => "js/idle-durables".to_owned(),
            Self::Streams(_) => "js/idle-streams".to_owned(),
        }
    }

    fn about(&self) -> String {
        match self {
            Self::Durables(count) => {
                format!("{count} durable consumers of one empty stream, a filter each; rate: made per second")
            }
            Self::Streams(count) => format!("{count} empty streams; rate: made per second"),
        }
    }

    fn config(&self) -> Option<&str> {
        Some(DEFAULT)
    }

    fn fresh_server(&self) -> bool {
        true
    }

    fn rounds_at_most(&self) -> usize {
        1
    }

    fn round(&self, server: &Server, _length: Duration) -> Result<Sample> {
        let mut admin = Admin::open(server.address)?;
        empty_stream(&mut admin, &Value::Null)?;
        let before = server.memory();
        let start = Instant::now();
        let made = admin.api_all(self.requests(), WINDOW)?;
        let rate = made as f64 / start.elapsed().as_secs_f64();
        drop(admin);
        until(SETTLE, || None::<()>);
        let growth = before
            .zip(server.memory())
            .map(|(before, after)| after.pss.saturating_sub(before.pss));
        let meter = CpuMeter::start(server);
        until(WATCHED, || None::<()>);
        let watched = meter.finish(Sample::default(), 1);
        Ok(Sample::default()
            .with(Metric::Rate, rate)
            .with(
                Metric::PssEachKib,
                growth.map(|bytes| bytes as f64 / 1024.0 / made as f64),
            )
            .with(Metric::ServerShare, watched.get(Metric::ServerShare)))
    }
}
