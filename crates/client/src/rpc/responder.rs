//! Replies.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client as Nats, HeaderValue, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{HEADER_SERVICE_ERROR, HEADER_SERVICE_ERROR_CODE};
use crate::client::Inner;
use crate::crew::{Crew, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Disposition, HandlerError, guarded};
use crate::message::headers::sanitized;
use crate::message::{Compression, Message, Path, compression};
use crate::names::{validate_queue_name, validate_subject};
use crate::observe::{Carried, failed};

/// How long to wait for a subscription to be in force; later it will be, but nobody waits for that.
const IN_FORCE: Duration = Duration::from_secs(2);

/// How a subscription answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct RespondOptions {
    concurrency: usize,
    error_replies: bool,
}

impl Default for RespondOptions {
    fn default() -> Self {
        Self {
            concurrency: 1,
            error_replies: false,
        }
    }
}

impl RespondOptions {
    /// Requests handled at a time. 1.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests.max(1);
        self
    }

    /// Answers a request whose handler failed with the headers that NATS services use for errors, so that its caller
    /// need not wait for the timeout. Off.
    pub fn error_replies(mut self) -> Self {
        self.error_replies = true;
        self
    }
}

/// Subscribes to requests and answers them.
#[derive(Debug, Clone)]
pub struct Responder {
    inner: Arc<Inner>,
}

/// One request.
pub struct Call {
    message: async_nats::Message,
    inner: Arc<Inner>,
}

impl Responder {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Calls `handler` for each request to `subject`. When this returns the subscription is in force.
    ///
    /// # Errors
    /// When the subject is not valid, or the client is closed.
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn subscribe<F, Fut, E>(
        &self,
        subject: &str,
        options: RespondOptions,
        handler: F,
    ) -> Result<Subscription>
    where
        F: Fn(Arc<Call>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        validate_subject(subject)?;
        let subscriber = self.inner.nats.subscribe(subject.to_owned()).await;
        self.inner.round_trip(IN_FORCE).await;
        self.serve(
            subject,
            subscriber.map_err(|error| subscribing(subject, error))?,
            options,
            handler,
        )
    }

    /// As [`Responder::subscribe`], sharing the requests with the other members of a queue group.
    ///
    /// # Errors
    /// As [`Responder::subscribe`], and when the queue's name is not valid.
    ///
    /// # Cancel safety
    /// As [`Responder::subscribe`].
    pub async fn queue_subscribe<F, Fut, E>(
        &self,
        queue: &str,
        subject: &str,
        options: RespondOptions,
        handler: F,
    ) -> Result<Subscription>
    where
        F: Fn(Arc<Call>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        validate_queue_name(queue)?;
        validate_subject(subject)?;
        let subscriber = self
            .inner
            .nats
            .queue_subscribe(subject.to_owned(), queue.to_owned())
            .await;
        self.inner.round_trip(IN_FORCE).await;
        self.serve(
            subject,
            subscriber.map_err(|error| subscribing(subject, error))?,
            options,
            handler,
        )
    }

    fn serve<F, Fut, E>(
        &self,
        subject: &str,
        mut subscriber: Subscriber,
        options: RespondOptions,
        handler: F,
    ) -> Result<Subscription>
    where
        F: Fn(Arc<Call>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        if self.inner.is_closed() {
            return Err(Error::new(ErrorKind::Closed, format!("subscribing to {subject}")));
        }
        let stop = self.inner.intake.child_token();
        let (inner, stopped, handler) = (Arc::downgrade(&self.inner), stop.clone(), Arc::new(handler));
        let task = self.inner.workers.spawn(async move {
            let mut running = Crew::new(options.concurrency);
            let mut draining = false;
            loop {
                while running.busy() >= options.concurrency {
                    // A handler's failure is answered and told where it is handled.
                    let _ = running.next().await;
                }
                let next = tokio::select! {
                    biased;
                    () = stopped.cancelled(), if !draining => {
                        // What the server has sent until it hears of this is still answered.
                        draining = true;
                        if subscriber.drain().await.is_err() {
                            break;
                        }
                        continue;
                    }
                    next = subscriber.next() => next,
                };
                let (Some(message), Some(inner)) = (next, inner.upgrade()) else {
                    break;
                };
                let handler = Arc::clone(&handler);
                while running.try_next().is_some() {}
                running.begin(Answer {
                    message,
                    inner,
                    handler,
                    options,
                });
            }
            running.finish().await;
        });
        Ok(Subscription {
            subject: subject.to_owned(),
            stop,
            task,
        })
    }
}

