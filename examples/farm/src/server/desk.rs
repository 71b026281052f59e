//! Answers requests for work, at once or when there is some.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use windjet_bus::client::{LeaseCall, LeaseHandler, lease_handler, refusal};
use windjet_bus::message::{LeaseReply, LeaseRequest, decode, encode, is_current};
use windjet_bus::subjects::WILDCARD_QUEUE;
use windjet_bus::{Bus as _, Layout};

use super::Farm;
use crate::store::{Bounds, Leased, now_ms};

/// A refused request waits this long, so that whoever asks wrongly does not ask in a loop.
const REFUSAL: Duration = Duration::from_secs(1);
/// What a worker that must register is told.
pub(crate) const REGISTER: &str = "register first";

pub(super) fn handler(farm: &Arc<Farm>) -> LeaseHandler {
    let farm = farm.clone();
    lease_handler(move |call| {
        let farm = farm.clone();
        async move { farm.answer(call).await }
    })
}

impl Farm {
    async fn answer(self: Arc<Self>, call: LeaseCall) -> Bytes {
        let refuse = async |reason: &str| {
            tokio::select! {
                () = tokio::time::sleep(REFUSAL) => {}
                () = call.stopping.cancelled() => {}
            }
            refusal(reason, REFUSAL)
        };
        let request: LeaseRequest = match decode(&call.data) {
            Ok(request) => request,
            Err(error) => return refuse(&error.to_string()).await,
        };
        let layout = self.client.layout();
        if !request.version.is_empty() && !is_current(&request.version, layout) {
            return refuse(&format!(
                "the worker speaks version {:?}, the server {:?}; run the same release",
                request.version,
                layout.version()
            ))
            .await;
        }
        if request.worker_id.is_empty()
            || call
                .worker
                .as_ref()
                .is_some_and(|worker| worker.as_str() != request.worker_id)
        {
            return refuse("the request names another worker").await;
        }
        if request.max_tasks < 0 {
            // The worker stops. What it asked for before must not be given any work.
            self.leaving.lock().insert(request.instance_id.clone());
            self.waiters.wake_all();
            return refusal("farewell", Duration::ZERO);
        }
        let mut hold = self.profile.hold;
        if let Ok(timeout) = u64::try_from(request.timeout_ms)
            && timeout > 0
        {
            // The answer must come before the worker stops listening.
            hold = hold.min(Duration::from_millis(timeout.saturating_sub(500)));
        }
        let until = tokio::time::Instant::now() + hold;
        loop {
            let seen = self.waiters.generation();
            if !call.asker.is_there() || self.leaving.lock().contains(&request.instance_id) {
                return Bytes::new();
            }
            let leased = match self.lease(&request, &call.queue).await {
                Ok(leased) => leased,
                Err(error) => {
                    tracing::error!(%error, "looking for work failed");
                    return refuse("the server's store failed").await;
                }
            };
            if leased.register {
                return refuse(REGISTER).await;
            }
            if leased.more {
                self.waiters.pass_on();
            }
            if !leased.batch.is_empty() {
                let reply = LeaseReply {
                    assignments: leased.batch,
                    ..LeaseReply::default()
                };
                return encode(&reply).unwrap_or_else(|error| refusal(&error.to_string(), REFUSAL));
            }
            let Some(woken) = self.waiters.park(&call.queue, seen) else {
                continue;
            };
            tokio::select! {
                _ = woken => {}
                () = tokio::time::sleep_until(until) => return refusal("", Duration::ZERO),
                () = call.stopping.cancelled() => return refusal("the server stops", REFUSAL),
            }
        }
    }

    async fn lease(self: &Arc<Self>, request: &LeaseRequest, queue: &str) -> anyhow::Result<Leased> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let (worker, instance) = (request.worker_id.clone(), request.instance_id.clone());
        let bounds = Bounds::of(request.max_tasks, request.max_bytes);
        let queue = (queue != WILDCARD_QUEUE).then(|| queue.to_owned());
        let layout: Layout = self.client.layout();
        self.store(move |store| {
            store.lease_within(&worker, &instance, queue.as_deref(), bounds, layout, now_ms())
        })
        .await
    }
}
