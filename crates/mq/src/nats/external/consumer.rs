//! The consumer of the operator's shard durables: two tasks for each unit.
//!
//! One task pulls, and by pulling keeps the pin, so that it must never wait for the handler. The other hands messages to
//! the handler, in order and one at a time. What they share is in [`Hold`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use windjet_client::pull::{Batch, Options, PullError, PullErrorKind, Puller, Request};
use windjet_client::{Delivery, OnDrop, SettleError};
use windjet_protocol::jetstream::ConsumerInfo;

use super::Shared;
use super::publish::{closed, is_key_only};
use super::unit::{Do, Fetched, Hold, Popped, RENEW_EVERY};
use crate::nats::PRIORITY_GROUP;
use crate::nats::units::Unit;
use crate::{
    Consumer, ConsumerConfig, Consuming, Ctx, Error, ErrorKind, Halter, Handler, Message, Releaser, Settle,
};

/// The durable that services ask for; the operator's shards stand behind it.
pub(super) const WORKER_DURABLE: &str = "buffer-consumer";
const FETCH_EXPIRES: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Pulls without an answer in a row before the durable is looked up.
const UNANSWERED_MAX: u32 = 2;
const DEFAULT_SHARE: usize = 500;
const RELEASE_WAIT: Duration = Duration::from_secs(2);
const ORPHANS_WAIT: Duration = Duration::from_secs(30);
/// How much longer than its ack wait a halted unit is held.
const HOLD_MARGIN: Duration = Duration::from_secs(5);
const CONFIRM_WAIT: Duration = Duration::from_secs(5);

/// A unit that this consumer is bound to.
struct Bound {
    unit: Unit,
    /// Outside of the configured units: drained, and nobody is told when it ends.
    extra: bool,
    ack_wait: Duration,
}

/// The units under way.
type Holds = Vec<(Unit, Arc<Hold>)>;

pub(super) struct ExternalConsumer {
    shared: Arc<Shared>,
    ctx: Ctx,
    bound: Vec<Bound>,
    /// Whether it is a consumer of every unit.
    whole: bool,
    max_held: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
    running: Mutex<Option<Holds>>,
}

impl Shared {
    /// Finds the durables and checks them; nothing is changed and nothing pinned.
    pub(super) async fn bind(
        self: &Arc<Self>,
        ctx: &Ctx,
        config: ConsumerConfig,
    ) -> Result<ExternalConsumer, Error> {
        if ![WORKER_DURABLE, &self.topology.ingest_consumer].contains(&config.durable.as_str()) {
            let text = format!(
                "consumer {}: this topology has {WORKER_DURABLE} or {}",
                config.durable, self.topology.ingest_consumer
            );
            return Err(Error::new(ErrorKind::ConsumerNotFound, text));
        }
        let whole = config.units.is_none();
        let (configured, extras) = (&self.units, self.extras.lock().clone());
        let chosen: Vec<(Unit, bool)> = match &config.units {
            None => {
                let all = configured.iter().map(|unit| (unit.clone(), false));
                all.chain(extras.into_iter().map(|unit| (unit, true))).collect()
            }
            Some(names) => names
                .iter()
                .map(|name| self.unit(name))
                .collect::<Result<_, _>>()?,
        };
        let mut bound = Vec::new();
        for (unit, extra) in chosen {
            match self.api.consumer(&unit.stream, &unit.durable).await {
                Ok(info) if info.config.deliver_subject.is_some() && extra => {}
                Ok(info) => {
                    fits(&unit, &info, &config)?;
                    if extra {
                        tracing::info!(component = "nats", %unit, pending = info.num_pending, "draining an extra unit");
                    }
                    let ack_wait = info.config.ack_wait.to_std();
                    bound.push(Bound {
                        unit,
                        extra,
                        ack_wait,
                    });
                }
                Err(failure) if failure.is_gone() && extra => {}
                Err(failure) if failure.is_gone() => {
                    let text = format!("consumer {unit} not found");
                    return Err(Error::wrap(ErrorKind::ConsumerNotFound, text, failure));
                }
                Err(failure) => return Err(failure.into_error(format!("consumer {unit}"))),
            }
        }
        Ok(ExternalConsumer {
            shared: Arc::clone(self),
            ctx: ctx.clone(),
            bound,
            whole,
            max_held: config.max_held,
            running: Mutex::new(None),
        })
    }
}

