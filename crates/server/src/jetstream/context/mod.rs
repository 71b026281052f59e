//! JetStream for code in this process: typed calls, no socket, no encoding.
//!
//! Everything has the meaning that it has over the wire, in the account of the context and with all rights in it. What is
//! asked of a stream goes into its inbox like what comes from a connection, and is served in the same turn.
//!
//! * here: streams and consumers; [`publish`]: publishing.
//! * [`consumer`]: fetching; [`messages`]: consuming; [`delivery`]: a message and its acks.
//! * [`read`]: stored messages; [`ordered`]: a stream in order, and what comes.
//! * [`kv`]: key-value buckets.

mod consumer;
mod delivery;
mod kv;
mod messages;
mod ordered;
mod publish;
mod read;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use windjet_protocol::jetstream::consumer::requests::{ConsumerAction, ConsumerCreateRequest};
use windjet_protocol::jetstream::stream::requests::{
    MessageDeleteRequest, PurgeRequest, StreamConfigRequest, StreamInfoRequest,
};
use windjet_protocol::jetstream::{
    ApiError, ApiResponse, ConsumerConfig, ConsumerInfo, ErrorCode, StreamConfig, StreamInfo,
};

pub use consumer::{ConsumeError, Consumer, FetchError, FetchOptions, PriorityRequest};
pub use delivery::{AckError, Delivery};
pub use kv::{Entry, KeyValue, KeyValueConfig, KeyValueError, KeyValueStatus, Operation, Watch};
pub use messages::{ConsumeOptions, Messages};
pub use ordered::{Ordered, OrderedConfig, StartAt};
pub use publish::{NewMessage, Publish, PublishError, Stored};
pub use read::{GetError, StreamMessage};

use super::JetStream;
use super::account::JsAccount;
use super::consumer::{Explanation, Unsettled};
use super::stream::Stream;
use super::stream::call::{Answer, Call, CreateConsumer};
use crate::server::{Server, Shared};

/// JetStream of one account of a server in this process. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use windjet_server::Server;
/// use windjet_server::jetstream::StreamConfig;
///
/// # let folder = std::env::temp_dir().join(format!("windjet-js-doc-{}", std::process::id()));
/// let server = Server::builder().jetstream(&folder).start().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// let config = StreamConfig { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..Default::default() };
/// js.create_stream(config).await?;
/// let ack = js.publish("ORDERS", "orders.new", "42")?.await?;
/// assert_eq!((ack.seq, ack.duplicate), (1, false));
/// assert_eq!(js.stream_info("ORDERS").await?.state.messages, 1);
/// # server.shutdown(std::time::Duration::from_secs(5)).await;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JetStreamContext {
    server: Arc<Shared>,
    js: Arc<JetStream>,
    account: Arc<JsAccount>,
    publishers: Arc<Mutex<publish::Publishers>>,
}

impl fmt::Debug for JetStreamContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamContext")
            .field("account", &self.account.name())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// JetStream of the global account; `None` when the server runs without it or the account has none.
    #[must_use]
    pub fn jetstream(&self) -> Option<JetStreamContext> {
        self.jetstream_of(crate::options::GLOBAL_ACCOUNT)
    }

    /// JetStream of an account; `None` when the server runs without it or the account has none.
    #[must_use]
    pub fn jetstream_of(&self, account: &str) -> Option<JetStreamContext> {
        let js = self.shared().jetstream()?;
        let account = js.account(account)?;
        Some(JetStreamContext {
            server: self.shared().clone(),
            js,
            account,
            publishers: Arc::default(),
        })
    }
}

impl JetStreamContext {
    async fn call<T: ApiResponse>(
        &self,
        stream: &str,
        make: impl FnOnce(Answer<T>) -> Call,
    ) -> Result<T, ApiError> {
        let known = self.account.stream(stream);
        let stream = known.ok_or_else(|| self.account.offline.error(stream))?;
        self.ask(&stream, make).await
    }

    async fn ask<T: ApiResponse>(
        &self,
        stream: &Stream,
        make: impl FnOnce(Answer<T>) -> Call,
    ) -> Result<T, ApiError> {
        let (sender, answer) = oneshot::channel();
        if let Err(untaken) = stream.inbox.call(make(Answer::Local(sender))) {
            return Err(untaken.error());
        }
        answer
            .await
            .unwrap_or_else(|_| Err(ErrorCode::StreamNotFound.error()))
    }

    /// Creates a stream, or finds the one there is with the same configuration. It is durable when this returns.
    ///
    /// # Errors
    /// What is wrong with the configuration; a stream of that name with another one; subjects of another stream.
    ///
    /// # Cancel safety
    /// Dropped early, the stream may exist or not.
    pub async fn create_stream(&self, config: StreamConfig) -> Result<StreamInfo, ApiError> {
        let request = StreamConfigRequest {
            config,
            ..StreamConfigRequest::default()
        };
        let stream = super::api::create(&self.account, &self.server, &self.js, request)?;
        self.ask(&stream, Call::Created).await.map(|answer| answer.info)
    }

    /// Gives a stream another configuration, all of it.
    ///
    /// # Errors
    /// No such stream; a change that is not allowed.
    ///
    /// # Cancel safety
    /// Dropped early, the change may be made or not.
    pub async fn update_stream(&self, config: StreamConfig) -> Result<StreamInfo, ApiError> {
        let name = config.name.clone();
        let request = Box::new(StreamConfigRequest {
            config,
            ..StreamConfigRequest::default()
        });
        let answer = self.call(&name, |answer| Call::Update(request, answer)).await?;
        Ok(answer.info)
    }

