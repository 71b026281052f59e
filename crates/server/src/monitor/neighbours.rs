//! `routez`, `leafz` and `gatewayz`: other servers, of which a single server has none.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use super::format::rfc3339;
use crate::server::Shared;

/// The routes document.
#[derive(Debug, Serialize)]
pub(crate) struct Routez {
    server_id: String,
    server_name: String,
    now: String,
    num_routes: u32,
    routes: [(); 0],
}

/// The leaf nodes document.
#[derive(Debug, Serialize)]
pub(crate) struct Leafz {
    server_id: String,
    now: String,
    leafnodes: u32,
    leafs: [(); 0],
}

/// The gateways document.
#[derive(Debug, Serialize)]
pub(crate) struct Gatewayz {
    server_id: String,
    now: String,
    outbound_gateways: BTreeMap<(), ()>,
    inbound_gateways: BTreeMap<(), ()>,
}

/// No routes.
pub(crate) fn routez(shared: &Shared) -> Routez {
    Routez {
        server_id: shared.id.clone(),
        server_name: shared.name.clone(),
        now: rfc3339(SystemTime::now()),
        num_routes: 0,
        routes: [],
    }
}

/// No leaf nodes.
pub(crate) fn leafz(shared: &Shared) -> Leafz {
    Leafz {
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        leafnodes: 0,
        leafs: [],
    }
}

/// No gateways.
pub(crate) fn gatewayz(shared: &Shared) -> Gatewayz {
    Gatewayz {
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        outbound_gateways: BTreeMap::new(),
        inbound_gateways: BTreeMap::new(),
    }
}
