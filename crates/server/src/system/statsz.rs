//! `statsz`: the short form of the server's counters, for those who watch many servers.

use std::sync::atomic::Ordering;

use serde::Serialize;

use super::envelope::ServerInfo;
use crate::monitor::{Overview, cores, float, rfc3339};
use crate::server::Shared;

/// The message: envelope and counters.
#[derive(Debug, Serialize)]
pub(super) struct StatszMessage {
    server: ServerInfo,
    statsz: Statsz,
}

#[derive(Debug, Serialize)]
struct Statsz {
    start: String,
    mem: u64,
    cores: usize,
    #[serde(serialize_with = "float")]
    cpu: f64,
    connections: usize,
    total_connections: u64,
    active_accounts: usize,
    subscriptions: usize,
    sent: Traffic,
    sent_to_clients: Traffic,
    received: Traffic,
    received_from_clients: Traffic,
    slow_consumers: u64,
    active_servers: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    jetstream: Option<Overview>,
    gomaxprocs: usize,
}

/// Messages and bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Traffic {
    pub(super) msgs: u64,
    pub(super) bytes: u64,
}

impl From<(u64, u64)> for Traffic {
    fn from((msgs, bytes): (u64, u64)) -> Self {
        Self { msgs, bytes }
    }
}

impl StatszMessage {
    /// The counters now.
    pub(super) fn now(shared: &Shared) -> Self {
        let counts = shared.stats.counts();
        let sent = Traffic::from((counts.out_msgs, counts.out_bytes));
        let received = Traffic::from((counts.in_msgs, counts.in_bytes));
        let cores = cores();
        let active = |connections: u64| connections > 0;
        Self {
            server: ServerInfo::now(shared),
            statsz: Statsz {
                start: rfc3339(shared.started),
                mem: shared.monitor.process.memory(),
                cores,
                cpu: shared.monitor.process.cpu_percent(),
                connections: shared.registry.len(),
                total_connections: counts.total_connections,
                active_accounts: shared
                    .accounts
                    .all()
                    .iter()
                    .filter(|account| active(account.connections.load(Ordering::Relaxed)))
                    .count(),
                subscriptions: shared.subscriptions(),
                sent,
                sent_to_clients: sent,
                received,
                received_from_clients: received,
                slow_consumers: counts.slow_consumers,
                active_servers: 1,
                jetstream: shared.jetstream().map(|js| Overview::for_others(&js)),
                gomaxprocs: cores,
            },
        }
    }
}
