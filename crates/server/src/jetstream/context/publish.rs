//! Publishing by typed calls.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Poller, Poll};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use windjet_protocol::header::names;
use windjet_protocol::header::{HeaderError, HeaderMap};
use windjet_protocol::jetstream::{ApiError, ErrorCode};
use windjet_protocol::subject;

use super::JetStreamContext;
use crate::jetstream::account::event_id;
use crate::jetstream::local::{Outcome, Source};
use crate::jetstream::stream::Stream;
use crate::jetstream::stream::inbox::Push;
use crate::router::Message;

/// First wait of a repetition, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// Streams that were published to, by name, with the outcomes of each.
pub(super) type Publishers = HashMap<Arc<str>, (Arc<Stream>, Arc<Source>), RandomState>;

/// An acknowledged publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Its sequence; that of the original for a duplicate; 0 for a message that waits for the end of its atomic batch.
    pub seq: u64,
    /// Whether a message with its id was there already.
    pub duplicate: bool,
}

/// Why a publish was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is no such stream.
    #[error("there is no stream {0:?}")]
    NoStream(String),
    /// The stream does not take messages on this subject.
    #[error("stream {stream:?} does not take messages on {subject:?}")]
    WrongSubject {
        /// The stream.
        stream: String,
        /// The subject.
        subject: String,
    },
    /// Too much waits for the stream; nothing was stored.
    #[error("too many publishes wait for the stream")]
    Full,
    /// The stream refused it; nothing was stored.
    #[error("refused: {}", .0.description)]
    Refused(ApiError),
    /// The stream or the store ended first: the message may be stored or not.
    #[error("the outcome is unknown: the stream or its store ended")]
    OutcomeUnknown,
    /// There was no answer in time: the message may be stored or not.
    #[error("the outcome is unknown: there was no answer in time")]
    TimedOut,
}

impl PublishError {
    /// Whether the same publish may succeed later. With a message id a repetition stores nothing twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full | Self::OutcomeUnknown | Self::TimedOut => true,
            Self::Refused(error) => [
                ErrorCode::StoreFailed,
                ErrorCode::InsufficientResources,
                ErrorCode::InsufficientStorage,
            ]
            .iter()
            .any(|code| error.is(*code)),
            Self::NoStream(_) | Self::WrongSubject { .. } => false,
        }
    }

    /// Whether the message may be stored in spite of the error.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::TimedOut)
    }
}

/// A message to publish, with its headers.
///
/// ```
/// use std::time::Duration;
/// use windjet_server::jetstream::NewMessage;
///
/// let order = NewMessage::new("orders.7", "42 shirts")
///     .message_id("order-7")?
///     .ttl(Duration::from_secs(3600));
/// # assert!(order.headers().contains("Nats-TTL"));
/// # Ok::<(), windjet_server::jetstream::HeaderError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
}

impl NewMessage {
    /// Without headers.
    #[must_use]
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: subject.into(),
            headers: HeaderMap::new(),
            payload: payload.into(),
        }
    }

    /// With a header, in place of another of that name.
    ///
    /// # Errors
    /// A name or value that no header can have.
    pub fn header(mut self, name: &str, value: impl Into<Bytes>) -> Result<Self, HeaderError> {
        self.headers.insert(name, value)?;
        Ok(self)
    }

    /// With an id under which it is stored once within the stream's duplicate window, however often it is published.
    ///
    /// # Errors
    /// An id with a line break.
    pub fn message_id(self, id: impl Into<Bytes>) -> Result<Self, HeaderError> {
        self.header(names::MSG_ID, id)
    }

    /// Store it only if the newest message of the stream has this sequence.
    #[must_use]
    pub fn expect_last_sequence(self, sequence: u64) -> Self {
        self.plain(names::EXPECTED_LAST_SEQUENCE, sequence.to_string())
    }

    /// Store it only if the newest message of its subject has this sequence; 0 for none. This is looked at before the message
    /// id: a repetition of what was stored is refused.
    #[must_use]
    pub fn expect_last_subject_sequence(self, sequence: u64) -> Self {
        self.plain(names::EXPECTED_LAST_SUBJECT_SEQUENCE, sequence.to_string())
    }

    /// End it after this time, in whole seconds and at least one. The stream must allow it (`allow_msg_ttl`).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        self.plain(names::TTL, format!("{}s", seconds.max(1)))
    }

    /// Put it in the place of all earlier messages of its subject. The stream must allow it (`allow_rollup_hdrs`).
    #[must_use]
    pub fn rollup_subject(self) -> Self {
        self.plain(names::ROLLUP, "sub".to_owned())
    }

    /// A header that is known to be one.
    pub(super) fn plain(mut self, name: &str, value: String) -> Self {
        let inserted = self.headers.insert(name, value);
        debug_assert!(inserted.is_ok(), "{name} is a header");
        self
    }

    /// Its subject.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Its payload.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    fn block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        if !self.headers.is_empty() {
            self.headers.encode(&mut block);
        }
        block
    }
}

impl JetStreamContext {
    /// Publishes a message into a stream. The acknowledgement is the future's output; publishes that are made before it is
    /// awaited are pipelined, and stored in the order of the calls.
    ///
    /// # Errors
    /// At once, where nothing was handed over: no such stream, a subject that it does not take, a stream with too much
    /// waiting. Through the future: what the stream says.
    pub fn publish(
        &self,
        stream: &str,
        subject: &str,
        payload: impl Into<Bytes>,
    ) -> Result<Publish, PublishError> {
        self.publish_with(stream, subject, b"", payload)
    }

