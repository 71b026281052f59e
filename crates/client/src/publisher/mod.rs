//! Publishing into streams, with results that say what became of the message.
//!
//! [`Publisher::publish`] returns when the stream has stored the message. [`Publisher::publish_async`] returns when it is
//! on its way, and the [`Pending`] it gives becomes the acknowledgement; how many may be on their way is bounded, and a
//! publish over the bound is refused before anything is sent. A failed publish hands the message back in a
//! [`PublishError`], which says whether the message is *not* stored ([`Fate::NotStored`]) or may be ([`Fate::Unknown`]).
//!
//! [`Publisher::publish_async_complete`] waits for everything on its way and reports the first failure, also of a
//! `Pending` that was dropped.
//!
//! Order of one publish: bound, connection, subject, span, headers, content type, compression, send. What fails before the send
//! is never sent. Nothing is retried here: who retries sets a message id, so that the stream stores it once.

mod pending;

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::TryAcquireError;
use tokio::time::Instant;
use tracing::Instrument as _;

pub(crate) use pending::Tracker;
pub use pending::{Ack, Fate, Pending, Progress, PublishError};

use crate::client::Inner;
use crate::error::{Error, ErrorKind};
use crate::message::{Compression, Message, Path};
use crate::names::validate_publish_subject;
use crate::observe::{Carried, carried, failed};

/// Publishes into streams.
#[derive(Debug, Clone)]
pub struct Publisher {
    inner: Arc<Inner>,
}

type Published<T> = std::result::Result<T, PublishError>;

impl Publisher {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Publishes a message and waits until the stream has stored it.
    ///
    /// # Errors
    /// With the message handed back. [`ErrorKind::StreamNotFound`] when no stream stores this subject;
    /// [`ErrorKind::TimedOut`] when no answer came within the configured ack timeout, and the fate is then unknown.
    ///
    /// # Cancel safety
    /// Dropped early, the message may have been stored or not.
    pub async fn publish(&self, subject: &str, message: Message) -> Published<Ack> {
        self.publish_within(subject, message, self.inner.config.publisher.ack_timeout)
            .await
    }

