//! Object buckets and their objects.

use std::sync::Arc;

use async_nats::jetstream::object_store::{Config, InfoErrorKind, ObjectStore};
use bytes::Bytes;
use futures_util::StreamExt as _;
use time::OffsetDateTime;
use tokio::io::AsyncReadExt as _;

use super::page;
use super::streams::StreamManager;
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::names::validate_bucket_name;

const PREFIX: &str = "OBJ_";
/// Larger objects are read through [`ObjectManager::open`], in pieces.
pub(crate) const OBJECT_MAX: usize = 64 << 20;

/// What is known about a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectBucketStatus {
    /// Its name.
    pub bucket: String,
    /// What it says about itself.
    pub description: String,
    /// Bytes in it.
    pub size: u64,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectEntry {
    /// When it was written.
    pub modified: Option<OffsetDateTime>,
    /// The bucket.
    pub bucket: String,
    /// The name.
    pub name: String,
    /// The content.
    pub data: Bytes,
    /// Its size.
    pub size: u64,
}

/// Manages object buckets and objects.
#[derive(Debug, Clone)]
pub struct ObjectManager {
    inner: Arc<Inner>,
}

impl ObjectManager {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Creates a bucket.
    ///
    /// # Errors
    /// When the name is not valid, or the server refuses it.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn create(&self, mut config: Config) -> Result<ObjectBucketStatus> {
        validate_bucket_name(&config.bucket)?;
        config.num_replicas = config.num_replicas.max(1);
        let bucket = config.bucket.clone();
        let created = self.inner.js.create_object_store(config).await;
        created.map_err(|error| Error::reached(format!("creating the bucket {bucket}"), error))?;
        self.bucket_info(&bucket).await
    }

    /// The official client's handle, which reads and writes in pieces.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn open(&self, bucket: &str) -> Result<ObjectStore> {
        self.bucket_info(bucket).await?;
        let opened = self.inner.js.get_object_store(bucket).await;
        opened.map_err(|error| Error::reached(format!("opening the bucket {bucket}"), error))
    }

    /// All buckets by name. One that vanishes meanwhile is left out.
    ///
    /// # Errors
    /// When the server does not answer, be it half way.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list_buckets(&self) -> Result<Vec<ObjectBucketStatus>> {
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
    pub async fn bucket_info(&self, bucket: &str) -> Result<ObjectBucketStatus> {
        validate_bucket_name(bucket)?;
        let info = self.streams().info(&format!("{PREFIX}{bucket}")).await;
        let info = info.map_err(|error| missing(error, bucket))?;
        Ok(ObjectBucketStatus {
            bucket: bucket.to_owned(),
            description: info.config.description.unwrap_or_default(),
            size: info.state.bytes,
        })
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
        deleted.map_err(|error| missing(error, bucket))
    }

    /// Objects by name from `offset` on, at most `limit` of them, and how many there are. An empty bucket has none.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list_objects(
        &self,
        bucket: &str,
        offset: usize,
        limit: Option<usize>,
    ) -> Result<(Vec<String>, usize)> {
        let what = || format!("listing the objects of {bucket}");
        let store = self.open(bucket).await?;
        let mut list = store
            .list()
            .await
            .map_err(|error| Error::reached(what(), error))?;
        let mut names = Vec::new();
        while let Some(object) = list.next().await {
            names.push(object.map_err(|error| Error::reached(what(), error))?.name);
        }
        names.sort();
        Ok(page(names, offset, limit))
    }

    /// An object in one piece, up to 64 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::PayloadTooLarge`], before anything is read when the object says so itself; [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get(&self, bucket: &str, name: &str) -> Result<ObjectEntry> {
        let what = || format!("reading the object {bucket}/{name}");
        check(name)?;
        let store = self.open(bucket).await?;
        let info = store.info(name).await.map_err(|error| {
            if error.kind() == InfoErrorKind::NotFound {
                return Error::new(ErrorKind::NotFound, what()).because(error);
            }
            Error::reached(what(), error)
        })?;
        if info.deleted {
            return Err(Error::new(ErrorKind::NotFound, what()));
        }
        if info.size > OBJECT_MAX {
            return Err(Error::new(ErrorKind::PayloadTooLarge, what()));
        }
        let object = store
            .get(name)
            .await
            .map_err(|error| Error::reached(what(), error))?;
        let mut data = Vec::new();
        // What it says about its size need not be true.
        let read = object.take(OBJECT_MAX as u64 + 1).read_to_end(&mut data).await;
        read.map_err(|error| Error::new(ErrorKind::Protocol, what()).because(error))?;
        if data.len() > OBJECT_MAX {
            return Err(Error::new(ErrorKind::PayloadTooLarge, what()));
        }
        Ok(ObjectEntry {
            modified: info.modified,
            bucket: bucket.to_owned(),
            name: name.to_owned(),
            size: data.len() as u64,
            data: data.into(),
        })
    }

    /// Writes an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn put(&self, bucket: &str, name: &str, data: impl Into<Bytes>) -> Result<ObjectEntry> {
        let what = || format!("writing the object {bucket}/{name}");
        check(name)?;
        let data = data.into();
        let store = self.open(bucket).await?;
        let mut reader = &data[..];
        let info = store
            .put(name, &mut reader)
            .await
            .map_err(|error| Error::reached(what(), error))?;
        Ok(ObjectEntry {
            modified: info.modified,
            bucket: bucket.to_owned(),
            name: name.to_owned(),
            size: info.size as u64,
            data,
        })
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such bucket.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn delete_object(&self, bucket: &str, name: &str) -> Result<()> {
        check(name)?;
        let store = self.open(bucket).await?;
        let deleted = store.delete(name).await;
        deleted.map_err(|error| Error::reached(format!("deleting the object {bucket}/{name}"), error))
    }

    fn streams(&self) -> StreamManager {
        StreamManager::new(Arc::clone(&self.inner))
    }
}

fn check(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::InvalidObjectName, "naming an object"));
    }
    Ok(())
}

fn missing(error: Error, bucket: &str) -> Error {
    if error.is_missing() {
        return Error::new(ErrorKind::NotFound, format!("looking up the bucket {bucket}")).because(error);
    }
    error
}
