//! `$SYS.REQ.USER.INFO`: who a client is taken for and what it may do. Section 4.5 of the core protocol.

use std::time::SystemTime;

use serde::Serialize;

use crate::connection::Connection;
use crate::options::{PermissionList, PermissionsOptions};

/// The `data` of the answer.
#[derive(Debug, Serialize)]
pub(super) struct UserInfo {
    user: String,
    account: String,
    account_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<Permissions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Permissions {
    publish: List,
    subscribe: List,
    #[serde(skip_serializing_if = "Option::is_none")]
    responses: Option<Responses>,
}

#[derive(Debug, Serialize)]
struct List {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Responses {
    max: i64,
    ttl: u64,
}

impl UserInfo {
    /// What the server knows of a client; `None` before it is bound to an account.
    pub(super) fn of(connection: &Connection) -> Option<Self> {
        let profile = connection.profile()?;
        let identity = profile.identity.as_ref();
        let expires = identity
            .and_then(|identity| identity.user_expires_at)
            .and_then(|at| at.duration_since(SystemTime::now()).ok())
            // Whole seconds, and nothing within the last one, as nats-server tells it.
            .map(|left| left.as_secs().saturating_mul(1_000_000_000))
            .filter(|&left| left > 0);
        Some(Self {
            user: identity.map(|identity| identity.user.clone()).unwrap_or_default(),
            user_name: identity.and_then(|identity| identity.user_name.clone()),
            account: profile.account.name.to_string(),
            account_name: profile.account.display_name.to_string(),
            permissions: profile
                .permissions
                .as_ref()
                .map(|permissions| Permissions::of(permissions.options())),
            expires,
        })
    }
}

impl Permissions {
    fn of(options: &PermissionsOptions) -> Self {
        Self {
            publish: List::of(&options.publish),
            subscribe: List::of(&options.subscribe),
            responses: options.allow_responses.map(|responses| Responses {
                max: responses.max,
                ttl: responses
                    .expires
                    .map_or(0, |ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)),
            }),
        }
    }
}

impl List {
    fn of(options: &PermissionList) -> Self {
        Self {
            allow: options.allow.clone(),
            deny: options.deny.clone(),
        }
    }
}
