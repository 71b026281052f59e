//! Leases in a key-value bucket of the operator's.
//!
//! The revision at which a term was acquired is its fencing token. Clocks are never compared: a lease is taken over only by
//! a candidate that has itself seen the same revision for the lease's duration. A holder that cannot renew ends its own term
//! earlier, counted from when it sent its last renewal and not from the answer, so that it has stepped down before anyone
//! takes over. No lock is held across a request.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use windjet_client::async_nats::{HeaderMap, Request, StatusCode};
use windjet_protocol::jetstream::{ErrorCode, PubAck};

use super::Shared;
use crate::coord::{Coordinator, Term};
use crate::nats::api::{self, ApiFailure};
use crate::nats::topology::{LEASE_DURATION, is_name};
use crate::{Ctx, Error, ErrorKind};

const EXPECTED_SEQUENCE_HEADER: &str = "Nats-Expected-Last-Subject-Sequence";
const OPERATION_HEADER: &str = "KV-Operation";
const SEQUENCE_HEADER: &str = "Nats-Sequence";

/// How long things take. Each must be shorter than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimings {
    /// How long a candidate must see a lease unchanged before it takes it over. Default 15 s.
    pub duration: Duration,
    /// How long a holder keeps a lease that it cannot renew. Default 10 s.
    pub renew_deadline: Duration,
    /// How often a holder renews. Default 2 s.
    pub renew_every: Duration,
}

impl Default for LeaseTimings {
    fn default() -> Self {
        Self {
            duration: LEASE_DURATION,
            renew_deadline: Duration::from_secs(10),
            renew_every: Duration::from_secs(2),
        }
    }
}

/// A lease as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    holder: String,
    #[serde(default)]
    duration_ms: i64,
    #[serde(default)]
    session: String,
}

/// A [`Coordinator`] over a bucket of the operator's. Cloning is cheap.
#[derive(Clone)]
pub struct NatsLeases {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    bucket: String,
    session: String,
    /// What this coordinator writes, always the same.
    value: Bytes,
    timings: LeaseTimings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    acquiring: HashSet<String>,
    terms: HashMap<String, Arc<Held>>,
    /// By name, the revision of somebody else's lease and when it was first seen.
    seen: HashMap<String, (u64, Instant)>,
}

/// A key as it was read.
struct Entry {
    revision: u64,
    deleted: bool,
    value: Bytes,
}

impl Shared {
    pub(super) async fn leases(
        self: &Arc<Self>,
        bucket: &str,
        holder: &str,
        timings: LeaseTimings,
    ) -> Result<NatsLeases, Error> {
        self.check_open()?;
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        if !is_name(bucket) {
            return Err(invalid(format!("kv bucket {bucket:?}: use A-Z a-z 0-9 _ -")));
        }
        let LeaseTimings {
            duration,
            renew_deadline,
            renew_every,
        } = timings;
        if renew_every.is_zero() || renew_every >= renew_deadline || renew_deadline >= duration {
            return Err(invalid(format!(
                "{timings:?}: each must be shorter than the one before, and none zero"
            )));
        }
        let found = self.api.stream(&format!("KV_{bucket}")).await;
        let found = found.map_err(|failure| failure.into_error(format!("kv bucket {bucket}")))?;
        if found.is_none() {
            return Err(Error::new(
                ErrorKind::Topology,
                format!("kv bucket {bucket} does not exist"),
            ));
        }
        let session = self.unique();
        let record = Record {
            holder: holder.to_owned(),
            duration_ms: i64::try_from(duration.as_millis()).unwrap_or(i64::MAX),
            session: session.clone(),
        };
        let value = serde_json::to_vec(&record).map_err(|error| invalid(error.to_string()))?;
        Ok(NatsLeases {
            inner: Arc::new(Inner {
                shared: Arc::clone(self),
                bucket: bucket.to_owned(),
                session,
                value: value.into(),
                timings,
                state: Mutex::default(),
            }),
        })
    }
}

