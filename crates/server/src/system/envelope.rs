//! The server as its own messages name it, and the unique ids of events.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use crate::monitor::{FeatureFlags, rfc3339, tags};
use crate::options::ConnectionType;
use crate::server::{PROTOCOL_VERSION, Shared};

/// What a server with JetStream says it can: JetStream, snapshots in binary form, and telling of its accounts.
const JETSTREAM_FLAGS: u64 = 7;

/// The `server` object. Each one made has the next sequence number.
#[derive(Debug, Serialize)]
pub(crate) struct ServerInfo {
    name: String,
    host: String,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    ver: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    feature_flags: FeatureFlags,
    jetstream: bool,
    flags: u64,
    seq: u64,
    time: String,
}

impl ServerInfo {
    /// The server now.
    pub(crate) fn now(shared: &Shared) -> Self {
        let options = shared.options();
        Self {
            name: shared.name.clone(),
            host: shared.advertised(ConnectionType::Standard).0,
            id: shared.id.clone(),
            domain: shared.jetstream().and_then(|js| js.options().domain.clone()),
            ver: PROTOCOL_VERSION,
            tags: tags(&options),
            metadata: options.server_metadata.clone(),
            feature_flags: FeatureFlags::default(),
            jetstream: shared.jetstream().is_some(),
            flags: if shared.jetstream().is_some() {
                JETSTREAM_FLAGS
            } else {
                0
            },
            seq: shared.system.next(),
            time: rfc3339(SystemTime::now()),
        }
    }
}

/// An id of 22 characters that no other event has.
pub(super) fn unique_id() -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    (0..22)
        .map(|_| char::from(DIGITS[rand::random_range(0..DIGITS.len())]))
        .collect()
}
