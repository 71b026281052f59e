//! Atomic batches: messages that are stored all or not at all.
//!
//! [`Batches`] holds what was sent of a stream's open batches. [`Batches::accept`] takes one message and says what it means;
//! with the last one comes the whole [`Batch`], and [`Batch::decide`] makes the plans of all its messages, each checked
//! against the stream and those before it. The plans belong into one group of the store.
//!
//! Waiting messages are copies in memory, bounded for all streams of a server together ([`Shared`]). Nothing of an open batch
//! survives a restart.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::advisory::BatchAbandonReason as Reason;
use windjet_protocol::jetstream::{API_LEVEL, ApiError, ErrorCode};

use super::check::{Incoming, Place, Plan, Stop, check, check_size};
use super::headers::{Number, number};
use super::overlay::Overlay;
use super::rules::Rules;
use super::schedule::Part;
use super::view::View;

/// Longest id.
const ID_MAX: usize = 64;
/// What a waiting message counts besides its bytes.
const ENTRY: u64 = 128;

/// Limits of batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open batches of a stream.
    pub(crate) per_stream: usize,
    /// Open batches of the server.
    pub(crate) total: u64,
    /// Messages of a batch.
    pub(crate) messages: usize,
    /// Nanoseconds without a message after which a batch is given up.
    pub(crate) timeout: u64,
    /// Bytes that wait in all open batches of the server.
    pub(crate) bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_stream: 50,
            total: 1000,
            messages: 1000,
            timeout: 10_000_000_000,
            bytes: 64 << 20,
        }
    }
}

/// What the open batches of a server take.
#[derive(Debug, Default, Clone)]
pub(crate) struct Shared {
    /// Open batches.
    pub(crate) batches: Arc<AtomicU64>,
    /// Bytes in them.
    pub(crate) bytes: Arc<AtomicU64>,
}

/// A message that waits for its batch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    subject: Box<[u8]>,
    block: Vec<u8>,
    payload: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Open {
    messages: Vec<Waiting>,
    bytes: u64,
    /// When its last message came.
    last: u64,
}

/// What a message of a batch means.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It waits; where an answer is wanted it is an empty message.
    Staged,
    /// The batch is complete. Its outcome is the answer.
    Commit(Batch),
    /// It is refused.
    Refused {
        /// The answer.
        error: ApiError,
        /// Why its batch was given up, where an advisory tells so.
        advisory: Option<Reason>,
    },
}

impl From<ErrorCode> for Accepted {
    fn from(code: ErrorCode) -> Self {
        Self::refused(code.error())
    }
}

impl Accepted {
    fn refused(error: ApiError) -> Self {
        Self::Refused {
            error,
            advisory: None,
        }
    }
}

/// The last message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is stored.
    Stored,
    /// It is not.
    Closing,
}

/// The open batches of a stream.
#[derive(Debug)]
pub(crate) struct Batches {
    limits: Limits,
    shared: Shared,
    open: HashMap<Box<[u8]>, Open>,
}

impl Batches {
    /// None are open.
    pub(crate) fn new(limits: Limits, shared: Shared) -> Self {
        Self {
            limits,
            shared,
            open: HashMap::new(),
        }
    }

    /// Whether none are open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a message with `Nats-Batch-Id` at the moment `now` of a monotonic clock. Its `subject` is the one under which it
    /// is stored.
    pub(crate) fn accept(
        &mut self,
        rules: &Rules,
        view: &impl View,
        message: &Incoming<'_>,
        now: u64,
    ) -> Accepted {
        if let Err(Stop::Refuse(error)) = check_size(rules, message) {
            return Accepted::refused(error);
        }
        if !rules.atomic {
            return ErrorCode::AtomicPublishDisabled.into();
        }
        let headers = &message.headers;
        let id = headers.batch_id.unwrap_or_default();
        if id.is_empty() || id.len() > ID_MAX {
            return ErrorCode::AtomicPublishIdInvalid.into();
        }
        let Some(Number::Is(seq)) = headers.batch_seq else {
            return ErrorCode::AtomicPublishSequenceMissing.into();
        };
        let size = rules.size(message.subject.len(), message.block.len(), message.payload.len());
        if view.server_full() {
            return ErrorCode::InsufficientResources.into();
        }
        if view.account_full(size) {
            return ErrorCode::AccountResourcesExceeded.into();
        }
        let end = match commit_of(message) {
            Ok(end) => end,
            Err(code) if seq == 1 || self.expected(id) == Some(seq) => {
                self.forget(id);
                return code.into();
            }
            Err(_) => None,
        };
        if let Err(refused) = self.check_sequence(message, id, seq, end) {
            return refused;
        }
        if end != Some(End::Closing)
            && let Err(refused) = self.stage(message, id, now)
        {
            return refused;
        }
        if end.is_none() {
            return Accepted::Staged;
        }
        let messages = self.forget(id).map(|open| open.messages).unwrap_or_default();
        Accepted::Commit(Batch::new(id, messages, end))
    }

