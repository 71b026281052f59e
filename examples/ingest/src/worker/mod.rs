//! Writes what the queue delivers: a batch in one transaction, then an acknowledgement that is confirmed.
//!
//! Deliveries of all units come through one channel, each unit's in order. Batches are written one after the other, and a
//! batch that cannot be written is tried again until it can: going on without it would break the order of its tables. While
//! that lasts the channel is full and the queue holds the rest.
//!
//! What cannot be a row is entered in the list of dead letters, parked with the broker, and only then acknowledged.

pub(crate) mod units;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use windjet_mq::{Broker, Consumer, ConsumerConfig, Consuming, Ctx, Error, Handler, Message, PublishOptions};

use crate::config::Config;
use crate::envelope::Envelope;
use crate::service::{Shared, blocking};
use crate::store::{Item, Outcome};

/// The durable that both brokers know.
pub(crate) const DURABLE: &str = "buffer-consumer";
/// Rows of one transaction, and rows that wait for the next one.
const BATCH: usize = 500;
/// Rows fetched ahead over all units.
const PREFETCH: usize = 1000;
const ACK_WAIT: Duration = Duration::from_secs(60);
/// Between two attempts to write a batch, and before a dead letter comes again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Where deliveries go.
pub(crate) type Sender = mpsc::Sender<Message>;

/// Begins to consume the units, or every one.
pub(crate) async fn consume(
    broker: &dyn Broker,
    units: Option<&str>,
    handler: Handler,
) -> Result<(Box<dyn Consumer>, Consuming), Error> {
    let mut config = ConsumerConfig::new(DURABLE).ack_wait(ACK_WAIT);
    if let Some(unit) = units {
        config = config.units([unit]);
    }
    let consumer = broker.create_consumer(&Ctx::new(), config).await?;
    let consuming = consumer.consume(handler, PREFETCH).await?;
    Ok((consumer, consuming))
}

/// Hands each delivery to the writer; waits while it has enough to do.
pub(crate) fn handler(sender: Sender) -> Handler {
    Handler::new(move |message| {
        let sender = sender.clone();
        async move {
            // Without a writer the message stays unsettled and comes again.
            let _ = sender.send(message).await;
        }
    })
}

/// A channel to the writer.
pub(crate) fn channel() -> (Sender, mpsc::Receiver<Message>) {
    mpsc::channel(BATCH)
}

/// Writes until every sender is gone; `stop` ends it between two attempts at a batch.
pub(crate) async fn write(
    shared: Arc<Shared>,
    mut messages: mpsc::Receiver<Message>,
    stop: CancellationToken,
) {
    let mut batch = Vec::new();
    while messages.recv_many(&mut batch, BATCH).await > 0 {
        let config = shared.config();
        let items: Arc<[Item]> = batch.iter().map(|message| item(&config, message)).collect();
        let outcomes = loop {
            let (store, items) = (Arc::clone(&shared), Arc::clone(&items));
            match blocking(move || store.store.write(&items)).await {
                Ok(outcomes) => break outcomes,
                Err(error) => {
                    tracing::error!(%error, rows = batch.len(), "the batch is not written; trying again");
                }
            }
            tokio::select! {
                // What is not settled comes again, here or elsewhere.
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        };
        let settled = batch.drain(..).zip(outcomes);
        join_all(settled.map(|(message, outcome)| settle(&shared, message, outcome))).await;
    }
}

/// Acknowledges what is safe; whatever fails here comes again and finds itself written.
async fn settle(shared: &Shared, message: Message, outcome: Outcome) {
    if let Outcome::Parked(reason) = outcome {
        tracing::warn!(topic = message.topic_key(), reason, "dead letter");
        let options = PublishOptions::new().header("Ingest-Reason", reason);
        if let Err(error) = shared.broker.dead_letter(message.ctx(), &message, options).await {
            tracing::error!(
                topic = message.topic_key(),
                error = format!("{error:#}"),
                "not parked; it comes again"
            );
            // Should this fail too, it comes after the ack wait.
            let _ = message.nak_with_delay(RETRY_PAUSE).await;
            return;
        }
    }
    if let Err(error) = message.double_ack(message.ctx()).await {
        tracing::warn!(
            topic = message.topic_key(),
            error = format!("{error:#}"),
            "not acknowledged; it comes again"
        );
    }
}

fn item(config: &Config, message: &Message) -> Item {
    let topic = message.topic();
    let tenant = topic.tenant.as_ref().map(ToString::to_string).unwrap_or_default();
    let (envelope, objection) = match Envelope::decode(message.data()) {
        Ok(envelope) => {
            let objection = config.objection(&topic.table, envelope.row.get());
            (envelope, objection)
        }
        Err(error) => {
            let text = String::from_utf8_lossy(message.data());
            let row = serde_json::value::to_raw_value(&text).unwrap_or_else(|_| RawValue::NULL.to_owned());
            let reason = format!(
                "it was not put into the queue by this service ({error}); redrive a row under an Idempotency-Key, or discard it"
            );
            (Envelope::new(String::new(), row, None), Some(reason))
        }
    };
    Item {
        tenant,
        table: topic.table,
        envelope,
        objection,
    }
}
