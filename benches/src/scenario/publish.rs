//! Ingest: publishes nobody subscribes to.
//!
//! What it shows: reading, parsing and routing to nowhere; the upper bound of everything else.

use std::time::Duration;

use anyhow::Result;

use super::{Scenario, measure_flood};
use crate::{
    flood::{Batch, Delivery, Flood},
    metric::{Metric, Sample},
    server::Server,
    session::{Session, publishes},
};

/// Length of a prepared batch in bytes, about.
pub(super) const BATCH_BYTES: usize = 64 * 1024;

/// Publishes of `payload_len` bytes that fill about [`BATCH_BYTES`].
pub(super) fn batch(subject: &str, payload_len: usize) -> Batch {
    let payload = vec![b'x'; payload_len];
    let one = publishes(subject, "", &payload, 1).len();
    let count = (BATCH_BYTES / one).max(1);
    Batch {
        bytes: publishes(subject, "", &payload, count),
        messages: count as u64,
    }
}

struct Publish {
    payload_len: usize,
    publishers: usize,
}

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(Publish {
            payload_len: 16,
            publishers: 1,
        }),
        Box::new(Publish {
            payload_len: 16,
            publishers: 8,
        }),
        Box::new(Publish {
            payload_len: 1024,
            publishers: 1,
        }),
    ]
}

impl Scenario for Publish {
    fn name(&self) -> String {
        let many = if self.publishers == 1 {
            String::new()
        } else {
            format!("x{}", self.publishers)
        };
        format!("pub{many}/{}B", self.payload_len)
    }

    fn about(&self) -> String {
        format!(
            "{} publisher(s), no subscriber, {} B payload",
            self.publishers, self.payload_len
        )
    }

    fn goals(&self) -> &[(Metric, f64)] {
        &[(Metric::ServerCpuNs, 1.0)]
    }

    fn round(&self, server: &Server, length: Duration) -> Result<Sample> {
        let publishers = (0..self.publishers)
            .map(|_| {
                Ok((
                    Session::open(server.address)?,
                    batch("bench.in", self.payload_len),
                ))
            })
            .collect::<Result<Vec<_>>>()?;
        measure_flood(
            server,
            Flood::new(publishers, Vec::new(), Delivery::ToEach, 0)?,
            length,
        )
    }
}
