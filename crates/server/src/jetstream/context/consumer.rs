//! A consumer for code in this process: fetching.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use windjet_protocol::jetstream::{ApiError, ConsumerConfig, ConsumerInfo, Nanos, PullRequest};

use super::JetStreamContext;
use super::delivery::{Delivery, Holder, Origin};
use super::messages::{ConsumeOptions, Messages};
use crate::jetstream::consumer::Explanation;
use crate::jetstream::mailbox::{Letter, Mailbox};
use crate::jetstream::stream::inbox::{LocalSignal, Push};

/// A pull consumer of a stream. Cheap to clone.
///
/// It is a pair of names: it stays good when the consumer is made again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use windjet_server::Server;
/// use windjet_server::jetstream::{AckPolicy, ConsumerConfig, StreamConfig};
///
/// # let folder = std::env::temp_dir().join(format!("windjet-consumer-doc-{}", std::process::id()));
/// let server = Server::builder().jetstream(&folder).start().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// js.create_stream(StreamConfig { name: "JOBS".into(), subjects: vec!["jobs.>".into()], ..Default::default() }).await?;
/// let config = ConsumerConfig {
///     durable_name: Some("workers".into()),
///     ack_policy: AckPolicy::Explicit,
///     ..Default::default()
/// };
/// js.create_consumer("JOBS", config).await?;
/// js.publish("JOBS", "jobs.resize", "picture 7")?.await?;
///
/// let workers = js.consumer("JOBS", "workers").await?;
/// for job in workers.fetch(10, Duration::from_secs(5)).await? {
///     assert_eq!(&job.payload[..], b"picture 7");
///     // Durable when it returns.
///     job.double_ack().await?;
/// }
/// # server.shutdown(Duration::from_secs(5)).await;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Consumer {
    pub(super) context: JetStreamContext,
    stream: Arc<str>,
    name: Arc<str>,
    config: Arc<ConsumerConfig>,
    holder: Arc<Holder>,
}

/// How to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchOptions {
    /// Messages at most.
    pub max_messages: usize,
    /// Their bytes at most, as they count over the wire; `None` for no bound.
    pub max_bytes: Option<usize>,
    /// How long to wait for a message. Default 30 s.
    pub expires: Duration,
    /// Whether to take what is there and not to wait at all.
    pub no_wait: bool,
    /// Whether to wait until all `max_messages` are there, or the time is over, rather than to return as soon as there is
    /// something.
    pub fill: bool,
    /// Conditions of a priority group.
    pub group: Option<PriorityRequest>,
}

/// What a request says to a consumer with priority groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PriorityRequest {
    /// The group.
    pub group: String,
    /// The pin that was given with an earlier message, in its header `Nats-Pin-Id`.
    pub pin: Option<String>,
    /// With `overflow`: only while so many messages are to come; 0 for always.
    pub min_pending: u64,
    /// With `overflow`: only while so many messages are in hand; 0 for always.
    pub min_ack_pending: u64,
    /// With `prioritized`: urgency from 0, the highest, to 9.
    pub priority: u8,
}

impl FetchOptions {
    /// At most so many messages.
    #[must_use]
    pub fn new(max_messages: usize) -> Self {
        Self {
            max_messages,
            max_bytes: None,
            expires: Duration::from_secs(30),
            no_wait: false,
            fill: false,
            group: None,
        }
    }

    /// At most so many bytes.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Wait no longer than this.
    #[must_use]
    pub fn expires(mut self, after: Duration) -> Self {
        self.expires = after;
        self
    }

    /// Take what is there and do not wait.
    #[must_use]
    pub fn no_wait(mut self) -> Self {
        self.no_wait = true;
        self
    }

    /// Wait until there are as many as asked for.
    #[must_use]
    pub fn fill(mut self) -> Self {
        self.fill = true;
        self
    }

    /// Ask as a member of a priority group.
    #[must_use]
    pub fn group(mut self, group: PriorityRequest) -> Self {
        self.group = Some(group);
        self
    }