/// A request to be answered.
struct Answer<F> {
    message: async_nats::Message,
    inner: Arc<Inner>,
    handler: Arc<F>,
    options: RespondOptions,
}

impl<F, Fut, E> Job for Answer<F>
where
    F: Fn(Arc<Call>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
    E: Into<HandlerError>,
{
    async fn run(self) -> Result<()> {
        answer(self.message, self.inner, self.handler.as_ref(), self.options).await;
        Ok(())
    }
}

async fn answer<F, Fut, E>(
    mut message: async_nats::Message,
    inner: Arc<Inner>,
    handler: &F,
    options: RespondOptions,
) where
    F: Fn(Arc<Call>) -> Fut,
    Fut: Future<Output = std::result::Result<(), E>> + Send,
    E: Into<HandlerError>,
{
    let fault = if inner.config.responder.decompression {
        compression::expand(&mut message).err()
    } else {
        None
    };
    let (meters, spans) = &inner.observed.responder;
    let meters = meters.as_ref().map(|meters| meters.replying(&message.subject));
    let span = spans.reply(&message.subject, message.headers.as_ref());
    let call = Arc::new(Call { message, inner });
    let outcome = match fault {
        Some(error) => Err(HandlerError::Undecodable(error)),
        None => {
            guarded(|| async {
                let answered = handler(Arc::clone(&call)).await;
                answered.map(|()| Disposition::Ack).map_err(Into::into)
            })
            .instrument(span.clone())
            .await
        }
    };
    let Err(error) = outcome else {
        if let Some(meters) = meters {
            meters.handled.increment(1);
        }
        return;
    };
    failed(&span, &error);
    if let Some(meters) = meters {
        meters.errors.increment(1);
    }
    tracing::error!(%error, subject = call.message.subject.as_str(), "answering a request failed");
    if options.error_replies
        && let Some(reply) = call.message.reply.clone()
    {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(HEADER_SERVICE_ERROR, sanitized(&error.to_string(), 512));
        headers.insert(HEADER_SERVICE_ERROR_CODE, HeaderValue::from(500_u64));
        if let Err(error) = call
            .inner
            .nats
            .publish_with_headers(reply, headers, Bytes::new())
            .await
        {
            tracing::warn!(%error, "the error could not be sent");
        }
    }
}

impl Call {
    /// The request's message.
    #[must_use]
    pub fn message(&self) -> &async_nats::Message {
        &self.message
    }

    /// The payload as a value, decoded as the headers say.
    ///
    /// # Errors
    /// As [`decode`](crate::message::codec::decode).
    pub fn decode<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        crate::message::codec::decode_msg(&self.message, None)
    }

    /// Replies with a message.
    ///
    /// # Errors
    /// [`ErrorKind::NoResponders`] when the request wants no reply; what sending fails with.
    ///
    /// # Cancel safety
    /// Dropped before it returned, nothing was sent.
    pub async fn respond(&self, message: &Message) -> Result<()> {
        respond(
            &self.inner.nats,
            &self.message,
            message,
            self.inner.config.responder.compression,
        )
        .await
    }

    /// Replies with bytes.
    ///
    /// # Errors
    /// As [`Call::respond`].
    ///
    /// # Cancel safety
    /// As [`Call::respond`].
    pub async fn respond_bytes(&self, payload: impl Into<Bytes>) -> Result<()> {
        self.respond(&Message::raw(payload)).await
    }

    /// Replies with a value as JSON.
    ///
    /// # Errors
    /// As [`Call::respond`], and [`ErrorKind::Encode`].
    ///
    /// # Cancel safety
    /// As [`Call::respond`].
    pub async fn respond_json<T: Serialize + ?Sized>(&self, value: &T) -> Result<()> {
        self.respond(&Message::json(value)?).await
    }

    /// Replies with a value as MessagePack.
    ///
    /// # Errors
    /// As [`Call::respond`], and [`ErrorKind::Encode`].
    ///
    /// # Cancel safety
    /// As [`Call::respond`].
    pub async fn respond_msgpack<T: Serialize + ?Sized>(&self, value: &T) -> Result<()> {
        self.respond(&Message::msgpack(value)?).await
    }

    /// Replies with a Protobuf message.
    ///
    /// # Errors
    /// As [`Call::respond`].
    ///
    /// # Cancel safety
    /// As [`Call::respond`].
    pub async fn respond_proto<T: prost::Message>(&self, value: &T) -> Result<()> {
        self.respond(&Message::proto(value)).await
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("subject", &self.message.subject)
            .finish_non_exhaustive()
    }
}

