//! The record of a move, in the store that is moved: a key-value bucket beside the queues, synced at every step.
//!
//! The key `move` says what is moved where; a queue's key, `ingest.<tenant>` or `dead.<tenant>`, how far it is. Both are JSON;
//! members that are not known are ignored. A record of a queue holds:
//!
//! * `mark`: everything up to this sequence is done with.
//! * `begun`: up to there everything was written when the move began.
//! * `sending`: what may be on the target without being counted: up to which sequence, since when, and which of those go under
//!   the move's own ids although they have a key.
//! * `count`: see [`QueueCount`].
//! * `trail`: from which sequence on messages were sent at which time, for as long as the target remembers their ids.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windjet_server::jetstream::{JetStreamContext, KeyValue, KeyValueConfig};

use super::report::QueueCount;
use crate::embedded::engine::failed;
use crate::embedded::moved::{BUCKET, MOVE, SWITCHED};
use crate::nats::Identity;
use crate::{Error, ErrorKind};

/// What is moved where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MoveRecord {
    /// What the move's own message ids begin with.
    pub(super) id: String,
    pub(super) consumer: String,
    pub(super) target: Identity,
    pub(super) phase: String,
}

impl MoveRecord {
    pub(super) fn is_switched(&self) -> bool {
        self.phase == SWITCHED
    }

    /// Whether this is the move that is asked for now.
    pub(super) fn check(&self, consumer: &str, target: &Identity) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if self.consumer != consumer {
            return refuse(format!(
                "graduate: the move of this store began with consumer {}; go on with that one",
                self.consumer
            ));
        }
        if self.target != *target {
            return refuse(format!(
                "graduate: the move of this store began to prefix {}, partitions {:?} of {} shards; go on with that topology",
                self.target.prefix, self.target.partitions, self.target.shards
            ));
        }
        Ok(())
    }
}

/// What may be on the target already.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Sending {
    pub(super) until: u64,
    /// In milliseconds since 1970.
    pub(super) since: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) renamed: Vec<u64>,
}

/// How far one queue is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct QueueRecord {
    pub(super) mark: u64,
    /// Where the move began.
    pub(super) begun: u64,
    pub(super) sending: Option<Sending>,
    pub(super) count: QueueCount,
    pub(super) trail: Vec<(u64, u64)>,
}

pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn instant(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// The bucket.
#[derive(Clone)]
pub(super) struct Records(KeyValue);

impl Records {
    /// Opens the bucket, which is made if need be.
    pub(super) async fn open(js: &JetStreamContext) -> Result<Self, Error> {
        let bucket = js.create_key_value(KeyValueConfig::new(BUCKET)).await;
        bucket
            .map(Self)
            .map_err(|error| failed("the record of the move", error))
    }

    /// The bucket of an earlier run, if there was one.
    pub(super) async fn find(js: &JetStreamContext) -> Result<Option<Self>, Error> {
        if js.stream_names().contains(&format!("KV_{BUCKET}")) {
            return Self::open(js).await.map(Some);
        }
        Ok(None)
    }

    async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        let what = || format!("the record {key} of the move");
        let value = self.0.get(key).await.map_err(|error| failed(what(), error))?;
        let Some(value) = value else { return Ok(None) };
        let record = serde_json::from_slice(&value).map_err(|error| failed(what(), error))?;
        Ok(Some(record))
    }

    async fn put(&self, key: &str, record: &impl Serialize) -> Result<(), Error> {
        let what = || format!("the record {key} of the move");
        let value = serde_json::to_vec(record).map_err(|error| failed(what(), error))?;
        let put = self.0.put(key, value).await;
        put.map(drop).map_err(|error| failed(what(), error))
    }

    pub(super) async fn load(&self) -> Result<Option<MoveRecord>, Error> {
        self.get(MOVE).await
    }

    pub(super) async fn store(&self, record: &MoveRecord) -> Result<(), Error> {
        self.put(MOVE, record).await
    }

    pub(super) async fn load_queue(&self, key: &str) -> Result<Option<QueueRecord>, Error> {
        self.get(key).await
    }

    pub(super) async fn store_queue(&self, key: &str, record: &QueueRecord) -> Result<(), Error> {
        self.put(key, record).await
    }
}
