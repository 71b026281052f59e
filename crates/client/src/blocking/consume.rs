//! Pull consumers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::consumer::FetchOptions;
use crate::delivery::SettleError;
use crate::error::Result;
use crate::handler::{BoxHandler, Disposition, Handler, HandlerError};
use crate::pull::End;
use crate::{ProcessOptions, SettleErrorKind};

/// A pull consumer; each call waits.
#[derive(Debug, Clone)]
pub struct PullConsumer {
    consumer: crate::PullConsumer,
    engine: Engine,
}

/// What one request brought.
#[derive(Debug)]
pub struct Batch {
    /// The messages, in the order they came.
    pub deliveries: Vec<Delivery>,
    /// Why there are no more.
    pub end: End,
}

/// One message in hand. Dropped unsettled, it is handed back.
#[derive(Debug, Clone)]
pub struct Delivery {
    delivery: Arc<crate::Delivery>,
    engine: Engine,
}

/// A handler at work. Dropped, it works on until the client is closed.
#[derive(Debug)]
pub struct Worker {
    worker: crate::consumer::Worker,
    engine: Engine,
}

impl PullConsumer {
    pub(super) fn new(consumer: crate::PullConsumer, engine: Engine) -> Self {
        Self { consumer, engine }
    }

    /// The asynchronous consumer underneath, with its names and counters.
    #[must_use]
    pub fn kit(&self) -> &crate::PullConsumer {
        &self.consumer
    }

    /// Makes one request; the deliveries are the caller's to settle.
    ///
    /// # Errors
    /// As [`crate::PullConsumer::fetch`].
    pub fn fetch(&self, batch: usize, options: FetchOptions) -> Result<Batch> {
        let consumer = self.consumer.clone();
        let fetched = self
            .engine
            .wait(async move { consumer.fetch(batch, options).await })??;
        Ok(self.batch(fetched))
    }

    /// Takes what is there now.
    ///
    /// # Errors
    /// As [`crate::PullConsumer::fetch_no_wait`].
    pub fn fetch_no_wait(&self, batch: usize) -> Result<Batch> {
        let consumer = self.consumer.clone();
        let fetched = self
            .engine
            .wait(async move { consumer.fetch_no_wait(batch).await })??;
        Ok(self.batch(fetched))
    }

    fn batch(&self, fetched: crate::pull::Batch) -> Batch {
        let deliveries = fetched.deliveries.into_iter().map(|delivery| Delivery {
            delivery: Arc::new(delivery),
            engine: self.engine.clone(),
        });
        Batch {
            deliveries: deliveries.collect(),
            end: fetched.end,
        }
    }

    /// Runs `handler` on the messages of this consumer, on threads of the client, until it is stopped. Layers go around
    /// what [`PullConsumer::handler`] makes.
    pub fn start<R, E>(
        &self,
        handler: impl Fn(&Delivery) -> std::result::Result<R, E> + Send + Sync + 'static,
        options: ProcessOptions,
    ) -> Worker
    where
        R: Into<Disposition> + Send + 'static,
        E: Into<HandlerError> + Send + 'static,
    {
        self.start_layered(self.handler(handler), options)
    }

    /// As [`PullConsumer::start`], with a handler that has layers around it.
    pub fn start_layered(&self, handler: impl Handler, options: ProcessOptions) -> Worker {
        let _entered = self.engine.enter();
        Worker {
            worker: self.consumer.start(handler, options),
            engine: self.engine.clone(),
        }
    }

    /// A plain function as a handler, to put layers around: `Stack::new().dlq(dlq).around(consumer.handler(work))`.
    pub fn handler<R, E>(
        &self,
        handler: impl Fn(&Delivery) -> std::result::Result<R, E> + Send + Sync + 'static,
    ) -> BoxHandler
    where
        R: Into<Disposition> + Send + 'static,
        E: Into<HandlerError> + Send + 'static,
    {
        let (handler, engine) = (Arc::new(handler), self.engine.clone());
        BoxHandler::new(move |delivery: Arc<crate::Delivery>| {
            let (handler, engine) = (Arc::clone(&handler), engine.clone());
            let work = move || handler(&Delivery { delivery, engine });
            async move {
                match tokio::task::spawn_blocking(work).await {
                    Ok(answer) => answer.map(Into::into).map_err(Into::into),
                    // To the guard around every handler.
                    Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
                    Err(ended) => Err(HandlerError::from(ended)),
                }
            }
        })
    }