/// Replies to a message with bytes, never compressed.
///
/// # Errors
/// As [`Call::respond`].
///
/// # Cancel safety
/// As [`Call::respond`].
pub async fn respond_bytes(nats: &Nats, to: &async_nats::Message, payload: impl Into<Bytes>) -> Result<()> {
    respond(nats, to, &Message::raw(payload), Compression::Off).await
}

/// Replies to a message with a value as JSON, never compressed.
///
/// # Errors
/// As [`Call::respond`], and [`ErrorKind::Encode`].
///
/// # Cancel safety
/// As [`Call::respond`].
pub async fn respond_json<T: Serialize + ?Sized>(
    nats: &Nats,
    to: &async_nats::Message,
    value: &T,
) -> Result<()> {
    respond(nats, to, &Message::json(value)?, Compression::Off).await
}

/// Replies to a message with a value as MessagePack, never compressed.
///
/// # Errors
/// As [`Call::respond`], and [`ErrorKind::Encode`].
///
/// # Cancel safety
/// As [`Call::respond`].
pub async fn respond_msgpack<T: Serialize + ?Sized>(
    nats: &Nats,
    to: &async_nats::Message,
    value: &T,
) -> Result<()> {
    respond(nats, to, &Message::msgpack(value)?, Compression::Off).await
}

/// Replies to a message with a Protobuf message, never compressed.
///
/// # Errors
/// As [`Call::respond`].
///
/// # Cancel safety
/// As [`Call::respond`].
pub async fn respond_proto<T: prost::Message>(
    nats: &Nats,
    to: &async_nats::Message,
    value: &T,
) -> Result<()> {
    respond(nats, to, &Message::proto(value), Compression::Off).await
}

async fn respond(
    nats: &Nats,
    to: &async_nats::Message,
    message: &Message,
    compression: Compression,
) -> Result<()> {
    let what = || format!("replying to {}", to.subject);
    let Some(reply) = to.reply.clone() else {
        return Err(Error::new(
            ErrorKind::NoResponders,
            format!("{}, which wants no reply", what()),
        ));
    };
    let (payload, headers) = message.wire(compression, Path::Respond, Carried::default())?;
    let sent = match headers {
        None => nats.publish(reply, payload).await,
        Some(headers) => nats.publish_with_headers(reply, headers, payload).await,
    };
    sent.map_err(|error| {
        let kind = match error.kind() {
            async_nats::PublishErrorKind::MaxPayloadExceeded => ErrorKind::PayloadTooLarge,
            async_nats::PublishErrorKind::InvalidSubject => ErrorKind::InvalidSubject,
            async_nats::PublishErrorKind::Send => ErrorKind::Closed,
        };
        Error::new(kind, what()).because(error)
    })
}

fn subscribing(subject: &str, error: async_nats::SubscribeError) -> Error {
    Error::new(ErrorKind::Closed, format!("subscribing to {subject}")).because(error)
}

/// A subscription to requests. Dropped, it goes on until the client is closed.
#[derive(Debug)]
pub struct Subscription {
    subject: String,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Subscription {
    /// The subject.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Whether it still answers.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.stop.is_cancelled() && !self.task.is_finished()
    }

    /// Stops it; what has arrived is still answered. `false` when that was not done within `wait`.
    ///
    /// # Cancel safety
    /// Dropped early, it stops all the same.
    pub async fn drain(self, wait: Duration) -> bool {
        self.stop.cancel();
        tokio::time::timeout(wait, self.task).await.is_ok()
    }
}
