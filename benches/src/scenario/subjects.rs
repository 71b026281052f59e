//! Many subjects: more than any server remembers routes for.
//!
//! One publisher goes round ten thousand subjects that one wildcard subscription matches, so that each
//! message is matched anew. Beside it stand a thousand subscriptions that do not match.

use std::time::Duration;

use anyhow::Result;

use super::{Scenario, measure_flood};
use crate::{
    flood::{Batch, Delivery, Flood},
    metric::{Metric, Sample},
    server::Server,
    session::{Session, message_len, publishes},
};

const PAYLOAD: &[u8] = b"sixteen bytes ..";
const SUBJECTS: usize = 10_000;
const OTHERS: usize = 1_000;

struct Subjects;

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![Box::new(Subjects)]
}

fn subject(number: usize) -> String {
    format!("devices.{number:05}.state")
}

impl Scenario for Subjects {
    fn name(&self) -> String {
        format!("subjects/{SUBJECTS}")
    }

    fn about(&self) -> String {
        format!(
            "1 publisher over {SUBJECTS} subjects, 1 wildcard subscriber, {OTHERS} subscriptions beside, 16 B"
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::Rate, 1.0), (Metric::ServerCpuNs, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let frame_len = message_len(&subject(0), "", PAYLOAD.len());
        let mut subscriber = Session::open(server.address)?;
        subscriber.subscribe("devices.*.state", "", frame_len)?;
        let mut beside = Session::open(server.address)?;
        beside.subscribe_many((0..OTHERS).map(|number| format!("devices.{number:05}.alarm")))?;
        let bytes = (0..SUBJECTS)
            .flat_map(|number| publishes(&subject(number), "", PAYLOAD, 1))
            .collect();
        let batch = Batch {
            bytes,
            messages: SUBJECTS as u64,
        };
        let publisher = (Session::open(server.address)?, batch);
        measure_flood(
            server,
            Flood::new(vec![publisher], vec![subscriber], Delivery::ToEach, frame_len)?,
            length,
        )
    }
}