fn fits(unit: &Unit, info: &ConsumerInfo, config: &ConsumerConfig) -> Result<(), Error> {
    let mismatch = |text: String| {
        Err(Error::new(
            ErrorKind::ConsumerMismatch,
            format!("consumer {unit}: {text}"),
        ))
    };
    if info.config.deliver_subject.is_some() {
        return mismatch("is a push consumer; make it a pull consumer".to_owned());
    }
    let (has, asked) = (info.config.ack_wait.to_std(), config.ack_wait.unwrap_or_default());
    if has < asked {
        return mismatch(format!("ack_wait is {has:?}, and {asked:?} is asked for"));
    }
    if info.config.max_ack_pending <= 0 {
        return mismatch("max_ack_pending is not set".to_owned());
    }
    Ok(())
}

#[async_trait]
impl Consumer for ExternalConsumer {
    async fn consume(&self, handler: Handler, prefetch: usize) -> Result<Consuming, Error> {
        if self.shared.closed.is_cancelled() {
            return Err(closed());
        }
        let configured = self.bound.iter().filter(|bound| !bound.extra).count().max(1);
        let share = if prefetch > 0 {
            (prefetch / configured).max(1)
        } else {
            DEFAULT_SHARE
        };
        let holds = self.bound.iter().map(|bound| {
            let share = if bound.extra { (share / 4).max(1) } else { share };
            let hold = Hold::new(share, self.max_held.clone(), bound.ack_wait);
            (bound.unit.clone(), Arc::new(hold))
        });
        let holds: Vec<_> = holds.collect();
        {
            let mut running = self.running.lock();
            if running.is_some() {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "the consumer delivers already; create another",
                ));
            }
            *running = Some(holds.clone());
        }
        if self.whole {
            self.shared.take_over(&self.bound).await;
        }
        let (sender, failed) = oneshot::channel();
        let run = Arc::new(Run {
            shared: Arc::clone(&self.shared),
            stopped: AtomicBool::new(false),
            failed: Mutex::new(Some(sender)),
        });
        for (bound, (unit, hold)) in self.bound.iter().zip(&holds) {
            let target = self.shared.target(&unit.stream, &unit.durable)?;
            let options = Options::default().on_drop(OnDrop::Leave);
            let puller = Puller::new(self.shared.api.client().clone(), target, options).await;
            let puller =
                puller.map_err(|error| Error::wrap(ErrorKind::Unavailable, format!("unit {unit}"), error))?;
            let work = Work {
                run: Arc::clone(&run),
                unit: unit.clone(),
                extra: bound.extra,
                hold: Arc::clone(hold),
            };
            self.shared.tasks.spawn(work.clone().pull(puller));
            self.shared
                .tasks
                .spawn(work.deliver(self.ctx.clone(), handler.clone()));
        }
        let (shared, whole, stopping) = (Arc::clone(&self.shared), self.whole, Arc::clone(&run));
        let stop = move || {
            if stopping.stopped.swap(true, Ordering::AcqRel) {
                return;
            }
            for (unit, hold) in &holds {
                hold.halted.cancel();
                if whole {
                    shared.tasks.spawn(release_drained(
                        Arc::clone(&shared),
                        unit.clone(),
                        Arc::clone(hold),
                    ));
                }
            }
        };
        Ok(Consuming::new(stop, failed))
    }

    fn as_halter(&self) -> Option<&dyn Halter> {
        Some(self)
    }

    fn as_releaser(&self) -> Option<&dyn Releaser> {
        Some(self)
    }
}

#[async_trait]
impl Halter for ExternalConsumer {
    async fn halt(&self) {
        let holds = self.running.lock().clone().unwrap_or_default();
        for (_, hold) in &holds {
            hold.halted.cancel();
        }
        for (_, hold) in &holds {
            hold.drained.cancelled().await;
        }
    }
}

