//! Messages that come from another broker: stored where the service's own would be, under ids and headers given.
//!
//! For a move of queues. A message's key is the tail of its subject as it was stored there; one that reads as a topic goes
//! where a publish on that topic goes, any other by its first two tokens. Parked messages keep their key byte for byte.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use windjet_client::pull::Request;
use windjet_protocol::jetstream::timestamp::Timestamp;
use windjet_protocol::jetstream::{ConsumerConfig, DeliverPolicy};

use super::publish::{Destination, from_wire};
use super::{ExternalNats, Shared};
use crate::nats::route::place;
use crate::{Ctx, Error, ErrorKind, Headers, MESSAGE_ID_HEADER, TenantId, Topic};

/// How many messages of the history are looked through at a time.
const LOOK_BATCH: usize = 256;
const LOOK_WAIT: Duration = Duration::from_secs(2);
/// Clocks of servers may differ so much from ours.
const SKEW: Duration = Duration::from_secs(60);

/// What must be the same for a message to be found again where it was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) prefix: String,
    pub(crate) partitions: Vec<String>,
    pub(crate) shards: u32,
    pub(crate) dead_letters: String,
}

/// Where a message from elsewhere is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Arrival {
    pub(crate) subject: String,
    pub(crate) stream: String,
    /// Its subject in the history; a parked message is in none.
    history: Option<String>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// It is stored by this call.
    Stored,
    /// A message with its id was there before.
    Before,
}

impl ExternalNats {
    /// What this broker writes to.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            prefix: self.shared.topology.prefix.clone(),
            partitions: self.shared.partitions.clone(),
            shards: self.shared.topology.shards,
            dead_letters: self.shared.dead_letters.clone(),
        }
    }

    /// How long message ids are remembered on every partition and on the dead-letter stream.
    ///
    /// # Errors
    /// When a stream cannot be read.
    pub(crate) async fn shortest_window(&self) -> Result<Duration, Error> {
        let stream = &self.shared.dead_letters;
        let info = self.shared.api.stream(stream).await;
        let info = info.map_err(|failure| failure.into_error(stream))?;
        let info =
            info.ok_or_else(|| Error::new(ErrorKind::Topology, format!("stream {stream} does not exist")))?;
        Ok(self
            .duplicate_window()
            .await?
            .min(info.config.duplicate_window.to_std()))
    }

    /// How long one publish may take, all its attempts together.
    pub(crate) fn publish_time(&self) -> Duration {
        self.shared.topology.min_duplicate_window()
    }

    /// A name that nobody else has, whatever process it is.
    pub(crate) fn fresh_name(&self) -> String {
        let inbox = self.shared.api.client().new_inbox();
        inbox.rsplit('.').next().unwrap_or(&inbox).to_owned()
    }

    /// How far back the history reaches.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) async fn history_age(&self) -> Result<Duration, Error> {
        let stream = self.shared.topology.history_stream();
        let info = self.shared.api.stream(&stream).await;
        let info = info.map_err(|failure| failure.into_error(&stream))?;
        Ok(info.map_or(Duration::ZERO, |info| info.config.max_age.to_std()))
    }

    /// Where an event with this key, of this tenant's queue, is stored.
    pub(crate) fn place_event(&self, tenant: &TenantId, key: &str) -> Arrival {
        let topology = &self.shared.topology;
        let topic = Topic::parse_key(key);
        let (place, subject, key) = if topic.tenant.is_some() {
            let place = topology.place(&topic);
            (place, topology.ingest_subject(place, &topic), topic.key())
        } else {
            let table = key.split('.').nth(1).unwrap_or(key);
            let place = place(tenant.as_str(), table, topology.partitions, topology.shards);
            let subject = format!(
                "{}.ingest.{}.{}.{key}",
                topology.prefix, place.partition, place.shard
            );
            (place, subject, key.to_owned())
        };
        Arrival {
            subject,
            stream: self.shared.partitions[place.partition as usize].clone(),
            history: Some(topology.history_subject(&key)),
        }
    }

    /// Where a parked message with this key is stored.
    pub(crate) fn place_parked(&self, key: &str) -> Arrival {
        Arrival {
            subject: self.shared.topology.dead_letter_subject(key),
            stream: self.shared.dead_letters.clone(),
            history: None,
        }
    }

    /// Stores it, with what [`Publisher::publish`](crate::Publisher::publish) tries to store something.
    ///
    /// # Errors
    /// As a publish.
    ///
    /// # Cancel safety
    /// May be dropped at any point; it may then be stored or not.
    pub(crate) async fn arrive(
        &self,
        ctx: &Ctx,
        to: &Arrival,
        headers: Headers,
        data: Bytes,
    ) -> Result<Arrived, Error> {
        self.shared.check_open()?;
        let destination = Destination {
            subject: &to.subject,
            stream: &to.stream,
            tell_stream: to.history.is_none(),
        };
        let stored = self.shared.store(ctx, destination, headers, data).await?;
        // One that an attempt of this very call has stored is no earlier one.
        Ok(if stored.duplicate && !stored.repeated {
            Arrived::Before
        } else {
            Arrived::Stored
        })
    }

    /// The ids of the messages that the history shows there since a time; `None` for what is kept in no history.
    ///
    /// # Errors
    /// When the history cannot be read.
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub(crate) async fn shown(
        &self,
        to: &Arrival,
        since: SystemTime,
    ) -> Result<Option<HashSet<String>>, Error> {
        match &to.history {
            Some(subject) => self.shared.ids_in_history(subject, since).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Shared {
    async fn ids_in_history(&self, subject: &str, since: SystemTime) -> Result<HashSet<String>, Error> {
        let since = since.checked_sub(SKEW).unwrap_or(UNIX_EPOCH);
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = ConsumerConfig {
            deliver_policy: DeliverPolicy::ByStartTime,
            opt_start_time: Some(Timestamp::from_unix_nanos(
                i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            )),
            ..ConsumerConfig::default()
        };
        let mut reader = self.reader(subject.to_owned(), from).await?;
        let found = async {
            let (mut remaining, mut ids) = (reader.pending, HashSet::new());
            while remaining > 0 {
                let request =
                    Request::batch(LOOK_BATCH.min(usize::try_from(remaining).unwrap_or(LOOK_BATCH)))
                        .expires(LOOK_WAIT);
                let fetched = reader
                    .puller
                    .fetch(&request)
                    .await
                    .map_err(super::history::pull_failed)?;
                if fetched.deliveries.is_empty() {
                    // The rest was removed by age, or the connection is gone.
                    return if self.link.connected() {
                        Ok(ids)
                    } else {
                        Err(Error::new(
                            ErrorKind::Unavailable,
                            "the history: the connection was lost",
                        ))
                    };
                }
                for delivery in fetched.deliveries {
                    remaining = remaining.saturating_sub(1);
                    let headers = from_wire(delivery.into_message().headers.as_ref());
                    ids.insert(headers.get(MESSAGE_ID_HEADER).to_owned());
                }
            }
            Ok(ids)
        };
        let found = found.await;
        self.forget(&reader.name).await;
        found
    }
}
