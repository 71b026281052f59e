//! One message to the target: under which id, how often, and whether it was there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use windjet_server::jetstream::StreamMessage;

use super::keys::Keys;
use crate::embedded::engine::{failed, headers};
use crate::headers::KEY_ONLY_HEADER;
use crate::nats::{Arrival, Arrived, ExternalNats};
use crate::{Ctx, Error, ErrorKind, Headers, MESSAGE_ID_HEADER};

/// A message that cannot go under its own key keeps it here.
const KEY_HEADER: &str = "Windjet-Msg-Id";
/// Between two tries while the target is full or away.
const PAUSE: Duration = Duration::from_millis(250);
/// Headers that told the server here what to do with a publish. They are done with, and would be obeyed again.
const INSTRUCTIONS: [&str; 7] = [
    "Nats-Expected-",
    "Nats-Rollup",
    "Nats-TTL",
    "Nats-Batch-",
    "Nats-Fast-Batch-",
    "Nats-Schedule",
    "Nats-Incr",
];

/// What became of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Moved,
    AlreadyThere,
    /// Moved, and it may have been there: nothing can tell.
    Repeated,
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) seq: u64,
    to: Arrival,
    id: String,
    headers: Headers,
    data: bytes::Bytes,
    /// Since when it may be on the target without being counted.
    pub(super) maybe_since: Option<SystemTime>,
    /// What must stay in order is sent one behind the other.
    pub(super) lane: String,
    /// Whether it has a key and goes under an id of the move's.
    pub(super) renamed: bool,
}

/// How the ids of one move look.
pub(super) struct Ids<'a> {
    pub(super) prefix: &'a str,
    /// The stream here.
    pub(super) stream: &'a str,
}

impl Parcel {
    /// Packs nothing but the key of an event that is written: the target then remembers it. `None` without a key, or when another
    /// message uses it.
    pub(super) fn key_only(
        message: &StreamMessage,
        to: Arrival,
        claim: impl FnOnce(&Arrival, &str) -> bool,
    ) -> Option<Self> {
        let id = message
            .header(MESSAGE_ID_HEADER)
            .filter(|id| !id.is_empty())?
            .to_owned();
        if !claim(&to, &id) {
            return None;
        }
        let mut headers = Headers::new();
        headers.set(MESSAGE_ID_HEADER, id.as_str());
        headers.set(KEY_ONLY_HEADER, "1");
        Some(Self {
            seq: message.sequence,
            to,
            id,
            headers,
            data: bytes::Bytes::new(),
            maybe_since: None,
            // No order: each for itself.
            lane: message.sequence.to_string(),
            renamed: false,
        })
    }

    /// Packs a message. It goes under its own key unless `rename` says otherwise.
    pub(super) fn new(
        message: StreamMessage,
        (to, key): (Arrival, &str),
        ids: &Ids<'_>,
        rename: impl FnOnce(&Arrival, &str) -> bool,
    ) -> Self {
        let mut kept = Headers::new();
        let stored = headers(&message.headers);
        for (name, values) in stored.iter() {
            if !INSTRUCTIONS
                .iter()
                .any(|instruction| name.starts_with(instruction))
            {
                values.iter().for_each(|value| kept.add(name, value.as_str()));
            }
        }
        let own = kept.get(MESSAGE_ID_HEADER).to_owned();
        let renamed = !own.is_empty() && rename(&to, &own);
        if renamed {
            kept.set(KEY_HEADER, own.as_str());
        }
        let id = if own.is_empty() || renamed {
            format!("{}.{}.{}", ids.prefix, ids.stream, message.sequence)
        } else {
            own
        };
        kept.set(MESSAGE_ID_HEADER, id.as_str());
        // Tenant and table: all scopes of a table are in one shard.
        let lane = key.split('.').take(2).collect::<Vec<_>>().join(".");
        Self {
            seq: message.sequence,
            to,
            id,
            headers: kept,
            data: message.payload,
            maybe_since: None,
            lane,
            renamed,
        }
    }
}

/// Ids in the history.
type Shown = Arc<HashSet<String>>;

