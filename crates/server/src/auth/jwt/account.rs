//! [`ClaimedAccount`]: an account that exists because an operator signed claims about it.
//!
//! The claims become [`AccountOptions`], so that the server builds accounts from a configuration and from claims in one
//! way. Differences of the two worlds end here: "no limit" is -1 in claims and `None` in options, an import names its
//! two subjects in an old and a new style, JetStream limits may come in tiers. On a single node every stream has one
//! replica: of several tiers `R1` holds, and without it the account has JetStream but may store nothing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::checks;
use super::claims::{
    Access, AccountClaims, Common, Export, Import, JetStreamLimits, Kind, Limits, Mapping, SigningKey, Trace,
};
use crate::auth::Permissions;
use crate::options::{
    AccountJetStreamLimits, AccountLimits, AccountOptions, ExportKind, ExportOptions, ImportKind,
    ImportOptions, MappingDestination, MappingOptions, ResponseType,
};

/// An account by claims.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClaimedAccount {
    /// Public key of the account.
    pub id: Arc<str>,
    /// Its name for people; the id when the claims have none.
    pub name: Arc<str>,
    /// Key that signed the claims: the operator's or one of its signing keys.
    pub issuer: String,
    /// Tags.
    pub tags: Vec<String>,
    /// The JWT.
    pub jwt: String,
    /// When the claims end and with them all its connections.
    pub expires_at: Option<SystemTime>,
    /// The account as the server builds it. Users are not among it: they come with their own claims.
    pub options: AccountOptions,
    pub(super) claims: AccountClaims,
    /// Keys that may sign users; the account's own among them unless the operator is strict.
    pub(super) signers: HashMap<String, Option<Access>>,
    /// Permissions of users that have none.
    pub(super) default_permissions: Option<Arc<Permissions>>,
}

impl ClaimedAccount {
    /// Compiles claims. `own_key_signs` is false when the operator is strict about signing keys.
    ///
    /// # Errors
    ///
    /// What makes the claims invalid.
    pub(super) fn compile(jwt: &str, claims: AccountClaims, own_key_signs: bool) -> Result<Self, String> {
        let Common {
            name,
            subject,
            issuer,
            tags,
            ..
        } = &claims.common;
        checks::account(subject, &claims.body)?;
        let id: Arc<str> = subject.as_str().into();
        let mut signers: HashMap<String, Option<Access>> = claims
            .body
            .signing_keys
            .iter()
            .map(|key| match key {
                SigningKey::Plain(key) => (key.clone(), None),
                SigningKey::Scoped(scope) => (scope.key.clone(), Some(scope.template.clone())),
            })
            .collect();
        if own_key_signs {
            signers.insert(subject.clone(), None);
        }
        let options = to_options(&claims);
        let default_permissions = options
            .default_permissions
            .as_ref()
            .map(|permissions| Permissions::compile(permissions).map(Arc::new))
            .transpose()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            name: if name.is_empty() {
                id.clone()
            } else {
                name.as_str().into()
            },
            id,
            issuer: issuer.clone(),
            tags: tags.clone(),
            jwt: jwt.to_owned(),
            expires_at: claims.common.expires_at(),
            options,
            signers,
            default_permissions,
            claims,
        })
    }

    /// Whether the account has revoked what was issued to this key at this time.
    pub(super) fn has_revoked(&self, key: &str, issued_at: i64) -> bool {
        is_revoked(&self.claims.body.revocations, key, issued_at)
    }
}

/// Whether a list of revocations, by key or for all (`*`), covers what was issued at this time.
pub(super) fn is_revoked(revocations: &BTreeMap<String, i64>, key: &str, issued_at: i64) -> bool {
    [key, "*"]
        .iter()
        .any(|key| revocations.get(*key).is_some_and(|&until| issued_at <= until))
}

fn to_options(claims: &AccountClaims) -> AccountOptions {
    let body = &claims.body;
    AccountOptions {
        nkey: Some(claims.common.subject.clone()),
        default_permissions: body.default_permissions.to_options(),
        mappings: body.mappings.iter().map(mapping).collect(),
        exports: body.exports.iter().map(export).collect(),
        imports: body.imports.iter().map(import).collect(),
        limits: limits(&body.limits),
        jetstream: jetstream(&body.limits),
        msg_trace: body.trace.as_ref().map(trace),
        ..AccountOptions::default()
    }
}