impl Inner {
    fn key(&self, name: &str) -> String {
        format!("$KV.{}.lease.{name}", self.bucket)
    }

    async fn read(&self, name: &str) -> Result<Option<Entry>, ApiFailure> {
        let api = &self.shared.api;
        let subject = format!("{}DIRECT.GET.KV_{}.{}", api.prefix(), self.bucket, self.key(name));
        let reply = api.raw(subject.clone(), Request::new()).await?;
        match reply.status {
            None => {}
            Some(StatusCode::NOT_FOUND) => return Ok(None),
            Some(status) => return Err(ApiFailure::Broken(format!("{subject}: status {status}"))),
        }
        let header = |name: &str| Some(reply.headers.as_ref()?.get(name)?.as_str().to_owned());
        let revision = header(SEQUENCE_HEADER).and_then(|text| text.parse().ok());
        Ok(Some(Entry {
            revision: revision.ok_or_else(|| ApiFailure::Broken(format!("{subject}: no sequence")))?,
            deleted: header(OPERATION_HEADER)
                .is_some_and(|operation| operation == "DEL" || operation == "PURGE"),
            value: reply.payload,
        }))
    }

    /// Writes at a revision; the new one.
    async fn write(&self, name: &str, revision: u64, delete: bool) -> Result<u64, ApiFailure> {
        let mut subject = self.key(name);
        if self.shared.domain.is_some() {
            subject.insert_str(0, self.shared.api.prefix());
        }
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_SEQUENCE_HEADER, revision.to_string());
        let mut payload = self.value.clone();
        if delete {
            headers.insert(OPERATION_HEADER, "DEL");
            payload = Bytes::new();
        }
        let request = Request::new().headers(headers).payload(payload);
        let reply = self.shared.api.raw(subject.clone(), request).await?;
        api::read::<serde_json::Value>(&subject, &reply.payload)?;
        let ack: Result<PubAck<'_>, _> = serde_json::from_slice(&reply.payload);
        Ok(ack
            .map_err(|error| ApiFailure::Broken(format!("{subject}: {error}")))?
            .seq)
    }

    /// The revision to write at when the lease may be taken, `None` while somebody holds it.
    fn free(&self, name: &str, entry: Option<&Entry>) -> Option<u64> {
        let entry = match entry {
            None => return Some(0),
            Some(entry) if entry.deleted => return Some(entry.revision),
            Some(entry) => entry,
        };
        let record: Option<Record> = serde_json::from_slice(&entry.value).ok();
        if record
            .as_ref()
            .is_some_and(|record| record.session == self.session)
        {
            // Our own write outlived a term that we gave up.
            return Some(entry.revision);
        }
        let duration = record
            .and_then(|record| u64::try_from(record.duration_ms).ok())
            .filter(|&millis| millis > 0);
        let duration = duration.map_or(self.timings.duration, Duration::from_millis);
        let now = Instant::now();
        let mut state = self.state.lock();
        match state.seen.get(name) {
            Some(&(revision, since)) if revision == entry.revision => {
                (now - since >= duration).then_some(revision)
            }
            _ => {
                state.seen.insert(name.to_owned(), (entry.revision, now));
                None
            }
        }
    }

    async fn campaign(self: &Arc<Self>, name: &str) -> Result<Arc<Held>, Error> {
        let failed = |failure: ApiFailure| failure.into_error(format!("coord lease {name}"));
        let entry = self.read(name).await.map_err(failed)?;
        let revision = self.free(name, entry.as_ref()).ok_or_else(|| held(name))?;
        let sent = Instant::now();
        let token = match self.write(name, revision, false).await {
            Ok(token) => token,
            Err(failure) if is_conflict(&failure) => return Err(held(name)),
            Err(failure) => return Err(failed(failure)),
        };
        let term = Arc::new(Held {
            leases: Arc::clone(self),
            name: name.to_owned(),
            token,
            revision: Mutex::new(token),
            lost: Mutex::new(None),
            resigning: CancellationToken::new(),
            renewing_ended: CancellationToken::new(),
            done: CancellationToken::new(),
        });
        let closed = {
            let mut state = self.state.lock();
            state.seen.remove(name);
            if !state.closed {
                state.terms.insert(name.to_owned(), Arc::clone(&term));
            }
            state.closed
        };
        if closed {
            // It runs out by itself when this fails.
            let _ = self.write(name, token, true).await;
            return Err(coordinator_closed());
        }
        self.shared.tasks.spawn(Arc::clone(&term).renew(sent));
        Ok(term)
    }
}

