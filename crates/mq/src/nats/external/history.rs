//! Reading the history stream: subscriptions and replays.
//!
//! Both read through consumers of their own, without acknowledgements, which the server removes once nobody pulls from
//! them. A subscription's is made anew behind the last message seen whenever something may have been missed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windjet_client::pull::{Options, PullError, Puller, Request};
use windjet_client::{Delivery, OnDrop, Target};
use windjet_protocol::jetstream::timestamp::Timestamp;
use windjet_protocol::jetstream::{AckPolicy, ConsumerConfig, DeliverPolicy, Nanos};

use super::Shared;
use super::publish::{closed, from_wire, is_key_only};
use crate::{Ctx, Error, ErrorKind, Listener, Message, ReplaySink, Topic, Unsettled};

/// Long enough to outlast the sending of one batch to a slow client.
const INACTIVE: Duration = Duration::from_secs(60);
const SUBSCRIPTION_BATCH: usize = 500;
const REPLAY_BATCH: u64 = 256;
const REPLAY_WAIT: Duration = Duration::from_secs(2);
const DELETE_WAIT: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// A consumer of our own on the history.
pub(super) struct Reader {
    pub(super) name: String,
    pub(super) puller: Puller,
    /// Messages behind the start when it was made.
    pub(super) pending: u64,
}

impl Shared {
    pub(super) async fn reader(&self, filter: String, from: ConsumerConfig) -> Result<Reader, Error> {
        let history = self.topology.history_stream();
        let name = self.unique();
        let config = ConsumerConfig {
            name: Some(name.clone()),
            filter_subject: Some(filter),
            ack_policy: AckPolicy::None,
            inactive_threshold: Nanos(INACTIVE.as_nanos() as i64),
            num_replicas: 1,
            mem_storage: true,
            max_deliver: -1,
            ..from
        };
        let info = self.api.create_consumer(&history, config).await;
        let info = info.map_err(|failure| failure.into_error("a consumer on the history"))?;
        let target = self.target(&history, &name)?;
        let options = Options::default().on_drop(OnDrop::Leave);
        let puller = Puller::new(self.api.client().clone(), target, options)
            .await
            .map_err(pull_failed)?;
        Ok(Reader {
            name,
            puller,
            pending: info.num_pending,
        })
    }

    pub(super) fn target(&self, stream: &str, consumer: &str) -> Result<Target, Error> {
        let target = Target::new(stream, consumer);
        let target =
            target.map_err(|error| Error::wrap(ErrorKind::Invalid, "stream or consumer name", error))?;
        Ok(match &self.domain {
            Some(domain) => target.domain(domain),
            None => target,
        })
    }

    /// Removes a reader's consumer, as far as that goes; the server does it by itself later.
    pub(super) async fn forget(&self, name: &str) {
        if self.link.connected() {
            let history = self.topology.history_stream();
            let _ = self.api.wait(DELETE_WAIT).delete_consumer(&history, name).await;
        }
    }

    async fn reader_behind(&self, sequence: u64) -> Result<Reader, Error> {
        let from = ConsumerConfig {
            deliver_policy: DeliverPolicy::ByStartSequence,
            opt_start_seq: sequence + 1,
            ..ConsumerConfig::default()
        };
        self.reader(self.topology.history_subjects(), from).await
    }

    /// Begins a subscription. The start is fixed now, so that nothing is missed even before the first message.
    pub(super) async fn listen(
        self: &Arc<Self>,
        ctx: &Ctx,
        consumer: &str,
        listener: Listener,
    ) -> Result<(), Error> {
        let history = self.topology.history_stream();
        let info = self.api.stream(&history).await;
        let info = info
            .map_err(|failure| failure.into_error("the history"))?
            .ok_or_else(|| Error::new(ErrorKind::Topology, format!("stream {history} does not exist")))?;
        let last = info.state.last_seq;
        let reader = self.reader_behind(last).await?;
        let (shared, ctx, consumer) = (Arc::clone(self), ctx.clone(), consumer.to_owned());
        self.tasks.spawn(async move {
            tokio::select! {
                () = ctx.canceled() => {}
                () = shared.closed.cancelled() => {}
                () = shared.follow(&ctx, &consumer, &listener, reader, last) => {}
            }
        });
        Ok(())
    }

