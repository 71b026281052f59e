//! Dead letters: looking at them, sending them again, giving them up.
//!
//! The list is the service's own, in SQLite: the boundary parks and counts, and does not hand parked messages back. An
//! entry leaves the list in the transaction that writes its row, so a redrive that is interrupted can be repeated.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use serde_json::json;

use super::publish::{given_key, json_row};
use super::{Answer, App, LIMIT_MAX, Piece, Refusal, json_answer};
use crate::envelope::Envelope;
use crate::service::blocking;

fn missing(number: i64) -> Refusal {
    let text = format!("no dead letter {number}; it may be written by now");
    Refusal::new(StatusCode::NOT_FOUND, text)
}

pub(super) async fn list(State(api): App, Path(tenant): Path<String>, Query(piece): Query<Piece>) -> Answer {
    api.tenant(&tenant)?;
    let shared = Arc::clone(&api.shared);
    let limit = piece.limit.min(LIMIT_MAX);
    let parked = blocking(move || shared.store.parked(&tenant, piece.after, limit)).await?;
    json_answer(StatusCode::OK, &json!({ "dead_letters": parked }))
}

/// Sends one again: as it was, or as the body and the key say.
pub(super) async fn redrive(
    State(api): App,
    Path((tenant, number)): Path<(String, i64)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    api.accepts()?;
    api.tenant(&tenant)?;
    let given = given_key(&headers)?;
    let corrected = api.read(body).await?;
    let (shared, owner) = (Arc::clone(&api.shared), tenant.clone());
    let found = blocking(move || shared.store.parked(&owner, number - 1, 1)).await?;
    let parked = found.into_iter().find(|parked| parked.number == number);
    let parked = parked.ok_or_else(|| missing(number))?;
    let row = if corrected.is_empty() {
        parked.row
    } else {
        json_row(corrected)?
    };
    let id = given.unwrap_or(parked.id);
    if id.is_empty() {
        return Err(Refusal::bad("this one has no key; give it an Idempotency-Key"));
    }
    let topic = api.topic(&tenant, &parked.table)?;
    let again = Envelope::new(id.clone(), row, Some(number));
    api.enqueue(&topic, again, parked.failures).await?;
    json_answer(StatusCode::ACCEPTED, &json!({ "id": id, "status": "accepted" }))
}

pub(super) async fn discard(State(api): App, Path((tenant, number)): Path<(String, i64)>) -> Answer {
    api.tenant(&tenant)?;
    let shared = Arc::clone(&api.shared);
    if !blocking(move || shared.store.discard(&tenant, number)).await? {
        return Err(missing(number));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
