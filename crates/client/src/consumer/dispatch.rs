//! From a delivery to a running handler, within bounds.
//!
//! A [`Dispatcher`] belongs to one run of one consumer, pull or push. It runs handlers in the consumer's own task when they run
//! one at a time, else in the tasks of a [`Crew`], or on the client's worker pool; there, a message without a place is treated as
//! [`Backpressure`] says. Dropping it aborts the handlers that it runs itself.

use std::sync::{Arc, Mutex, PoisonError};

use super::pipeline::{self, Rules};
use super::pool::WorkerPool;
use super::pull::ProcessOptions;
use super::vitals::Vitals;
use crate::client::Inner;
use crate::config::Backpressure;
use crate::crew::{Crew, Job};
use crate::delivery::Delivery;
use crate::error::{ErrorKind, Result};
use crate::handler::BoxHandler;
use crate::ops::adaptive::AdaptivePressure;

/// Hands deliveries to a handler.
pub(super) struct Dispatcher {
    shared: Arc<Shared>,
    options: ProcessOptions,
    running: Crew<Work>,
}

/// What every message needs to be handled.
struct Shared {
    handler: BoxHandler,
    rules: Arc<Rules>,
    pool: Option<WorkerPool>,
    mode: Backpressure,
    delay: Option<Arc<AdaptivePressure>>,
}

impl Dispatcher {
    /// A dispatcher as the client's settings and `options` say. `ack_wait` is that of the consumer.
    pub(super) fn new(
        inner: &Inner,
        handler: BoxHandler,
        options: ProcessOptions,
        ack_wait: std::time::Duration,
        vitals: &Arc<Vitals>,
    ) -> Self {
        let config = &inner.config;
        let pool = config.consumer.worker_pool_enabled.then(|| inner.pool());
        Self {
            // Messages go to the pool one after another, in their order.
            running: Crew::new(if pool.is_some() { 1 } else { options.concurrency }),
            shared: Arc::new(Shared {
                handler,
                rules: Arc::new(options.rules(inner, ack_wait, vitals)),
                mode: config.backpressure.mode,
                pool,
                delay: options.pressure.clone(),
            }),
            options,
        }
    }

    /// The client's pool, if handlers run there.
    pub(super) fn pool(&self) -> Option<&WorkerPool> {
        self.shared.pool.as_ref()
    }

    pub(super) fn options(&self) -> &ProcessOptions {
        &self.options
    }

    /// Waits until one more handler may run.
    pub(super) async fn room(&mut self) -> Result<()> {
        while !self.has_room() {
            self.join_next().await?;
        }
        Ok(())
    }

    /// Whether one more may be begun without waiting for another one.
    pub(super) fn has_room(&self) -> bool {
        self.running.busy() < self.width()
    }

    /// Whether handlers run, or messages are on their way to the pool.
    pub(super) fn is_busy(&self) -> bool {
        self.running.busy() > 0
    }

    /// Takes in what has ended.
    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some(ended) = self.running.try_next() {
            ended?;
        }
        Ok(())
    }

    /// Waits until one has ended; for ever if there is none.
    pub(super) async fn join_next(&mut self) -> Result<()> {
        self.running.next().await
    }

    /// Waits for something else while handlers run.
    pub(super) async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        self.running.during(other).await
    }

    /// Begins with a message: to its end when handlers run one at a time, else until it is under way.
    pub(super) async fn handle(&mut self, delivery: Delivery) -> Result<()> {
        if self.width() > 1 {
            return self.begin(delivery);
        }
        self.work(delivery).run().await
    }

    /// Begins with a message; there must be room. It goes on while the caller waits here, by [`Dispatcher::join_next`] or
    /// [`Dispatcher::during`].
    pub(super) fn begin(&mut self, delivery: Delivery) -> Result<()> {
        self.reap()?;
        let work = self.work(delivery);
        self.running.begin(work);
        if let Some(meters) = &self.shared.rules.meters {
            meters.batch_inflight.set(self.running.busy() as f64);
        }
        Ok(())
    }

    /// Waits for all handlers that run here.
    pub(super) async fn finish(&mut self) {
        self.running.finish().await;
    }

    /// Handlers at a time.
    fn width(&self) -> usize {
        if self.shared.pool.is_some() {
            1
        } else {
            self.options.concurrency
        }
    }

    fn work(&self, delivery: Delivery) -> Work {
        Work {
            delivery,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// A message, and what it needs to be handled.
struct Work {
    delivery: Delivery,
    shared: Arc<Shared>,
}

impl Job for Work {
    async fn run(self) -> Result<()> {
        let shared = &self.shared;
        if let Some(pool) = &shared.pool {
            return submit(self.delivery, shared, pool).await;
        }
        pipeline::run(self.delivery, &shared.handler, &shared.rules).await;
        Ok(())
    }
}

/// Gives a message to the pool, or does with it what the settings say when there is no room.
async fn submit(delivery: Delivery, shared: &Arc<Shared>, pool: &WorkerPool) -> Result<()> {
    // The task owns the delivery from the start; a refused one gives it back.
    let held = Arc::new(Mutex::new(Some(delivery)));
    let (taken, own) = (Arc::clone(&held), Arc::clone(shared));
    let task = async move {
        let delivery = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(delivery) = delivery {
            pipeline::run(delivery, &own.handler, &own.rules).await;
        }
    };
    let (task, error) = match pool.try_submit(task) {
        Ok(()) => return Ok(()),
        Err(refused) => refused,
    };
    if error.kind() == ErrorKind::PoolStopped {
        return Err(error);
    }
    if shared.mode == Backpressure::Block {
        return pool.submit(task).await;
    }
    let delivery = held.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(delivery) = delivery else { return Ok(()) };
    shared.rules.vitals.note_backpressure();
    if let Some(meters) = &shared.rules.meters {
        meters.no_room.increment(1);
        if matches!(shared.mode, Backpressure::Term | Backpressure::Drop) {
            meters.crowded_out.increment(1);
        }
    }
    let settled = match shared.mode {
        Backpressure::Term => delivery.term().await,
        Backpressure::Drop => {
            tracing::warn!(
                subject = delivery.subject.as_str(),
                "the worker pool is full: a message is given up"
            );
            delivery.term().await
        }
        _ => {
            let delay = shared
                .delay
                .as_ref()
                .map(|pressure| pressure.decision().nak_delay);
            match delay.filter(|delay| !delay.is_zero()) {
                Some(delay) => delivery.nak_after(delay).await,
                None => delivery.nak().await,
            }
        }
    };
    if let Err(error) = settled {
        tracing::error!(%error, "a message could not be settled");
    }
    Ok(())
}
