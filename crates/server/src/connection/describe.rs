//! A client as events and services are told of it.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use windjet_protocol::jetstream::{Nanos, Timestamp, advisory};

use super::Connection;
use crate::monitor::rfc3339;
use crate::options::ConnectionType;
use crate::server::Shared;

/// The client object of system events and of shared service imports: section 4.6 of the core protocol.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClientInfo {
    start: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    id: u64,
    acc: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    lang: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    ver: String,
    /// Round trip in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt: Option<u64>,
    /// Name of the server, where the reader may not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    /// When the connection ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer_key: Option<String>,
    /// Name of the account; of the user, where a service is told of its requesters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name_tag: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    kind: &'static str,
    client_type: &'static str,
}

impl Connection {
    /// Name, language and version out of CONNECT, whether or not the client was admitted.
    pub(crate) fn told(&self) -> (String, String, String) {
        if let Some(profile) = self.profile() {
            return (
                profile.name.clone(),
                profile.lang.clone(),
                profile.version.clone(),
            );
        }
        self.refused().map_or_else(Default::default, |refused| {
            (
                refused.name.clone(),
                refused.lang.clone(),
                refused.version.clone(),
            )
        })
    }

    /// The name in the user's JWT.
    pub(crate) fn user_name(&self) -> Option<String> {
        self.profile()?.identity.as_ref()?.user_name.clone()
    }

    /// What is told of the client.
    pub(crate) fn client_info(&self) -> ClientInfo {
        let profile = self.profile();
        let identity = profile.as_ref().and_then(|profile| profile.identity.as_ref());
        let global = self.server.accounts.global();
        let account = profile.as_ref().map_or(&global, |profile| &profile.account);
        let (name, lang, ver) = self.told();
        ClientInfo {
            start: rfc3339(self.started),
            host: self.shown_ip.clone(),
            id: self.id,
            acc: account.name.to_string(),
            user: self.authorized_user(profile.as_deref()),
            name,
            lang,
            ver,
            rtt: self
                .rtt()
                .map(|rtt| u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX)),
            server: None,
            stop: None,
            jwt: identity
                .and_then(|identity| identity.jwt.as_ref())
                .map(|jwt| jwt.reveal().to_owned()),
            issuer_key: identity.and_then(|identity| identity.issuer_key.clone()),
            name_tag: Some(account.display_name.to_string()),
            tags: identity.map(|identity| identity.tags.clone()).unwrap_or_default(),
            kind: "Client",
            client_type: match self.kind {
                ConnectionType::WebSocket => "websocket",
                _ => "nats",
            },
        }
    }

    /// What advisories of JetStream tell of the client.
    pub(crate) fn advisory_info(&self, server: &Shared) -> advisory::ClientInfo {
        let info = self.client_info();
        let started = self
            .started
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        advisory::ClientInfo {
            start: Timestamp::from_unix_nanos(nanos(started)),
            host: info.host,
            id: info.id,
            acc: info.acc,
            user: info.user,
            name: info.name,
            lang: info.lang,
            ver: info.ver,
            rtt: Nanos(self.rtt().map_or(0, nanos)),
            server: server.name.clone(),
            kind: info.kind.to_owned(),
            client_type: info.client_type.to_owned(),
        }
    }
}
