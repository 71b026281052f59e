//! Reclaiming the space of what is both acknowledged and old.

use std::collections::BTreeMap;
use std::time::SystemTime;

use windjet_protocol::jetstream::stream::info::StreamState;

use super::engine::{Engine, timestamp};
use super::names;
use super::queues::Queues;
use crate::{Ctx, Error, ErrorKind, PurgeOutcome, TenantId};

pub(super) async fn purge_acked(
    queues: &Queues,
    ctx: &Ctx,
    consumer: &str,
    older_than: &BTreeMap<TenantId, SystemTime>,
) -> PurgeOutcome {
    let (mut purged, mut errors) = (0, Vec::new());
    let now = SystemTime::now();
    for tenant in queues.tenants() {
        if let Err(error) = queues.check_open().and_then(|()| ctx.check("purge")) {
            errors.push(error);
            break;
        }
        let cutoff = older_than.get(&tenant).copied().unwrap_or(now);
        match purge(&queues.engine, &tenant, consumer, cutoff).await {
            Ok(removed) => purged += u64::from(removed > 0),
            Err(error) => errors.push(error),
        }
    }
    if purged > 0 {
        tracing::info!(
            component = "mq",
            tenants = purged,
            "acknowledged events were purged"
        );
    }
    PurgeOutcome {
        purged: purged > 0,
        error: Error::join(errors),
    }
}

async fn purge(engine: &Engine, tenant: &TenantId, consumer: &str, cutoff: SystemTime) -> Result<u64, Error> {
    let stream = names::ingest_stream(tenant);
    let of = |error: Error| Error::wrap(error.kind(), format!("tenant {tenant}: {error}"), error);
    let info = engine.stream(&stream).await.map_err(of)?;
    let info = info.ok_or_else(|| {
        Error::new(
            ErrorKind::Other,
            format!("tenant {tenant}: get stream: {stream} does not exist"),
        )
    })?;
    let durable = engine.durable(&stream, consumer).await.map_err(of)?;
    let durable = durable.ok_or_else(|| {
        Error::new(
            ErrorKind::ConsumerNotFound,
            format!("tenant {tenant}: consumer {consumer} not found"),
        )
    })?;
    let floor = durable.ack_floor.stream_seq;
    let gap = first_since(engine, &stream, &info.state, cutoff)
        .await
        .map_err(of)?;
    let target = gap.min(floor + 1);
    tracing::debug!(component = "mq", %tenant, target, floor, gap, "purge");
    if target <= info.state.first_seq.max(1) {
        return Ok(0);
    }
    engine.purge_below(&stream, target).await.map_err(of)
}

/// The first message stored at the cutoff or later, or one past the last; 0 when there is nothing older.
async fn first_since(
    engine: &Engine,
    stream: &str,
    state: &StreamState,
    cutoff: SystemTime,
) -> Result<u64, Error> {
    let cutoff = timestamp(cutoff);
    if state.messages == 0 || state.first_ts >= cutoff {
        return Ok(0);
    }
    if state.last_ts < cutoff {
        return Ok(state.last_seq + 1);
    }
    // Everything below `low` is older or gone; what is at `high` or above is not older.
    let (mut low, mut high) = (state.first_seq + 1, state.last_seq);
    while low < high {
        let middle = low + (high - low) / 2;
        match engine.stored_at(stream, middle).await? {
            Some(time) if time >= cutoff => high = middle,
            _ => low = middle + 1,
        }
    }
    Ok(low)
}
