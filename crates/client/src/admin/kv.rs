//! Key-value buckets and their keys.

use std::sync::Arc;

use async_nats::jetstream::kv::{Config, Entry, Operation, Store};
use bytes::Bytes;
use futures_util::StreamExt as _;
use time::OffsetDateTime;

use super::page;
use super::streams::StreamManager;
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::names::{validate_bucket_name, validate_kv_key};

const PREFIX: &str = "KV_";

/// What is known about a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketStatus {
    /// Its name.
    pub bucket: String,
    /// Values in it, older ones of the same key included.
    pub values: u64,
    /// Values kept for each key.
    pub history: i64,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvEntry {
    /// When it was written.
    pub created: OffsetDateTime,
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The value; empty for a key that was deleted.
    pub value: Bytes,
    /// Its revision.
    pub revision: u64,
    /// Whether this is the mark of a deleted key.
    pub deleted: bool,
}

impl From<Entry> for KvEntry {
    fn from(entry: Entry) -> Self {
        Self {
            created: entry.created,
            bucket: entry.bucket,
            key: entry.key,
            value: entry.value,
            revision: entry.revision,
            deleted: entry.operation != Operation::Put,
        }
    }
}

/// Manages key-value buckets.
#[derive(Debug, Clone)]
pub struct KeyValueManager {
    inner: Arc<Inner>,
}

impl KeyValueManager {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Creates a bucket, or makes an existing one like this. A history of 0 means 1.
    ///
    /// # Errors
    /// When the name is not valid, or the server refuses it.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn create_or_update(&self, mut config: Config) -> Result<Store> {
        validate_bucket_name(&config.bucket)?;
        config.history = config.history.max(1);
        config.num_replicas = config.num_replicas.max(1);
        let what = format!("creating or updating the bucket {}", config.bucket);
        self.inner
            .js
            .create_or_update_key_value(config)
            .await
            .map_err(|error| Error::reached(what, error))
    }

    /// Opens a bucket that exists.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn open(&self, bucket: &str) -> Result<Store> {
        // Asked first, because the official client's error does not say whether it is missing.
        self.bucket_info(bucket).await?;
        let opened = self.inner.js.get_key_value(bucket).await;
        opened.map_err(|error| Error::reached(format!("opening the bucket {bucket}"), error))
    }

    /// Deletes a bucket and everything in it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn delete(&self, bucket: &str) -> Result<()> {
        validate_bucket_name(bucket)?;
        let deleted = self.streams().delete(&format!("{PREFIX}{bucket}")).await;
        deleted.map_err(|error| not_found(error, bucket))
    }

    /// All buckets by name. One that vanishes meanwhile is left out.
    ///
    /// # Errors
    /// When the server does not answer, be it half way.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list_buckets(&self) -> Result<Vec<BucketStatus>> {
        let mut found = Vec::new();
        for name in self.streams().names().await? {
            let Some(bucket) = name.strip_prefix(PREFIX) else {
                continue;
            };
            match self.bucket_info(bucket).await {
                Ok(status) => found.push(status),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// What is known about a bucket, as it is now.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn bucket_info(&self, bucket: &str) -> Result<BucketStatus> {
        validate_bucket_name(bucket)?;
        let info = self.streams().info(&format!("{PREFIX}{bucket}")).await;
        let info = info.map_err(|error| not_found(error, bucket))?;
        Ok(BucketStatus {
            bucket: bucket.to_owned(),
            values: info.state.messages,
            history: info.config.max_messages_per_subject,
        })
    }

    fn streams(&self) -> StreamManager {
        StreamManager::new(Arc::clone(&self.inner))
    }
}

/// Reads and writes keys, by names of buckets.
#[derive(Debug, Clone)]
pub struct KeyValueKeys {
    buckets: KeyValueManager,
}

impl KeyValueKeys {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self {
            buckets: KeyValueManager::new(inner),
        }
    }

    /// Keys by name from `offset` on, at most `limit` of them, and how many there are. An empty bucket has none.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list_keys(
        &self,
        bucket: &str,
        offset: usize,
        limit: Option<usize>,
    ) -> Result<(Vec<String>, usize)> {
        let what = || format!("listing the keys of {bucket}");
        let store = self.buckets.open(bucket).await?;
        let mut keys = store
            .keys()
            .await
            .map_err(|error| Error::reached(what(), error))?;
        let mut names = Vec::new();
        while let Some(key) = keys.next().await {
            names.push(key.map_err(|error| Error::reached(what(), error))?);
        }
        names.sort();
        Ok(page(names, offset, limit))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when bucket or key is missing, or the key was deleted.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get(&self, bucket: &str, key: &str) -> Result<KvEntry> {
        validate_kv_key(key)?;
        let store = self.buckets.open(bucket).await?;
        let what = format!("reading {bucket}/{key}");
        let entry = store
            .entry(key)
            .await
            .map_err(|error| Error::reached(what.clone(), error))?;
        entry
            .filter(|entry| entry.operation == Operation::Put)
            .map(Into::into)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, what))
    }

    /// Writes a value and reads it back.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn put(&self, bucket: &str, key: &str, value: impl Into<Bytes>) -> Result<KvEntry> {
        validate_kv_key(key)?;
        let store = self.buckets.open(bucket).await?;
        let put = store.put(key, value.into()).await;
        put.map_err(|error| Error::reached(format!("writing {bucket}/{key}"), error))?;
        self.get(bucket, key).await
    }

    /// Deletes a key; its older values stay as history.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn delete_key(&self, bucket: &str, key: &str) -> Result<()> {
        validate_kv_key(key)?;
        let store = self.buckets.open(bucket).await?;
        let deleted = store.delete(key).await;
        deleted.map_err(|error| Error::reached(format!("deleting {bucket}/{key}"), error))
    }

    /// The values of a key that are kept, oldest first, marks of deletion included.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn history(&self, bucket: &str, key: &str) -> Result<Vec<KvEntry>> {
        validate_kv_key(key)?;
        let what = || format!("reading the history of {bucket}/{key}");
        let store = self.buckets.open(bucket).await?;
        let mut history = store
            .history(key)
            .await
            .map_err(|error| Error::reached(what(), error))?;
        let mut entries = Vec::new();
        while let Some(entry) = history.next().await {
            entries.push(entry.map_err(|error| Error::reached(what(), error))?.into());
        }
        Ok(entries)
    }
}

fn not_found(error: Error, bucket: &str) -> Error {
    if error.is_missing() {
        return Error::new(ErrorKind::NotFound, format!("looking up the bucket {bucket}")).because(error);
    }
    error
}
