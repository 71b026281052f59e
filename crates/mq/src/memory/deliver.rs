//! Delivery: one task for each consumer and tenant.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::durable::Next;
use super::log::Row;
use super::state::Joined;
use crate::{
    Consumer, ConsumerConfig, Consuming, Ctx, Error, ErrorKind, Handler, Listener, Message, Settle, TenantId,
};

/// What a consumer does with messages.
#[derive(Debug, Clone)]
pub(super) enum Mode {
    Handle(Handler),
    Listen(Listener),
}

/// A consumer as the broker knows it: held on every queue, later ones included, until it stops.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) id: u64,
    pub(super) durable: String,
    pub(super) ack_wait: Option<Duration>,
    pub(super) max_ack_pending: Option<usize>,
    ctx: Ctx,
    stop: CancellationToken,
    /// Set under the broker's lock, once, when delivery begins.
    mode: OnceLock<Mode>,
    /// Taken by the first delivery that ends by itself.
    failed: Mutex<Option<oneshot::Sender<Error>>>,
}

impl Registration {
    pub(super) fn new(id: u64, ctx: &Ctx, config: &ConsumerConfig) -> Self {
        Self {
            id,
            durable: config.durable.clone(),
            ack_wait: config.ack_wait,
            max_ack_pending: config.max_ack_pending,
            ctx: ctx.clone(),
            stop: CancellationToken::new(),
            mode: OnceLock::new(),
            failed: Mutex::new(None),
        }
    }

    /// What it does with messages, once it delivers.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.mode.get().cloned()
    }

    /// Whether this was the first time.
    pub(super) fn set_mode(&self, mode: Mode) -> bool {
        self.mode.set(mode).is_ok()
    }

    fn fail(&self, tenant: &TenantId) {
        if self.stop.is_cancelled() {
            return;
        }
        if let Some(failed) = self.failed.lock().take() {
            let cause = Error::new(
                ErrorKind::ConsumerNotFound,
                format!("consumer {} was deleted", self.durable),
            );
            // Nobody listening is the caller's choice.
            let _ = failed.send(Error::wrap(
                ErrorKind::DeliveryEnded,
                format!("tenant {tenant}: consumer delivery ended"),
                cause,
            ));
        }
    }
}

/// Starts delivery of a consumer from every queue that it holds. `None` when it delivers already.
pub(super) fn begin(
    shared: &Arc<Shared>,
    registration: &Arc<Registration>,
    mode: &Mode,
) -> Option<oneshot::Receiver<Error>> {
    let (sender, failed) = oneshot::channel();
    // A subscription ends with its context, a consumer only with its stop.
    let listens = matches!(mode, Mode::Listen(_));
    let joined = {
        let mut state = shared.state.lock();
        let joined = state.begin(registration, mode)?;
        *registration.failed.lock() = Some(sender);
        joined
    };
    start(shared, joined);
    let (shared, registration) = (Arc::clone(shared), Arc::clone(registration));
    tokio::spawn(async move {
        tokio::select! {
            () = registration.stop.cancelled() => {}
            () = shared.closed.cancelled() => {}
            () = registration.ctx.canceled(), if listens => {}
        }
        registration.stop.cancel();
        shared.state.lock().unregister(registration.id);
    });
    Some(failed)
}

/// Starts deliveries.
pub(super) fn start(shared: &Arc<Shared>, joined: Joined) {
    for (registration, tenant, mode) in joined {
        tokio::spawn(deliver(Arc::clone(shared), registration, tenant, mode));
    }
}

async fn deliver(shared: Arc<Shared>, registration: Arc<Registration>, tenant: TenantId, mode: Mode) {
    loop {
        let listens = matches!(mode, Mode::Listen(_));
        if registration.stop.is_cancelled()
            || shared.closed.is_cancelled()
            || (listens && registration.ctx.is_canceled())
        {
            return;
        }
        let Some((wake, next)) = take(&shared, &registration, &tenant) else {
            return registration.fail(&tenant);
        };
        match next {
            Taken::Message(row, delivery) => {
                let settle = Arc::new(Delivered {
                    shared: Arc::clone(&shared),
                    tenant: tenant.clone(),
                    durable: registration.durable.clone(),
                    sequence: delivery.0,
                    delivery: delivery.1,
                });
                hand_over(&registration, &mode, row, settle, shared.now()).await;
            }
            Taken::Nothing(until) => {
                let far = Instant::now() + Duration::from_secs(86_400);
                tokio::select! {
                    () = registration.stop.cancelled() => return,
                    () = shared.closed.cancelled() => return,
                    () = wake => {}
                    () = sleep_until(until.unwrap_or(far)) => {}
                }
            }
        }
    }
}

