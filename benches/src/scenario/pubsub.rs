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
    rate_goal: f64,
}

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    let plain = |family, subscribers, payload_len| {
        Box::new(PubSub {
            family,
            subscribers,
            group: "",
            payload_len,
            rate_goal: 1.2,
        }) as Box<dyn Scenario>
    };
    vec![
        plain("pubsub", 1, 16),
        plain("pubsub", 1, 1024),
        plain("pubsub", 1, 65_536),
        plain("fanout10", 10, 16),
        plain("fanout10", 10, 1024),
        Box::new(PubSub {
            family: "queue8",
            subscribers: 8,
            group: "workers",
            payload_len: 16,
            rate_goal: 1.0,
        }),
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
        if self.rate_goal > 1.0 {
            &[(Metric::Rate, 1.2), (Metric::ServerCpuNs, 1.0)]
        } else {
            &[(Metric::Rate, 1.0), (Metric::ServerCpuNs, 1.0)]
        }
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
