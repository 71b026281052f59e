//! Streams.

use std::sync::Arc;

use async_nats::jetstream::stream::{Config, Info};
use serde::Deserialize;
use serde_json::{Value, json};

use super::stored::{Answer, StoredMessage};
use super::{all_names, page};
use crate::client::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::names::{validate_stream_name, validate_subject};

/// Manages streams.
#[derive(Debug, Clone)]
pub struct StreamManager {
    inner: Arc<Inner>,
}

#[derive(Debug, Deserialize)]
struct Purged {
    purged: u64,
}

impl StreamManager {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Creates a stream, or makes an existing one like this: every field is replaced, except that an unset number of
    /// replicas keeps what is there. To change a field only, use [`StreamManager::update_with`].
    ///
    /// # Errors
    /// When the name is not valid, or the server refuses it.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn create_or_update(&self, mut config: Config) -> Result<Info> {
        match self.info(&config.name).await {
            Ok(existing) => {
                if config.num_replicas == 0 {
                    config.num_replicas = existing.config.num_replicas;
                }
                self.update(&config).await
            }
            Err(error) if error.kind() == ErrorKind::StreamNotFound => {
                config.num_replicas = config.num_replicas.max(1);
                self.add(&config).await
            }
            Err(error) => Err(error),
        }
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] when there is another one of this name.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn add(&self, config: &Config) -> Result<Info> {
        validate_stream_name(&config.name)?;
        let what = format!("creating the stream {}", config.name);
        self.inner
            .api(&what, format!("STREAM.CREATE.{}", config.name), config)
            .await
    }

    /// Replaces the settings of a stream.
    ///
    /// # Errors
    /// When there is none of this name, or the server refuses the change.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn update(&self, config: &Config) -> Result<Info> {
        validate_stream_name(&config.name)?;
        let what = format!("updating the stream {}", config.name);
        self.inner
            .api(&what, format!("STREAM.UPDATE.{}", config.name), config)
            .await
    }

    /// Reads the settings of a stream, changes them and writes them back: what `change` does not touch stays.
    ///
    /// # Errors
    /// As [`StreamManager::update`].
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn update_with(&self, name: &str, change: impl FnOnce(&mut Config)) -> Result<Info> {
        let mut config = self.info(name).await?.config;
        change(&mut config);
        self.update(&config).await
    }

    /// Deletes a stream and everything in it.
    ///
    /// # Errors
    /// [`ErrorKind::StreamNotFound`].
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn delete(&self, name: &str) -> Result<()> {
        validate_stream_name(name)?;
        let what = format!("deleting the stream {name}");
        let _: Value = self
            .inner
            .api(&what, format!("STREAM.DELETE.{name}"), &json!({}))
            .await?;
        Ok(())
    }

    /// A stream's settings and state.
    ///
    /// # Errors
    /// [`ErrorKind::StreamNotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn info(&self, name: &str) -> Result<Info> {
        validate_stream_name(name)?;
        let what = format!("looking up the stream {name}");
        self.inner
            .api(&what, format!("STREAM.INFO.{name}"), &json!({}))
            .await
    }

    /// All names, sorted.
    ///
    /// # Errors
    /// When the server does not answer, be it half way.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn names(&self) -> Result<Vec<String>> {
        all_names(&self.inner, "listing streams", "STREAM.NAMES", "streams").await
    }

    /// Streams by name from `offset` on, at most `limit` of them, and how many names there are. One that vanishes
    /// meanwhile is left out.
    ///
    /// # Errors
    /// As [`StreamManager::names`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list_page(&self, offset: usize, limit: Option<usize>) -> Result<(Vec<Info>, usize)> {
        let (names, total) = page(self.names().await?, offset, limit);
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match self.info(&name).await {
                Ok(info) => found.push(info),
                Err(error) if error.kind() == ErrorKind::StreamNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((found, total))
    }

    /// All streams by name.
    ///
    /// # Errors
    /// As [`StreamManager::names`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn list(&self) -> Result<Vec<Info>> {
        Ok(self.list_page(0, None).await?.0)
    }

    /// Removes all messages, or those of a subject; gives their number.
    ///
    /// # Errors
    /// When the subject is not valid, or there is no such stream.
    ///
    /// # Cancel safety
    /// Dropped early, it may have happened or not.
    pub async fn purge(&self, name: &str, subject: Option<&str>) -> Result<u64> {
        validate_stream_name(name)?;
        let question = match subject {
            Some(subject) => {
                validate_subject(subject)?;
                json!({"filter": subject})
            }
            None => json!({}),
        };
        let what = format!("purging the stream {name}");
        let done: Purged = self
            .inner
            .api(&what, format!("STREAM.PURGE.{name}"), &question)
            .await?;
        Ok(done.purged)
    }

    /// The message of a sequence.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get_message(&self, stream: &str, sequence: u64) -> Result<StoredMessage> {
        self.read(stream, &json!({"seq": sequence})).await
    }

    /// The last message of a subject, which may have wildcards.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get_last_message(&self, stream: &str, subject: &str) -> Result<StoredMessage> {
        validate_subject(subject)?;
        self.read(stream, &json!({"last_by_subj": subject})).await
    }

    /// The next message after a sequence, in one call whatever lies between.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] past the end.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn get_next_message_after(&self, stream: &str, sequence: u64) -> Result<StoredMessage> {
        self.read(
            stream,
            &json!({"seq": sequence.saturating_add(1), "next_by_subj": ">"}),
        )
        .await
    }

    /// Reads one message, whichever way the question selects it.
    pub(crate) async fn read(&self, stream: &str, question: &Value) -> Result<StoredMessage> {
        validate_stream_name(stream)?;
        let what = format!("reading a message of the stream {stream}");
        let answer: Answer = self
            .inner
            .api(&what, format!("STREAM.MSG.GET.{stream}"), question)
            .await?;
        answer.read(&what)
    }

    /// As an answer of `None`: not found.
    pub(crate) async fn find(&self, stream: &str, question: &Value) -> Result<Option<StoredMessage>> {
        match self.read(stream, question).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Error {
    /// Whether the stream or the consumer is not there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::StreamNotFound | ErrorKind::ConsumerNotFound
        )
    }
}
