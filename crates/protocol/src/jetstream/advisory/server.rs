//! Events of the server: audit, overload, a full disk.

use serde::{Deserialize, Serialize};

use super::event_body;
use crate::jetstream::{Nanos, Timestamp};

/// Who sent a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientInfo {
    /// Since when it is connected.
    #[serde(skip_serializing_if = "Timestamp::is_zero")]
    pub start: Timestamp,
    /// Its address; none in process.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Number of the connection.
    pub id: u64,
    /// Its account.
    pub acc: String,
    /// Its user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Language of its library.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lang: String,
    /// Version of its library.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ver: String,
    /// Round trip time; 0 for unknown.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub rtt: Nanos,
    /// Name of the server it is connected to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// What it is: `Client`, or `JetStream` for the server's own requests.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// How it talks: `nats`, `mqtt` or `websocket`; none in process.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_type: String,
}

/// A call of the API and its answer.
///
/// Published for every call except successful message gets and direct gets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiAudit {
    /// Name of the server.
    pub server: String,
    /// Who called.
    pub client: ClientInfo,
    /// Subject of the call.
    pub subject: String,
    /// Body of the request as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Body of the answer as text.
    pub response: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(ApiAudit, "advisory.v1.api_audit", ADVISORY_PREFIX "API");

/// Calls were dropped because too many waited. Goes to the system account.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiLimitReached {
    /// Name of the server.
    pub server: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// How many.
    pub dropped: u64,
}
event_body!(ApiLimitReached, "advisory.v1.api_limit_reached", ADVISORY_PREFIX "API.LIMIT_REACHED");

/// The disk is full. Goes to the system account.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutOfStorage {
    /// Name of the server.
    pub server: String,
    /// Id of the server.
    pub server_id: String,
    /// The stream that noticed, if it was one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stream: String,
    /// Name of the cluster; empty on a single node.
    pub cluster: String,
    /// Domain of the server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}
event_body!(OutOfStorage, "advisory.v1.server_out_of_space", ADVISORY_PREFIX "SERVER.OUT_OF_STORAGE");
