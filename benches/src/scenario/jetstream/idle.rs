//! What lies idle: what a durable consumer and a stream hold in memory while nobody uses them, and what they cost in processor time.

use std::time::Duration;

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

/// How long a server is left alone before it is measured.
const SETTLE: Duration = Duration::from_secs(10);
/// How long its processor time is counted.
const COUNTED: Duration = Duration::from_secs(20);

/// What is made.
#[derive(Clone, Copy)]
enum Kind {
    Durables,
    Streams,
}

struct Idle {
    kind: Kind,
    count: u64,
}

/// The scenarios of this file.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(Idle {
            kind: Kind::Durables,
            count: 100_000,
        }),
        Box::new(Idle {
            kind: Kind::Streams,
            count: 10_000,
        }),
    ]
}

impl Idle {
    fn call(&self, number: u64) -> (String, Value) {
        match self.kind {
            Kind::Durables => {
                let name = format!("worker-{number:06}");
                let config = json!({
                    "stream_name": STREAM,
                    "config": {
                        "durable_name": name,
                        "name": name,
                        "ack_policy": "explicit",
                        "filter_subject": format!("bench.{number:06}"),
                    },
                });
                (format!("CONSUMER.CREATE.{STREAM}.{name}"), config)
            }
            Kind::Streams => {
                let name = format!("idle-{number:06}");
                let config = json!({"name": name, "subjects": [format!("idle.{number:06}")]});
                (format!("STREAM.CREATE.{name}"), config)
            }
        }
    }
}

impl Scenario for Idle {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Durables => "durables",
            Kind::Streams => "streams",
        };
        format!("js/idle-{kind}")
    }

    fn about(&self) -> String {
        let what = match self.kind {
            Kind::Durables => "durable consumers with a filter each, on one stream without messages",
            Kind::Streams => "streams without messages",
        };
        format!(
            "{} {what}, {} s after the last was made; their processor time over {} s",
            self.count,
            SETTLE.as_secs(),
            COUNTED.as_secs()
        )
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
        if matches!(self.kind, Kind::Durables) {
            empty_stream(&mut admin, &Value::Null)?;
        }
        let before = server.memory();
        admin.api_all((0..self.count).map(|number| self.call(number)))?;
        drop(admin);
        until(SETTLE, || None::<()>);
        let after = server.memory();
        let growth = before
            .zip(after)
            .map(|(before, after)| after.pss.saturating_sub(before.pss) as f64);
        let meter = CpuMeter::start(server);
        until(COUNTED, || None::<()>);
        let sample = meter.finish(Sample::default(), 1);
        Ok(Sample::default()
            .with(
                Metric::PssEachKib,
                growth.map(|bytes| bytes / 1024.0 / self.count as f64),
            )
            .with(
                Metric::PssMib,
                after.map(|memory| memory.pss as f64 / f64::from(1 << 20)),
            )
            .with(Metric::ServerShare, sample.get(Metric::ServerShare)))
    }
}