    fn request(&self) -> PullRequest {
        let nanos = i64::try_from(self.expires.as_nanos()).unwrap_or(i64::MAX);
        let mut request = PullRequest {
            batch: i64::try_from(self.max_messages).unwrap_or(i64::MAX),
            max_bytes: self
                .max_bytes
                .map_or(0, |max| i64::try_from(max).unwrap_or(i64::MAX)),
            no_wait: self.no_wait,
            // No time at all is not the same as no end.
            expires: Nanos(if self.no_wait { 0 } else { nanos.max(1) }),
            ..PullRequest::default()
        };
        if let Some(group) = &self.group {
            group.apply(&mut request);
        }
        request
    }
}

impl PriorityRequest {
    pub(super) fn apply(&self, request: &mut PullRequest) {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        request.group = Some(self.group.clone()).filter(|group| !group.is_empty());
        request.id.clone_from(&self.pin);
        request.min_pending = number(self.min_pending);
        request.min_ack_pending = number(self.min_ack_pending);
        request.priority = i64::from(self.priority);
    }
}

/// Why there are no messages from a consumer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// There is no such stream, or no such consumer.
    #[error("there is no consumer {consumer:?} of a stream {stream:?}")]
    NoConsumer {
        /// The stream.
        stream: String,
        /// The consumer.
        consumer: String,
    },
    /// The consumer was deleted meanwhile, or its stream was.
    #[error("the consumer was deleted")]
    Deleted,
    /// The server goes down.
    #[error("the server shuts down")]
    Shutdown,
    /// As many requests wait as may (`max_waiting`).
    #[error("as many requests wait for the consumer as may")]
    TooManyWaiting,
    /// Too much waits for the stream.
    #[error("too much waits for the stream")]
    Full,
    /// The next message is larger than the bytes that were asked for.
    #[error("the next message is larger than the request's bytes")]
    TooLarge,
    /// It is a push consumer: it delivers to its subject, to which a client subscribes.
    #[error("the consumer is push based")]
    PushBased,
    /// The consumer does not take such requests.
    #[error("the request is refused: {0}")]
    Refused(String),
}

/// Why consuming ended.
pub type ConsumeError = FetchError;

impl FetchError {
    /// Whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::TooManyWaiting | Self::Full)
    }

    /// What the end of a request says; `None` where it ended as it should.
    pub(super) fn of(status: &str) -> Option<Self> {
        match status {
            "404 No Messages" | "408 Request Timeout" | "408 Requests Pending" | "409 Batch Completed" => {
                None
            }
            "409 Consumer Deleted" => Some(Self::Deleted),
            "409 Server Shutdown" => Some(Self::Shutdown),
            "409 Exceeded MaxWaiting" => Some(Self::TooManyWaiting),
            "409 Message Size Exceeds MaxBytes" => Some(Self::TooLarge),
            "409 Consumer is push based" => Some(Self::PushBased),
            other => Some(Self::Refused(other.to_owned())),
        }
    }
}

