//! Ids in a key-value bucket.
//!
//! The value of a key is `d` when the id is done (`0x01` in old records), else `p` and JSON with owner and end of the
//! claim. Other readers take everything that is neither `d` nor `0x01` for a claim. Give the bucket a TTL: ids older than
//! that are forgotten.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::kv::{CreateErrorKind, Entry, Operation, Store, UpdateErrorKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Claim, ClaimStore, DedupStore, StoreFuture};
use crate::error::{Error, Result};
use crate::names::is_kv_key;

/// Longer ids are hashed.
const PLAIN_MAX: usize = 200;
/// Who finds a claim looks again after this long at the latest.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(5);

/// Ids in a key-value bucket.
#[derive(Debug, Clone)]
pub struct KvStore {
    bucket: Store,
    prefix: String,
    owner: String,
    lease: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
struct Lease {
    owner: String,
    /// Milliseconds since 1970.
    until: u64,
}

impl KvStore {
    /// Ids in `bucket`; a claim lasts 30 s unless it is renewed.
    #[must_use]
    pub fn new(bucket: Store) -> Self {
        Self {
            bucket,
            prefix: String::new(),
            owner: format!("{:016x}", rand::random::<u64>()),
            lease: Duration::from_secs(30),
        }
    }

    /// Puts `prefix/` in front of every key: two durables that share a bucket need it, or one takes the other's messages
    /// for done.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a claim lasts.
    #[must_use]
    pub fn lease_of(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    fn key(&self, id: &str) -> String {
        let mut key = if self.prefix.is_empty() {
            String::new()
        } else {
            format!("{}/", self.prefix)
        };
        if id.len() <= PLAIN_MAX && is_kv_key(id) {
            key.push_str(id);
            return key;
        }
        key.push_str("sha256-");
        for byte in Sha256::digest(id) {
            // Writing to a string cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        key
    }

    fn pending(&self) -> Vec<u8> {
        let until = now_ms() + u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX / 2);
        let lease = serde_json::json!({"owner": self.owner, "until": until});
        format!("p{lease}").into_bytes()
    }

    /// What an existing record means.
    fn read(&self, entry: &Entry) -> Claim {
        match &entry.value[..] {
            b"d" | [1] => Claim::Done,
            other => {
                let lease: Option<Lease> = other.get(1..).and_then(|json| serde_json::from_slice(json).ok());
                // A claim of the original says nothing of its end: suppose that it lasts as long as ours.
                let until = lease.map_or_else(
                    || {
                        let created =
                            u64::try_from(entry.created.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
                        created + u64::try_from(self.lease.as_millis()).unwrap_or(0)
                    },
                    |lease| lease.until,
                );
                match until.checked_sub(now_ms()) {
                    Some(left) if left > 0 => {
                        Claim::InFlight(Duration::from_millis(left).min(LOOK_AGAIN_MAX))
                    }
                    _ => Claim::Acquired(entry.revision),
                }
            }
        }
    }

    async fn take_over(&self, key: &str, revision: u64) -> Result<Option<u64>> {
        match self.bucket.update(key, self.pending().into(), revision).await {
            Ok(revision) => Ok(Some(revision)),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
            Err(error) => Err(Error::reached(format!("claiming {key}"), error)),
        }
    }
}

impl DedupStore for KvStore {
    fn seen<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let key = self.key(id);
            let entry = self.bucket.entry(&key).await;
            let entry = entry.map_err(|error| Error::reached(format!("looking up {key}"), error))?;
            Ok(entry
                .is_some_and(|entry| entry.operation == Operation::Put && self.read(&entry) == Claim::Done))
        })
    }

    fn mark<'a>(&'a self, id: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = self.key(id);
            let put = self.bucket.put(&key, "d".into()).await;
            put.map(|_| ())
                .map_err(|error| Error::reached(format!("marking {key}"), error))
        })
    }
}

impl ClaimStore for KvStore {
    fn claim<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Claim> {
        Box::pin(async move {
            let key = self.key(id);
            // Two rounds: a record that is gone by the time it is read leaves room for a new one.
            for _ in 0..2 {
                match self.bucket.create(&key, self.pending().into()).await {
                    Ok(revision) => return Ok(Claim::Acquired(revision)),
                    Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
                    Err(error) => return Err(Error::reached(format!("claiming {key}"), error)),
                }
                let entry = self.bucket.entry(&key).await;
                let entry = entry.map_err(|error| Error::reached(format!("claiming {key}"), error))?;
                let Some(entry) = entry.filter(|entry| entry.operation == Operation::Put) else {
                    continue;
                };
                match self.read(&entry) {
                    Claim::Acquired(revision) => {
                        if let Some(revision) = self.take_over(&key, revision).await? {
                            return Ok(Claim::Acquired(revision));
                        }
                    }
                    settled => return Ok(settled),
                }
            }
            // Someone was quicker, both times.
            Ok(Claim::InFlight(self.lease.min(LOOK_AGAIN_MAX)))
        })
    }

    fn renew<'a>(&'a self, id: &'a str, revision: u64) -> StoreFuture<'a, Option<u64>> {
        Box::pin(async move { self.take_over(&self.key(id), revision).await })
    }

    fn release<'a>(&'a self, id: &'a str, revision: u64) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = self.key(id);
            match self.bucket.purge_expect_revision(&key, Some(revision)).await {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(()),
                Err(error) => Err(Error::reached(format!("releasing {key}"), error)),
            }
        })
    }

    fn lease(&self) -> Duration {
        self.lease
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
