//! Who may connect and what they may do: users, accounts, permissions, exports and imports, JWT trust.

use std::collections::BTreeMap;
use std::time::Duration;

use super::AccountJetStreamLimits;

/// The `authorization` block and its neighbours.
#[derive(Debug, Clone, Default)]
pub struct AuthOptions {
    /// The single user, as name and password (plain or bcrypt). It lives in the global account.
    pub user: Option<(String, String)>,
    /// The single token (plain or bcrypt).
    pub token: Option<String>,
    /// Users of the global account.
    pub users: Vec<UserOptions>,
    /// Permissions of users of `users` that have none of their own.
    pub default_permissions: Option<PermissionsOptions>,
    /// Time for a successful CONNECT. Default 2 s, or the TLS time-out plus 1 s.
    pub timeout: Option<Duration>,
    /// User that a client without any credentials is taken for.
    pub no_auth_user: Option<String>,
    /// Operator (JWT) mode. Excludes users and accounts of the configuration.
    pub jwt: Option<JwtOptions>,
    /// Whether an `authorization` block was given, be it empty. Without one, a server whose only configured
    /// account is the system account takes clients without credentials into the global account.
    pub block_defined: bool,
}

/// Operator mode: whom to trust and where account claims come from.
#[derive(Debug, Clone, Default)]
pub struct JwtOptions {
    /// Operator JWTs, as text.
    pub operators: Vec<String>,
    /// Public operator keys, an alternative to `operators`.
    pub trusted_keys: Vec<String>,
    /// Where account claims come from.
    pub resolver: ResolverOptions,
    /// Account claims known at the start: public account key to JWT.
    pub preload: BTreeMap<String, String>,
    /// User JWT used by clients that supply none.
    pub default_sentinel: Option<String>,
}

/// Source of account claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolverOptions {
    /// Only the preloaded claims.
    #[default]
    Memory,
}

/// How a user proves who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserCredential {
    /// Name and password; the password is plain text or a bcrypt hash.
    Password {
        /// The user's name.
        name: String,
        /// Plain text or bcrypt (`$2a$…`).
        password: String,
    },
    /// A public user nkey (`U…`).
    Nkey(String),
}

/// One configured user.
#[derive(Debug, Clone)]
pub struct UserOptions {
    /// How the user proves who it is.
    pub credential: UserCredential,
    /// What the user may do; `None` means the block's default permissions.
    pub permissions: Option<PermissionsOptions>,
    /// Kinds of connection the user may use; empty means all.
    pub allowed_connection_types: Vec<ConnectionType>,
}

/// Kind of a connection, for `allowed_connection_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionType {
    /// TCP client.
    Standard,
    /// WebSocket client.
    WebSocket,
    /// Leaf node.
    Leafnode,
    /// Leaf node over WebSocket.
    LeafnodeWs,
    /// MQTT client.
    Mqtt,
    /// MQTT client over WebSocket.
    MqttWs,
    /// Client inside the server's process.
    InProcess,
}

impl ConnectionType {
    /// Whether the client sits in the server's own process.
    pub fn is_in_process(self) -> bool {
        self == Self::InProcess
    }
}

/// Permissions of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionsOptions {
    /// Subjects that may be published to.
    pub publish: PermissionList,
    /// Subjects that may be subscribed to; an entry may be `"subject queue"`.
    pub subscribe: PermissionList,
    /// Permission to answer what was delivered.
    pub allow_responses: Option<ResponsePermission>,
}

/// Allowed and denied subject patterns. An empty `allow` allows all that is not denied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionList {
    /// Patterns that are allowed; empty means everything.
    pub allow: Vec<String>,
    /// Patterns that are denied; they win.
    pub deny: Vec<String>,
}

/// `allow_responses`: how often and how long a reply subject may be published to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponsePermission {
    /// Publishes granted by one delivered message; negative means no limit. Default 1.
    pub max: i64,
    /// How long the grant stands; `None` means for ever. Default 2 minutes.
    pub expires: Option<Duration>,
}

impl Default for ResponsePermission {
    fn default() -> Self {
        Self {
            max: 1,
            expires: Some(Duration::from_secs(120)),
        }
    }
}

/// One account of the configuration.
#[derive(Debug, Clone, Default)]
pub struct AccountOptions {
    /// The account's users.
    pub users: Vec<UserOptions>,
    /// Public account nkey, shown only.
    pub nkey: Option<String>,
    /// Permissions of users that have none of their own.
    pub default_permissions: Option<PermissionsOptions>,
    /// Subject mappings in definition order.
    pub mappings: Vec<MappingOptions>,
    /// What the account offers to others.
    pub exports: Vec<ExportOptions>,
    /// What the account takes from others.
    pub imports: Vec<ImportOptions>,
    /// Limits over all connections of the account.
    pub limits: AccountLimits,
    /// JetStream limits; `None` means that the account has no JetStream.
    pub jetstream: Option<AccountJetStreamLimits>,
    /// Subject that receives traces of sampled messages, and the percentage sampled.
    pub msg_trace: Option<(String, u8)>,
}

/// Limits over all connections of an account. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountLimits {
    /// Connections.
    pub max_connections: Option<u64>,
    /// Subscriptions of one connection.
    pub max_subscriptions: Option<u64>,
    /// Payload in bytes.
    pub max_payload: Option<u64>,
    /// Leaf nodes (kept for monitoring only).
    pub max_leafnodes: Option<u64>,
}

/// One source of a subject mapping with its weighted destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingOptions {
    /// Source pattern.
    pub source: String,
    /// Destinations; their weights add up to at most 100.
    pub destinations: Vec<MappingDestination>,
}

/// One weighted destination of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingDestination {
    /// Destination template.
    pub subject: String,
    /// Percentage, 0 to 100.
    pub weight: u8,
}

/// Whether an export is a stream of messages or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportKind {
    /// Messages flow to importers.
    Stream,
    /// Requests flow from importers.
    Service,
}

/// Number of replies a service gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResponseType {
    /// One reply.
    #[default]
    Singleton,
    /// Any number of replies.
    Stream,
    /// One reply in chunks, ended by an empty one.
    Chunked,
}

/// One export of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// Stream or service.
    pub kind: ExportKind,
    /// Exported subject, wildcards allowed.
    pub subject: String,
    /// Accounts that may import; empty means all.
    pub accounts: Vec<String>,
    /// Replies of a service.
    pub response_type: ResponseType,
    /// Longest time a service may take for its first reply.
    pub response_threshold: Option<Duration>,
    /// 1-based token of the subject that must be the importer's account name.
    pub account_token_position: Option<usize>,
    /// Whether message traces may cross into the exporting account.
    pub allow_trace: bool,
}

/// Local naming of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportKind {
    /// A stream, optionally under a prefix or another name.
    Stream {
        /// Prefix put before the subject.
        prefix: Option<String>,
        /// Local subject instead of the remote one.
        to: Option<String>,
    },
    /// A service, optionally under another local name.
    Service {
        /// Local subject; the remote one when absent.
        to: Option<String>,
        /// Whether the exporter sees details of the requesting client.
        share: bool,
    },
}

/// One import of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// Stream or service with its local name.
    pub kind: ImportKind,
    /// Account that exports.
    pub account: String,
    /// The subject as the exporting account knows it.
    pub subject: String,
    /// Whether message traces may cross.
    pub allow_trace: bool,
}
