//! `healthz`: whether the server does its work.
//!
//! The server is healthy while it admits clients and, with JetStream, while the disk makes something durable (asked once a
//! second at most, see [`crate::jetstream`]'s page `health`) and everything that the store has was taken up. Without
//! JetStream a question about a stream or consumer is answered as nats-server answers it then: only contradictions in the
//! question are errors. With it, building the document may block the thread for two seconds.

use serde::{Deserialize, Serialize};

use crate::jetstream::{JetStream, Lost};
use crate::server::Shared;

use super::Refused;
use super::params::Params;

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HealthzOptions {
    #[serde(rename = "js-enabled-only")]
    enabled_only: bool,
    #[serde(rename = "js-server-only")]
    server_only: bool,
    /// There is no meta layer: the question is the plain one.
    #[serde(rename = "js-meta-only")]
    _meta_only: bool,
    account: String,
    stream: String,
    consumer: String,
    details: bool,
}

impl HealthzOptions {
    /// Reads the query part of a URL.
    pub(super) fn of(params: &Params) -> Result<Self, Refused> {
        let old_name = params.flag("js-enabled")?;
        if old_name {
            tracing::warn!("Healthcheck: js-enabled deprecated, use js-enabled-only instead");
        }
        Ok(Self {
            enabled_only: params.flag("js-enabled-only")? || old_name,
            server_only: params.flag("js-server-only")?,
            _meta_only: params.flag("js-meta-only")?,
            account: params.text("account").to_owned(),
            stream: params.text("stream").to_owned(),
            consumer: params.text("consumer").to_owned(),
            details: params.flag("details")?,
        })
    }
}

/// The document, with its status code.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Healthz {
    status: &'static str,
    /// HTTP status; part of the document only in the system account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status_code: Option<u16>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<HealthError>,
    /// HTTP status.
    #[serde(skip)]
    pub(crate) code: u16,
}

#[derive(Debug, Clone, Default, Serialize)]
struct HealthError {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    stream: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    consumer: String,
    error: String,
}

/// Something that is not as it should be.
struct Found {
    code: u16,
    /// What the document says where it shows no details.
    status: &'static str,
    error: HealthError,
}

impl Found {
    fn new(code: u16, status: &'static str, kind: &'static str, error: impl Into<String>) -> Self {
        Self {
            code,
            status,
            error: HealthError {
                kind,
                error: error.into(),
                ..HealthError::default()
            },
        }
    }

    fn bad_request(error: &str) -> Self {
        Self::new(400, "error", "BAD_REQUEST", error)
    }

    /// What is asked about is not there.
    fn missing(options: &HealthzOptions, kind: &'static str, error: String) -> Self {
        let mut found = Self::new(404, "unavailable", kind, error);
        found.error.account.clone_from(&options.account);
        if kind != "ACCOUNT" {
            found.error.stream.clone_from(&options.stream);
        }
        if kind == "CONSUMER" {
            found.error.consumer.clone_from(&options.consumer);
        }
        found
    }

    fn lost(lost: Lost) -> Self {
        let Lost {
            account,
            stream,
            consumer,
        } = lost;
        let (kind, text) = match &consumer {
            Some(consumer) => (
                "CONSUMER",
                format!("JetStream consumer '{account} > {stream} > {consumer}' could not be recovered"),
            ),
            None => (
                "STREAM",
                format!("JetStream stream '{account} > {stream}' could not be recovered"),
            ),
        };
        let mut found = Self::new(503, "unavailable", kind, text);
        found.error.account = account;
        found.error.stream = stream;
        found.error.consumer = consumer.unwrap_or_default();
        found
    }
}

/// The health of the server. May block the thread when it has JetStream.
pub(crate) fn healthz(shared: &Shared, options: &HealthzOptions) -> Healthz {
    let mut found = look(shared, options);
    let mut health = Healthz {
        status: "ok",
        status_code: None,
        error: String::new(),
        errors: Vec::new(),
        code: 200,
    };
    let Some(first) = found.first_mut() else {
        return health;
    };
    health.code = first.code;
    if options.details {
        tracing::warn!("Healthcheck failed: {} errors", found.len());
        health.status = "error";
        health.errors = found.into_iter().map(|found| found.error).collect();
    } else {
        tracing::warn!("Healthcheck failed: {:?}", first.error.error);
        health.status = first.status;
        health.error = std::mem::take(&mut first.error.error);
    }
    health
}

/// What is wrong, the most important first.
fn look(shared: &Shared, options: &HealthzOptions) -> Vec<Found> {
    if options.account.is_empty() && !options.stream.is_empty() {
        let why = "\"account\" must not be empty when checking stream health";
        return vec![Found::bad_request(why)];
    }
    if options.stream.is_empty() && !options.consumer.is_empty() {
        let why = "\"stream\" must not be empty when checking consumer health";
        return vec![Found::bad_request(why)];
    }
    if shared.stop.is_cancelled() {
        let why = "server is shutting down";
        return vec![Found::new(503, "unavailable", "CONNECTION", why)];
    }
    if shared.options().listen.is_some() && shared.stop_accepting.is_cancelled() {
        let why = "failed to be ready for connections after 1ms: server";
        return vec![Found::new(500, "error", "CONNECTION", why)];
    }
    match shared.jetstream() {
        Some(js) if !options.enabled_only => look_at_jetstream(&js, options),
        _ => Vec::new(),
    }
}

fn look_at_jetstream(js: &JetStream, options: &HealthzOptions) -> Vec<Found> {
    if let Err(why) = js.health.is_durable() {
        let why = format!("JetStream cannot store anything: {why}");
        return vec![Found::new(503, "unavailable", "JETSTREAM", why)];
    }
    if options.server_only {
        return Vec::new();
    }
    let HealthzOptions {
        account: name,
        stream,
        consumer,
        ..
    } = options;
    if !name.is_empty() {
        // For nats-server an account is there from its first stream on.
        let Some(account) = js.account(name).filter(|account| account.is_used()) else {
            let why = format!("JetStream account {name:?} not found");
            return vec![Found::missing(options, "ACCOUNT", why)];
        };
        let known = account.stream(stream);
        if known.is_none() && !stream.is_empty() {
            let why = format!("JetStream stream {stream:?} not found on account {name:?}");
            return vec![Found::missing(options, "STREAM", why)];
        }
        if known.is_some_and(|known| !consumer.is_empty() && known.consumer(consumer).is_none()) {
            let why = format!(
                "JetStream consumer {consumer:?} not found for stream {stream:?} on account {name:?}"
            );
            return vec![Found::missing(options, "CONSUMER", why)];
        }
    }
    let asked = |lost: &Lost| {
        (name.is_empty() || *name == lost.account)
            && (stream.is_empty() || *stream == lost.stream)
            && (consumer.is_empty() || lost.consumer.as_ref() == Some(consumer))
    };
    js.lost().into_iter().filter(asked).map(Found::lost).collect()
}