    /// Stops processing, and refuses what comes later.
    pub fn close(&self) {
        let consumer = self.consumer.clone();
        // Without a runtime nothing is at work any more.
        let _ = self.engine.wait(async move { consumer.close().await });
    }
}

impl Worker {
    /// Whether it has ended, by itself or stopped.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.worker.is_finished()
    }

    /// Stops it, and waits until what was in hand is finished.
    ///
    /// # Errors
    /// As [`crate::PullConsumer::process`].
    pub fn stop(self) -> Result<()> {
        let worker = self.worker;
        self.engine.wait(async move { worker.stop().await })?
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// As [`crate::PullConsumer::process`].
    pub fn finished(self) -> Result<()> {
        let worker = self.worker;
        self.engine.wait(async move { worker.finished().await })?
    }
}

impl Delivery {
    fn wait<F>(&self, settle: impl FnOnce(Arc<crate::Delivery>) -> F) -> std::result::Result<(), SettleError>
    where
        F: Future<Output = std::result::Result<(), SettleError>> + Send + 'static,
    {
        self.engine
            .wait(settle(Arc::clone(&self.delivery)))
            .unwrap_or_else(|error| Err(SettleError::with(SettleErrorKind::NotSent, error)))
    }

    /// Acknowledges the message.
    ///
    /// # Errors
    /// As [`crate::Delivery::ack`].
    pub fn ack(&self) -> std::result::Result<(), SettleError> {
        self.wait(|delivery| async move { delivery.ack().await })
    }

    /// Acknowledges the message and waits for the server to say that this has taken effect.
    ///
    /// # Errors
    /// As [`crate::Delivery::ack_confirmed`].
    pub fn ack_confirmed(&self, wait: Duration) -> std::result::Result<(), SettleError> {
        self.wait(move |delivery| async move { delivery.ack_confirmed(wait).await })
    }

    /// Hands the message back, to be delivered again at once.
    ///
    /// # Errors
    /// As [`crate::Delivery::nak`].
    pub fn nak(&self) -> std::result::Result<(), SettleError> {
        self.wait(|delivery| async move { delivery.nak().await })
    }

    /// Hands the message back, to be delivered again after `delay`.
    ///
    /// # Errors
    /// As [`crate::Delivery::nak_after`].
    pub fn nak_after(&self, delay: Duration) -> std::result::Result<(), SettleError> {
        self.wait(move |delivery| async move { delivery.nak_after(delay).await })
    }

    /// Gives the message up: it is not delivered again.
    ///
    /// # Errors
    /// As [`crate::Delivery::term`].
    pub fn term(&self) -> std::result::Result<(), SettleError> {
        self.wait(|delivery| async move { delivery.term().await })
    }

    /// Gives the message up with a reason.
    ///
    /// # Errors
    /// As [`crate::Delivery::term_with_reason`].
    pub fn term_with_reason(&self, reason: &str) -> std::result::Result<(), SettleError> {
        let reason = reason.to_owned();
        self.wait(|delivery| async move { delivery.term_with_reason(&reason).await })
    }

    /// Tells the server that work goes on: its ack wait begins anew.
    ///
    /// # Errors
    /// As [`crate::Delivery::progress`].
    pub fn progress(&self) -> std::result::Result<(), SettleError> {
        self.wait(|delivery| async move { delivery.progress().await })
    }
}

impl Deref for Delivery {
    type Target = crate::Delivery;

    fn deref(&self) -> &crate::Delivery {
        &self.delivery
    }
}
