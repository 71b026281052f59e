//! How to move, and what is told meanwhile.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Error, ErrorKind};

type Observer = Arc<dyn Fn(Progress) + Send + Sync>;

/// Options of [`EmbeddedNats::graduate`](crate::EmbeddedNats::graduate).
#[derive(Clone)]
#[must_use]
pub struct GraduateOptions {
    pub(super) consumer: String,
    pub(super) dry_run: bool,
    pub(super) batch: usize,
    pub(super) tenants: usize,
    pub(super) in_flight: usize,
    pub(super) remainder: u64,
    pub(super) hold: Duration,
    pub(super) patience: Duration,
    observer: Option<Observer>,
}

impl fmt::Debug for GraduateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraduateOptions")
            .field("consumer", &self.consumer)
            .field("dry_run", &self.dry_run)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

impl GraduateOptions {
    /// Defaults. The consumer is the durable whose acknowledgement of an event means that it is written.
    pub fn new(consumer: impl Into<String>) -> Self {
        Self {
            consumer: consumer.into(),
            dry_run: false,
            batch: 256,
            tenants: 8,
            in_flight: 256,
            remainder: 1_000,
            hold: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            observer: None,
        }
    }

    /// Only look: nothing is stored anywhere, and nothing is held up.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Messages of one queue between two records. Default 256.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages;
        self
    }

    /// Queues that are copied side by side. Default 8.
    pub fn side_by_side(mut self, queues: usize) -> Self {
        self.tenants = queues;
        self
    }

    /// Publishes to the target that are under way at a time. Default 256.
    pub fn in_flight(mut self, publishes: usize) -> Self {
        self.in_flight = publishes;
        self
    }

    /// Publishes are held once no more than this is left to copy. Default 1,000.
    pub fn remainder(mut self, messages: u64) -> Self {
        self.remainder = messages;
        self
    }

    /// How long publishes may be held. After that they go on here, and the move fails for now. Default 30 s.
    pub fn hold(mut self, limit: Duration) -> Self {
        self.hold = limit;
        self
    }

    /// How long one message is tried again while the target is full or away. Default 60 s.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Calls this with how far the move is, after every batch and at every phase. It must not wait.
    pub fn observe(mut self, observer: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    pub(super) fn tell(&self, progress: Progress) {
        if let Some(observer) = &self.observer {
            observer(progress);
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |text| Err(Error::new(ErrorKind::Invalid, text));
        if self.consumer.is_empty() {
            return refuse("graduate: name the durable whose acknowledgement means that an event is written");
        }
        if self.batch == 0 || self.tenants == 0 || self.in_flight == 0 {
            return refuse("graduate: batch, queues side by side and publishes in flight are at least 1");
        }
        Ok(())
    }
}

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Messages done with, in this run.
    pub done: u64,
    /// Messages known of, in this run; it grows while the service publishes.
    pub known: u64,
}

/// What a move is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Copying, while the service publishes.
    Copying,
    /// Publishes are held while the rest is copied and everything is counted.
    Holding,
    /// Publishes go to the target.
    Switched,
}