#[async_trait]
impl Releaser for ExternalConsumer {
    async fn release(&self, ctx: &Ctx) -> Result<(), Error> {
        let holds = self.running.lock().clone().unwrap_or_default();
        let mut errors = Vec::new();
        for (unit, hold) in holds {
            let released = tokio::select! {
                biased;
                () = ctx.canceled() => Err(Error::canceled("release")),
                released = self.shared.release(&unit, &hold) => released,
            };
            errors.extend(released.err());
        }
        Error::join(errors).map_or(Ok(()), Err)
    }
}

async fn release_drained(shared: Arc<Shared>, unit: Unit, hold: Arc<Hold>) {
    tokio::select! {
        () = shared.closed.cancelled() => return,
        () = hold.drained.cancelled() => {}
    }
    let released = tokio::time::timeout(RELEASE_WAIT, shared.release(&unit, &hold)).await;
    if let Ok(Err(error)) = released {
        tracing::warn!(component = "nats", %unit, error = format!("{error:#}"), "the unit is not released; its pin runs out");
    }
    hold.let_go.cancel();
}

impl Shared {
    /// Gives a unit up if the pin is ours.
    async fn release(&self, unit: &Unit, hold: &Hold) -> Result<(), Error> {
        let released = async {
            let Some(pin) = hold.pin() else { return Ok(()) };
            let info = self.api.consumer(&unit.stream, &unit.durable).await?;
            if pinned_client(&info) != Some(pin.as_str()) {
                return Ok(());
            }
            self.api.unpin(&unit.stream, &unit.durable, PRIORITY_GROUP).await
        };
        let released = released.await;
        hold.let_go.cancel();
        released.map_err(|failure| failure.into_error(format!("release {unit}")))
    }

    /// Has the messages of owners that are gone delivered at once.
    async fn take_over(&self, bound: &[Bound]) {
        let all = futures_util::future::join_all(bound.iter().map(async |bound| {
            match self.reset(&bound.unit).await {
                Ok(true) => tracing::info!(component = "nats", unit = %bound.unit, "took over what a dead owner left"),
                Ok(false) => {}
                Err(error) if error.is(ErrorKind::UnitHeld) => {}
                Err(error) => {
                    tracing::warn!(component = "nats", unit = %bound.unit, error = format!("{error:#}"), "what a dead owner left comes after its ack wait");
                }
            }
        }));
        // What is not taken over in time comes after its ack wait.
        let _ = tokio::time::timeout(ORPHANS_WAIT, all).await;
    }
}

/// The client that holds a durable.
pub(super) fn pinned_client(info: &ConsumerInfo) -> Option<&str> {
    let group = info
        .priority_groups
        .iter()
        .find(|group| group.group == PRIORITY_GROUP)?;
    group.pinned_client_id.as_deref().filter(|id| !id.is_empty())
}

/// What all units of a consumer share.
struct Run {
    shared: Arc<Shared>,
    stopped: AtomicBool,
    failed: Mutex<Option<oneshot::Sender<Error>>>,
}

#[derive(Clone)]
struct Work {
    run: Arc<Run>,
    unit: Unit,
    extra: bool,
    hold: Arc<Hold>,
}

/// How pulling goes on after a failure.
enum After {
    Again,
    Ended(Error),
}

impl Work {
    async fn pull(self, mut puller: Puller) {
        let ended = self.fetch(&mut puller).await;
        self.hold.end_fetching();
        if let Some(error) = ended {
            return self.report(error);
        }
        self.hold_on(&mut puller).await;
    }

