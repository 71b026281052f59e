//! One publisher, one or more subscribers: plain, fanned out, and as a queue group.
//!
//! The unit is the published message, also where ten subscribers receive it.

use std::time::Duration;

use anyhow::Result;

use super::{Scenario, measure_flood, publish::batch};
use crate::{
    flood::{Delivery, Flood},
    metric::{Metric, Sample},
    server::Server,
    session::{Session, message_len},
};

const SUBJECT: &str = "bench.data";

struct PubSub {
    family: &'static str,
    subscribers: usize,
    /// Empty: every subscriber gets every message.
    group: &'static str,
    payload_len: usize,
    goals: [(Metric, f64); 2],
}

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    let goals = |rate| [(Metric::Rate, rate), (Metric::ServerCpuNs, 1.0)];
    let plain = |family, subscribers, payload_len, rate| PubSub {
        family,
        subscribers,
        group: "",
        payload_len,
        goals: goals(rate),
    };
    let queue = PubSub {
        family: "queue8",
        subscribers: 8,
        group: "workers",
        payload_len: 16,
        goals: goals(1.0),
    };
    vec![
        Box::new(plain("pubsub", 1, 16, 1.2)),
        Box::new(plain("pubsub", 1, 1024, 1.2)),
        // The kernel copies; a server can add little to that and save little.
        Box::new(plain("pubsub", 1, 65_536, 1.0)),
        Box::new(plain("fanout10", 10, 16, 1.2)),
        Box::new(plain("fanout10", 10, 1024, 1.2)),
        Box::new(queue),
    ]
}

impl Scenario for PubSub {
    fn name(&self) -> String {
        format!("{}/{}B", self.family, self.payload_len)
    }

    fn about(&self) -> String {
        let how = if self.group.is_empty() {
            "subscriber(s)"
        } else {
            "members of one queue group"
        };
        format!(
            "1 publisher, {} {how}, {} B payload",
            self.subscribers, self.payload_len
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &self.goals
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let frame_len = message_len(SUBJECT, "", self.payload_len);
        let subscribers = (0..self.subscribers)
            .map(|_| {
                let mut session = Session::open(server.address)?;
                session.subscribe(SUBJECT, self.group, frame_len)?;
                Ok(session)
            })
            .collect::<Result<Vec<_>>>()?;
        let publisher = (Session::open(server.address)?, batch(SUBJECT, self.payload_len));
        let delivery = if self.group.is_empty() {
            Delivery::ToEach
        } else {
            Delivery::ToOne
        };
        measure_flood(
            server,
            Flood::new(vec![publisher], subscribers, delivery, frame_len)?,
            length,
        )
    }
}
