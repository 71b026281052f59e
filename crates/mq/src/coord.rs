//! Leases: at most one process at a time does a job.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Ctx, Error};

/// How often a candidate should try again.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Hands out leases by name.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Takes the lease if nobody holds a live one. `ctx` bounds this call and not the term.
    ///
    /// # Errors
    /// [`LeaseHeld`](crate::ErrorKind::LeaseHeld) while somebody holds it, this coordinator included;
    /// [`Closed`](crate::ErrorKind::Closed) after a close.
    async fn try_acquire(&self, ctx: &Ctx, name: &str) -> Result<Arc<dyn Term>, Error>;

    /// Whether somebody holds a live lease, without campaigning for it.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn held(&self, ctx: &Ctx, name: &str) -> Result<bool, Error>;

    /// Resigns all terms as far as possible. May be called again.
    ///
    /// # Errors
    /// Those of all terms, joined; such a lease runs out by itself.
    async fn close(&self, ctx: &Ctx) -> Result<(), Error>;
}

/// One holding of a lease.
#[async_trait]
pub trait Term: Send + Sync {
    /// The lease's name.
    fn name(&self) -> &str;

    /// The fencing token: greater than that of every earlier term of this name. It does not change in a term.
    fn token(&self) -> u64;

    /// Waits until the term has ended, by loss, by resignation or by a close.
    async fn done(&self);

    /// Why it ended, when it was lost: an error of the kind [`LeaseLost`](crate::ErrorKind::LeaseLost).
    fn error(&self) -> Option<Error>;

    /// Gives the lease up so that another can have it at once. Does nothing on a term that has ended.
    ///
    /// # Errors
    /// When the lease could not be removed; it runs out by itself.
    async fn resign(&self, ctx: &Ctx) -> Result<(), Error>;
}
