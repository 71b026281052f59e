//! `healthz`: whether the server does its work.
//!
//! Without JetStream the server is healthy while it admits clients; a question about a stream or consumer is answered as
//! nats-server answers it then: only contradictions in the question are errors.

use serde::{Deserialize, Serialize};

use crate::server::Shared;

use super::Refused;
use super::params::Params;

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HealthzOptions {
    account: String,
    stream: String,
    consumer: String,
    details: bool,
}

impl HealthzOptions {
    /// Reads the query part of a URL.
    pub(super) fn of(params: &Params) -> Result<Self, Refused> {
        for name in ["js-enabled-only", "js-server-only", "js-meta-only"] {
            params.flag(name)?;
        }
        if params.flag("js-enabled")? {
            tracing::warn!("Healthcheck: js-enabled deprecated, use js-enabled-only instead");
        }
        Ok(Self {
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

#[derive(Debug, Clone, Serialize)]
struct HealthError {
    #[serde(rename = "type")]
    kind: &'static str,
    error: String,
}

/// The health of the server.
pub(crate) fn healthz(shared: &Shared, options: &HealthzOptions) -> Healthz {
    let found = if options.account.is_empty() && !options.stream.is_empty() {
        Some((
            400,
            "error",
            "BAD_REQUEST",
            "\"account\" must not be empty when checking stream health",
        ))
    } else if options.stream.is_empty() && !options.consumer.is_empty() {
        Some((
            400,
            "error",
            "BAD_REQUEST",
            "\"stream\" must not be empty when checking consumer health",
        ))
    } else if shared.stop.is_cancelled() {
        Some((503, "unavailable", "CONNECTION", "server is shutting down"))
    } else if shared.options().listen.is_some() && shared.stop_accepting.is_cancelled() {
        let why = "failed to be ready for connections after 1ms: server";
        Some((500, "error", "CONNECTION", why))
    } else {
        None
    };
    let Some((code, status, kind, text)) = found else {
        return Healthz {
            status: "ok",
            status_code: None,
            error: String::new(),
            errors: Vec::new(),
            code: 200,
        };
    };
    tracing::warn!("Healthcheck failed: {text:?}");
    let mut health = Healthz {
        status,
        status_code: None,
        error: String::new(),
        errors: Vec::new(),
        code,
    };
    if options.details {
        health.status = "error";
        health.errors.push(HealthError {
            kind,
            error: text.to_owned(),
        });
    } else {
        text.clone_into(&mut health.error);
    }
    health
}
