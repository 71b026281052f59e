//! What a client is told when something is refused: a status, what to do, and when to come back.

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use windjet_mq::{Error, ErrorKind};

use super::json_answer;

/// The header with a row's key, in requests and answers.
pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A refusal.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    text: String,
    retry_after: Option<u32>,
    key: Option<String>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            retry_after: None,
            key: None,
        }
    }

    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Says under which key the row is to be sent again.
    pub(super) fn under(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Something of this service's own failed.
    pub(super) fn failed(error: &anyhow::Error) -> Self {
        tracing::error!("a request failed: {error:#}");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{error:#}; send the same request with the same Idempotency-Key again"),
        )
        .retry_after(5)
    }

    /// What the broker answered.
    pub(super) fn broker(error: &Error) -> Self {
        if error.is(ErrorKind::Invalid) {
            return Self::bad(format!("{error:#}"));
        }
        let (status, advice, seconds) = if error.is(ErrorKind::QueueFull) {
            let advice =
                "the tenant's budget is used up: send the row again later, or raise its max_bytes and reload";
            (StatusCode::SERVICE_UNAVAILABLE, advice, 5)
        } else if error.outcome_unknown() {
            let advice = "the row may be accepted or not: send it again with the same Idempotency-Key, it is written once";
            (StatusCode::SERVICE_UNAVAILABLE, advice, 5)
        } else {
            tracing::error!("the broker failed: {error:#}");
            let advice = "send the row again with the same Idempotency-Key, and look into the service's log";
            (StatusCode::SERVICE_UNAVAILABLE, advice, 30)
        };
        Self::new(status, format!("{advice} ({error:#})")).retry_after(seconds)
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::failed(&error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json_answer(self.status, &json!({ "error": self.text }));
        let mut response = body.unwrap_or_else(|_| self.status.into_response());
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(key) = self.key.and_then(|key| HeaderValue::try_from(key).ok()) {
            response.headers_mut().insert(KEY, key);
        }
        response
    }
}
