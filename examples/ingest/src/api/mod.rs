//! The HTTP side.
//!
//! | route | does |
//! |---|---|
//! | `POST /v1/tenants/{tenant}/tables/{table}/rows` | accepts a row; 202 once it is durable |
//! | `GET …/rows?after=N&limit=N` | what is written, in order |
//! | `GET …/events` | accepted rows as they come, as server-sent events; `Last-Event-ID` fills the gap |
//! | `GET /v1/tenants/{tenant}` | budget and counts |
//! | `GET /v1/tenants/{tenant}/dead-letters?after=N&limit=N` | what could not be written, and why |
//! | `POST …/dead-letters/{number}/redrive` | sends one into the queue again, corrected if there is a body |
//! | `DELETE …/dead-letters/{number}` | gives one up |
//! | `POST /v1/reload` | reads the configuration again and applies budgets |
//! | `GET /healthz` | whether a publish can get through |

mod dead_letters;
mod events;
mod publish;
mod refusal;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;
use windjet_mq::{Ctx, Error, ErrorKind, TenantId, Topic};

use self::refusal::Refusal;
use crate::service::{Shared, blocking};
use crate::{Args, Role};

/// The longest name of a table.
const TABLE_MAX: usize = 64;
/// Rows of one answer.
const LIMIT_MAX: u32 = 1000;

/// What the routes share.
pub(crate) struct Api {
    shared: Arc<Shared>,
    ready: Box<dyn Fn() -> Result<(), Error> + Send + Sync>,
    takes_rows: bool,
    max_row: usize,
    max_in_flight: u32,
    in_flight: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

type App = State<Arc<Api>>;
type Answer = Result<Response, Refusal>;

pub(crate) fn router(
    shared: Arc<Shared>,
    ready: Box<dyn Fn() -> Result<(), Error> + Send + Sync>,
    args: &Args,
) -> Router {
    let api = Api {
        shared,
        ready,
        takes_rows: args.role != Role::Worker,
        max_row: usize::try_from(args.max_row).unwrap_or(usize::MAX),
        max_in_flight: args.max_in_flight,
        in_flight: Mutex::default(),
    };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/v1/reload", post(reload))
        .route("/v1/tenants/{tenant}", get(tenant))
        .route(
            "/v1/tenants/{tenant}/tables/{table}/rows",
            post(publish::publish).get(rows),
        )
        .route("/v1/tenants/{tenant}/tables/{table}/events", get(events::events))
        .route("/v1/tenants/{tenant}/dead-letters", get(dead_letters::list))
        .route(
            "/v1/tenants/{tenant}/dead-letters/{number}",
            delete(dead_letters::discard),
        )
        .route(
            "/v1/tenants/{tenant}/dead-letters/{number}/redrive",
            post(dead_letters::redrive),
        )
        .fallback(nowhere)
        .with_state(Arc::new(api))
}

impl Api {
    /// A tenant that is served.
    fn tenant(&self, tenant: &str) -> Result<TenantId, Refusal> {
        let id = TenantId::parse(tenant).map_err(|error| Refusal::bad(error.to_string()))?;
        if !self.shared.config().tenants.contains_key(&id) {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                format!(
                    "tenant {id} is not in the configuration; add it with its max_bytes, then POST /v1/reload"
                ),
            ));
        }
        Ok(id)
    }

    fn topic(&self, tenant: &str, table: &str) -> Result<Topic, Refusal> {
        let tenant = self.tenant(tenant)?;
        if table.len() > TABLE_MAX || table.chars().any(char::is_control) {
            return Err(Refusal::bad(format!(
                "a table's name has at most {TABLE_MAX} bytes and no control characters"
            )));
        }
        Ok(Topic::new(tenant, table))
    }
}

/// Which piece of a list.
#[derive(Debug, Deserialize)]
struct Piece {
    #[serde(default)]
    after: i64,
    #[serde(default = "hundred")]
    limit: u32,
}

fn hundred() -> u32 {
    100
}

/// An answer in JSON.
fn json_answer(status: StatusCode, value: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(value).map_err(|error| Refusal::failed(&error.into()))?;
    Ok((status, [(CONTENT_TYPE, "application/json")], body).into_response())
}

async fn rows(
    State(api): App,
    Path((tenant, table)): Path<(String, String)>,
    Query(piece): Query<Piece>,
) -> Answer {
    let topic = api.topic(&tenant, &table)?;
    let shared = Arc::clone(&api.shared);
    let limit = piece.limit.min(LIMIT_MAX);
    let rows = blocking(move || shared.store.rows(&tenant, &topic.table, piece.after, limit)).await?;
    json_answer(StatusCode::OK, &json!({ "rows": rows }))
}

async fn tenant(State(api): App, Path(tenant): Path<String>) -> Answer {
    let id = api.tenant(&tenant)?;
    let shared = Arc::clone(&api.shared);
    let (rows, parked) = blocking(move || shared.store.counts(&tenant)).await?;
    // Every row that was ever parked, also those that were redriven since: the queue keeps its copies.
    let in_queue = match api.shared.broker.dead_letter_counts(&Ctx::new(), &id, None).await {
        Ok(counts) => counts.total,
        Err(error) if error.is(ErrorKind::NoDeadLetterQueue) => 0,
        Err(error) => return Err(Refusal::broker(&error)),
    };
    let max_bytes = api.shared.broker.max_bytes(&id);
    json_answer(
        StatusCode::OK,
        &json!({ "max_bytes": max_bytes, "rows": rows, "dead_letters": parked, "dead_letter_queue": in_queue }),
    )
}

async fn reload(State(api): App) -> Answer {
    let outcome = api.shared.reload().await;
    let outcome =
        outcome.map_err(|error| Refusal::bad(format!("the last configuration stays: {error:#}")))?;
    let whole = outcome["failed"]
        .as_object()
        .is_none_or(serde_json::Map::is_empty);
    let status = if whole {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json_answer(status, &outcome)
}

async fn nowhere() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "no such route; examples/ingest/README.md lists them",
    )
}

async fn healthz(State(api): App) -> Answer {
    (api.ready)().map_err(|error| Refusal::broker(&error))?;
    json_answer(StatusCode::OK, &json!({ "status": "ok" }))
}