fn mapping((source, destinations): (&String, &Vec<Mapping>)) -> MappingOptions {
    MappingOptions {
        source: source.clone(),
        destinations: destinations
            .iter()
            // This server is in no cluster.
            .filter(|mapping| mapping.cluster.is_empty())
            .map(|mapping| MappingDestination {
                subject: mapping.subject.clone(),
                weight: if mapping.weight == 0 { 100 } else { mapping.weight },
            })
            .collect(),
    }
}

fn export(export: &Export) -> ExportOptions {
    ExportOptions {
        kind: match export.kind {
            Kind::Service => ExportKind::Service,
            Kind::Stream | Kind::Unknown => ExportKind::Stream,
        },
        subject: export.subject.clone(),
        accounts: Vec::new(),
        response_type: match export.response_type.as_str() {
            "Stream" => ResponseType::Stream,
            "Chunked" => ResponseType::Chunked,
            _ => ResponseType::Singleton,
        },
        response_threshold: u64::try_from(export.response_threshold)
            .ok()
            .filter(|&nanos| nanos > 0)
            .map(Duration::from_nanos),
        account_token_position: Some(export.account_token_position).filter(|&position| position > 0),
        allow_trace: export.allow_trace,
    }
}

fn import(import: &Import) -> ImportOptions {
    let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let kind = match import.kind {
        Kind::Service => ImportKind::Service {
            // The old style has the local subject in `subject`, the new one in `local_subject`.
            to: if import.local_subject.is_empty() {
                set(&import.subject).filter(|local| local != import.remote_subject())
            } else {
                set(&import.local_subject)
            },
            share: import.share,
        },
        Kind::Stream | Kind::Unknown => ImportKind::Stream {
            prefix: set(&import.to),
            to: set(&import.local_subject),
        },
    };
    ImportOptions {
        kind,
        account: import.account.clone(),
        subject: import.remote_subject().to_owned(),
        allow_trace: import.allow_trace,
    }
}

fn limits(limits: &Limits) -> AccountLimits {
    AccountLimits {
        max_connections: unless_negative(limits.conn),
        max_subscriptions: unless_negative(limits.subs),
        max_payload: unless_negative(limits.payload),
        max_leafnodes: unless_negative(limits.leaf),
    }
}

/// -1, as any negative number, is no limit; 0 is one.
pub(super) fn unless_negative(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok()
}

fn jetstream(limits: &Limits) -> Option<AccountJetStreamLimits> {
    let stores = |limits: &JetStreamLimits| limits.mem_storage != 0 || limits.disk_storage != 0;
    let tiers = &limits.tiered_limits;
    if tiers.is_empty() {
        return stores(&limits.jetstream).then(|| jetstream_limits(&limits.jetstream));
    }
    if !tiers.values().any(stores) {
        return None;
    }
    Some(jetstream_limits(
        tiers.get("R1").unwrap_or(&JetStreamLimits::default()),
    ))
}

fn jetstream_limits(limits: &JetStreamLimits) -> AccountJetStreamLimits {
    let positive = |limit: i64| unless_negative(limit).filter(|&limit| limit > 0);
    AccountJetStreamLimits {
        max_memory: unless_negative(limits.mem_storage),
        max_store: unless_negative(limits.disk_storage),
        max_streams: positive(limits.streams),
        max_consumers: positive(limits.consumer),
        max_ack_pending: positive(limits.max_ack_pending),
        memory_max_stream_bytes: positive(limits.mem_max_stream_bytes),
        store_max_stream_bytes: positive(limits.disk_max_stream_bytes),
        max_bytes_required: limits.max_bytes_required,
    }
}

fn trace(trace: &Trace) -> (String, u8) {
    let percent = u8::try_from(trace.sampling).ok().filter(|&percent| percent > 0);
    (trace.dest.clone(), percent.unwrap_or(100))
}
