//! Buckets as a whole: creation, status, end.

use std::time::Duration;

use windjet_protocol::jetstream::{
    ApiError, Compression, DiscardPolicy, ErrorCode, Metadata, Nanos, StorageType, StreamConfig, StreamInfo,
};

use super::{KeyValue, KeyValueError};
use crate::jetstream::JetStreamContext;

/// What a bucket is like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyValueConfig {
    /// Its name.
    pub bucket: String,
    /// Free text.
    pub description: String,
    /// Values kept of a key, from 1 to 64. Default 1.
    pub history: u8,
    /// Time after which values end. Default: never.
    pub ttl: Option<Duration>,
    /// Bytes of one value at most. Default: no bound.
    pub max_value_size: Option<i32>,
    /// Bytes of all at most. Default: no bound.
    pub max_bytes: Option<i64>,
    /// Whether to keep it in memory only. Default false.
    pub memory: bool,
    /// Whether to compress it on the disk. Default false.
    pub compression: bool,
    /// How long deletions by time are told of. With it, values and purges may have a time of their own.
    pub limit_markers: Option<Duration>,
    /// Free pairs of texts.
    pub metadata: Metadata,
}

impl KeyValueConfig {
    /// A bucket with this name and all defaults.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            description: String::new(),
            history: 1,
            ttl: None,
            max_value_size: None,
            max_bytes: None,
            memory: false,
            compression: false,
            limit_markers: None,
            metadata: Metadata::default(),
        }
    }

    /// Keep so many values of a key.
    #[must_use]
    pub fn history(mut self, values: u8) -> Self {
        self.history = values;
        self
    }

    /// End values after this time.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Tell of deletions by time for so long, and let values have a time of their own.
    #[must_use]
    pub fn limit_markers(mut self, kept: Duration) -> Self {
        self.limit_markers = Some(kept);
        self
    }

    /// Keep it in memory only.
    #[must_use]
    pub fn memory(mut self) -> Self {
        self.memory = true;
        self
    }

    fn stream(self) -> Result<StreamConfig, KeyValueError> {
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if self.bucket.is_empty() || !self.bucket.bytes().all(letters) {
            return Err(KeyValueError::InvalidBucket(self.bucket));
        }
        if !(1..=64).contains(&self.history) {
            return Err(KeyValueError::InvalidHistory(self.history));
        }
        let nanos = |time: Duration| Nanos(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
        let max_age = self.ttl.map_or(Nanos(0), nanos);
        let window = nanos(Duration::from_secs(120));
        Ok(StreamConfig {
            name: format!("KV_{}", self.bucket),
            subjects: vec![format!("$KV.{}.>", self.bucket)],
            description: self.description,
            max_msgs_per_subject: i64::from(self.history),
            max_age,
            max_msg_size: self.max_value_size.unwrap_or(-1),
            max_bytes: self.max_bytes.unwrap_or(-1),
            discard: DiscardPolicy::New,
            duplicate_window: if max_age.is_positive() && max_age < window {
                max_age
            } else {
                window
            },
            storage: if self.memory {
                StorageType::Memory
            } else {
                StorageType::File
            },
            compression: if self.compression {
                Compression::S2
            } else {
                Compression::None
            },
            allow_rollup_hdrs: true,
            deny_delete: true,
            allow_direct: true,
            allow_msg_ttl: self.limit_markers.is_some(),
            subject_delete_marker_ttl: self.limit_markers.map_or(Nanos(0), nanos),
            metadata: self.metadata,
            ..StreamConfig::default()
        })
    }
}

/// What a bucket is and holds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeyValueStatus {
    /// Its name.
    pub bucket: String,
    /// Entries that are kept, deletions included.
    pub values: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Values kept of a key.
    pub history: i64,
    /// Time after which values end.
    pub ttl: Option<Duration>,
    /// Its stream.
    pub stream: StreamInfo,
}

impl JetStreamContext {
    /// Creates a bucket, or finds the one there is with the same configuration.
    ///
    /// # Errors
    /// What is wrong with the configuration; a bucket of that name with another one.
    ///
    /// # Cancel safety
    /// Dropped early, the bucket may exist or not.
    pub async fn create_key_value(&self, config: KeyValueConfig) -> Result<KeyValue, KeyValueError> {
        let bucket = config.bucket.clone();
        self.create_stream(config.stream()?).await?;
        Ok(KeyValue::new(self.clone(), &bucket))
    }

    /// Gives a bucket another configuration.
    ///
    /// # Errors
    /// No such bucket; what is wrong with the configuration.
    ///
    /// # Cancel safety
    /// Dropped early, the change may be made or not.
    pub async fn update_key_value(&self, config: KeyValueConfig) -> Result<KeyValue, KeyValueError> {
        let bucket = config.bucket.clone();
        self.update_stream(config.stream()?).await?;
        Ok(KeyValue::new(self.clone(), &bucket))
    }

    /// A bucket that exists.
    ///
    /// # Errors
    /// No such bucket, or a stream of its name that is none.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn key_value(&self, bucket: &str) -> Result<KeyValue, KeyValueError> {
        let kv = KeyValue::new(self.clone(), bucket);
        let info = self.stream_info(&kv.stream).await?;
        if info.config.max_msgs_per_subject < 1 {
            return Err(KeyValueError::Api(ErrorCode::StreamNotFound.error()));
        }
        Ok(kv)
    }

    /// Ends a bucket with all its values.
    ///
    /// # Errors
    /// No such bucket.
    ///
    /// # Cancel safety
    /// Dropped early, the bucket may be gone or not.
    pub async fn delete_key_value(&self, bucket: &str) -> Result<(), ApiError> {
        self.delete_stream(&format!("KV_{bucket}")).await
    }
}

impl KeyValue {
    /// What it is and holds.
    ///
    /// # Errors
    /// It is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn status(&self) -> Result<KeyValueStatus, ApiError> {
        let stream = self.context.stream_info(&self.stream).await?;
        Ok(KeyValueStatus {
            bucket: self.bucket.clone(),
            values: stream.state.messages,
            bytes: stream.state.bytes,
            history: stream.config.max_msgs_per_subject,
            ttl: Some(stream.config.max_age)
                .filter(|age| age.is_positive())
                .map(Nanos::to_std),
            stream,
        })
    }
}