    /// As [`Publisher::publish`], with a time limit of its own.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_within(&self, subject: &str, message: Message, limit: Duration) -> Published<Ack> {
        let compression = self.inner.config.publisher.compression;
        self.publish_one(subject, message, compression, limit).await
    }

    /// Publishes without compression, whatever is configured: for copies that others read who know no encoding.
    pub(crate) async fn publish_plain(&self, subject: &str, message: Message) -> Published<Ack> {
        let limit = self.inner.config.publisher.ack_timeout;
        self.publish_one(subject, message, Compression::Off, limit).await
    }

    async fn publish_one(
        &self,
        subject: &str,
        message: Message,
        compression: Compression,
        limit: Duration,
    ) -> Published<Ack> {
        if let Err(error) = self.check(subject) {
            return Err(PublishError::not_stored(error, message));
        }
        let (meters, spans) = &self.inner.observed.publisher;
        let span = spans.publish(subject);
        let measured = meters
            .as_ref()
            .map(|meters| (meters.publishing(subject), Instant::now()));
        let mut bytes = 0;
        let work = async {
            let (pending, sent) = self
                .send(subject, message, compression, limit, None, carried(&span))
                .await?;
            bytes = sent;
            pending.await
        };
        let result = work.instrument(span.clone()).await;
        if let Err(error) = &result {
            failed(&span, error);
        }
        if let Some((meters, begun)) = measured {
            meters.note(&result, bytes, Some(begun.elapsed()));
        }
        result
    }

    /// A value that cannot be encoded is a publish that failed.
    fn encoded(&self, subject: &str, message: crate::Result<Message>) -> Published<Message> {
        message.map_err(|error| {
            if let (Some(meters), _) = &self.inner.observed.publisher {
                meters.publishing(subject).failed();
            }
            PublishError::unsent(error)
        })
    }

    /// Publishes a value as JSON.
    ///
    /// # Errors
    /// As [`Publisher::publish`], and [`ErrorKind::Encode`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_json<T: Serialize + ?Sized>(&self, subject: &str, value: &T) -> Published<Ack> {
        self.publish(subject, self.encoded(subject, Message::json(value))?)
            .await
    }

    /// Publishes a value as MessagePack.
    ///
    /// # Errors
    /// As [`Publisher::publish`], and [`ErrorKind::Encode`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_msgpack<T: Serialize + ?Sized>(&self, subject: &str, value: &T) -> Published<Ack> {
        self.publish(subject, self.encoded(subject, Message::msgpack(value))?)
            .await
    }

    /// Publishes a Protobuf message.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_proto<T: prost::Message>(&self, subject: &str, value: &T) -> Published<Ack> {
        self.publish(subject, Message::proto(value)).await
    }

    /// Publishes bytes as they are.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_bytes(&self, subject: &str, payload: impl Into<Bytes>) -> Published<Ack> {
        self.publish(subject, Message::raw(payload)).await
    }

    /// Publishes bytes with an id by which the stream stores them once within its duplicate window.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_bytes_with_msg_id(
        &self,
        subject: &str,
        id: &str,
        payload: impl Into<Bytes>,
    ) -> Published<Ack> {
        self.publish(subject, Message::raw(payload).with_msg_id(id)).await
    }

    /// Publishes a message with an id by which the stream stores it once within its duplicate window.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish`].
    pub async fn publish_with_msg_id(&self, subject: &str, id: &str, message: Message) -> Published<Ack> {
        self.publish(subject, message.with_msg_id(id)).await
    }

    /// Sends a message on its way; what comes back becomes the acknowledgement.
    ///
    /// Dropping it does not take the message back; a failure is then kept for [`Publisher::publish_async_complete`].
    ///
    /// # Errors
    /// With the message handed back. [`ErrorKind::AsyncPublishPendingLimit`] when as many as configured are on their way.
    ///
    /// # Cancel safety
    /// Dropped before it returned, nothing was sent.
    pub async fn publish_async(&self, subject: &str, message: Message) -> Published<Pending> {
        let permit = match self.inner.tracker.permit() {
            Ok(permit) => permit,
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                let error = Error::new(
                    ErrorKind::AsyncPublishPendingLimit,
                    format!("publishing to {subject}"),
                );
                return Err(PublishError::not_stored(error, message));
            }
        };
        if let Err(error) = self.check(subject) {
            return Err(PublishError::not_stored(error, message));
        }
        let config = &self.inner.config.publisher;
        let (meters, spans) = &self.inner.observed.publisher;
        let span = spans.publish(subject);
        let sending = self.send(
            subject,
            message,
            config.compression,
            config.ack_timeout,
            Some(permit),
            carried(&span),
        );
        // The span ends here; what comes of it is the acknowledgement's to say.
        let result = sending.instrument(span.clone()).await;
        if let Err(error) = &result {
            failed(&span, error);
        }
        if let Some(meters) = meters {
            let bytes = result.as_ref().map_or(0, |(_, bytes)| *bytes);
            meters.publishing(subject).note(&result, bytes, None);
        }
        result.map(|(pending, _)| pending)
    }

    /// Sends bytes on their way, as [`Publisher::publish_async`].
    ///
    /// # Errors
    /// As [`Publisher::publish_async`].
    ///
    /// # Cancel safety
    /// As [`Publisher::publish_async`].
    pub async fn publish_async_bytes(&self, subject: &str, payload: impl Into<Bytes>) -> Published<Pending> {
        self.publish_async(subject, Message::raw(payload)).await
    }

    /// Waits until no asynchronous publish is on its way, and gives the first failure since the last call.
    ///
    /// # Errors
    /// The first failure, which is then forgotten.
    ///
    /// # Cancel safety
    /// Dropped early, no failure is forgotten.
    pub async fn publish_async_complete(&self) -> crate::Result<()> {
        self.inner.tracker.complete().await
    }

    /// Asynchronous publishes on their way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.inner.tracker.pending()
    }

    async fn send(
        &self,
        subject: &str,
        message: Message,
        compression: Compression,
        limit: Duration,
        permit: Option<pending::Permit>,
        carried: Carried,
    ) -> Published<(Pending, usize)> {
        let (payload, headers) = match message.wire(compression, Path::Publish, carried) {
            Ok(wire) => wire,
            Err(error) => return Err(PublishError::not_stored(error, message)),
        };
        let (reply, ticket) = self.inner.replies.ticket();
        let to = async_nats::Subject::from(subject);
        let bytes = payload.len();
        let sent = send_wire(&self.inner.nats, to.clone(), reply, payload, headers).await;
        if let Err(error) = sent {
            return Err(PublishError::not_stored(error, message));
        }
        let connected = self.inner.is_connected();
        let deadline = Instant::now() + limit;
        let pending = Pending::new(to, message, ticket, deadline, permit, connected);
        Ok((pending, bytes))
    }

    fn check(&self, subject: &str) -> crate::Result<()> {
        self.inner.guard(subject)?;
        if !self.inner.config.publisher.skip_subject_validation {
            validate_publish_subject(subject)?;
        }
        Ok(())
    }
}

async fn send_wire(
    nats: &async_nats::Client,
    to: async_nats::Subject,
    reply: async_nats::Subject,
    payload: Bytes,
    headers: Option<HeaderMap>,
) -> crate::Result<()> {
    let subject = to.clone();
    let sent = match headers {
        None => nats.publish_with_reply(to, reply, payload).await,
        Some(headers) => {
            nats.publish_with_reply_and_headers(to, reply, headers, payload)
                .await
        }
    };
    sent.map_err(|error| {
        use async_nats::PublishErrorKind as Theirs;
        let kind = match error.kind() {
            Theirs::MaxPayloadExceeded => ErrorKind::PayloadTooLarge,
            Theirs::InvalidSubject => ErrorKind::InvalidSubject,
            Theirs::Send => ErrorKind::Closed,
        };
        Error::new(kind, format!("publishing to {subject}")).because(error)
    })
}