    /// The sequence that an open batch expects next.
    fn expected(&self, id: &[u8]) -> Option<u64> {
        self.open.get(id).map(|open| open.messages.len() as u64 + 1)
    }

    fn check_sequence(
        &mut self,
        message: &Incoming<'_>,
        id: &[u8],
        seq: u64,
        end: Option<End>,
    ) -> Result<(), Accepted> {
        let most = self.limits.messages as u64;
        let too_large = || ErrorCode::AtomicPublishTooLarge.with(most);
        match self.expected(id) {
            None if seq == 1 && end != Some(End::Closing) => {}
            None if seq == 1 => {
                return Err(self.give_up(id, ErrorCode::AtomicPublishIncomplete, Reason::Incomplete));
            }
            None if seq > most => return Err(Accepted::refused(too_large())),
            None => return Err(ErrorCode::AtomicPublishIncomplete.into()),
            Some(expected) if seq != expected => {
                return Err(self.give_up(id, ErrorCode::AtomicPublishIncomplete, Reason::Incomplete));
            }
            Some(_) => {}
        }
        if seq > most && end != Some(End::Closing) {
            self.forget(id);
            return Err(Accepted::Refused {
                error: too_large(),
                advisory: Some(Reason::Large),
            });
        }
        let level = message.headers.required_level;
        if level.is_some_and(|level| number(level).is_none_or(|level| level > u64::from(API_LEVEL))) {
            return Err(self.give_up(id, ErrorCode::RequiredApiLevel, Reason::Unsupported));
        }
        Ok(())
    }

    fn stage(&mut self, message: &Incoming<'_>, id: &[u8], now: u64) -> Result<(), Accepted> {
        let length = message.subject.len() + message.block.len() + message.payload.len();
        let bytes = length as u64 + ENTRY;
        let known = self.open.contains_key(id);
        if !known {
            let full = self.open.len() >= self.limits.per_stream;
            if full || !take(&self.shared.batches, 1, self.limits.total) {
                return Err(ErrorCode::AtomicPublishTooManyInflight.into());
            }
            self.open.insert(id.into(), Open::default());
        }
        if !take(&self.shared.bytes, bytes, self.limits.bytes) {
            return Err(self.give_up(id, ErrorCode::AtomicPublishTooManyInflight, Reason::Large));
        }
        let mut waiting = Waiting {
            subject: message.subject.into(),
            block: message.block.to_vec(),
            payload: message.payload.into(),
        };
        if message.headers.required_level.is_some() {
            block::remove(&mut waiting.block, names::REQUIRED_API_LEVEL);
        }
        let open = self.open.entry(id.into()).or_default();
        open.messages.push(waiting);
        open.bytes += bytes;
        open.last = now;
        Ok(())
    }

    fn give_up(&mut self, id: &[u8], code: ErrorCode, reason: Reason) -> Accepted {
        self.forget(id);
        Accepted::Refused {
            error: code.error(),
            advisory: Some(reason),
        }
    }

    fn forget(&mut self, id: &[u8]) -> Option<Open> {
        let open = self.open.remove(id)?;
        self.shared.batches.fetch_sub(1, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(open.bytes, Ordering::Relaxed);
        Some(open)
    }

    /// When the first batch is given up if nothing comes.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let last = self.open.values().map(|open| open.last).min()?;
        Some(last.saturating_add(self.limits.timeout))
    }

