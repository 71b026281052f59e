//! Shares the units of a cluster's queue among processes, by leases.
//!
//! Each process holds one lease of a member, so that all see how many they are, and one lease for each unit that it
//! consumes: as many as its share. A lease that could be taken is the evidence that its last owner is gone, so what that
//! owner had received is asked for again before the unit is consumed. That keeps the order of each table: the new owner
//! begins at the first row that was not acknowledged.
//!
//! A unit is given up in the order halt, settle, stop, release, resign. A unit whose lease is lost is stopped at once.
//! Rows that its old owner still writes are a piece of what the new one writes too, so they change nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windjet_mq::coord::{Coordinator, RETRY_PERIOD, Term};
use windjet_mq::{Broker, Ctx, Error, ErrorKind, Handler, Sharded};

/// Processes that can share the work.
const MEMBERS_MAX: usize = 16;
/// How long the last owner's hold on a unit may outlive its lease.
const ORPHAN_WAIT: Duration = Duration::from_secs(30);
const ORPHAN_PAUSE: Duration = Duration::from_millis(500);
/// How long a unit that is given up waits for its rows to be written.
const SETTLE_WAIT: Duration = Duration::from_secs(60);

/// What the tasks of this module share.
#[derive(Clone)]
pub(crate) struct Sharing {
    pub broker: Arc<dyn Broker>,
    pub leases: Arc<dyn Coordinator>,
    pub handler: Handler,
    pub stop: CancellationToken,
}

impl Sharing {
    /// Consumes this process's share until stopped.
    ///
    /// # Errors
    /// When a unit cannot be consumed at all, for the operator to see to.
    pub(crate) async fn run(self) -> Result<(), Error> {
        let ctx = Ctx::new().with_cancel(self.stop.clone());
        let mut member: Option<(usize, Arc<dyn Term>)> = None;
        let mut owned: BTreeMap<String, CancellationToken> = BTreeMap::new();
        let mut tasks: JoinSet<(String, Result<(), Error>)> = JoinSet::new();
        let mut failed = Ok(());
        while !self.stop.is_cancelled() && failed.is_ok() {
            let kept = owned.iter().filter(|(_, give_up)| !give_up.is_cancelled());
            match self.share(&ctx, &mut member, kept.clone().count()).await {
                Ok(Share::Spare(count)) => {
                    for (unit, give_up) in kept.take(count) {
                        tracing::info!(unit, "giving a unit up to another process");
                        give_up.cancel();
                    }
                }
                Ok(Share::Room(offset)) => {
                    for (unit, term) in self.take(&ctx, offset, &owned).await {
                        let give_up = self.stop.child_token();
                        owned.insert(unit.clone(), give_up.clone());
                        let own = self.clone();
                        tasks.spawn(async move {
                            let ended = own.own(&unit, term, give_up).await;
                            (unit, ended)
                        });
                    }
                }
                Ok(Share::Even) => {}
                Err(error) => tracing::warn!(error = format!("{error:#}"), "the share of units is not known"),
            }
            let next = Instant::now() + RETRY_PERIOD;
            loop {
                let ended = tokio::select! {
                    () = self.stop.cancelled() => break,
                    () = tokio::time::sleep_until(next) => break,
                    Some(ended) = tasks.join_next() => ended,
                };
                failed = failed.and(after(ended, &mut owned));
            }
        }
        self.stop.cancel();
        while let Some(ended) = tasks.join_next().await {
            failed = failed.and(after(ended, &mut owned));
        }
        if let Some((_, term)) = member
            && let Err(error) = term.resign(&Ctx::new()).await
        {
            tracing::warn!(
                error = format!("{error:#}"),
                "the lease of this member runs out by itself"
            );
        }
        failed
    }

    /// Whether this process has its share.
    async fn share(
        &self,
        ctx: &Ctx,
        member: &mut Option<(usize, Arc<dyn Term>)>,
        owned: usize,
    ) -> Result<Share, Error> {
        if member.as_ref().is_some_and(|(_, term)| term.error().is_some()) {
            *member = None;
        }
        let mut members = 0;
        for slot in 0..MEMBERS_MAX {
            let name = format!("member-{slot}");
            if member.as_ref().is_some_and(|(own, _)| *own == slot) || self.leases.held(ctx, &name).await? {
                members += 1;
                continue;
            }
            if member.is_none() {
                match self.leases.try_acquire(ctx, &name).await {
                    Ok(term) => *member = Some((slot, term)),
                    Err(error) if error.is(ErrorKind::LeaseHeld) => {}
                    Err(error) => return Err(error),
                }
                members += 1;
            }
        }
        let Some((slot, _)) = member else {
            return Ok(Share::Even);
        };
        let units = self.units().len();
        let fair = units.div_ceil(members.max(1));
        Ok(match owned.cmp(&fair) {
            std::cmp::Ordering::Less => Share::Room((*slot * fair, fair - owned)),
            std::cmp::Ordering::Equal => Share::Even,
            std::cmp::Ordering::Greater => Share::Spare(owned - fair),
        })
    }

