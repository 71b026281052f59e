//! The early package: raw subjects instead of topics, one pair of streams for everything.
//!
//! For services that were written against it; new ones use [`Broker`](crate::Broker). It stands on the same engine and has
//! the same durability: a publish returns when its message is synced to the disk.
//!
//! * [`stream_name`] holds `ingest.>` and refuses when it is full; [`dlq_stream_name`] holds `dlq.>`, has a tenth of the
//!   bytes, and drops its oldest when it is full.
//! * Subjects are used as they are given. Filters may have wildcards.
//!
//! **A folder has one layout.** [`EmbeddedNats`](crate::EmbeddedNats) deletes this pair, with what is in it, when it opens
//! a folder that has it; [`SubjectBroker`] does not open a folder that holds queues of tenants.
//!
//! # What it does not do
//!
//! Raw handles of a NATS client have no counterpart: there is no connection. [`SubjectBroker::jetstream`] and
//! [`SubjectBroker::client`] are the handles of the server in the process.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use windjet_server::jetstream::JetStreamContext;
use windjet_server::{Client, Server};

use super::engine::{Engine, Published, block, publish};
use super::fan_in::{self, Mode, Registration};
use super::names::{self, LEGACY, Wanted};
use crate::{Ctx, Error, ErrorKind, HandlerError, Settle};

pub use crate::PublishOptions;

/// The stream that holds `ingest.>`.
#[must_use]
pub fn stream_name() -> &'static str {
    LEGACY[0]
}

/// The stream that holds `dlq.>`.
#[must_use]
pub fn dlq_stream_name() -> &'static str {
    LEGACY[1]
}

/// A message that was delivered to a listener.
#[derive(Debug)]
pub struct Message(crate::Message);

impl Message {
    /// A message with the given ways to settle it, for tests of listeners.
    pub fn new(
        ctx: Ctx,
        subject: impl Into<Arc<str>>,
        data: Bytes,
        timestamp: SystemTime,
        settle: Arc<dyn Settle>,
    ) -> Self {
        Self(crate::Message::with_key(
            ctx,
            subject.into(),
            data,
            timestamp,
            settle,
        ))
    }

    /// The subscription's context with the trace context of the message's headers.
    #[must_use]
    pub fn ctx(&self) -> &Ctx {
        self.0.ctx()
    }

    /// The subject it was published under.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.0.topic_key()
    }

    /// The payload.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        self.0.data()
    }

    /// When this process received it.
    #[must_use]
    pub fn timestamp(&self) -> SystemTime {
        self.0.received()
    }

    /// Acknowledges, and does not wait for it to be durable.
    ///
    /// # Errors
    /// When it was not taken: the message is delivered again after its ack wait.
    ///
    /// # Cancel safety
    /// Dropped early, it may be acknowledged or not.
    pub async fn ack(&self) -> Result<(), Error> {
        self.0.ack().await
    }

    /// Acknowledges, durably so when this returns.
    ///
    /// # Errors
    /// When that is not known.
    ///
    /// # Cancel safety
    /// Dropped early, it may be acknowledged or not.
    pub async fn double_ack(&self, ctx: &Ctx) -> Result<(), Error> {
        self.0.double_ack(ctx).await
    }

    /// Asks for it again.
    ///
    /// # Errors
    /// When it was not taken: the message is delivered again after its ack wait.
    ///
    /// # Cancel safety
    /// Dropped early, it may be asked for or not.
    pub async fn nak(&self) -> Result<(), Error> {
        self.0.nak().await
    }
}

/// What a subscription does with a message.
///
/// It acknowledges itself. To have a message again it returns an error, and then does not settle it beforehand; after
/// [`Message::nak`] or a successful [`Message::double_ack`] it returns `Ok`.
#[derive(Debug, Clone)]
pub struct Listener(crate::Listener);

impl Listener {
    /// A listener that runs a future for each message.
    pub fn new<F, Fut>(handle: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        Self(crate::Listener::new(move |message| handle(Message(message))))
    }
}

/// Publishes messages to a subject.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Stores data under a subject, with the caller's trace context in the headers. It is synced to the disk when this
    /// returns.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFull`] when the stream is at its limit, [`ErrorKind::Invalid`] for a subject that no stream holds,
    /// [`ErrorKind::Unavailable`] when the store failed before it confirmed.
    ///
    /// # Cancel safety
    /// Dropped early, the message may be stored or not.
    async fn publish(
        &self,
        ctx: &Ctx,
        subject: &str,
        data: Bytes,
        options: PublishOptions,
    ) -> Result<(), Error>;

    /// Ends the broker; it is down when this returns. May be called again.
    ///
    /// # Errors
    /// When the broker's tasks did not end in time.
    ///
    /// # Cancel safety
    /// Dropped early, the broker still ends.
    async fn close(&self) -> Result<(), Error>;
}

/// Subscribes to messages of a subject.
#[async_trait]
pub trait Subscriber: Send + Sync {
    /// Delivers the messages under a subject, which may have wildcards, to the listener, one at a time, until `ctx` ends. The
    /// durable of that name is created or given this subject; it goes on where it stopped.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty name or a subject that no stream holds; what the store refuses.
    ///
    /// # Cancel safety
    /// Dropped early, the durable may exist; nothing is delivered.
    async fn subscribe(
        &self,
        ctx: &Ctx,
        subject: &str,
        consumer: &str,
        listener: Listener,
    ) -> Result<(), Error>;
}

