//! From a delivery to a running handler, within bounds.
//!
//! A [`Dispatcher`] belongs to one run of one consumer, pull or push. It runs handlers in its own task, a few at a time in
//! the tasks of a [`Crew`], or on the client's worker pool; there, a message without a place is treated as
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

/// Hands deliveries to a handler.
pub(super) struct Dispatcher {
    handler: BoxHandler,
    rules: Arc<Rules>,
    options: ProcessOptions,
    mode: Backpressure,
    pool: Option<WorkerPool>,
    running: Crew<Work>,
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
        Self {
            handler,
            rules: Arc::new(options.rules(inner, ack_wait, vitals)),
            mode: config.backpressure.mode,
            pool: config.consumer.worker_pool_enabled.then(|| inner.pool()),
            options,
            running: Crew::new(),
        }
    }

    /// The client's pool, if handlers run there.
    pub(super) fn pool(&self) -> Option<&WorkerPool> {
        self.pool.as_ref()
    }

    pub(super) fn options(&self) -> &ProcessOptions {
        &self.options
    }

    /// Waits until one more handler may run in a task of its own.
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

    /// Whether handlers, or messages on their way to the pool, are in tasks of their own.
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

    /// Waits until one of the tasks has ended; for ever if there is none.
    pub(super) async fn join_next(&mut self) -> Result<()> {
        self.running.next().await
    }

    /// Begins with a message: to its end when handlers run one at a time, else until it is under way.
    pub(super) async fn begin(&mut self, delivery: Delivery) -> Result<()> {
        if self.pool.is_none() && self.options.concurrency > 1 {
            return self.spawn(delivery);
        }
        self.work(delivery).run().await
    }

    /// Begins with a message in a task of its own, whatever the concurrency.
    pub(super) fn spawn(&mut self, delivery: Delivery) -> Result<()> {
        self.reap()?;
        let work = self.work(delivery);
        self.running.begin(work);
        if let Some(meters) = &self.rules.meters {
            meters.batch_inflight.set(self.running.busy() as f64);
        }
        Ok(())
    }

    /// Waits for all handlers that run in tasks of their own.
    pub(super) async fn finish(&mut self) {
        self.running.finish().await;
    }

    /// Tasks at a time. Messages go to the pool one after another, in their order.
    fn width(&self) -> usize {
        if self.pool.is_some() {
            1
        } else {
            self.options.concurrency
        }
    }

    fn work(&self, delivery: Delivery) -> Work {
        Work {
            delivery,
            handler: self.handler.clone(),
            rules: Arc::clone(&self.rules),
            pool: self.pool.clone(),
            mode: self.mode,
            delay: self.options.pressure.clone(),
        }
    }
}

/// A message, and what it needs to be handled.
struct Work {
    delivery: Delivery,
    handler: BoxHandler,
    rules: Arc<Rules>,
    pool: Option<WorkerPool>,
    mode: Backpressure,
    delay: Option<Arc<crate::ops::adaptive::AdaptivePressure>>,
}

impl Job for Work {
    async fn run(mut self) -> Result<()> {
        match self.pool.take() {
            Some(pool) => self.submit(&pool).await,
            None => {
                pipeline::run(self.delivery, &self.handler, &self.rules).await;
                Ok(())
            }
        }
    }
}

impl Work {
    /// Gives a message to the pool, or does with it what the settings say when there is no room.
    async fn submit(self, pool: &WorkerPool) -> Result<()> {
        // The task owns the delivery from the start; a refused one gives it back.
        let (handler, rules) = (self.handler, Arc::clone(&self.rules));
        let held = Arc::new(Mutex::new(Some(self.delivery)));
        let taken = Arc::clone(&held);
        let task = async move {
            let delivery = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(delivery) = delivery {
                pipeline::run(delivery, &handler, &rules).await;
            }
        };
        let (task, error) = match pool.try_submit(task) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        if error.kind() == ErrorKind::PoolStopped {
            return Err(error);
        }
        if self.mode == Backpressure::Block {
            return pool.submit(task).await;
        }
        let delivery = held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(delivery) = delivery else { return Ok(()) };
        self.rules.vitals.note_backpressure();
        if let Some(meters) = &self.rules.meters {
            meters.no_room.increment(1);
            if matches!(self.mode, Backpressure::Term | Backpressure::Drop) {
                meters.crowded_out.increment(1);
            }
        }
        let settled = match self.mode {
            Backpressure::Term => delivery.term().await,
            Backpressure::Drop => {
                tracing::warn!(
                    subject = delivery.subject.as_str(),
                    "the worker pool is full: a message is given up"
                );
                delivery.term().await
            }
            _ => {
                let delay = self.delay.map(|pressure| pressure.decision().nak_delay);
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
}