    fn units(&self) -> Vec<String> {
        let units = self
            .broker
            .as_sharded()
            .map(Sharded::ingest_units)
            .unwrap_or_default();
        units.configured.into_iter().chain(units.extra).collect()
    }

    /// Takes leases of units that nobody has.
    async fn take(
        &self,
        ctx: &Ctx,
        (begin, count): (usize, usize),
        owned: &BTreeMap<String, CancellationToken>,
    ) -> Vec<(String, Arc<dyn Term>)> {
        let units = self.units();
        let mut taken = Vec::new();
        // Processes begin at different places, so that they seldom want the same.
        let order = units
            .iter()
            .cycle()
            .skip(begin % units.len().max(1))
            .take(units.len());
        for unit in order.filter(|unit| !owned.contains_key(*unit)) {
            if taken.len() == count {
                break;
            }
            match self
                .leases
                .try_acquire(ctx, &format!("unit-{}", unit.replace('/', "-")))
                .await
            {
                Ok(term) => taken.push((unit.clone(), term)),
                Err(error) if error.is(ErrorKind::LeaseHeld) => {}
                Err(error) => tracing::warn!(
                    unit,
                    error = format!("{error:#}"),
                    "the unit's lease cannot be had"
                ),
            }
        }
        taken
    }

    /// Consumes a unit for a term.
    async fn own(&self, unit: &str, term: Arc<dyn Term>, give_up: CancellationToken) -> Result<(), Error> {
        let ctx = Ctx::new().with_cancel(give_up.clone());
        let owned = tokio::select! {
            biased;
            () = term.done() => Ok(()),
            owned = self.consume(unit, &term, &ctx) => owned,
        };
        if let Err(error) = term.resign(&Ctx::new()).await {
            tracing::warn!(
                unit,
                error = format!("{error:#}"),
                "the unit's lease runs out by itself"
            );
        }
        owned
    }

    async fn consume(&self, unit: &str, term: &Arc<dyn Term>, ctx: &Ctx) -> Result<(), Error> {
        self.take_over(unit, ctx).await;
        if ctx.is_canceled() {
            return Ok(());
        }
        let (handler, rows) = (self.handler.clone(), TaskTracker::new());
        let tracker = rows.clone();
        let tracked = Handler::new(move |message| {
            let (handler, row) = (handler.clone(), tracker.token());
            message.on_settled(move || drop(row));
            async move {
                // A panic is reported by whoever called this.
                let _ = handler.call(message).await;
            }
        });
        let consumed = super::consume(&*self.broker, Some(unit), tracked).await;
        let (consumer, mut consuming) = match consumed {
            Ok(consumed) => consumed,
            Err(error) if error.is(ErrorKind::ConsumerNotFound) || error.is(ErrorKind::ConsumerMismatch) => {
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(unit, error = format!("{error:#}"), "the unit is tried again");
                return Ok(());
            }
        };
        tracing::info!(unit, token = term.token(), "consuming");
        tokio::select! {
            error = consuming.failed() => return Err(error),
            () = ctx.canceled() => {}
        }
        if let Some(halter) = consumer.as_halter() {
            halter.halt().await;
        }
        rows.close();
        if tokio::time::timeout(SETTLE_WAIT, rows.wait()).await.is_err() {
            tracing::warn!(
                unit,
                rows = rows.len(),
                "given up with rows that are not written; they come again"
            );
        }
        consuming.stop();
        if let Some(releaser) = consumer.as_releaser() {
            let released = tokio::time::timeout(RETRY_PERIOD, releaser.release(&Ctx::new())).await;
            if let Ok(Err(error)) = released {
                tracing::warn!(
                    unit,
                    error = format!("{error:#}"),
                    "the unit's pin runs out by itself"
                );
            }
        }
        Ok(())
    }

    /// Has what a dead owner left delivered again, before anything newer.
    async fn take_over(&self, unit: &str, ctx: &Ctx) {
        let Some(sharded) = self.broker.as_sharded() else {
            return;
        };
        let deadline = Instant::now() + ORPHAN_WAIT;
        loop {
            match sharded.reset_orphaned(ctx, unit).await {
                Ok(true) => return tracing::info!(unit, "took over what a dead owner left"),
                Ok(false) => return,
                Err(_) if ctx.is_canceled() => return,
                Err(error) if error.is(ErrorKind::UnitHeld) && Instant::now() < deadline => {}
                Err(error) => {
                    return tracing::warn!(
                        unit,
                        error = format!("{error:#}"),
                        "what a dead owner left comes after its ack wait"
                    );
                }
            }
            tokio::time::sleep(ORPHAN_PAUSE).await;
        }
    }
}

/// How a process stands to its share.
enum Share {
    /// It has so many more.
    Spare(usize),
    /// It has it.
    Even,
    /// It has less: where to begin to look for units, and how many.
    Room((usize, usize)),
}

fn after(
    ended: Result<(String, Result<(), Error>), tokio::task::JoinError>,
    owned: &mut BTreeMap<String, CancellationToken>,
) -> Result<(), Error> {
    match ended {
        Ok((unit, ended)) => {
            owned.remove(&unit);
            ended
        }
        Err(error) => Err(Error::wrap(ErrorKind::Other, "the task of a unit", error)),
    }
}