    /// What a stream is and holds.
    ///
    /// # Errors
    /// No such stream.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn stream_info(&self, stream: &str) -> Result<StreamInfo, ApiError> {
        let request = StreamInfoRequest::default();
        let answer = self.call(stream, |answer| Call::Info(request, answer)).await?;
        answer.info.ok_or_else(|| ErrorCode::StreamNotFound.error())
    }

    /// Names of all streams, in order.
    #[must_use]
    pub fn stream_names(&self) -> Vec<String> {
        let streams = self.account.streams();
        streams.iter().map(|stream| stream.name.to_string()).collect()
    }

    /// Ends a stream with all its messages and consumers.
    ///
    /// # Errors
    /// No such stream.
    ///
    /// # Cancel safety
    /// Dropped early, the stream may be gone or not.
    pub async fn delete_stream(&self, stream: &str) -> Result<(), ApiError> {
        self.call(stream, Call::Delete).await.map(drop)
    }

    /// Removes messages; how many went.
    ///
    /// # Errors
    /// No such stream; a stream that may not be purged.
    ///
    /// # Cancel safety
    /// Dropped early, the messages may be gone or not.
    pub async fn purge_stream(&self, stream: &str, purge: PurgeRequest) -> Result<u64, ApiError> {
        purge.check()?;
        let answer = self.call(stream, |answer| Call::Purge(purge, answer)).await?;
        Ok(answer.purged)
    }

    /// Removes one message.
    ///
    /// # Errors
    /// No such stream or message; a stream that does not allow it.
    ///
    /// # Cancel safety
    /// Dropped early, the message may be gone or not.
    pub async fn delete_message(&self, stream: &str, sequence: u64) -> Result<(), ApiError> {
        let request = MessageDeleteRequest {
            seq: sequence,
            // Overwriting takes a rewrite of what is around it; who wants it asks over the wire.
            no_erase: true,
        };
        self.call(stream, |answer| Call::MessageDelete(request, answer))
            .await
            .map(drop)
    }

    /// Creates a consumer or gives the one there is this configuration. Without a name and a durable name it gets a random
    /// name.
    ///
    /// # Errors
    /// No such stream; what is wrong with the configuration; a change that is not allowed.
    ///
    /// # Cancel safety
    /// Dropped early, the consumer may exist or not.
    pub async fn create_consumer(
        &self,
        stream: &str,
        config: ConsumerConfig,
    ) -> Result<ConsumerInfo, ApiError> {
        let name = config.name.clone().or_else(|| config.durable_name.clone());
        let create = Box::new(CreateConsumer {
            request: ConsumerCreateRequest {
                stream_name: stream.to_owned(),
                config,
                action: ConsumerAction::CreateOrUpdate,
                pedantic: false,
            },
            name,
        });
        let answer = self
            .call(stream, |answer| Call::ConsumerCreate(create, answer))
            .await?;
        Ok(answer.info)
    }

    /// A consumer to fetch and consume from.
    ///
    /// # Errors
    /// No such stream or consumer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn consumer(&self, stream: &str, consumer: &str) -> Result<Consumer, ApiError> {
        let info = self.consumer_info(stream, consumer).await?;
        Consumer::new(self.clone(), info).ok_or_else(|| ErrorCode::StreamNotFound.error())
    }

    /// Where a consumer stands.
    ///
    /// # Errors
    /// No such stream or consumer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn consumer_info(&self, stream: &str, consumer: &str) -> Result<ConsumerInfo, ApiError> {
        let name = consumer.to_owned();
        let answer = self
            .call(stream, |answer| Call::ConsumerInfo(name, answer))
            .await?;
        Ok(answer.info)
    }

    /// Why a consumer does not deliver at this moment; `None` when there is no such stream or consumer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn explain_consumer(&self, stream: &str, consumer: &str) -> Option<Explanation> {
        let (sender, answer) = oneshot::channel();
        let stream = self.account.stream(stream)?;
        stream
            .inbox
            .call(Call::ConsumerExplain(consumer.to_owned(), sender))
            .ok()?;
        answer.await.ok().flatten()
    }

    /// Which messages of its stream a consumer has not settled; `None` when there is no such stream or consumer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn consumer_unsettled(&self, stream: &str, consumer: &str) -> Option<Unsettled> {
        let (sender, answer) = oneshot::channel();
        let stream = self.account.stream(stream)?;
        stream
            .inbox
            .call(Call::ConsumerUnsettled(consumer.to_owned(), sender))
            .ok()?;
        answer.await.ok().flatten()
    }

    /// Has a consumer begin again at a sequence, or behind its ack floor with 0; where it begins. What is before counts as
    /// settled, what is behind as not delivered. It is durable when this returns.
    ///
    /// # Errors
    /// No such stream or consumer; a sequence that the start policy does not allow.
    ///
    /// # Cancel safety
    /// Dropped early, it may begin again or not.
    pub async fn reset_consumer(&self, stream: &str, consumer: &str, sequence: u64) -> Result<u64, ApiError> {
        let name = consumer.to_owned();
        let answer = self
            .call(stream, |answer| Call::ConsumerReset(name, sequence, answer))
            .await?;
        Ok(answer.reset_seq)
    }

    /// Ends a consumer.
    ///
    /// # Errors
    /// No such stream or consumer.
    ///
    /// # Cancel safety
    /// Dropped early, the consumer may be gone or not.
    pub async fn delete_consumer(&self, stream: &str, consumer: &str) -> Result<(), ApiError> {
        let name = consumer.to_owned();
        self.call(stream, |answer| Call::ConsumerDelete(name, answer))
            .await
            .map(drop)
    }
}
