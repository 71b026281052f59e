//! Incident capsules: a failing message with its neighbourhood, to be looked at and run again elsewhere.
//!
//! A [`Capsule`] is JSON in an object bucket, under its id; an index bucket has one key for each, by stream and consumer.
//! The object is the truth: an index that cannot be written is passed over. [`Incidents::capture`] makes one,
//! [`Incidents::replay_local`] gives its messages to a handler without a server, so that a failure can be repeated on a
//! laptop. [`CapsuleAuto`] makes them by itself when handlers fail, messages go to the dead-letter queue, shadows
//! disagree or a consumer is much slower than usual: in the background, one at a time, and at most one in a while for each
//! consumer.
//!
//! A capsule holds payloads. What must not leave the stream is taken out by a redaction, which sees whole messages.

mod auto;
mod capsule;

use std::pin::Pin;
use std::sync::Arc;

use async_nats::jetstream::stream::StorageType;
use async_nats::jetstream::{kv, object_store};
use rand::distr::{Alphanumeric, SampleString as _};
use time::OffsetDateTime;

pub use auto::{AutoConfig, CapsuleAuto, CapsuleHandler, OnReady, attach};
pub use capsule::{Capsule, CapsuleMessage, SCHEMA_VERSION, Trigger, redact_credentials};

use super::fingerprint::Record;
use super::recorder::FlightRecorder;
use super::replay::Replay;
use crate::admin::{KeyValueKeys, KeyValueManager, ObjectManager, StreamManager};
use crate::client::Inner;
use crate::delivery::{Delivery, OnDrop, Settler};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, HandlerError, guarded};
use crate::names::validate_stream_name;

/// The object bucket of capsules.
pub const DEFAULT_CAPSULE_BUCKET: &str = "nats_incident_capsules";
/// The key-value bucket of their index.
pub const DEFAULT_INDEX_BUCKET: &str = "nats_incident_index";
/// Messages in a capsule, at most.
pub const DEFAULT_WINDOW: usize = 50;

/// Takes out of a message what must not be kept.
pub type Redact = Arc<dyn Fn(&mut CapsuleMessage) + Send + Sync>;

/// What to capture.
#[derive(Clone, Default)]
pub struct Capture {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub consumer: String,
    /// Why. By hand.
    pub trigger: Trigger,
    /// The subject of the failing message, if that is known.
    pub subject: String,
    /// More about why.
    pub reason: String,
    /// The sequence of the failing message; 0 for the stream's last one.
    pub failing_seq: u64,
    /// Messages around it, at most. 0 means 50.
    pub window: usize,
    /// The failing message as a handler saw it, for when the stream no longer has it.
    pub seen: Option<CapsuleMessage>,
    /// Takes out of each message what must not be kept. By default nothing is.
    pub redact: Option<Redact>,
    /// Its incidents go into the capsule.
    pub flight_recorder: Option<FlightRecorder>,
    /// A fingerprint to go into the capsule.
    pub fingerprint: Option<Record>,
    /// The object bucket; when empty, [`DEFAULT_CAPSULE_BUCKET`].
    pub store_bucket: String,
    /// The index bucket; when empty, [`DEFAULT_INDEX_BUCKET`].
    pub index_bucket: String,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("stream", &self.stream)
            .field("consumer", &self.consumer)
            .field("trigger", &self.trigger)
            .field("failing_seq", &self.failing_seq)
            .finish_non_exhaustive()
    }
}

impl Capture {
    /// A capture around the last message of a stream.
    #[must_use]
    pub fn new(stream: impl Into<String>, consumer: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            consumer: consumer.into(),
            ..Self::default()
        }
    }
}

/// A capture under way.
pub type Capturing<'a> = Pin<Box<dyn Future<Output = Result<Capsule>> + Send + 'a>>;

/// Where capsules are made and kept. [`Incidents`] is the one over JetStream.
pub trait CapsuleStore: Send + Sync + 'static {
    /// Makes a capsule and keeps it.
    fn capture(&self, what: Capture) -> Capturing<'_>;

    /// Ends when nothing can be captured any more. Never, unless it is said.
    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