/// The early package's broker in the process. Cloning is cheap. With the last clone delivery ends; only
/// [`close`](Publisher::close) also gives the folder back before the process ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use windjet_mq::Ctx;
/// use windjet_mq::compat::{Listener, PublishOptions, Publisher, SubjectBroker, Subscriber};
///
/// # let folder = std::env::temp_dir().join(format!("windjet-mq-compat-doc-{}", std::process::id()));
/// let broker = SubjectBroker::open(&folder, 64 << 20).await?;
/// let ctx = Ctx::new();
/// let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
/// let listener = Listener::new(move |message| {
///     let sender = sender.clone();
///     async move {
///         message.double_ack(message.ctx()).await?;
///         sender.send(message.subject().to_owned())?;
///         Ok(())
///     }
/// });
/// broker.subscribe(&ctx, "ingest.orders.*", "worker", listener).await?;
/// broker.publish(&ctx, "ingest.orders.eu", "42".into(), PublishOptions::new()).await?;
/// assert_eq!(received.recv().await.as_deref(), Some("ingest.orders.eu"));
/// broker.close().await?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SubjectBroker(Arc<Inner>);

struct Inner {
    engine: Engine,
    js: JetStreamContext,
    closed: CancellationToken,
    registrations: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl fmt::Debug for SubjectBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectBroker").finish_non_exhaustive()
    }
}

impl SubjectBroker {
    /// Starts the broker over a folder, which is made if need be, and gives the stream so many bytes and the dead-letter
    /// stream a tenth of them. One that holds more keeps what it holds.
    ///
    /// # Errors
    /// When there are no bytes, the folder cannot be used, another process has it, or it holds queues of tenants.
    ///
    /// # Cancel safety
    /// Dropped early, nothing keeps running.
    pub async fn open(folder: impl AsRef<Path>, max_bytes: u64) -> Result<Self, Error> {
        if max_bytes == 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a limit of 0 bytes; give it at least one",
            ));
        }
        let engine = Engine::start(folder.as_ref()).await?;
        if let Some(queue) = engine
            .streams()
            .into_iter()
            .find(|name| names::kind(name).is_some())
        {
            engine.shutdown().await?;
            let text = format!("the folder holds queues of tenants ({queue}): open it with EmbeddedNats");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let held = engine
            .stream(dlq_stream_name())
            .await?
            .map_or(0, |info| info.state.bytes);
        let [ingest, dead] = names::early_pair(max_bytes, held);
        // The dead-letter stream first, so that nothing is queued that could not be parked.
        engine.put_stream(dead).await?;
        engine.put_stream(ingest).await?;
        let js = engine.handle();
        Ok(Self(Arc::new(Inner {
            engine,
            js,
            closed: CancellationToken::new(),
            registrations: AtomicU64::new(0),
        })))
    }

    /// The server that keeps the streams.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.0.engine.server()
    }

    /// JetStream of that server, for direct access.
    #[must_use]
    pub fn jetstream(&self) -> &JetStreamContext {
        &self.0.js
    }

    /// A client of that server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.server().client()
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.0.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the broker is closed"));
        }
        Ok(())
    }
}

/// The stream that may hold a subject.
fn stream_of(subject: &str) -> Result<&'static str, Error> {
    match subject.split_once('.').map(|(first, _)| first) {
        Some("ingest" | "*") => Ok(stream_name()),
        Some("dlq") => Ok(dlq_stream_name()),
        None if subject == ">" => Ok(stream_name()),
        _ => {
            let text = format!("subject {subject:?}: no stream holds it; begin with ingest. or dlq.");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

#[async_trait]
impl Publisher for SubjectBroker {
    async fn publish(
        &self,
        ctx: &Ctx,
        subject: &str,
        data: Bytes,
        options: PublishOptions,
    ) -> Result<(), Error> {
        self.check_open()?;
        ctx.check("publish")?;
        let stream = stream_of(subject)?;
        let mut headers = options.into_headers();
        ctx.inject(&mut headers);
        match publish(
            (&self.0.js, None),
            ctx,
            (stream, subject),
            &block(&headers)?,
            data,
        )
        .await?
        {
            Published::Stored => Ok(()),
            Published::Full => Err(Error::new(
                ErrorKind::QueueFull,
                format!("stream {stream} is full"),
            )),
            Published::NoStream => {
                let text = format!("subject {subject:?}: stream {stream} does not take it");
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }

    async fn close(&self) -> Result<(), Error> {
        self.0.closed.cancel();
        self.0.engine.shutdown().await
    }
}

#[async_trait]
impl Subscriber for SubjectBroker {
    async fn subscribe(
        &self,
        ctx: &Ctx,
        subject: &str,
        consumer: &str,
        listener: Listener,
    ) -> Result<(), Error> {
        self.check_open()?;
        ctx.check("subscribe")?;
        if consumer.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "consumer name: empty"));
        }
        let stream = stream_of(subject)?;
        let wanted = Wanted {
            durable: consumer.to_owned(),
            filter: Some(subject.to_owned()),
            ack_wait: None,
            max_ack_pending: None,
        };
        self.0.engine.put_durable(stream, &wanted).await?;
        let id = self.0.registrations.fetch_add(1, Ordering::Relaxed);
        let registration = Arc::new(Registration::new(id, ctx, wanted, ""));
        // Just made, so nothing was set before.
        let _ = registration.mode.set((Mode::Listen(listener.0), 0));
        let label = format!("stream {stream}");
        fan_in::start(
            registration,
            self.0.js.clone(),
            (stream.to_owned(), label),
            1,
            self.0.closed.clone(),
        );
        Ok(())
    }
}