/// The target, and how it is used.
pub(super) struct Sender<'a> {
    target: &'a ExternalNats,
    pub(super) keys: Keys,
    in_flight: Semaphore,
    patience: Duration,
    /// For so long a message that was sent is certainly recognised.
    pub(super) recognised: Duration,
    /// For so long the history shows it.
    shown: Duration,
    /// What it showed of what an earlier run may have sent, which grows no more.
    looked: Mutex<HashMap<(Arrival, SystemTime), Shown>>,
}

impl<'a> Sender<'a> {
    pub(super) async fn new(
        target: &'a ExternalNats,
        in_flight: usize,
        patience: Duration,
    ) -> Result<Self, Error> {
        let (window, attempt) = (target.shortest_window().await?, target.publish_time());
        Ok(Self {
            target,
            keys: Keys::new(window + attempt + patience),
            in_flight: Semaphore::new(in_flight),
            patience,
            // What is sent now may arrive so much later.
            recognised: window.saturating_sub(attempt),
            shown: target.history_age().await?,
            looked: Mutex::default(),
        })
    }

    /// Sends it until it is stored, or the patience is over.
    pub(super) async fn send(&self, parcel: &Parcel) -> Result<Sent, Error> {
        let of = |error: Error| {
            let text = format!("message {} to {}", parcel.seq, parcel.to.subject);
            Error::wrap(error.kind(), text, error)
        };
        let _permit = self
            .in_flight
            .acquire()
            .await
            .map_err(|error| failed("graduate", error))?;
        let end = Instant::now() + self.patience;
        let (ctx, mut maybe) = (Ctx::new(), parcel.maybe_since);
        let (mut first, mut uncertain) = (true, false);
        loop {
            let began = SystemTime::now();
            let outcome = self
                .try_once(&ctx, parcel, maybe, (&mut first, &mut uncertain))
                .await;
            let error = match outcome {
                // An earlier try of this very call has stored it.
                Ok(Sent::AlreadyThere) if parcel.maybe_since.is_none() && maybe.is_some() => {
                    return Ok(Sent::Moved);
                }
                Ok(Sent::Moved) if uncertain => return Ok(Sent::Repeated),
                Ok(sent) => return Ok(sent),
                Err(error) => error,
            };
            if !error.is_retryable() || Instant::now() >= end {
                return Err(of(error));
            }
            if error.is(ErrorKind::Unavailable) {
                maybe.get_or_insert(began);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_once(
        &self,
        ctx: &Ctx,
        parcel: &Parcel,
        maybe: Option<SystemTime>,
        (first, uncertain): (&mut bool, &mut bool),
    ) -> Result<Sent, Error> {
        if let Some(since) = maybe {
            // A clock that was set back tells nothing: then it is looked for as well.
            let age = since.elapsed().unwrap_or(Duration::MAX);
            if age >= self.recognised {
                match self.look(parcel, since, age, *first).await? {
                    Some(ids) if ids.contains(&parcel.id) => return Ok(Sent::AlreadyThere),
                    Some(_) => {}
                    None => *uncertain = true,
                }
            }
        }
        *first = false;
        let arrived = self
            .target
            .arrive(ctx, &parcel.to, parcel.headers.clone(), parcel.data.clone());
        Ok(match arrived.await? {
            Arrived::Stored => Sent::Moved,
            Arrived::Before => Sent::AlreadyThere,
        })
    }

    /// What the history shows there since a time; `None` when it cannot tell.
    async fn look(
        &self,
        parcel: &Parcel,
        since: SystemTime,
        age: Duration,
        first: bool,
    ) -> Result<Option<Shown>, Error> {
        if age >= self.shown {
            return Ok(None);
        }
        let place = (parcel.to.clone(), since);
        let known = self.looked.lock().get(&place).cloned();
        if let Some(known) = known.filter(|_| first) {
            return Ok(Some(known));
        }
        let shown = self.target.shown(&parcel.to, since).await?.map(Arc::new);
        if let (Some(shown), true) = (&shown, first) {
            self.looked.lock().insert(place, Arc::clone(shown));
        }
        Ok(shown)
    }
}
