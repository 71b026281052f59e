//! The claims as data: what a JWT says, before anybody decides what it is worth.
//!
//! Names and units are those of the wire: seconds since 1970 for times, -1 for "no limit". Members that a server does
//! not use are not read.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};

use crate::options::{PermissionList, PermissionsOptions, ResponsePermission};

/// What all claims have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Common {
    /// `jti`: hash of the claims.
    pub id: String,
    /// `name`, for people.
    pub name: String,
    /// `sub`: public key of whom the claims are about.
    pub subject: String,
    /// `iss`: public key of who signed them.
    pub issuer: String,
    /// `iat`: when they were signed.
    pub issued_at: i64,
    /// `exp`: when they end; 0 or less means never.
    pub expires: i64,
    /// `nbf`: when they begin; 0 or less means at once.
    pub not_before: i64,
    /// Tags; `key:value` ones can stand in permission templates.
    pub tags: Vec<String>,
    /// 1 or 2.
    pub version: i64,
}

impl Common {
    /// When the claims end; `None` means never.
    pub fn expires_at(&self) -> Option<SystemTime> {
        moment(self.expires)
    }

    /// Whether the claims have begun and not ended.
    pub fn holds_at(&self, now: SystemTime) -> bool {
        self.expires_at().is_none_or(|end| now < end)
            && moment(self.not_before).is_none_or(|begin| begin <= now)
    }
}

fn moment(seconds: i64) -> Option<SystemTime> {
    let seconds = u64::try_from(seconds).ok().filter(|&seconds| seconds > 0)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// `allow` and `deny`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Lists {
    /// Patterns that are allowed; empty means all.
    pub allow: Vec<String>,
    /// Patterns that are denied.
    pub deny: Vec<String>,
}

/// `resp`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Responses {
    /// Publishes for one delivered message; 0 means 1, negative means no limit.
    pub max: i64,
    /// Nanoseconds a grant stands; 0 means 2 minutes, negative means for ever.
    pub ttl: i64,
}

/// `pub`, `sub` and `resp`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PermissionClaims {
    /// Publishing.
    #[serde(rename = "pub")]
    pub publish: Lists,
    /// Subscribing; entries may be `subject queue`.
    #[serde(rename = "sub")]
    pub subscribe: Lists,
    /// Answering.
    pub resp: Option<Responses>,
}

impl PermissionClaims {
    /// The same as options; `None` when the claims restrict nothing.
    pub fn to_options(&self) -> Option<PermissionsOptions> {
        if *self == Self::default() {
            return None;
        }
        let list = |lists: &Lists| PermissionList {
            allow: lists.allow.clone(),
            deny: lists.deny.clone(),
        };
        let allow_responses = self.resp.map(|resp| {
            let default = ResponsePermission::default();
            ResponsePermission {
                max: if resp.max == 0 { default.max } else { resp.max },
                expires: match u64::try_from(resp.ttl) {
                    Ok(0) => default.expires,
                    Ok(nanos) => Some(Duration::from_nanos(nanos)),
                    Err(_) => None,
                },
            }
        });
        Some(PermissionsOptions {
            publish: list(&self.publish),
            subscribe: list(&self.subscribe),
            allow_responses,
        })
    }
}

/// A daily stretch of time, as `hh:mm:ss` each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TimeRange {
    /// Begin.
    pub start: String,
    /// End; before `start` when midnight lies between.
    pub end: String,
}

/// What a user may do and from where, when and how it may connect. Also the template of a scoped signing key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Publishing, subscribing, answering.
    #[serde(flatten)]
    pub permissions: PermissionClaims,
    /// Networks (CIDR) it may connect from; empty means any.
    #[serde(deserialize_with = "networks")]
    pub src: Vec<String>,
    /// Daily times it may be connected; empty means always.
    pub times: Vec<TimeRange>,
    /// IANA time zone of `times`; empty means the server's.
    pub times_location: String,
    /// Most subscriptions; -1 means no limit.
    pub subs: Option<i64>,
    /// Most bytes in total (not enforced by any server).
    pub data: Option<i64>,
    /// Largest payload; -1 means no limit.
    pub payload: Option<i64>,
    /// Whether the JWT alone is enough, without a signature over the nonce.
    pub bearer_token: bool,
    /// Whether it may only connect through a trusted proxy.
    pub proxy_required: bool,
    /// Kinds of connection; empty means all.
    pub allowed_connection_types: Vec<String>,
}

