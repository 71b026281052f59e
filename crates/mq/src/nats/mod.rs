//! Everything that knows NATS: the topology an operator provides, and the broker on it.
//!
//! What the operator must have created is a [`Topology`]: N partition streams with work-queue retention, each split into V
//! shards with a pinned durable each and republishing what it stores to one history stream; a dead-letter stream; a key-value
//! bucket for leases. [`write_manifests`] and [`write_permissions`] generate it; [`check_topology`] finds every difference. Nothing here
//! ever creates, changes or deletes a stream or a durable of the operator's.

mod api;
mod external;
mod finding;
mod manifests;
mod permissions;
mod refusals;
mod route;
mod text;
mod topology;
mod units;
mod verify;

#[cfg(feature = "embedded")]
pub(crate) use external::{Arrival, Arrived, Identity};
pub use external::{Auth, ExternalConfig, ExternalNats, LeaseTimings, NatsLeases, Tls, check_topology};
pub use finding::{Finding, Severity, TopologyError};
pub use manifests::{ManifestOptions, write_manifests};
pub use permissions::write_permissions;
pub use text::{InvalidSize, format_duration, format_store_size, parse_store_size};
pub use topology::{
    DEFAULT_FILE_STORE, DEFAULT_INGEST_CONSUMER, DEFAULT_PARTITIONS, DEFAULT_PREFIX, DEFAULT_PUBLISH_TIMEOUT,
    DEFAULT_SHARDS, MAX_SHARDS, METADATA_PARTITION, METADATA_PARTITIONS, METADATA_SHARDS, PRIORITY_GROUP,
    Topology, default_coord_bucket,
};
