//! Accepting a row.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt as _;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windjet_mq::{Ctx, ErrorKind, PublishOptions, TenantId, Topic};

use super::refusal::KEY;
use super::{Answer, Api, App, Refusal, json_answer};
use crate::envelope::{Envelope, check_key};
use crate::service::blocking;

/// How long a client may take to send a row.
const BODY_WAIT: Duration = Duration::from_secs(10);

/// Accepts a row: 202 once the queue has it durably, 200 if it is written already.
pub(super) async fn publish(
    State(api): App,
    Path((tenant, table)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    api.accepts()?;
    let topic = api.topic(&tenant, &table)?;
    let given = given_key(&headers)?;
    // Taken before the body is read, so that it also bounds the memory of rows that are coming in.
    let _permit = topic
        .tenant
        .as_ref()
        .map(|tenant| api.permit(tenant))
        .transpose()?;
    let row = json_row(api.read(body).await?)?;
    if let Some(key) = &given
        && let Some(known) = api.written(&topic, key).await?
    {
        if known == row.get() {
            return json_answer(StatusCode::OK, &json!({ "id": key, "status": "written" }));
        }
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "this Idempotency-Key is that of another row; send the row under a key of its own",
        ));
    }
    let key = given.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
    api.enqueue(&topic, Envelope::new(key.clone(), row, None), 0)
        .await?;
    json_answer(StatusCode::ACCEPTED, &json!({ "id": key, "status": "accepted" }))
}

/// The key that the client chose, if it did.
pub(super) fn given_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(KEY) else {
        return Ok(None);
    };
    let key = value.to_str().unwrap_or_default();
    check_key(key).map_err(Refusal::bad)?;
    Ok(Some(key.to_owned()))
}

/// A row is any JSON.
pub(super) fn json_row(body: Vec<u8>) -> Result<Box<RawValue>, Refusal> {
    let text =
        String::from_utf8(body).map_err(|error| Refusal::bad(format!("the row is no text: {error}")))?;
    RawValue::from_string(text)
        .map_err(|error| Refusal::bad(format!("the row is no JSON: {error}; send one JSON value")))
}

impl Api {
    /// Whether this process takes rows.
    pub(super) fn accepts(&self) -> Result<(), Refusal> {
        if self.takes_rows {
            return Ok(());
        }
        let text = "this process only writes; send rows to one that was started with --role api or all";
        Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text))
    }

    /// A place among the tenant's requests.
    fn permit(&self, tenant: &TenantId) -> Result<OwnedSemaphorePermit, Refusal> {
        let mut tenants = self.in_flight.lock();
        let most = usize::try_from(self.max_in_flight).unwrap_or(usize::MAX);
        let new = || Arc::new(Semaphore::new(most));
        let places = Arc::clone(tenants.entry(tenant.clone()).or_insert_with(new));
        places.try_acquire_owned().map_err(|_| {
            let text =
                format!("{most} rows of tenant {tenant} are on their way; send fewer at the same time");
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(1)
        })
    }

    /// Reads a body up to the largest row.
    pub(super) async fn read(&self, body: Body) -> Result<Vec<u8>, Refusal> {
        let read = async {
            let (mut bytes, mut chunks) = (Vec::new(), body.into_data_stream());
            while let Some(chunk) = chunks.next().await {
                let chunk =
                    chunk.map_err(|error| Refusal::bad(format!("the row did not come whole: {error}")))?;
                if bytes.len() + chunk.len() > self.max_row {
                    let text = format!(
                        "a row has at most {} bytes; split it, or raise --max-row",
                        self.max_row
                    );
                    return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes)
        };
        let late = |_| {
            let text = format!("the row did not come within {BODY_WAIT:?}; send it again");
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, text))
        };
        tokio::time::timeout(BODY_WAIT, read).await.unwrap_or_else(late)
    }

    /// The row that is written under a key.
    async fn written(&self, topic: &Topic, key: &str) -> Result<Option<String>, Refusal> {
        let (shared, topic, key) = (Arc::clone(&self.shared), topic.clone(), key.to_owned());
        let tenant = topic.tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        Ok(blocking(move || shared.store.row(&tenant, &topic.table, &key)).await?)
    }

    /// Puts a row into the queue.
    pub(super) async fn enqueue(&self, topic: &Topic, row: Envelope, attempt: i64) -> Result<(), Refusal> {
        let data = row.encode().map_err(|error| Refusal::failed(&error.into()))?;
        let options = PublishOptions::new().idempotency_key(row.queue_key(&topic.key(), attempt));
        let stored = self
            .shared
            .broker
            .publish(&Ctx::new(), topic, data, options)
            .await;
        stored.map_err(|error| {
            if error.is(ErrorKind::QueueFull) {
                self.shared.full.notify_one();
            }
            Refusal::broker(&error).under(&row.id)
        })
    }
}