    /// Gives up batches whose time is over, and answers their ids, for advisories with [`Reason::Timeout`].
    pub(crate) fn expire(&mut self, now: u64) -> Vec<Box<[u8]>> {
        let timeout = self.limits.timeout;
        let over = |open: &Open| open.last.saturating_add(timeout) <= now;
        let ids: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| over(open))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &ids {
            self.forget(id);
        }
        ids
    }

    /// Gives up all batches: the stream is deleted or sealed, or batches are switched off.
    pub(crate) fn clear(&mut self) {
        let ids: Vec<_> = self.open.keys().cloned().collect();
        for id in ids {
            self.forget(&id);
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Adds to a counter unless that makes it larger than `max`.
fn take(counter: &AtomicU64, more: u64, max: u64) -> bool {
    let add = |now: u64| now.checked_add(more).filter(|sum| *sum <= max);
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        .is_ok()
}

/// Whether a message ends its batch. An empty value is as wrong as any other.
fn commit_of(message: &Incoming<'_>) -> Result<Option<End>, ErrorCode> {
    match block::find(message.block, names::BATCH_COMMIT) {
        None => Ok(None),
        Some(b"1") => Ok(Some(End::Stored)),
        Some(b"eob") => Ok(Some(End::Closing)),
        Some(_) => Err(ErrorCode::AtomicPublishCommitInvalid),
    }
}

/// A complete batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Its id.
    pub(crate) id: String,
    messages: Vec<Waiting>,
}

/// A message of a batch with its plan.
#[derive(Debug)]
pub(crate) struct Planned<'b> {
    /// The subject under which it is stored.
    pub(crate) subject: &'b [u8],
    /// The sequence it gets.
    pub(crate) seq: u64,
    /// Everything else.
    pub(crate) plan: Plan<'b>,
    /// Whether nobody wants it: it uses up its sequence and is removed at once.
    pub(crate) skipped: bool,
}

impl Batch {
    fn new(id: &[u8], mut messages: Vec<Waiting>, end: Option<End>) -> Self {
        if end == Some(End::Closing)
            && let Some(last) = messages.last_mut()
        {
            block::set(&mut last.block, names::BATCH_COMMIT, b"1");
        }
        Self {
            id: String::from_utf8_lossy(id).into_owned(),
            messages,
        }
    }

    /// How many messages it stores.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Plans all messages, to be stored as one group.
    ///
    /// # Errors
    /// What the first message says that cannot be stored; the batch is refused then, or decided again after
    /// [`Stop::Wait`] and [`Stop::Read`].
    pub(crate) fn decide<'b>(
        &'b self,
        rules: &Rules,
        view: &impl View,
    ) -> Result<Vec<Planned<'b>>, Stop<'b>> {
        let mut overlay = Overlay::new(view);
        let mut planned = Vec::with_capacity(self.messages.len());
        for (index, waiting) in self.messages.iter().enumerate() {
            let seq = overlay.last_seq() + 1;
            let message = Incoming::new(&waiting.subject, &waiting.block, &waiting.payload);
            let place = Place::Batch { first: index == 0 };
            let (plan, skipped) = match check(rules, &overlay, &message, place) {
                Ok(plan) => (plan, false),
                Err(Stop::Skip { id }) => (skipped(rules, &message, id, seq), true),
                Err(stop) => return Err(stop),
            };
            overlay.add(&waiting.subject, &plan);
            planned.push(Planned {
                subject: &waiting.subject,
                seq,
                plan,
                skipped,
            });
        }
        Ok(planned)
    }
}

/// A message that nobody wants uses up its sequence: it is stored and removed in one step.
fn skipped<'b>(rules: &Rules, message: &Incoming<'b>, id: Option<&'b [u8]>, seq: u64) -> Plan<'b> {
    let mut plan = Plan {
        block: Cow::Borrowed(b""),
        payload: Cow::Borrowed(b""),
        size: rules.size(message.subject.len(), 0, 0),
        id,
        remove: super::evict::Removals::new(),
        purge: None,
        rollup: None,
        ttl: None,
        counter: None,
        schedule: Part::None,
        before: 0,
    };
    plan.remove.add(seq);
    plan
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