/// A mailbox in use; when it is dropped, what was not looked at goes back.
#[derive(Debug)]
pub(super) struct Pulling {
    pub(super) origin: Origin,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Pulling {
    pub(super) fn new(origin: Origin) -> Self {
        Self {
            origin,
            mailbox: Mailbox::new(),
        }
    }

    /// Asks for messages.
    pub(super) fn ask(&self, request: PullRequest) -> Result<(), FetchError> {
        let signal = LocalSignal::Pull {
            request: Box::new(request),
            mailbox: self.mailbox.clone(),
            holder: self.origin.holder.number,
        };
        match self
            .origin
            .holder
            .stream
            .inbox
            .signal_local(self.origin.consumer, signal)
        {
            Push::Queued | Push::Crowded => Ok(()),
            Push::Full => Err(FetchError::Full),
            Push::Closed => Err(self.closed()),
        }
    }

    /// Why nothing comes any more.
    pub(super) fn closed(&self) -> FetchError {
        if self.origin.holder.stream.reader.is_deleted() {
            FetchError::Deleted
        } else {
            FetchError::Shutdown
        }
    }

    fn close(&self) -> impl Iterator<Item = Letter> + use<> {
        let left = self.mailbox.close();
        let signal = LocalSignal::Closed {
            mailbox: self.mailbox.number,
        };
        // A stream that is gone has forgotten the mailbox.
        let _ = self
            .origin
            .holder
            .stream
            .inbox
            .signal_local(self.origin.consumer, signal);
        left.into_iter()
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        if self.mailbox.is_closed() {
            return;
        }
        for letter in self.close() {
            if let Letter::Message(handed) = letter {
                self.origin.give_back(&handed);
            }
        }
    }
}

impl Consumer {
    pub(super) fn new(context: JetStreamContext, info: ConsumerInfo) -> Option<Self> {
        let stream = context.account.stream(&info.stream_name)?;
        Some(Self {
            context,
            stream: info.stream_name.into(),
            name: info.name.into(),
            config: Arc::new(info.config),
            holder: Holder::new(stream),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of its stream.
    #[must_use]
    pub fn stream_name(&self) -> &str {
        &self.stream
    }

    /// Its configuration when this handle was made.
    #[must_use]
    pub fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// Where it stands.
    ///
    /// # Errors
    /// It is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn info(&self) -> Result<ConsumerInfo, ApiError> {
        self.context.consumer_info(&self.stream, &self.name).await
    }

    /// Why it does not deliver at this moment; `None` when it is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn explain(&self) -> Option<Explanation> {
        self.context.explain_consumer(&self.stream, &self.name).await
    }

    /// Up to `max` messages: what there is at once, or else the first that come within `expires`; none when that is over.
    ///
    /// # Errors
    /// No such consumer, the server goes down, the consumer does not take such a request.
    ///
    /// # Cancel safety
    /// Dropped early, what was delivered to it goes back to the consumer at once and counts as delivered once more. From a
    /// consumer without acks, messages may be lost so.
    pub async fn fetch(&self, max: usize, expires: Duration) -> Result<Vec<Delivery>, FetchError> {
        self.fetch_with(&FetchOptions::new(max).expires(expires)).await
    }

    /// The same with all options.
    ///
    /// # Errors
    /// As [`Consumer::fetch`].
    ///
    /// # Cancel safety
    /// As [`Consumer::fetch`].
    pub async fn fetch_with(&self, options: &FetchOptions) -> Result<Vec<Delivery>, FetchError> {
        if options.max_messages == 0 {
            return Ok(Vec::new());
        }
        let pulling = Pulling::new(self.origin(&self.holder)?);
        pulling.ask(options.request())?;
        let wanted = if options.fill || options.no_wait {
            options.max_messages
        } else {
            1
        };
        // A request whose bytes are used up exactly ends without a word.
        let bytes = options.max_bytes.map_or(u64::MAX, |bytes| bytes as u64);
        poll_fn(|cx| pulling.mailbox.poll_for(wanted, bytes, cx)).await;
        let (mut deliveries, mut failed) = (Vec::new(), None);
        for letter in pulling.close() {
            match letter {
                Letter::Message(handed) => deliveries.push(Delivery::new(handed, pulling.origin.clone())),
                Letter::Ended(ended) => failed = FetchError::of(&ended.status),
                Letter::Gone => failed = Some(pulling.closed()),
            }
        }
        match failed {
            // What ended it shows again with the next call.
            Some(error) if deliveries.is_empty() => Err(error),
            None if deliveries.is_empty() && pulling.mailbox.is_gone() => Err(pulling.closed()),
            _ => Ok(deliveries),
        }
    }

    /// Messages one after the other, asked for in advance.
    ///
    /// # Errors
    /// As [`Consumer::fetch`].
    pub fn messages(&self, options: ConsumeOptions) -> Result<Messages, FetchError> {
        let holder = Holder::new(self.origin(&self.holder)?.holder.stream.clone());
        let pulling = Pulling::new(self.origin(&holder)?);
        Ok(Messages::new(pulling, options, &self.config))
    }

    /// The consumer as it is now.
    fn origin(&self, holder: &Arc<Holder>) -> Result<Origin, FetchError> {
        let found = self.context.account.stream(&self.stream).and_then(|stream| {
            let entry = stream.consumer(&self.name)?;
            Some((stream, entry))
        });
        let (stream, entry) = found.ok_or_else(|| FetchError::NoConsumer {
            stream: self.stream.to_string(),
            consumer: self.name.to_string(),
        })?;
        let holder = if Arc::ptr_eq(&holder.stream, &stream) {
            holder.clone()
        } else {
            // The stream was made again.
            Holder::new(stream)
        };
        Ok(Origin {
            holder,
            consumer: entry.number,
            acks: entry.acks,
        })
    }
}
