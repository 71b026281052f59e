//! Tenants' queues: opening, resizing, joining consumers.
//!
//! One turn at a time opens, resizes or registers; it is held across the calls to the storage. What publishes need to know
//! stands beside it: a queue is in `opened` when both of its streams exist and every consumer holds it. That a stream answers
//! is not enough: an open that ran out of time can leave one that nobody consumes.
//!
//! Publishes open queues lazily, one try at a time for each tenant, and a failed try is the answer for [`REOPEN_RETRY`]. A
//! budget given by the owner is never held back so.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared as SharedFuture};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windjet_server::jetstream::JetStreamContext;

use super::engine::{Engine, failed};
use super::fan_in::{self, Registration};
use super::gate::Gate;
use super::moved;
use super::names::{self, Kind};
use crate::{Ctx, Error, ErrorKind, TenantId};

/// How long the calls of one step may take: the streams, or the consumers.
const STEP: Duration = Duration::from_secs(10);
/// How long undoing a resize may take.
const ROLLBACK: Duration = Duration::from_secs(5);
/// How long a failed try of a publish to open a queue is the answer for the next ones.
const REOPEN_RETRY: Duration = Duration::from_secs(5);

/// A tenant's queues as far as the broker knows.
#[derive(Debug, Default)]
struct Queue {
    /// Which of its streams exist.
    ingest: bool,
    dead: bool,
    /// The budget last applied in full.
    max_bytes: u64,
    /// The budget last asked for.
    asked: u64,
    /// What the ingest stream is really limited to.
    ingest_cap: u64,
    /// Registrations whose durable is on it.
    joined: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<TenantId, Queue>,
    registrations: Vec<Arc<Registration>>,
}

/// What a publish of an open tenant needs.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) js: JetStreamContext,
    pub(super) ingest: String,
    pub(super) dead: String,
}

type Running = SharedFuture<BoxFuture<'static, Result<(), Error>>>;

/// The last try of a publish to open a tenant's queue.
enum Pace {
    Running(Running),
    Failed(Instant, Error),
}

pub(super) struct Queues {
    pub(super) engine: Engine,
    pub(super) closed: CancellationToken,
    pub(super) gate: Arc<Gate>,
    /// The durable whose events are being moved to another broker, if some are.
    pub(super) moving: Mutex<Option<String>>,
    /// Events and parked messages that were published.
    pub(super) published: AtomicU64,
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    opened: RwLock<HashMap<TenantId, Arc<Open>>>,
    handles: Mutex<HashMap<TenantId, Arc<Open>>>,
    paced: Mutex<HashMap<TenantId, Pace>>,
}

/// Ends a step with its context or its time.
async fn bounded<T>(
    ctx: &Ctx,
    limit: Duration,
    what: &'static str,
    step: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::select! {
        done = step => done,
        () = ctx.canceled() => Err(Error::canceled(what)),
        () = tokio::time::sleep(limit) => {
            Err(Error::new(ErrorKind::Other, format!("{what}: not done within {limit:?}")))
        }
    }
}