    async fn follow(&self, ctx: &Ctx, consumer: &str, listener: &Listener, first: Reader, mut last: u64) {
        let request = Request::batch(SUBSCRIPTION_BATCH)
            .expires(Duration::from_secs(30))
            .heartbeat(Duration::from_secs(5));
        let mut reader = Some(first);
        loop {
            let mut open = match reader.take() {
                Some(reader) => reader,
                None => match self.reader_behind(last).await {
                    Ok(reader) => reader,
                    Err(error) => {
                        tracing::warn!(
                            component = "nats",
                            consumer,
                            error = format!("{error:#}"),
                            "the subscription is resumed later"
                        );
                        tokio::time::sleep(RETRY_PAUSE * 4).await;
                        continue;
                    }
                },
            };
            let mut expected = 1;
            loop {
                let delivery = match open.puller.next(&request).await {
                    Ok(delivery) => delivery,
                    Err(error) => {
                        tracing::debug!(component = "nats", consumer, %error, "the subscription's consumer is made anew");
                        break;
                    }
                };
                let Some((sequence, number)) = position(&delivery) else {
                    continue;
                };
                if number != expected {
                    break;
                }
                expected += 1;
                last = sequence;
                self.hear(ctx, consumer, listener, delivery).await;
            }
            self.forget(&open.name).await;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn hear(&self, ctx: &Ctx, consumer: &str, listener: &Listener, delivery: Delivery) {
        let message = delivery.into_message();
        if is_key_only(message.headers.as_ref()) {
            return;
        }
        let ctx = ctx.extract(&from_wire(message.headers.as_ref()));
        let key: Arc<str> = self.topology.topic_key(&message.subject).into();
        let message = Message::with_key(
            ctx,
            Arc::clone(&key),
            message.payload,
            SystemTime::now(),
            Arc::new(Unsettled),
        );
        if let Err(error) = listener.call(message).await {
            tracing::warn!(component = "nats", consumer, topic = &*key, %error, "the listener failed; nothing is redelivered");
        }
    }

    /// Sends what the history holds of a topic since a time: as much as there was when the replay began.
    pub(super) async fn replay(
        &self,
        ctx: &Ctx,
        topic: &Topic,
        since: SystemTime,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error> {
        topic.checked()?;
        ctx.check("replay")?;
        let from = match since.duration_since(UNIX_EPOCH) {
            Ok(since) if !since.is_zero() => ConsumerConfig {
                deliver_policy: DeliverPolicy::ByStartTime,
                opt_start_time: Some(Timestamp::from_unix_nanos(
                    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
                )),
                ..ConsumerConfig::default()
            },
            _ => ConsumerConfig::default(),
        };
        let filter = self.topology.history_subject(&topic.key());
        let mut reader = tokio::select! {
            biased;
            () = ctx.canceled() => return Err(Error::canceled("replay")),
            () = self.closed.cancelled() => return Err(closed()),
            reader = self.reader(filter, from) => reader?,
        };
        let replayed = self.drain_into(ctx, &mut reader, sink).await;
        self.forget(&reader.name).await;
        replayed
    }

    async fn drain_into(
        &self,
        ctx: &Ctx,
        reader: &mut Reader,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), Error> {
        let mut remaining = reader.pending;
        while remaining > 0 {
            let batch = usize::try_from(remaining.min(REPLAY_BATCH)).unwrap_or(1);
            let request = Request::batch(batch).expires(REPLAY_WAIT);
            let fetched = tokio::select! {
                biased;
                () = ctx.canceled() => return Err(Error::canceled("replay")),
                () = self.closed.cancelled() => return Err(closed()),
                fetched = reader.puller.fetch(&request) => fetched.map_err(pull_failed)?,
            };
            if fetched.deliveries.is_empty() {
                if self.link.connected() {
                    // The rest was removed by age.
                    return Ok(());
                }
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "replay: the connection was lost",
                ));
            }
            for delivery in fetched.deliveries {
                remaining -= 1;
                let message = delivery.into_message();
                if !is_key_only(message.headers.as_ref()) && !sink.send(message.payload).await {
                    return Ok(());
                }
                ctx.check("replay")?;
                if self.closed.is_cancelled() {
                    return Err(closed());
                }
            }
        }
        Ok(())
    }
}

/// The sequence in the stream, and the number among the consumer's messages.
fn position(delivery: &Delivery) -> Option<(u64, u64)> {
    let metadata = delivery.metadata()?;
    Some((metadata.stream_sequence, metadata.consumer_sequence))
}

pub(super) fn pull_failed(error: PullError) -> Error {
    let kind = if error.is_retryable() {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Other
    };
    Error::wrap(kind, "pulling from the history", error)
}
