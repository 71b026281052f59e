//! Durable consumers of the ingest queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::{Ctx, Error, Handler};

/// A durable consumer, with explicit acknowledgement, of every event on the ingest queue or of some of its units.
#[derive(Clone, Default)]
pub struct ConsumerConfig {
    /// The durable's name.
    pub durable: String,
    /// Only these units of a [`Sharded`](crate::Sharded) broker, by the names it gives; `None` is every unit. A broker
    /// without units refuses any `Some`, an empty list too.
    pub units: Option<Vec<String>>,
    /// After this time a message that was not settled is delivered again. `None`: the broker's default, 30 s.
    pub ack_wait: Option<Duration>,
    /// Unsettled messages at which delivery from a unit pauses; other units go on. `None`: the broker's default, 1000.
    pub max_ack_pending: Option<usize>,
    /// Of a [`Sharded`](crate::Sharded) broker: messages of a unit that this process may hold unsettled. At the cap no
    /// more is fetched than keeps the hold on the unit. It is asked before every fetch, so it may change. Other brokers
    /// ignore it.
    pub max_held: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
}

impl ConsumerConfig {
    /// A consumer of every unit, with the broker's defaults.
    pub fn new(durable: impl Into<String>) -> Self {
        Self {
            durable: durable.into(),
            ..Self::default()
        }
    }

    /// Sets the redelivery time.
    #[must_use]
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = Some(wait);
        self
    }

    /// Sets the unsettled messages at which a unit's delivery pauses.
    #[must_use]
    pub fn max_ack_pending(mut self, messages: usize) -> Self {
        self.max_ack_pending = Some(messages);
        self
    }

    /// Limits the consumer to units of a sharded broker.
    #[must_use]
    pub fn units(mut self, units: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.units = Some(units.into_iter().map(Into::into).collect());
        self
    }

    /// Caps what this process holds of each unit.
    #[must_use]
    pub fn max_held(mut self, cap: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        self.max_held = Some(Arc::new(cap));
        self
    }
}

impl fmt::Debug for ConsumerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerConfig")
            .field("durable", &self.durable)
            .field("units", &self.units)
            .field("ack_wait", &self.ack_wait)
            .field("max_ack_pending", &self.max_ack_pending)
            .field("max_held", &self.max_held.is_some())
            .finish()
    }
}

/// Gives access to durable consumers on the ingest queue, held on every tenant's queue, later ones included.
#[async_trait]
pub trait ConsumerManager: Send + Sync {
    /// Creates the durable, or finds the one that the broker's operator made and checks it; which of the two is the
    /// broker's. Nothing is delivered before [`Consumer::consume`].
    ///
    /// `ctx` becomes every message's context. It does not stop delivery.
    ///
    /// # Errors
    /// [`UnitsUnsupported`](crate::ErrorKind::UnitsUnsupported), and on a broker whose operator owns the durables
    /// [`ConsumerNotFound`](crate::ErrorKind::ConsumerNotFound) and
    /// [`ConsumerMismatch`](crate::ErrorKind::ConsumerMismatch).
    async fn create_consumer(&self, ctx: &Ctx, config: ConsumerConfig) -> Result<Box<dyn Consumer>, Error>;
}

/// A durable consumer.
#[async_trait]
pub trait Consumer: Send + Sync {
    /// Delivers each message to the handler until stopped.
    ///
    /// Each delivery unit (a tenant's queue, or the partition's shard that holds it) has a task of its own: within a
    /// unit messages come in order and one at a time, different units' come concurrently. A handler that waits holds
    /// back its own unit only: that is the back-pressure to rely on.
    ///
    /// About `prefetch` messages are fetched ahead over all units together: the units at the start split it, a queue
    /// joined later fetches its share at that point, each at least one; 0 is the client's default per unit.
    ///
    /// # Errors
    /// When delivery cannot begin. What ends it later is told by [`Consuming::failed`].
    async fn consume(&self, handler: Handler, prefetch: usize) -> Result<Consuming, Error>;

    /// The consumer's means to stop fetching ahead of its stop, if it has them.
    fn as_halter(&self) -> Option<&dyn Halter> {
        None
    }

    /// The consumer's means to give up its units, if it has them.
    fn as_releaser(&self) -> Option<&dyn Releaser> {
        None
    }
}

/// Stops fetching ahead of the stop, so that what is held can be written before the units go.
///
/// The order of a clean stop: [`Halter::halt`], settle everything, [`Consuming::stop`], [`Releaser::release`].
#[async_trait]
pub trait Halter: Send + Sync {
    /// Returns once no handler call is running and none will: everything fetched has reached the handler. The consumer
    /// keeps its hold on its units until the stop, and for at least its ack wait.
    async fn halt(&self);
}

/// Gives units up so that their next owner is served at once.
#[async_trait]
pub trait Releaser: Send + Sync {
    /// Gives up the units that this consumer still holds; others are left alone. Call it after the stop, once every
    /// delivered message is settled.
    ///
    /// # Errors
    /// Those of all units, joined.
    async fn release(&self, ctx: &Ctx) -> Result<(), Error>;
}

/// Delivery under way. Dropping it stops the delivery, like [`Consuming::stop`].
#[must_use = "dropping it stops the delivery"]
pub struct Consuming {
    stop: Box<dyn Fn() + Send + Sync>,
    failed: Option<oneshot::Receiver<Error>>,
}

impl Consuming {
    /// For brokers: how to stop (without waiting, any number of times), and where the one failure is reported.
    pub fn new(stop: impl Fn() + Send + Sync + 'static, failed: oneshot::Receiver<Error>) -> Self {
        Self {
            stop: Box::new(stop),
            failed: Some(failed),
        }
    }

    /// Asks delivery to end and returns without waiting. A handler call that is running, or one for a message already
    /// fetched, may still happen afterwards.
    pub fn stop(&self) {
        (self.stop)();
    }

    /// Waits for delivery to end by itself: the durable was deleted, the connection closed for good. Gives one error
    /// in the consumer's life, none after a stop, and none for reconnects. Without a failure it waits forever: a
    /// service that does not listen here waits forever on a dead consumer.
    ///
    /// # Cancel safety
    /// May be dropped at any point; the failure is not lost.
    pub async fn failed(&mut self) -> Error {
        if let Some(failed) = self.failed.as_mut() {
            let outcome = failed.await;
            self.failed = None;
            if let Ok(error) = outcome {
                return error;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Consuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Consuming")
    }
}
