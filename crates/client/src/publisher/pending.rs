//! What became of a publish.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::Subject;
use async_nats::jetstream::response::Response;
use serde::Deserialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::observe::Meters;
use crate::replies::Ticket;

/// A stream's word that it has stored a message.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Ack {
    /// The stream.
    pub stream: String,
    /// The message's sequence there.
    #[serde(rename = "seq")]
    pub sequence: u64,
    /// Whether it had been stored before, under the same message id; the sequence is then that of the first.
    #[serde(default)]
    pub duplicate: bool,
    /// The JetStream domain, when it has one.
    #[serde(default)]
    pub domain: String,
}

/// Whether a message whose publish failed is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is not.
    NotStored,
    /// It may be: it was sent, and no answer came.
    Unknown,
}

/// A publish that failed, with the message.
pub struct PublishError {
    error: Box<Error>,
    message: Option<Box<Message>>,
    fate: Fate,
}

impl PublishError {
    /// Nothing was made that could be sent.
    pub(crate) fn unsent(error: Error) -> Self {
        Self {
            error: Box::new(error),
            message: None,
            fate: Fate::NotStored,
        }
    }

    /// Nobody can say what became of it.
    #[cfg(feature = "blocking")]
    pub(crate) fn lost(error: Error) -> Self {
        Self {
            fate: Fate::Unknown,
            ..Self::unsent(error)
        }
    }

    pub(crate) fn not_stored(error: Error, message: Message) -> Self {
        Self {
            message: Some(Box::new(message)),
            ..Self::unsent(error)
        }
    }

    fn after_send(error: Error, message: Message) -> Self {
        let fate = if error.outcome_unknown() || error.kind() == ErrorKind::Closed {
            Fate::Unknown
        } else {
            Fate::NotStored
        };
        Self {
            fate,
            ..Self::not_stored(error, message)
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What kind of thing went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Whether the message is stored.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// Whether the same publish may succeed later. With an unknown fate, only a message id keeps it from being stored
    /// twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.error.is_retryable()
    }

    /// Whether the message may be stored all the same.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.fate == Fate::Unknown
    }

    /// The message, handed back; `None` only when the value could not be encoded.
    #[must_use]
    pub fn into_message(self) -> Option<Message> {
        self.message.map(|message| *message)
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}; its fate: {:?}", self.error, self.fate)
    }
}

impl std::error::Error for PublishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<PublishError> for Error {
    fn from(error: PublishError) -> Self {
        *error.error
    }
}

/// How far an asynchronous publish is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Progress {
    /// It waits for a connection.
    Queued,
    /// It was handed to a connection.
    Sent,
}

/// An asynchronous publish on its way. Awaited, it becomes the acknowledgement.
#[must_use = "a pending publish says whether the message was stored"]
pub struct Pending {
    /// Taken apart when it is awaited, or dropped.
    parts: Option<Parts>,
    progress: Progress,
}

struct Parts {
    subject: Subject,
    message: Message,
    ticket: Ticket,
    deadline: Instant,
    permit: Option<Permit>,
}

impl Pending {
    pub(super) fn new(
        subject: Subject,
        message: Message,
        ticket: Ticket,
        deadline: Instant,
        permit: Option<Permit>,
        connected: bool,
    ) -> Self {
        Self {
            parts: Some(Parts {
                subject,
                message,
                ticket,
                deadline,
                permit,
            }),
            progress: if connected {
                Progress::Sent
            } else {
                Progress::Queued
            },
        }
    }

    /// How far it was when it was sent.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }
}

impl IntoFuture for Pending {
    type Output = std::result::Result<Ack, PublishError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            // `parts` stays in `self` while it waits: dropped then, the drop below still tells the tracker.
            let answer = match self.parts.as_mut() {
                Some(parts) => parts.ticket.answer(parts.deadline).await,
                None => Ok(None),
            };
            let Some(Parts {
                subject,
                message,
                permit,
                ..
            }) = self.parts.take()
            else {
                return Err(PublishError::unsent(Error::new(ErrorKind::Closed, "publishing")));
            };
            let result = match answer {
                Ok(answer) => read(&subject, answer.as_ref()),
                Err(_) => Err(Error::new(ErrorKind::Closed, format!("publishing to {subject}"))),
            };
            match result {
                Ok(ack) => {
                    drop(permit);
                    Ok(ack)
                }
                Err(error) => {
                    if let Some(permit) = permit {
                        permit.failed(&subject, &error);
                    }
                    Err(PublishError::after_send(error, message))
                }
            }
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(Parts {
            subject,
            ticket,
            deadline,
            permit: Some(permit),
            ..
        }) = self.parts.take()
        else {
            return;
        };
        // The failure of a publish that nobody waits for is kept for `publish_async_complete`.
        ticket.let_go(deadline, move |answer| {
            if let Err(error) = read(&subject, answer.as_ref()) {
                permit.failed(&subject, &error);
            }
        });
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// Reads the answer to a publish.
fn read(subject: &str, answer: Option<&async_nats::Message>) -> Result<Ack> {
    let what = || format!("publishing to {subject}");
    let Some(answer) = answer else {
        return Err(Error::new(ErrorKind::TimedOut, what()));
    };
    if answer.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
        return Err(Error::new(ErrorKind::StreamNotFound, what()));
    }
    match serde_json::from_slice::<Response<Ack>>(&answer.payload) {
        Ok(Response::Ok(ack)) => Ok(ack),
        Ok(Response::Err { error }) => Err(Error::api(what(), error)),
        Err(error) => Err(Error::new(ErrorKind::Protocol, what()).because(error)),
    }
}

/// Counts asynchronous publishes and keeps the first failure.
#[derive(Debug)]
pub(crate) struct Tracker {
    permits: Option<Arc<Semaphore>>,
    pending: AtomicUsize,
    idle: Notify,
    first: Mutex<Option<Error>>,
    meters: Option<Arc<Meters>>,
}

/// One asynchronous publish. Dropped, it is over.
#[derive(Debug)]
pub(crate) struct Permit {
    tracker: Arc<Tracker>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Tracker {
    pub(crate) fn new(limit: Option<usize>, meters: Option<Arc<Meters>>) -> Arc<Self> {
        Arc::new(Self {
            permits: limit.map(|limit| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)))),
            pending: AtomicUsize::new(0),
            idle: Notify::new(),
            first: Mutex::default(),
            meters,
        })
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    pub(super) fn permit(self: &Arc<Self>) -> std::result::Result<Permit, TryAcquireError> {
        let slot = match &self.permits {
            Some(permits) => Some(Arc::clone(permits).try_acquire_owned()?),
            None => None,
        };
        self.pending.fetch_add(1, Ordering::AcqRel);
        Ok(Permit {
            tracker: Arc::clone(self),
            _slot: slot,
        })
    }

    pub(crate) async fn complete(&self) -> Result<()> {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the look, so that no end is missed.
            idle.as_mut().enable();
            if self.pending() == 0 {
                break;
            }
            idle.await;
        }
        self.take_failure().map_or(Ok(()), Err)
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Permit {
    fn failed(self, subject: &str, error: &Error) {
        if let Some(meters) = &self.tracker.meters {
            meters.late_publish_errors.increment(1);
        }
        let mut first = self.tracker.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            let mut copy = Error::new(error.kind(), format!("publishing to {subject}"));
            if let Some(code) = error.api_code() {
                copy = copy.with_api_code(code);
            }
            *first = Some(copy);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.tracker.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tracker.idle.notify_waiters();
        }
    }
}