enum Taken {
    Message(Row, (u64, u64)),
    Nothing(Option<Instant>),
}

/// The next message of a durable, and what to wait for when there is none. `None` when the durable is gone.
fn take(
    shared: &Shared,
    registration: &Registration,
    tenant: &TenantId,
) -> Option<(impl Future<Output = ()> + use<>, Taken)> {
    let mut state = shared.state.lock();
    let queue = state.queue_mut(tenant).ok()?;
    let durable = queue.durables.get_mut(&registration.durable)?;
    let next = durable.next(Instant::now(), queue.ingest.first(), queue.ingest.next());
    let taken = match next {
        Next::Row { sequence, delivery } => {
            Taken::Message(queue.ingest.get(sequence)?.clone(), (sequence, delivery))
        }
        Next::Wait(until) => Taken::Nothing(until),
    };
    // Registered under the lock, so that no change between here and the waiting is missed.
    let mut wake = Box::pin(Arc::clone(&queue.wake).notified_owned());
    wake.as_mut().enable();
    Some((wake, taken))
}

async fn hand_over(
    registration: &Registration,
    mode: &Mode,
    row: Row,
    settle: Arc<Delivered>,
    now: SystemTime,
) {
    match mode {
        Mode::Handle(handler) => {
            let message = Message::with_key(registration.ctx.clone(), row.key.clone(), row.data, now, settle);
            if let Err(error) = handler.call(message).await {
                tracing::error!(component = "mq", topic = &*row.key, %error, "message left to its ack wait");
            }
        }
        Mode::Listen(listener) => {
            let ctx = registration.ctx.extract(&row.headers);
            let message = Message::with_key(ctx, row.key.clone(), row.data, now, settle);
            let settler = message.settler();
            if let Err(error) = listener.call(message).await {
                tracing::warn!(component = "mq", topic = &*row.key, %error, "message is delivered again");
                // A refusal in memory cannot fail.
                let _ = settler.nak().await;
            }
        }
    }
}

/// Settles one delivery.
#[derive(Debug)]
struct Delivered {
    shared: Arc<Shared>,
    tenant: TenantId,
    durable: String,
    sequence: u64,
    delivery: u64,
}

impl Delivered {
    fn settle(&self, again: Option<Instant>) {
        let mut state = self.shared.state.lock();
        let Ok(queue) = state.queue_mut(&self.tenant) else {
            return;
        };
        if let Some(durable) = queue.durables.get_mut(&self.durable) {
            match again {
                Some(at) => durable.nak(self.sequence, self.delivery, at),
                None => durable.ack(self.sequence),
            }
            queue.wake.notify_waiters();
        }
    }
}

#[async_trait]
impl Settle for Delivered {
    async fn double_ack(&self, ctx: &Ctx) -> Result<(), Error> {
        ctx.check("double ack")?;
        self.shared.check_open()?;
        self.settle(None);
        Ok(())
    }

    async fn ack(&self) -> Result<(), Error> {
        self.settle(None);
        Ok(())
    }

    async fn nak(&self) -> Result<(), Error> {
        self.settle(Some(Instant::now()));
        Ok(())
    }

    async fn nak_with_delay(&self, delay: Duration) -> Result<(), Error> {
        self.settle(Some(Instant::now() + delay));
        Ok(())
    }
}

/// A durable consumer of every tenant's queue.
pub(super) struct MemoryConsumer {
    shared: Arc<Shared>,
    registration: Arc<Registration>,
}

impl MemoryConsumer {
    pub(super) fn new(shared: Arc<Shared>, registration: Arc<Registration>) -> Self {
        Self { shared, registration }
    }
}

#[async_trait]
impl Consumer for MemoryConsumer {
    async fn consume(&self, handler: Handler, _prefetch: usize) -> Result<Consuming, Error> {
        self.shared.check_open()?;
        let failed = begin(&self.shared, &self.registration, &Mode::Handle(handler)).ok_or_else(|| {
            let text = format!(
                "consumer {} delivers already; create another",
                self.registration.durable
            );
            Error::new(ErrorKind::Invalid, text)
        })?;
        let stop = self.registration.stop.clone();
        Ok(Consuming::new(move || stop.cancel(), failed))
    }
}

impl Drop for MemoryConsumer {
    fn drop(&mut self) {
        if self.registration.mode().is_none() {
            self.shared.state.lock().unregister(self.registration.id);
        }
    }
}