    /// The same with a header block in wire form, such as `NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n`; empty for none.
    ///
    /// # Errors
    /// As [`JetStreamContext::publish`].
    pub fn publish_with(
        &self,
        stream: &str,
        subject: &str,
        headers: &[u8],
        payload: impl Into<Bytes>,
    ) -> Result<Publish, PublishError> {
        let mut publishers = self.publishers.lock();
        let known = publishers.get(stream).filter(|(target, _)| target.is_listed());
        let (target, source) = match known {
            Some(known) => known,
            None => {
                let target = self
                    .account
                    .stream(stream)
                    .ok_or_else(|| PublishError::NoStream(stream.to_owned()))?;
                // New, or made again; a good moment to forget those that are gone.
                publishers.retain(|_, (known, _)| known.is_listed());
                let name = target.name.clone();
                &*publishers.entry(name).or_insert_with(|| (target, Arc::default()))
            }
        };
        let takes = subject::is_literal(subject.as_bytes()) && target.takes(subject.as_bytes());
        if !takes {
            return Err(PublishError::WrongSubject {
                stream: stream.to_owned(),
                subject: subject.to_owned(),
            });
        }
        // Under the lock, so that the places of a source are in the order of the inbox.
        let place = source.begin();
        let message = Message::new(subject.as_bytes(), None, headers, b"");
        match target.inbox.publish_shared(&message, payload.into(), source) {
            Push::Queued | Push::Crowded => Ok(Publish {
                source: Some(source.clone()),
                place,
            }),
            Push::Full => {
                source.withdraw(place);
                Err(PublishError::Full)
            }
            Push::Closed => {
                source.withdraw(place);
                Err(PublishError::NoStream(stream.to_owned()))
            }
        }
    }

    /// Publishes a message with its headers.
    ///
    /// # Errors
    /// As [`JetStreamContext::publish`].
    pub fn publish_message(&self, stream: &str, message: &NewMessage) -> Result<Publish, PublishError> {
        let block = message.block();
        self.publish_with(stream, &message.subject, &block, message.payload.clone())
    }

    /// Publishes messages as one atomic batch: all of them are stored, one behind the other, or none is. The stream must allow
    /// it (`allow_atomic`). The result is that of the last message.
    ///
    /// # Errors
    /// Why nothing was stored, or that this is not known. A batch without messages is refused.
    ///
    /// # Cancel safety
    /// Dropped early, all messages may be stored or none.
    pub async fn publish_batch(
        &self,
        stream: &str,
        messages: impl IntoIterator<Item = NewMessage>,
    ) -> Result<Stored, PublishError> {
        let id = event_id();
        let mut messages = messages.into_iter().peekable();
        let (mut publishes, mut sequence) = (Vec::new(), 0_u64);
        while let Some(message) = messages.next() {
            sequence += 1;
            let mut message = message
                .plain(names::BATCH_ID, id.clone())
                .plain(names::BATCH_SEQUENCE, sequence.to_string());
            if messages.peek().is_none() {
                message = message.plain(names::BATCH_COMMIT, "1".to_owned());
            }
            // One that is not taken leaves the batch without an end: it is given up, and nothing of it stored.
            publishes.push(self.publish_message(stream, &message)?);
        }
        let mut last = Err(PublishError::Refused(ErrorCode::AtomicPublishIncomplete.error()));
        for publish in publishes {
            // The first refusal says why; those that follow only that the batch is gone.
            last = Ok(publish.await?);
        }
        last
    }

    /// Publishes a message and repeats it, at growing intervals, as long as it may succeed later and `within` is not over.
    /// After an unknown outcome it is repeated only if it has a message id, so that it is stored once.
    ///
    /// # Errors
    /// What the last attempt came to; [`PublishError::TimedOut`] when there was no answer in time.
    ///
    /// # Cancel safety
    /// Dropped early, the message may be stored or not.
    pub async fn publish_within(
        &self,
        stream: &str,
        message: &NewMessage,
        within: Duration,
    ) -> Result<Stored, PublishError> {
        let end = tokio::time::Instant::now() + within;
        let repeatable = message.headers.contains(names::MSG_ID);
        let mut wait = AGAIN.0;
        loop {
            let outcome = match self.publish_message(stream, message) {
                Ok(publish) => tokio::time::timeout_at(end, publish)
                    .await
                    .unwrap_or(Err(PublishError::TimedOut)),
                Err(error) => Err(error),
            };
            let error = match outcome {
                Ok(stored) => return Ok(stored),
                Err(error) => error,
            };
            let again = error.is_retryable() && (repeatable || !error.outcome_unknown());
            if !again || tokio::time::Instant::now() + wait >= end {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }
}

/// A publish on its way; its output is the acknowledgement, given once: polled again after that, it says that the outcome is unknown.
///
/// # Cancel safety
/// Dropping it does not take the message back.
#[derive(Debug)]
#[must_use = "the message is stored durably when this is ready"]
pub struct Publish {
    /// None when the outcome was taken.
    source: Option<Arc<Source>>,
    place: u64,
}

impl Future for Publish {
    type Output = Result<Stored, PublishError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(source) = &this.source else {
            return Poll::Ready(Err(PublishError::OutcomeUnknown));
        };
        let outcome = std::task::ready!(source.poll(this.place, cx));
        this.source = None;
        Poll::Ready(match outcome {
            Outcome::Stored { seq } => Ok(Stored {
                seq,
                duplicate: false,
            }),
            Outcome::Staged => Ok(Stored {
                seq: 0,
                duplicate: false,
            }),
            Outcome::Duplicate { seq } => Ok(Stored { seq, duplicate: true }),
            Outcome::Refused(error) => Err(PublishError::Refused(error)),
            Outcome::Unknown => Err(PublishError::OutcomeUnknown),
        })
    }
}

impl Drop for Publish {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            source.forget(self.place);
        }
    }
}