fn is_conflict(failure: &ApiFailure) -> bool {
    failure.is(ErrorCode::WrongLastSequence) || failure.is(ErrorCode::WrongLastSequenceUnknown)
}

fn held(name: &str) -> Error {
    Error::new(ErrorKind::LeaseHeld, format!("coord lease {name}: lease held"))
}

fn coordinator_closed() -> Error {
    Error::new(ErrorKind::Closed, "coord: coordinator closed")
}

/// Takes a name back out of those being acquired.
struct Acquiring<'a>(&'a Inner, &'a str);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.0.state.lock().acquiring.remove(self.1);
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.split('.').all(is_name) {
        return Ok(());
    }
    let text = format!("lease {name:?}: use tokens of A-Z a-z 0-9 _ - with dots between them");
    Err(Error::new(ErrorKind::Invalid, text))
}

#[async_trait]
impl Coordinator for NatsLeases {
    async fn try_acquire(&self, ctx: &Ctx, name: &str) -> Result<Arc<dyn Term>, Error> {
        check_name(name)?;
        ctx.check("acquire lease")?;
        {
            let mut state = self.inner.state.lock();
            if state.closed {
                return Err(coordinator_closed());
            }
            if state.terms.contains_key(name) || !state.acquiring.insert(name.to_owned()) {
                return Err(held(name));
            }
        }
        let _acquiring = Acquiring(&self.inner, name);
        tokio::select! {
            biased;
            () = ctx.canceled() => Err(Error::canceled("acquire lease")),
            term = self.inner.campaign(name) => Ok(term?),
        }
    }

    async fn held(&self, ctx: &Ctx, name: &str) -> Result<bool, Error> {
        check_name(name)?;
        ctx.check("look at lease")?;
        if self.inner.state.lock().terms.contains_key(name) {
            return Ok(true);
        }
        let entry = self.inner.read(name).await;
        let entry = entry.map_err(|failure| failure.into_error(format!("coord lease {name}")))?;
        if entry.as_ref().is_none_or(|entry| entry.deleted) {
            self.inner.state.lock().seen.remove(name);
            return Ok(false);
        }
        Ok(self.inner.free(name, entry.as_ref()).is_none())
    }

    async fn close(&self, ctx: &Ctx) -> Result<(), Error> {
        let terms: Vec<_> = {
            let mut state = self.inner.state.lock();
            state.closed = true;
            state.terms.values().cloned().collect()
        };
        let resigned = futures_util::future::join_all(terms.iter().map(|term| term.resign(ctx))).await;
        let errors = resigned.into_iter().filter_map(Result::err).collect();
        Error::join(errors).map_or(Ok(()), Err)
    }
}

impl fmt::Debug for NatsLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsLeases")
            .field("bucket", &self.inner.bucket)
            .finish_non_exhaustive()
    }
}

/// A lease that this process holds.
struct Held {
    leases: Arc<Inner>,
    name: String,
    token: u64,
    revision: Mutex<u64>,
    lost: Mutex<Option<Error>>,
    resigning: CancellationToken,
    renewing_ended: CancellationToken,
    done: CancellationToken,
}