    /// Fetches until halted; an error when the durable is gone.
    async fn fetch(&self, puller: &mut Puller) -> Option<Error> {
        let (hold, closed) = (&self.hold, &self.run.shared.closed);
        let mut changes = hold.changes();
        let (mut last_pull, mut unanswered) = (None, 0);
        while !hold.halted.is_cancelled() && !closed.is_cancelled() {
            changes.mark_unchanged();
            let outcome = match hold.decide(Instant::now(), last_pull) {
                Do::Fetch(room) => {
                    last_pull = Some(Instant::now());
                    let request = request(room);
                    tokio::select! {
                        biased;
                        () = hold.halted.cancelled() => continue,
                        () = closed.cancelled() => continue,
                        pulled = puller.next_within(&request) => pulled.map(|delivery| hold.push(delivery)),
                        _ = changes.changed() => continue,
                    }
                }
                Do::Overshoot => {
                    last_pull = Some(Instant::now());
                    puller.fetch(&request(1)).await.map(|batch| self.take(batch))
                }
                Do::Renew => {
                    last_pull = Some(Instant::now());
                    match self.take_rest(puller).await {
                        Ok(()) => self.renew(puller).await,
                        Err(error) => Err(error),
                    }
                }
                Do::Wait(until) => {
                    let until = until.unwrap_or_else(|| Instant::now() + RENEW_EVERY);
                    tokio::select! {
                        () = hold.halted.cancelled() => {}
                        () = closed.cancelled() => {}
                        _ = changes.changed() => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                    continue;
                }
            };
            match outcome {
                Ok(()) => unanswered = 0,
                Err(error) => match self.after(error.kind(), &error, &mut unanswered).await {
                    After::Again => {}
                    After::Ended(error) => return Some(error),
                },
            }
        }
        // What the server has sent for requests under way comes back only after the ack wait, behind newer messages: it
        // is all taken.
        while let Err(error) = self.take_rest(puller).await {
            if !error.is_retryable() {
                break;
            }
        }
        None
    }

    /// Takes what is under way, so that the next request is really made.
    async fn take_rest(&self, puller: &mut Puller) -> Result<(), PullError> {
        while let Some(delivery) = puller.rest().await? {
            self.hold.push(delivery);
        }
        Ok(())
    }

    /// Asks for a message that cannot be had, which keeps the pin.
    async fn renew(&self, puller: &mut Puller) -> Result<(), PullError> {
        let batch = puller.fetch(&request(1).max_bytes(1)).await?;
        self.take(batch);
        Ok(())
    }

    fn take(&self, batch: Batch) {
        for delivery in batch.deliveries {
            self.hold.push(delivery);
        }
    }

    async fn after(
        &self,
        kind: PullErrorKind,
        error: &windjet_client::pull::PullError,
        unanswered: &mut u32,
    ) -> After {
        let unit = &self.unit;
        match kind {
            PullErrorKind::PinLost => {
                *unanswered = 0;
                self.hold.forget_pin();
                tracing::debug!(component = "nats", %unit, "another client has the pin");
                // Whoever holds it pulls; asking again at once would only be refused again.
            }
            PullErrorKind::LeadershipChange => {
                *unanswered = 0;
                tracing::debug!(component = "nats", %unit, "the durable has a new leader");
            }
            PullErrorKind::NoResponders | PullErrorKind::NoAnswer => {
                *unanswered += 1;
                if *unanswered >= UNANSWERED_MAX {
                    let found = self.run.shared.api.consumer(&unit.stream, &unit.durable).await;
                    if let Err(failure) = found
                        && failure.is_gone()
                    {
                        let text = format!("consumer {unit} not found");
                        return After::Ended(Error::wrap(ErrorKind::ConsumerNotFound, text, failure));
                    }
                    tracing::warn!(component = "nats", %unit, "pulls are not answered");
                }
            }
            PullErrorKind::ConsumerDeleted => {
                let text = format!("consumer {unit} was deleted");
                return After::Ended(Error::wrap(ErrorKind::ConsumerNotFound, text, error.clone()));
            }
            _ if !error.is_retryable() => {
                return After::Ended(Error::wrap(
                    ErrorKind::Other,
                    format!("unit {unit}"),
                    error.clone(),
                ));
            }
            PullErrorKind::Disconnected => tracing::debug!(component = "nats", %unit, "no connection"),
            _ => tracing::warn!(component = "nats", %unit, %error, "a pull failed"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        After::Again
    }

    /// Keeps the pin after a halt until it is given up, or a crash could not be told from it any more.
    async fn hold_on(&self, puller: &mut Puller) {
        let (hold, closed) = (&self.hold, &self.run.shared.closed);
        let kept = async {
            let mut end = None;
            loop {
                if puller
                    .fetch(&request(1).max_bytes(1))
                    .await
                    .is_err_and(|error| error.kind() == PullErrorKind::PinLost || !error.is_retryable())
                {
                    return;
                }
                if end.is_none() && hold.drained.is_cancelled() {
                    end = Some(Instant::now() + hold.ack_wait() + HOLD_MARGIN);
                }
                if hold.pin().is_none() || end.is_some_and(|end| Instant::now() >= end) {
                    return;
                }
                tokio::time::sleep(RENEW_EVERY).await;
            }
        };
        tokio::select! {
            () = hold.let_go.cancelled() => {}
            () = closed.cancelled() => {}
            () = kept => {}
        }
    }

    fn report(&self, cause: Error) {
        let (run, unit) = (&self.run, &self.unit);
        if run.stopped.load(Ordering::Acquire) || run.shared.link.closing() {
            return;
        }
        if self.extra {
            tracing::info!(component = "nats", %unit, error = format!("{cause:#}"), "stopped draining an extra unit");
            return;
        }
        if let Some(failed) = run.failed.lock().take() {
            let text = format!("{unit}: consumer delivery ended");
            // Nobody listening is the caller's choice.
            let _ = failed.send(Error::wrap(ErrorKind::DeliveryEnded, text, cause));
        }
    }

    async fn deliver(self, ctx: Ctx, handler: Handler) {
        let mut changes = self.hold.changes();
        loop {
            changes.mark_unchanged();
            match self.hold.pop(Instant::now()) {
                Popped::Message(fetched, number)
                    if is_key_only(fetched.delivery.message().headers.as_ref()) =>
                {
                    if let Err(error) = fetched.delivery.ack().await {
                        // It comes back, and is let go then.
                        tracing::debug!(component = "nats", unit = %self.unit, %error, "a key is not acknowledged");
                    }
                    self.hold.settled(number);
                }
                Popped::Message(fetched, number) => {
                    let message = self.message(ctx.clone(), *fetched, number);
                    let key = message.topic_key().to_owned();
                    if let Err(error) = handler.call(message).await {
                        tracing::error!(component = "nats", topic = key, %error, "message left to its ack wait");
                    }
                }
                Popped::Ended => return self.hold.drained.cancel(),
                // The hold outlives this task, so waiting does not fail.
                Popped::Nothing => drop(changes.changed().await),
            }
        }
    }

    fn message(&self, ctx: Ctx, fetched: Fetched, number: u64) -> Message {
        let Fetched { delivery, received } = fetched;
        let (subject, data) = (&delivery.message().subject, delivery.message().payload.clone());
        let key = self.run.shared.topology.topic_key(subject).into();
        let message = Message::with_key(ctx, key, data, received, Arc::new(Delivered(delivery)));
        let hold = Arc::clone(&self.hold);
        message.on_settled(move || hold.settled(number));
        message
    }
}

fn request(batch: usize) -> Request {
    // The engine's own bound on one request.
    Request::batch(batch.min(8192))
        .expires(FETCH_EXPIRES)
        .group(PRIORITY_GROUP)
}

/// Settles one delivery.
struct Delivered(Delivery);

fn unsettled(error: SettleError) -> Error {
    let kind = if error.is_retryable() {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Other
    };
    Error::wrap(kind, "settling a message", error)
}

#[async_trait]
impl Settle for Delivered {
    async fn double_ack(&self, ctx: &Ctx) -> Result<(), Error> {
        tokio::select! {
            biased;
            () = ctx.canceled() => Err(Error::canceled("double ack")),
            confirmed = self.0.ack_confirmed(CONFIRM_WAIT) => confirmed.map_err(unsettled),
        }
    }

    async fn ack(&self) -> Result<(), Error> {
        self.0.ack().await.map_err(unsettled)
    }

    async fn nak(&self) -> Result<(), Error> {
        self.0.nak().await.map_err(unsettled)
    }

    async fn nak_with_delay(&self, delay: Duration) -> Result<(), Error> {
        self.0.nak_after(delay).await.map_err(unsettled)
    }
}
