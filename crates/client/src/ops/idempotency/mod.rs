//! Each message id is handled once, across workers and restarts.
//!
//! The layer looks the message's id up in a store before the handler, and marks it done after. A [`ClaimStore`] also keeps
//! two workers from handling one id at the same time: who does not get the claim hands the message back and looks again
//! later ([`HandlerError::ClaimInFlight`]). A claim is a lease: it is renewed while the handler runs, and one whose worker
//! died is taken over when it has run out.
//!
//! | store | across processes | claims | when it is wrong |
//! |---|---|---|---|
//! | [`KvStore`] | yes | yes | never |
//! | [`MemoryStore`] | no | yes | forgets at restart and beyond its capacity |
//! | [`BloomStore`] | no | no | without a backend it drops a few messages unhandled; must be asked for by name |
//!
//! A message without an id bypasses the layer. A duplicate is acknowledged without calling the handler.

mod bloom;
mod kv;
mod memory;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use bloom::BloomStore;
pub use kv::KvStore;
pub use memory::MemoryStore;

use crate::delivery::Delivery;
use crate::error::Result;
use crate::handler::{Disposition, Handler, HandlerError, Layer, Outcome};
use crate::message::headers::{MSG_ID, first};

/// What a call into a store becomes.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Remembers ids.
pub trait DedupStore: Send + Sync {
    /// Whether this id is done.
    fn seen<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool>;

    /// This id is done.
    fn mark<'a>(&'a self, id: &'a str) -> StoreFuture<'a, ()>;
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is ours, under this revision, until the store's lease runs out.
    Acquired(u64),
    /// The id is done.
    Done,
    /// Another worker has it, for this long at least.
    InFlight(Duration),
}

/// Remembers ids, and who is at work on one.
pub trait ClaimStore: DedupStore {
    /// Claims an id.
    fn claim<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Claim>;

    /// Keeps a claim for another lease; gives its new revision, or `None` when it is not ours any more.
    fn renew<'a>(&'a self, id: &'a str, revision: u64) -> StoreFuture<'a, Option<u64>>;

    /// Gives a claim back. One that is not ours any more is left alone.
    fn release<'a>(&'a self, id: &'a str, revision: u64) -> StoreFuture<'a, ()>;

    /// How long a claim lasts.
    fn lease(&self) -> Duration;
}

#[derive(Clone)]
enum Store {
    Plain(Arc<dyn DedupStore>),
    Claims(Arc<dyn ClaimStore>),
}

type Extract = Arc<dyn Fn(&Delivery) -> Option<String> + Send + Sync>;

/// The layer.
#[derive(Clone)]
pub struct Idempotency {
    store: Store,
    id: Extract,
    deduplicated: Arc<AtomicU64>,
}

impl Idempotency {
    /// With a store that knows claims.
    pub fn new(store: impl ClaimStore + 'static) -> Self {
        Self::with(Store::Claims(Arc::new(store)))
    }

    /// With a store that only remembers: two workers may handle one id at the same time.
    pub fn without_claims(store: impl DedupStore + 'static) -> Self {
        Self::with(Store::Plain(Arc::new(store)))
    }

    fn with(store: Store) -> Self {
        let id: Extract = Arc::new(|delivery| {
            let map = delivery.headers.as_ref()?;
            first(map, MSG_ID).map(str::to_owned)
        });
        Self {
            store,
            id,
            deduplicated: Arc::default(),
        }
    }

    /// Takes the id from elsewhere than the header `Nats-Msg-Id`.
    #[must_use]
    pub fn id(mut self, extract: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        self.id = Arc::new(extract);
        self
    }

    /// Messages that were acknowledged as duplicates so far, shared with the clones of this layer.
    #[must_use]
    pub fn deduplicated(&self) -> u64 {
        self.deduplicated.load(Ordering::Relaxed)
    }
}

/// A handler that handles each id once.
#[derive(Debug, Clone)]
pub struct Idempotent<H> {
    layer: Idempotency,
    inner: H,
}

impl<H: Handler> Layer<H> for Idempotency {
    type Handler = Idempotent<H>;

    fn layer(self, inner: H) -> Idempotent<H> {
        Idempotent { layer: self, inner }
    }
}

impl<H: Handler> Handler for Idempotent<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let Some(id) = (self.layer.id)(&delivery).filter(|id| !id.is_empty()) else {
            return self.inner.handle(delivery).await;
        };
        match &self.layer.store {
            Store::Plain(store) => {
                if store.seen(&id).await? {
                    return Ok(self.duplicate());
                }
                let done = self.inner.handle(delivery).await?;
                if done == Disposition::Ack {
                    store.mark(&id).await?;
                }
                Ok(done)
            }
            Store::Claims(store) => self.claimed(store.as_ref(), &id, delivery).await,
        }
    }
}

impl<H: Handler> Idempotent<H> {
    fn duplicate(&self) -> Disposition {
        self.layer.deduplicated.fetch_add(1, Ordering::Relaxed);
        Disposition::Ack
    }

    async fn claimed(&self, store: &dyn ClaimStore, id: &str, delivery: Arc<Delivery>) -> Outcome {
        let mut revision = match store.claim(id).await? {
            Claim::Acquired(revision) => revision,
            Claim::Done => return Ok(self.duplicate()),
            Claim::InFlight(left) => return Err(HandlerError::ClaimInFlight(left)),
        };
        let work = crate::handler::guarded(|| self.inner.handle(delivery));
        tokio::pin!(work);
        let every = (store.lease() / 3).max(Duration::from_millis(1));
        let outcome = loop {
            tokio::select! {
                outcome = &mut work => break outcome,
                () = tokio::time::sleep(every) => match store.renew(id, revision).await {
                    Ok(Some(renewed)) => revision = renewed,
                    Ok(None) => tracing::warn!(id, "the claim of a message that is being handled was taken over"),
                    Err(error) => tracing::warn!(id, %error, "the claim of a message could not be renewed"),
                },
            }
        };
        let undo = match outcome {
            Ok(Disposition::Ack) => match store.mark(id).await {
                Ok(()) => return Ok(Disposition::Ack),
                Err(error) => Err(error.into()),
            },
            other => other,
        };
        match (store.release(id, revision).await, undo) {
            (Ok(()), undo) => undo,
            (Err(error), Ok(_)) => Err(error.into()),
            (Err(error), Err(first)) => Err(HandlerError::failed(format!(
                "{first}; and releasing its claim: {error}"
            ))),
        }
    }
}

impl std::fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency")
            .field("claims", &matches!(self.store, Store::Claims(_)))
            .field("deduplicated", &self.deduplicated())
            .finish_non_exhaustive()
    }
}