impl Access {
    /// Whether nothing is said, as must be in a user of a scoped signing key.
    pub fn is_empty(&self) -> bool {
        let zero = |limit: Option<i64>| limit.unwrap_or_default() == 0;
        let rest = Self {
            subs: None,
            data: None,
            payload: None,
            ..self.clone()
        };
        zero(self.subs) && zero(self.data) && zero(self.payload) && rest == Self::default()
    }
}

/// A list, or the text of version 1 with commas.
fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        List(Vec<String>),
        Text(String),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::List(list) => list,
        Either::Text(text) => text
            .split(',')
            .map(|network| network.trim().to_lowercase())
            .filter(|network| !network.is_empty())
            .collect(),
    })
}

/// Claims about a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserClaims {
    /// What all claims have.
    pub common: Common,
    /// The account, when the issuer is one of its signing keys; else empty.
    pub issuer_account: String,
    /// What it may do.
    pub access: Access,
}

impl UserClaims {
    /// Public key of the user's account.
    pub fn account(&self) -> &str {
        if self.issuer_account.is_empty() {
            &self.common.issuer
        } else {
            &self.issuer_account
        }
    }
}

/// Claims about an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorClaims {
    /// What all claims have.
    pub common: Common,
    /// The operator.
    pub body: Operator,
}

/// The `nats` object of an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Operator {
    /// Keys that sign accounts beside the operator's own.
    pub signing_keys: Vec<String>,
    /// Public key of the system account.
    pub system_account: String,
    /// Lowest version a server must have, `major.minor.update`.
    pub assert_server_version: String,
    /// Whether only signing keys may sign, both accounts and users.
    pub strict_signing_key_usage: bool,
}

/// Claims about an account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountClaims {
    /// What all claims have.
    pub common: Common,
    /// The account.
    pub body: Account,
}

/// The `nats` object of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Account {
    /// What it takes from others.
    pub imports: Vec<Import>,
    /// What it offers.
    pub exports: Vec<Export>,
    /// Its limits.
    pub limits: Limits,
    /// Keys that sign users beside the account's own.
    pub signing_keys: Vec<SigningKey>,
    /// Users that are revoked: public key, or `*` for all, to the time up to which their JWTs are void.
    pub revocations: BTreeMap<String, i64>,
    /// Permissions of users that have none.
    pub default_permissions: PermissionClaims,
    /// Subject mappings.
    pub mappings: BTreeMap<String, Vec<Mapping>>,
    /// Authorization by a service.
    pub authorization: ExternalAuthorization,
    /// Destination of message traces.
    pub trace: Option<Trace>,
}

/// A signing key of an account.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum SigningKey {
    /// The users it signs say themselves what they may do.
    Plain(String),
    /// The users it signs may do what the template says.
    Scoped(Box<Scope>),
}

impl SigningKey {
    /// The public key.
    pub fn key(&self) -> &str {
        match self {
            Self::Plain(key) => key,
            Self::Scoped(scope) => &scope.key,
        }
    }
}

/// A signing key with a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Scope {
    /// `user_scope`.
    pub kind: String,
    /// The public key.
    pub key: String,
    /// What its users may do; limits that are absent are none.
    #[serde(default)]
    pub template: Access,
}

/// One weighted destination of a mapping.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Mapping {
    /// Destination template.
    pub subject: String,
    /// Percentage; 0 means 100.
    pub weight: u8,
    /// The cluster for which the destination is meant; empty means any.
    pub cluster: String,
}

