//! What the broker measures, through the `metrics` facade: nothing goes anywhere unless the program installs a recorder, which
//! it does before it connects.
//!
//! | name | kind | |
//! |---|---|---|
//! | `wavehouse_mq_connected` | gauge | 1 with a connection, 0 without |
//! | `wavehouse_mq_topology_ok` | gauge | 1 while the topology is as needed as far as known, else 0 |
//! | `wavehouse_mq_history_behind_seconds` | gauge | how far the history trails the partitions |
//!
//! All have the label `connection` with [`ExternalConfig::name`](super::ExternalConfig::name). Of brokers with one name the gauges are
//! those of the one that connected last: give each a name of its own. A closed one leaves `wavehouse_mq_connected` at 0 and the others
//! at NaN, with which no alert compares.

use std::time::Duration;

use metrics::{Gauge, gauge};

/// Handles made when the broker begins.
pub(super) struct Meters {
    connected: Gauge,
    topology_ok: Gauge,
    behind: Gauge,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

impl Meters {
    pub(super) fn new(connection: &str) -> Self {
        let of = |name: &'static str| gauge!(name, "connection" => connection.to_owned());
        Self {
            connected: of("wavehouse_mq_connected"),
            topology_ok: of("wavehouse_mq_topology_ok"),
            behind: of("wavehouse_mq_history_behind_seconds"),
        }
    }

    pub(super) fn tell(&self, connected: bool, topology_ok: bool) {
        self.connected.set(f64::from(u8::from(connected)));
        self.topology_ok.set(f64::from(u8::from(topology_ok)));
    }

    pub(super) fn tell_behind(&self, behind: Duration) {
        self.behind.set(behind.as_secs_f64());
    }

    pub(super) fn end(self) {
        self.connected.set(0.0);
        self.topology_ok.set(f64::NAN);
        self.behind.set(f64::NAN);
    }
}