impl Held {
    async fn renew(self: Arc<Self>, sent: Instant) {
        let lost = self.renew_until_lost(sent);
        tokio::select! {
            biased;
            () = self.resigning.cancelled() => {}
            () = self.leases.shared.closed.cancelled() => self.end(Some("the broker was closed".to_owned())),
            reason = lost => self.end(Some(reason)),
        }
        self.renewing_ended.cancel();
    }

    async fn renew_until_lost(&self, sent: Instant) -> String {
        let LeaseTimings {
            renew_deadline,
            renew_every,
            ..
        } = self.leases.timings;
        let mut deadline = sent + renew_deadline;
        let mut last_error = String::new();
        loop {
            let next = (Instant::now() + renew_every).min(deadline);
            tokio::time::sleep_until(next).await;
            let sent = Instant::now();
            if sent >= deadline {
                return format!("not renewed in time{last_error}");
            }
            let revision = *self.revision.lock();
            let renewed = timeout_at(deadline, self.leases.write(&self.name, revision, false)).await;
            match renewed {
                Ok(Ok(revision)) => {
                    *self.revision.lock() = revision;
                    deadline = sent + renew_deadline;
                }
                Ok(Err(failure)) if is_conflict(&failure) => match timeout_at(deadline, self.ours()).await {
                    // An earlier renewal was stored and its answer lost.
                    Ok(Ok(Some(revision))) => *self.revision.lock() = revision,
                    Ok(Ok(None)) => return "somebody else wrote the lease".to_owned(),
                    Ok(Err(failure)) => last_error = format!("; {failure}"),
                    Err(_) => {}
                },
                Ok(Err(failure)) => last_error = format!("; {failure}"),
                Err(_) => {}
            }
        }
    }

    /// The revision at which the key still holds what we write, if it does.
    async fn ours(&self) -> Result<Option<u64>, ApiFailure> {
        let entry = self.leases.read(&self.name).await?;
        let ours = entry.filter(|entry| !entry.deleted && entry.value == self.leases.value);
        Ok(ours.map(|entry| entry.revision))
    }

    /// Ends the term, once.
    fn end(&self, lost: Option<String>) {
        if self.done.is_cancelled() {
            return;
        }
        if let Some(reason) = lost {
            let text = format!("coord lease {}: lease lost: {reason}", self.name);
            *self.lost.lock() = Some(Error::new(ErrorKind::LeaseLost, text));
        }
        self.leases.state.lock().terms.remove(&self.name);
        self.done.cancel();
    }

    async fn delete(&self) -> Result<(), ApiFailure> {
        let revision = *self.revision.lock();
        match self.leases.write(&self.name, revision, true).await {
            Err(failure) if is_conflict(&failure) => match self.ours().await? {
                Some(revision) => self.leases.write(&self.name, revision, true).await.map(|_| ()),
                None => Ok(()),
            },
            other => other.map(|_| ()),
        }
    }
}

#[async_trait]
impl Term for Held {
    fn name(&self) -> &str {
        &self.name
    }

    fn token(&self) -> u64 {
        self.token
    }

    async fn done(&self) {
        self.done.cancelled().await;
    }

    fn error(&self) -> Option<Error> {
        self.lost.lock().clone()
    }

    async fn resign(&self, ctx: &Ctx) -> Result<(), Error> {
        if self.done.is_cancelled() {
            return Ok(());
        }
        self.resigning.cancel();
        let stopped = tokio::select! {
            biased;
            () = self.renewing_ended.cancelled() => true,
            () = ctx.canceled() => false,
        };
        if self.done.is_cancelled() {
            return Ok(());
        }
        self.end(None);
        let canceled = || Error::canceled("resign; the lease runs out by itself");
        if !stopped {
            return Err(canceled());
        }
        tokio::select! {
            biased;
            () = ctx.canceled() => Err(canceled()),
            deleted = self.delete() => deleted.map_err(|failure| failure.into_error(format!("resign lease {}", self.name))),
        }
    }
}