/// Authorization by a service instead of by claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExternalAuthorization {
    /// Users exempt from it; when there are any, it is on.
    pub auth_users: Vec<String>,
}

/// Destination of message traces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// The subject.
    pub dest: String,
    /// Percentage of messages; 0 means all.
    pub sampling: i64,
}

/// Limits of an account; -1 means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Subscriptions of one connection.
    pub subs: i64,
    /// Payload in bytes.
    pub payload: i64,
    /// Imports.
    pub imports: i64,
    /// Exports.
    pub exports: i64,
    /// Whether exports may have wildcards.
    pub wildcards: bool,
    /// Whether users must sign the nonce.
    pub disallow_bearer: bool,
    /// Connections.
    pub conn: i64,
    /// Leaf nodes.
    pub leaf: i64,
    /// JetStream.
    #[serde(flatten)]
    pub jetstream: JetStreamLimits,
    /// JetStream by number of replicas (`R1`, `R3`).
    pub tiered_limits: BTreeMap<String, JetStreamLimits>,
}

/// JetStream limits of an account. Storage: 0 means none, -1 means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JetStreamLimits {
    /// Bytes of memory streams.
    pub mem_storage: i64,
    /// Bytes of file streams.
    pub disk_storage: i64,
    /// Streams.
    pub streams: i64,
    /// Consumers.
    pub consumer: i64,
    /// Largest `max_ack_pending`.
    pub max_ack_pending: i64,
    /// Bytes of one memory stream.
    pub mem_max_stream_bytes: i64,
    /// Bytes of one file stream.
    pub disk_max_stream_bytes: i64,
    /// Whether every stream must set `max_bytes`.
    pub max_bytes_required: bool,
}

/// Kind of an export, an import or an activation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Not said, which is not valid.
    #[default]
    #[serde(skip)]
    Unknown,
    /// Messages flow from exporter to importer.
    Stream,
    /// Requests flow from importer to exporter.
    Service,
}

/// One export.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Export {
    /// Exported subject.
    pub subject: String,
    /// Stream or service.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Whether importers need an activation.
    pub token_req: bool,
    /// Importers whose activations are revoked, as in [`Account::revocations`].
    pub revocations: BTreeMap<String, i64>,
    /// `Singleton`, `Stream`, `Chunked` or empty.
    pub response_type: String,
    /// Nanoseconds a service may take for its first reply.
    pub response_threshold: i64,
    /// 1-based token that must be the importer's account; 0 means none.
    pub account_token_position: usize,
    /// Whether message traces may cross.
    pub allow_trace: bool,
}

/// One import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Import {
    /// Stream: the subject in the exporter. Service: the local subject, or the exporter's when `local_subject` is set.
    pub subject: String,
    /// Exporting account.
    pub account: String,
    /// Activation JWT.
    pub token: String,
    /// Old style. Stream: prefix of the local subject. Service: the subject in the exporter.
    pub to: String,
    /// Local subject; may refer to wildcards as `$1`.
    pub local_subject: String,
    /// Stream or service.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Whether the exporter sees details of the requesting client.
    pub share: bool,
    /// Whether message traces may cross.
    pub allow_trace: bool,
}

impl Import {
    /// The subject as the exporter knows it.
    pub fn remote_subject(&self) -> &str {
        if self.kind == Kind::Service && self.local_subject.is_empty() && !self.to.is_empty() {
            &self.to
        } else {
            &self.subject
        }
    }
}

/// An exporter's permission for an importer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivationClaims {
    /// What all claims have; `subject` is the importing account.
    pub common: Common,
    /// The permission.
    pub body: Activation,
}

/// The `nats` object of an activation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Activation {
    /// Subject that may be imported.
    pub subject: String,
    /// Stream or service. Version 1 calls it `type`.
    pub kind: Kind,
    /// The exporting account, when the issuer is one of its signing keys; else empty.
    pub issuer_account: String,
}
