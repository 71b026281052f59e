//! Monitoring: what the server tells about itself, as documents, and the HTTP listener that serves them.
//!
//! One file per document. A document is a plain struct whose fields are in the order of nats-server's and are left out
//! where it leaves them out; a function builds it from the server's state. The same functions serve HTTP ([`http`]) and
//! requests in the system account ([`crate::system`]).
//!
//! Building a document takes no lock for longer than a look-up or a copy of a list, so that asking often costs the
//! message path little. `jsz` and `healthz` may wait for streams and for the disk, so they are built on the blocking pool.

mod accountz;
mod accstatz;
mod connz;
mod format;
mod healthz;
mod http;
mod jetstream;
mod jsz;
mod neighbours;
mod params;
mod process;
mod subsz;
mod varz;

use std::collections::BTreeMap;

use parking_lot::Mutex;

pub(crate) use accountz::{AccountzOptions, account_detail, accountz};
pub(crate) use accstatz::{AccountStat, AccstatzOptions, accstatz};
pub(crate) use connz::{ConnzOptions, connz};
pub(crate) use format::{compact, float, rfc3339};
pub(crate) use healthz::{HealthzOptions, healthz};
pub(crate) use http::{Variables, open};
pub(crate) use jetstream::Overview;
pub(crate) use jsz::{JszOptions, account_jsz, jsz};
pub(crate) use neighbours::{gatewayz, leafz, routez};
pub(crate) use process::{Process, cores, memory_of_machine};
pub(crate) use subsz::{SubszOptions, subsz};
pub(crate) use varz::{FeatureFlags, tags, varz};

/// What monitoring remembers between two questions.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Requests by path.
    requests: Mutex<BTreeMap<&'static str, u64>>,
    /// The clock of the processor time.
    pub(crate) process: Process,
}

impl State {
    /// Counts a request.
    fn count(&self, path: &'static str) {
        *self.requests.lock().entry(path).or_default() += 1;
    }

    /// Requests by path since the start.
    fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.requests.lock().clone()
    }
}

/// Why a document cannot be given: the words that the client reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);