/// Captures, reads and replays capsules.
#[derive(Debug, Clone)]
pub struct Incidents {
    inner: Arc<Inner>,
}

impl Incidents {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Makes a capsule and keeps it. Buckets that do not exist are made.
    ///
    /// # Errors
    /// When the names are not valid, or messages cannot be read, or the object cannot be written.
    ///
    /// # Cancel safety
    /// Dropped early, the capsule may be kept or not, and may be missing in the index.
    pub async fn capture(&self, what: Capture) -> Result<Capsule> {
        validate_stream_name(&what.stream)?;
        if what.consumer.is_empty() {
            let doing = format!("capturing an incident of {}", what.stream);
            return Err(Error::new(ErrorKind::InvalidDurableName, doing));
        }
        let messages = self.neighbourhood(&what).await?;
        let capsule = Capsule {
            created_at: OffsetDateTime::now_utc(),
            fingerprint: what.fingerprint,
            id: Alphanumeric.sample_string(&mut rand::rng(), 22),
            stream: what.stream,
            consumer: what.consumer,
            trigger: what.trigger,
            subject: what.subject,
            reason: what.reason,
            messages,
            flight_timeline: what
                .flight_recorder
                .map_or_else(Vec::new, |recorder| recorder.snapshot()),
            failing_seq: what.failing_seq,
            schema_version: SCHEMA_VERSION,
        };
        let bucket = or(&what.store_bucket, DEFAULT_CAPSULE_BUCKET);
        self.keep(bucket, &capsule).await?;
        if let Err(error) = self
            .enter(or(&what.index_bucket, DEFAULT_INDEX_BUCKET), &capsule)
            .await
        {
            tracing::debug!(%error, id = capsule.id, "a capsule is not in the index");
        }
        Ok(capsule)
    }

