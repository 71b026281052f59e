//! [`ServerInfo`]: the document of an `INFO` line.

use serde::{Deserialize, Serialize};

/// The document of an `INFO` line. Fields are written in the order declared here, which is the reference server's.
///
/// Fields whose default means "absent" are left out then: empty texts and lists, false flags, zero for `client_id` and
/// `api_lvl`. The other fields (`server_id`, `server_name`, `version`, `proto`, `go`, `host`, `port`, `headers`,
/// `max_payload`) are always written. When read, every field may be absent and unknown ones are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// Public key of the server, 56 characters, new at each start.
    pub server_id: String,
    /// Configured name, or the same as `server_id`.
    pub server_name: String,
    /// `X.Y.Z`; clients gate features on it.
    pub version: String,
    /// Protocol version; 1.
    pub proto: i32,
    /// Revision of the server's source.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub git_commit: String,
    /// Version of the language runtime; clients want a non-empty text.
    pub go: String,
    /// Host that clients are told.
    pub host: String,
    /// Port that clients are told.
    pub port: u16,
    /// Whether headers are supported.
    pub headers: bool,
    /// Whether credentials are needed.
    #[serde(skip_serializing_if = "is_false")]
    pub auth_required: bool,
    /// Whether the client must start TLS after this line.
    #[serde(skip_serializing_if = "is_false")]
    pub tls_required: bool,
    /// Whether a client certificate is demanded.
    #[serde(skip_serializing_if = "is_false")]
    pub tls_verify: bool,
    /// Whether TLS is possible but not demanded.
    #[serde(skip_serializing_if = "is_false")]
    pub tls_available: bool,
    /// Largest message, in bytes.
    pub max_payload: i64,
    /// Whether JetStream is on.
    #[serde(skip_serializing_if = "is_false")]
    pub jetstream: bool,
    /// Only between servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Number of the connection, unique in the process.
    #[serde(skip_serializing_if = "is_zero")]
    pub client_id: u64,
    /// Address of the client as the server sees it, without port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_ip: String,
    /// What the client signs; only in the first document, only when keys are in use.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// Cluster name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Whether the cluster name was made up.
    #[serde(skip_serializing_if = "is_false")]
    pub cluster_dynamic: bool,
    /// JetStream domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Further servers that clients may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect_urls: Vec<String>,
    /// The same for WebSocket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ws_connect_urls: Vec<String>,
    /// The server is about to stop; clients should move.
    #[serde(skip_serializing_if = "is_false")]
    pub ldm: bool,
    /// Only between servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compression: String,
    /// This is the document sent after the first `PING`.
    #[serde(skip_serializing_if = "is_false")]
    pub connect_info: bool,
    /// Account of the connection; only in the document after the first `PING`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_account: String,
    /// Whether that is the system account.
    #[serde(skip_serializing_if = "is_false")]
    pub acc_is_sys: bool,
    /// Level of the JetStream API.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub api_lvl: u32,
    /// Public key for sealed authentication requests.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub xkey: String,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}