impl Queues {
    /// Takes stock of what is in the store. The pair of an earlier layout is deleted: its subjects overlap every tenant's.
    pub(super) async fn open(engine: Engine) -> Result<Self, Error> {
        for legacy in names::LEGACY {
            if let Some(info) = engine.stream(legacy).await? {
                let messages = info.state.messages;
                tracing::warn!(
                    component = "mq",
                    stream = legacy,
                    messages,
                    "a stream of an earlier layout is deleted"
                );
                engine.delete_stream(legacy).await?;
            }
        }
        let gone = moved::found(&engine).await?;
        let mut found = BTreeMap::<TenantId, Queue>::new();
        let mut dead = BTreeMap::new();
        for name in engine.streams() {
            let Some(kind) = names::kind(&name) else { continue };
            let Some(info) = engine.stream(&name).await? else {
                continue;
            };
            let cap = u64::try_from(info.config.max_bytes).unwrap_or(0);
            match kind {
                Kind::Ingest(tenant) => {
                    let queue = found.entry(tenant).or_default();
                    (queue.ingest, queue.asked, queue.ingest_cap) = (true, cap, cap);
                }
                Kind::Dead(tenant) => {
                    found.entry(tenant.clone()).or_default().dead = true;
                    dead.insert(tenant, (cap, info.state.bytes));
                }
            }
        }
        for (tenant, queue) in &mut found {
            let share = names::dead_share(queue.ingest_cap);
            let whole = dead.get(tenant).is_some_and(|&(cap, held)| {
                // The second: a tenth was less than what is parked, which is then kept.
                cap == share || (cap > share && held > share)
            });
            if queue.ingest && whole {
                queue.max_bytes = queue.asked;
            }
        }
        let queues = Self {
            engine,
            closed: CancellationToken::new(),
            gate: Gate::new(gone),
            moving: Mutex::new(None),
            published: AtomicU64::new(0),
            turn: tokio::sync::Mutex::default(),
            state: Mutex::new(State {
                queues: found,
                registrations: Vec::new(),
            }),
            opened: RwLock::default(),
            handles: Mutex::default(),
            paced: Mutex::default(),
        };
        queues.refresh();
        Ok(queues)
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the broker is closed"));
        }
        Ok(())
    }

    pub(super) fn max_bytes(&self, tenant: &TenantId) -> u64 {
        self.state
            .lock()
            .queues
            .get(tenant)
            .map_or(0, |queue| queue.max_bytes)
    }

    /// Tenants with an ingest stream, in order.
    pub(super) fn tenants(&self) -> Vec<TenantId> {
        let state = self.state.lock();
        let known = state.queues.iter().filter(|(_, queue)| queue.ingest);
        known.map(|(tenant, _)| tenant.clone()).collect()
    }

    /// The tenant's queue, if it is open.
    pub(super) fn opened(&self, tenant: &TenantId) -> Option<Arc<Open>> {
        self.opened.read().get(tenant).cloned()
    }

    /// How to reach the tenant's streams, whether they are open or not.
    pub(super) fn handle(&self, tenant: &TenantId) -> Arc<Open> {
        let mut handles = self.handles.lock();
        let make = || {
            Arc::new(Open {
                js: self.engine.handle(),
                ingest: names::ingest_stream(tenant),
                dead: names::dead_stream(tenant),
            })
        };
        handles.entry(tenant.clone()).or_insert_with(make).clone()
    }

    /// Decides anew which queues are open.
    fn refresh(&self) {
        let tenants: Vec<_> = self.state.lock().queues.keys().cloned().collect();
        tenants.iter().for_each(|tenant| self.refresh_one(tenant));
    }

    fn refresh_one(&self, tenant: &TenantId) {
        let open = {
            let state = self.state.lock();
            state.queues.get(tenant).is_some_and(|queue| {
                queue.ingest
                    && queue.dead
                    && state
                        .registrations
                        .iter()
                        .all(|registration| queue.joined.contains(&registration.id))
            })
        };
        if !open {
            self.opened.write().remove(tenant);
        } else if self.opened(tenant).is_none() {
            let handle = self.handle(tenant);
            self.opened.write().insert(tenant.clone(), handle);
        }
    }

    /// Applies a budget in full, or says why not. See [`crate::Broker::set_max_bytes`].
    pub(super) async fn set_max_bytes(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        self.check_open()?;
        ctx.check("set max bytes")?;
        self.apply(ctx, tenant, bytes).await
    }

    /// In a turn.
    async fn apply(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        let done = {
            let mut state = self.state.lock();
            let registrations: Vec<u64> = state
                .registrations
                .iter()
                .map(|registration| registration.id)
                .collect();
            let queue = state.queues.entry(tenant.clone()).or_default();
            queue.asked = bytes;
            queue.ingest
                && queue.dead
                && queue.max_bytes == bytes
                && registrations.iter().all(|id| queue.joined.contains(id))
        };
        let result = if done {
            Ok(())
        } else {
            let applied = self.apply_all(ctx, tenant, bytes).await;
            applied.map_err(|error| {
                failed(
                    format!("tenant {tenant}: its queue is not at {bytes} bytes"),
                    error,
                )
            })
        };
        if result.is_ok() {
            self.change(tenant, |queue| queue.max_bytes = bytes);
            self.paced
                .lock()
                .retain(|known, pace| known != tenant || matches!(pace, Pace::Running(_)));
        }
        self.refresh_one(tenant);
        result
    }

    async fn apply_all(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        let there = self.look(tenant, |queue| queue.ingest);
        let resized = if there {
            self.resize(ctx, tenant, bytes).await?
        } else {
            false
        };
        if !resized {
            bounded(ctx, STEP, "open queue", self.open_pair(tenant, bytes)).await?;
        }
        bounded(ctx, STEP, "join consumers", self.join(tenant)).await
    }

    fn look<T: Default>(&self, tenant: &TenantId, look: impl FnOnce(&Queue) -> T) -> T {
        self.state.lock().queues.get(tenant).map(look).unwrap_or_default()
    }

    fn change(&self, tenant: &TenantId, change: impl FnOnce(&mut Queue)) {
        change(self.state.lock().queues.entry(tenant.clone()).or_default());
    }

    /// The dead-letter stream first, so that nothing is queued that could not be parked.
    async fn open_pair(&self, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        self.put_dead(tenant, bytes).await?;
        let new = self
            .engine
            .put_stream(names::ingest_config(tenant, bytes))
            .await?;
        self.change(tenant, |queue| {
            (queue.ingest, queue.ingest_cap) = (true, bytes);
            if new {
                // It has no durables. One that was there keeps its own, and their deliveries go on.
                queue.joined.clear();
            }
        });
        Ok(())
    }

    /// Never limits the stream to less than it holds: it would drop its oldest.
    async fn put_dead(&self, tenant: &TenantId, bytes: u64) -> Result<(), Error> {
        let name = names::dead_stream(tenant);
        let mut cap = names::dead_share(bytes).max(1);
        if let Some(info) = self.engine.stream(&name).await? {
            let held = info.state.bytes;
            if held > cap {
                tracing::warn!(component = "mq", %tenant, held, budget = bytes, "the dead-letter queue keeps what it holds");
                cap = held;
            }
            if self.engine.set_max_bytes(&name, cap).await?.is_some() {
                self.change(tenant, |queue| queue.dead = true);
                return Ok(());
            }
        }
        self.engine.put_stream(names::dead_config(tenant, cap)).await?;
        self.change(tenant, |queue| queue.dead = true);
        Ok(())
    }

    /// Both streams or none, as far as that can be; `false` when there was no ingest stream after all.
    async fn resize(&self, ctx: &Ctx, tenant: &TenantId, bytes: u64) -> Result<bool, Error> {
        let ingest = names::ingest_stream(tenant);
        let before = self.look(tenant, |queue| queue.ingest_cap);
        let cause = bounded(ctx, STEP, "resize queue", async {
            if self.engine.set_max_bytes(&ingest, bytes).await?.is_none() {
                self.change(tenant, |queue| {
                    (queue.ingest, queue.joined) = (false, BTreeSet::new());
                });
                return Ok(Ok(false));
            }
            self.change(tenant, |queue| queue.ingest_cap = bytes);
            Ok(self.put_dead(tenant, bytes).await.map(|()| true))
        });
        let cause = match cause.await? {
            Ok(resized) => return Ok(resized),
            Err(cause) => cause,
        };
        // What the stream really had: the budget last applied is 0 for a split pair, and 0 would be no limit at all.
        let undone = bounded(
            ctx,
            ROLLBACK,
            "undo resize",
            self.engine.set_max_bytes(&ingest, before),
        )
        .await;
        match undone {
            Ok(_) => {
                self.change(tenant, |queue| queue.ingest_cap = before);
                let text = "dead-letter queue not resized; ingest stream restored to the previous limit";
                Err(failed(text, cause))
            }
            Err(undo) => {
                let text = format!(
                    "dead-letter queue not resized, and stays at its limit; the ingest stream stays at the new one, \
                     since it could not be restored either: {undo:#}"
                );
                Err(failed(text, cause))
            }
        }
    }

    /// Puts every registered consumer on the tenant's queue that is not there yet.
    async fn join(&self, tenant: &TenantId) -> Result<(), Error> {
        let registrations = self.state.lock().registrations.clone();
        let mut errors = Vec::new();
        for registration in registrations {
            let joined = self.look(tenant, |queue| queue.joined.contains(&registration.id));
            if joined || registration.stop.is_cancelled() {
                continue;
            }
            if let Err(error) = self.join_one(tenant, &registration).await {
                errors.push(error);
            }
        }
        Error::join(errors).map_or(Ok(()), Err)
    }

    async fn join_one(&self, tenant: &TenantId, registration: &Arc<Registration>) -> Result<(), Error> {
        let stream = names::ingest_stream(tenant);
        let put = self.engine.put_durable(&stream, &registration.wanted).await;
        put.map_err(|error| {
            let durable = &registration.wanted.durable;
            failed(
                format!("tenant {tenant}: consumer {durable} cannot join the queue"),
                error,
            )
        })?;
        self.change(tenant, |queue| {
            queue.joined.insert(registration.id);
        });
        if registration.mode.get().is_some() {
            self.deliver(tenant, registration);
        }
        Ok(())
    }

    /// Starts delivery of one queue.
    fn deliver(&self, tenant: &TenantId, registration: &Arc<Registration>) {
        let queues = self.joined(registration.id).len();
        fan_in::start(
            registration.clone(),
            self.handle(tenant).js.clone(),
            (names::ingest_stream(tenant), format!("tenant {tenant}")),
            queues,
            self.closed.clone(),
        );
    }

    /// Tenants whose queue a registration holds.
    fn joined(&self, id: u64) -> Vec<TenantId> {
        let state = self.state.lock();
        let held = state
            .queues
            .iter()
            .filter(|(_, queue)| queue.joined.contains(&id));
        held.map(|(tenant, _)| tenant.clone()).collect()
    }

    /// Puts a consumer on every queue there is, and on later ones.
    pub(super) async fn register(&self, ctx: &Ctx, registration: &Arc<Registration>) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        self.check_open()?;
        ctx.check("create consumer")?;
        let durable = &registration.wanted.durable;
        if self.moving.lock().as_ref() == Some(durable) {
            let text = format!("consumer {durable}: its events are being moved to another broker");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        for tenant in self.tenants() {
            let joined = bounded(ctx, STEP, "join queue", self.join_one(&tenant, registration)).await;
            if let Err(error) = joined {
                self.forget(registration.id);
                return Err(error);
            }
        }
        self.state.lock().registrations.push(registration.clone());
        Ok(())
    }

    /// Starts delivery to a registered consumer; `false` when it delivers already.
    pub(super) async fn begin(
        self: &Arc<Self>,
        registration: &Arc<Registration>,
        mode: (fan_in::Mode, usize),
    ) -> bool {
        // In a turn, so that a queue is either delivered here or when it is joined.
        let _turn = self.turn.lock().await;
        let listens = matches!(mode.0, fan_in::Mode::Listen(_));
        if registration.mode.set(mode).is_err() {
            return false;
        }
        for tenant in self.joined(registration.id) {
            self.deliver(&tenant, registration);
        }
        let (queues, registration) = (Arc::downgrade(self), registration.clone());
        let closed = self.closed.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = registration.stop.cancelled() => {}
                () = closed.cancelled() => {}
                () = registration.ctx.canceled(), if listens => {}
            }
            registration.stop.cancel();
            if let Some(queues) = queues.upgrade() {
                queues.unregister(registration.id);
            }
        });
        true
    }

    /// From now on no consumer of this durable is registered.
    #[cfg(feature = "external")]
    pub(super) async fn begin_move(&self, durable: &str) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        self.check_open()?;
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let mut moving = self.moving.lock();
        if moving.is_some() {
            return refuse("graduate: this store is being moved already".to_owned());
        }
        let state = self.state.lock();
        let mut registrations = state.registrations.iter();
        if registrations.any(|held| held.wanted.durable == durable && !held.stop.is_cancelled()) {
            return refuse(format!(
                "graduate: consumer {durable} still takes events here: stop it, and settle what it holds, first"
            ));
        }
        *moving = Some(durable.to_owned());
        Ok(())
    }

    /// Tenants that have one of the two streams, in order.
    #[cfg(feature = "external")]
    pub(super) fn known(&self) -> Vec<TenantId> {
        let state = self.state.lock();
        let known = state
            .queues
            .iter()
            .filter(|(_, queue)| queue.ingest || queue.dead);
        known.map(|(tenant, _)| tenant.clone()).collect()
    }

    /// No later queue is joined.
    pub(super) fn unregister(&self, id: u64) {
        self.forget(id);
        self.refresh();
    }

    fn forget(&self, id: u64) {
        let mut state = self.state.lock();
        state.registrations.retain(|registration| registration.id != id);
        for queue in state.queues.values_mut() {
            queue.joined.remove(&id);
        }
    }

    /// Opens the tenant's queue for a publish, at the budget last asked for; one try at a time, and not again soon after a
    /// failed one. The try goes on when the caller goes away: half an open queue is what nobody wants.
    pub(super) async fn reopen_paced(self: &Arc<Self>, ctx: &Ctx, tenant: &TenantId) -> Result<(), Error> {
        let running = {
            let mut paced = self.paced.lock();
            match paced.get(tenant) {
                Some(Pace::Failed(at, error)) if at.elapsed() < REOPEN_RETRY => return Err(error.clone()),
                Some(Pace::Running(running)) if running.peek().is_none() => running.clone(),
                _ => {
                    let running = self.spawn_reopen(tenant.clone());
                    paced.insert(tenant.clone(), Pace::Running(running.clone()));
                    running
                }
            }
        };
        tokio::select! {
            opened = running => opened,
            () = ctx.canceled() => Err(Error::canceled("open queue")),
        }
    }

    fn spawn_reopen(self: &Arc<Self>, tenant: TenantId) -> Running {
        let queues = Arc::clone(self);
        let task = tokio::spawn(async move {
            let result = queues.reopen(&tenant).await;
            let mut paced = queues.paced.lock();
            match &result {
                Ok(()) => drop(paced.remove(&tenant)),
                Err(error) => drop(paced.insert(tenant, Pace::Failed(Instant::now(), error.clone()))),
            }
            result
        });
        async move {
            task.await
                .unwrap_or_else(|error| Err(failed("open queue", error)))
        }
        .boxed()
        .shared()
    }

    async fn reopen(&self, tenant: &TenantId) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        self.check_open()?;
        let asked = self.look(tenant, |queue| queue.asked);
        if asked == 0 {
            let text = format!("tenant {tenant}: no queue is open for it yet; give it a budget first");
            return Err(Error::new(ErrorKind::Other, text));
        }
        let ctx = Ctx::new().with_cancel(self.closed.clone());
        let look = async {
            let ingest = self.engine.stream(&names::ingest_stream(tenant)).await?.is_some();
            let dead = self.engine.stream(&names::dead_stream(tenant)).await?.is_some();
            Ok((ingest, dead))
        };
        let (ingest, dead) = bounded(&ctx, STEP, "open queue", look).await?;
        self.change(tenant, |queue| {
            (queue.ingest, queue.dead) = (ingest, dead);
            if !ingest {
                queue.joined.clear();
            }
        });
        self.apply(&ctx, tenant, asked).await
    }
}