    /// Reads a capsule; an empty `bucket` is [`DEFAULT_CAPSULE_BUCKET`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Decode`] when it is none, or of a newer version than this kit knows.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn load(&self, bucket: &str, id: &str) -> Result<Capsule> {
        let bucket = or(bucket, DEFAULT_CAPSULE_BUCKET);
        let object = ObjectManager::new(Arc::clone(&self.inner))
            .get(bucket, id)
            .await?;
        Capsule::from_json(&object.data)
    }

    /// The ids of a consumer's capsules, sorted; an empty `index_bucket` is [`DEFAULT_INDEX_BUCKET`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list(&self, stream: &str, consumer: &str, index_bucket: &str) -> Result<Vec<String>> {
        let bucket = or(index_bucket, DEFAULT_INDEX_BUCKET);
        let keys = KeyValueKeys::new(Arc::clone(&self.inner));
        let (all, _) = keys.list_keys(bucket, 0, None).await?;
        let prefix = format!("{stream}/{consumer}/");
        Ok(all
            .iter()
            .filter_map(|key| key.strip_prefix(&prefix))
            .filter(|id| !id.contains('/'))
            .map(ToOwned::to_owned)
            .collect())
    }

    /// Gives the messages of a capsule to a handler, in order, expanded as a consumer expands them. Nothing is settled: what
    /// the handler says to the server is taken and goes nowhere.
    ///
    /// # Errors
    /// [`ErrorKind::Handler`] at the first message that the handler fails at; it names sequence and subject.
    ///
    /// # Cancel safety
    /// As the handler.
    pub async fn replay_local(&self, capsule: &Capsule, handler: &impl Handler) -> Result<()> {
        let settler = Arc::new(Settler::new(self.inner.nats.clone(), OnDrop::Settled));
        for message in &capsule.messages {
            let doing = || format!("replaying message {} of {}", message.sequence, message.subject);
            let mut delivery = Delivery::new(message.to_message()?, Arc::clone(&settler));
            delivery.expand();
            if let Some(fault) = delivery.fault() {
                return Err(Error::new(fault.kind(), doing()).because(fault));
            }
            let delivery = Arc::new(delivery);
            match guarded(|| handler.handle(Arc::clone(&delivery))).await {
                Ok(_) | Err(HandlerError::DlqRouted(_)) => {}
                Err(error) => return Err(Error::new(ErrorKind::Handler, doing()).because(error.to_string())),
            }
        }
        Ok(())
    }

    async fn neighbourhood(&self, what: &Capture) -> Result<Vec<CapsuleMessage>> {
        let streams = StreamManager::new(Arc::clone(&self.inner));
        let centre = match what.failing_seq {
            0 => streams.info(&what.stream).await?.state.last_sequence,
            sequence => sequence,
        };
        let window = if what.window == 0 {
            DEFAULT_WINDOW
        } else {
            what.window
        };
        let mut messages = Vec::new();
        if centre > 0 {
            let (start, end) = around(centre, window as u64);
            let replay = Replay::new(Arc::clone(&self.inner));
            let (found, _) = replay.get_range(&what.stream, start, end, window).await?;
            messages.extend(found.iter().map(CapsuleMessage::from));
        }
        if let Some(seen) = &what.seen {
            let place = messages.partition_point(|message| message.sequence < seen.sequence);
            if messages
                .get(place)
                .is_none_or(|message| message.sequence != seen.sequence)
            {
                messages.insert(place, seen.clone());
            }
        }
        if let Some(redact) = &what.redact {
            messages.iter_mut().for_each(|message| redact(message));
        }
        Ok(messages)
    }

    async fn keep(&self, bucket: &str, capsule: &Capsule) -> Result<()> {
        let json = capsule.to_json()?;
        let objects = ObjectManager::new(Arc::clone(&self.inner));
        match objects.put(bucket, &capsule.id, json.clone()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let config = object_store::Config {
                    bucket: bucket.to_owned(),
                    storage: StorageType::File,
                    ..object_store::Config::default()
                };
                // If it fails because somebody else was faster, writing will not.
                let created = objects.create(config).await;
                objects
                    .put(bucket, &capsule.id, json)
                    .await
                    .map_err(|error| match created {
                        Err(why) => why,
                        Ok(_) => error,
                    })?;
            }
            other => {
                other?;
            }
        }
        Ok(())
    }

    async fn enter(&self, bucket: &str, capsule: &Capsule) -> Result<()> {
        let keys = KeyValueKeys::new(Arc::clone(&self.inner));
        let key = format!("{}/{}/{}", capsule.stream, capsule.consumer, capsule.id);
        match keys.put(bucket, &key, capsule.id.clone()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let config = kv::Config {
                    bucket: bucket.to_owned(),
                    ..kv::Config::default()
                };
                KeyValueManager::new(Arc::clone(&self.inner))
                    .create_or_update(config)
                    .await?;
                keys.put(bucket, &key, capsule.id.clone()).await.map(|_| ())
            }
            other => other.map(|_| ()),
        }
    }
}

impl CapsuleStore for Incidents {
    fn capture(&self, what: Capture) -> Capturing<'_> {
        Box::pin(Incidents::capture(self, what))
    }

    fn closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.inner.scope.cancelled())
    }
}

/// First and last sequence of a window around one.
fn around(sequence: u64, window: u64) -> (u64, u64) {
    let half = window / 2;
    let start = sequence.saturating_sub(half).max(1);
    (start, sequence.saturating_add((window - half).saturating_sub(1)))
}

fn or<'a>(given: &'a str, default: &'a str) -> &'a str {
    if given.is_empty() { default } else { given }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_exactly_so_many_around_the_failing_one() {
        assert_eq!(around(100, 50), (75, 124));
        assert_eq!(around(3, 50), (1, 27));
        assert_eq!(around(9, 1), (9, 9));
        assert_eq!(around(9, 2), (8, 9));
        assert_eq!(around(u64::MAX, 50), (u64::MAX - 25, u64::MAX));
    }
}
