//! Key-value buckets, by the conventions of the official clients, so that those read and write the same buckets.
//!
//! A bucket is a stream `KV_<bucket>` on `$KV.<bucket>.>`; a key's value is the newest message of its subject, its revision
//! that message's sequence. A deletion is a message with the header `KV-Operation`; a purge also rolls the subject up.
//!
//! Not here: buckets that are mirrors of others under another name, and key codecs.

mod bucket;
mod watch;

pub use bucket::{KeyValueConfig, KeyValueStatus};
pub use watch::Watch;

use std::time::Duration;

use bytes::Bytes;
use windjet_protocol::header::names;
use windjet_protocol::jetstream::{ApiError, ErrorCode, Timestamp};
use windjet_store::Matcher;

use super::ordered::{OrderedConfig, StartAt};
use super::read::{GetError, StreamMessage};
use super::{JetStreamContext, NewMessage, PublishError};

const DELETE: &str = "DEL";
const PURGE: &str = "PURGE";

/// What an entry says of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// It has this value.
    Put,
    /// It was deleted.
    Delete,
    /// It was deleted with its history, or its time was over.
    Purge,
}

/// A value of a key, or its deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value; empty for a deletion.
    pub value: Bytes,
    /// Its revision, which grows with every change in the bucket.
    pub revision: u64,
    /// When it was stored.
    pub created: Timestamp,
    /// What it says.
    pub operation: Operation,
}

/// Why a bucket did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyValueError {
    /// No such key can be: letters, digits and `-/_=.` make a key, without a dot at either end or two in a row.
    #[error("{0:?} cannot be a key: use letters, digits and -/_=. without a dot at an end or two in a row")]
    InvalidKey(String),
    /// No such bucket can be: letters, digits, `-` and `_` make a name.
    #[error("{0:?} cannot be a bucket: use letters, digits, - and _")]
    InvalidBucket(String),
    /// The history is not between 1 and 64.
    #[error("a bucket keeps between 1 and 64 values of a key, not {0}")]
    InvalidHistory(u8),
    /// The key exists, or does not have the revision that was expected.
    #[error("the key does not have the expected revision")]
    WrongRevision,
    /// The stream refused it.
    #[error("refused: {}", .0.description)]
    Api(ApiError),
    /// The change is not acknowledged.
    #[error(transparent)]
    Publish(PublishError),
    /// The bucket cannot be read.
    #[error(transparent)]
    Get(#[from] GetError),
}

impl From<PublishError> for KeyValueError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Refused(error)
                if error.is(ErrorCode::WrongLastSequence)
                    || error.is(ErrorCode::WrongLastSequenceUnknown) =>
            {
                Self::WrongRevision
            }
            other => Self::Publish(other),
        }
    }
}

impl From<ApiError> for KeyValueError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

/// A bucket. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use windjet_server::Server;
/// use windjet_server::jetstream::KeyValueConfig;
///
/// # let folder = std::env::temp_dir().join(format!("windjet-kv-doc-{}", std::process::id()));
/// let server = Server::builder().jetstream(&folder).start().await?;
/// let js = server.jetstream().ok_or("no JetStream")?;
/// let prices = js.create_key_value(KeyValueConfig::new("prices").history(5)).await?;
/// let first = prices.create("tea.green", "3.20").await?;
/// prices.update("tea.green", "3.40", first).await?;
/// assert_eq!(prices.get("tea.green").await?.as_deref(), Some(&b"3.40"[..]));
/// assert_eq!(prices.keys().await?, ["tea.green"]);
/// prices.delete("tea.green").await?;
/// assert_eq!(prices.get("tea.green").await?, None);
/// # server.shutdown(std::time::Duration::from_secs(5)).await;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct KeyValue {
    context: JetStreamContext,
    bucket: String,
    stream: String,
    prefix: String,
}

fn is_key(key: &str) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/' | b'_' | b'=' | b'.');
    !key.is_empty()
        && key.bytes().all(letters)
        && !key.starts_with('.')
        && !key.ends_with('.')
        && !key.contains("..")
}

/// A key, or a pattern of keys with `*` and `>`.
fn is_pattern(pattern: &str) -> bool {
    let plain: Vec<&str> = pattern.split('.').collect();
    plain.iter().enumerate().all(|(at, token)| match *token {
        "*" => true,
        ">" => at + 1 == plain.len(),
        token => is_key(token),
    })
}

impl KeyValue {
    fn new(context: JetStreamContext, bucket: &str) -> Self {
        Self {
            context,
            stream: format!("KV_{bucket}"),
            prefix: format!("$KV.{bucket}."),
            bucket: bucket.to_owned(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Name of its stream.
    #[must_use]
    pub fn stream_name(&self) -> &str {
        &self.stream
    }

    fn subject(&self, key: &str) -> Result<String, KeyValueError> {
        if !is_key(key) {
            return Err(KeyValueError::InvalidKey(key.to_owned()));
        }
        Ok(format!("{}{key}", self.prefix))
    }

    fn pattern(&self, pattern: &str) -> Result<String, KeyValueError> {
        if !is_pattern(pattern) {
            return Err(KeyValueError::InvalidKey(pattern.to_owned()));
        }
        Ok(format!("{}{pattern}", self.prefix))
    }

    fn entry(&self, message: &StreamMessage) -> Entry {
        let subject = message.subject_str();
        let operation = match message.header(names::KV_OPERATION) {
            Some(DELETE) => Operation::Delete,
            Some(PURGE) => Operation::Purge,
            // What the server puts where a message ended.
            _ => match message.header(names::MARKER_REASON) {
                Some("MaxAge" | "Purge") => Operation::Purge,
                Some("Remove") => Operation::Delete,
                _ => Operation::Put,
            },
        };
        Entry {
            key: subject.strip_prefix(&self.prefix).unwrap_or(&subject).to_owned(),
            value: message.payload.clone(),
            revision: message.sequence,
            created: message.timestamp,
            operation,
        }
    }

    async fn send(&self, message: NewMessage) -> Result<u64, KeyValueError> {
        let stored = self.context.publish_message(&self.stream, &message)?.await?;
        Ok(stored.seq)
    }

    /// The value of a key; `None` when it has none.
    ///
    /// # Errors
    /// An impossible key; no such bucket; the value cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, KeyValueError> {
        let entry = self.entry_of(key).await?;
        Ok(entry
            .filter(|entry| entry.operation == Operation::Put)
            .map(|entry| entry.value))
    }

    /// The newest entry of a key, which may be a deletion; `None` when it has none.
    ///
    /// # Errors
    /// As [`KeyValue::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn entry_of(&self, key: &str) -> Result<Option<Entry>, KeyValueError> {
        let subject = self.subject(key)?;
        let message = self.context.last_message(&self.stream, &subject).await?;
        Ok(message.map(|message| self.entry(&message)))
    }

    /// The entry of a key with a revision, if it is still kept.
    ///
    /// # Errors
    /// As [`KeyValue::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn entry_at(&self, key: &str, revision: u64) -> Result<Option<Entry>, KeyValueError> {
        let subject = self.subject(key)?;
        let message = self.context.get_message(&self.stream, revision).await?;
        Ok(message
            .filter(|message| message.subject == subject.as_bytes())
            .map(|message| self.entry(&message)))
    }

    /// Gives a key a value; its revision, durable when this returns.
    ///
    /// # Errors
    /// An impossible key; no such bucket; the value is not acknowledged.
    ///
    /// # Cancel safety
    /// Dropped early, the value may be stored or not. So it is with every change below.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<u64, KeyValueError> {
        self.send(NewMessage::new(self.subject(key)?, value)).await
    }

    /// Gives a key its first value, also one that was deleted.
    ///
    /// # Errors
    /// [`KeyValueError::WrongRevision`] when it has a value; as [`KeyValue::put`].
    pub async fn create(&self, key: &str, value: impl Into<Bytes>) -> Result<u64, KeyValueError> {
        self.create_as(NewMessage::new(self.subject(key)?, value), key)
            .await
    }

    /// The same with a time after which the value ends. The bucket must allow it ([`KeyValueConfig::limit_markers`]).
    ///
    /// # Errors
    /// As [`KeyValue::create`].
    pub async fn create_with_ttl(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        ttl: Duration,
    ) -> Result<u64, KeyValueError> {
        let message = NewMessage::new(self.subject(key)?, value).ttl(ttl);
        self.create_as(message, key).await
    }

    async fn create_as(&self, message: NewMessage, key: &str) -> Result<u64, KeyValueError> {
        let first = message.clone().expect_last_subject_sequence(0);
        match self.send(first).await {
            Err(KeyValueError::WrongRevision) => {}
            other => return other,
        }
        match self.entry_of(key).await? {
            Some(entry) if entry.operation != Operation::Put => {
                self.send(message.expect_last_subject_sequence(entry.revision))
                    .await
            }
            _ => Err(KeyValueError::WrongRevision),
        }
    }

    /// Gives a key a value, if its newest entry has a revision; 0 for a key without entries.
    ///
    /// # Errors
    /// [`KeyValueError::WrongRevision`]; as [`KeyValue::put`].
    pub async fn update(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        revision: u64,
    ) -> Result<u64, KeyValueError> {
        let message = NewMessage::new(self.subject(key)?, value);
        self.send(message.expect_last_subject_sequence(revision)).await
    }

    /// Deletes a key; its history stays.
    ///
    /// # Errors
    /// As [`KeyValue::put`].
    pub async fn delete(&self, key: &str) -> Result<u64, KeyValueError> {
        self.send(self.deletion(key)?).await
    }

    /// Deletes a key, if its newest entry has a revision.
    ///
    /// # Errors
    /// [`KeyValueError::WrongRevision`]; as [`KeyValue::put`].
    pub async fn delete_at(&self, key: &str, revision: u64) -> Result<u64, KeyValueError> {
        let message = self.deletion(key)?;
        self.send(message.expect_last_subject_sequence(revision)).await
    }

    fn deletion(&self, key: &str) -> Result<NewMessage, KeyValueError> {
        let message = NewMessage::new(self.subject(key)?, Bytes::new());
        Ok(message.plain(names::KV_OPERATION, DELETE.to_owned()))
    }

    fn purging(&self, key: &str) -> Result<NewMessage, KeyValueError> {
        let message = NewMessage::new(self.subject(key)?, Bytes::new());
        Ok(message
            .plain(names::KV_OPERATION, PURGE.to_owned())
            .rollup_subject())
    }

    /// Deletes a key with its history.
    ///
    /// # Errors
    /// As [`KeyValue::put`].
    pub async fn purge(&self, key: &str) -> Result<u64, KeyValueError> {
        self.send(self.purging(key)?).await
    }

    /// The same; what is left of the key goes after a time. The bucket must allow it ([`KeyValueConfig::limit_markers`]).
    ///
    /// # Errors
    /// As [`KeyValue::put`].
    pub async fn purge_with_ttl(&self, key: &str, ttl: Duration) -> Result<u64, KeyValueError> {
        self.send(self.purging(key)?.ttl(ttl)).await
    }

    /// Keys that have a value, in order.
    ///
    /// # Errors
    /// No such bucket; an entry cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn keys(&self) -> Result<Vec<String>, KeyValueError> {
        let reader = self.context.reader(&self.stream)?;
        let pattern = format!("{}>", self.prefix);
        let last = reader.state().last_seq;
        // No bound: as many keys as there are.
        let seqs = reader.multi_last(&mut Matcher::new([&pattern]), last, usize::MAX);
        let mut keys = Vec::new();
        for seq in seqs.unwrap_or_default() {
            if let Some(message) = self.context.get_message(&self.stream, seq).await? {
                let entry = self.entry(&message);
                if entry.operation == Operation::Put {
                    keys.push(entry.key);
                }
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Everything that is kept of a key, oldest first, deletions included.
    ///
    /// # Errors
    /// An impossible key; no such bucket; an entry cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn history(&self, key: &str) -> Result<Vec<Entry>, KeyValueError> {
        let subject = self.subject(key)?;
        let messages = self
            .context
            .read_messages(&self.stream, 0, &[&subject], usize::MAX)
            .await?;
        Ok(messages.iter().map(|message| self.entry(message)).collect())
    }

    /// The newest entry of each key that matches, such as `tea.*`, and then what changes.
    ///
    /// # Errors
    /// An impossible pattern; no such bucket.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn watch(&self, pattern: &str) -> Result<Watch, KeyValueError> {
        self.watch_from(pattern, StartAt::LastPerSubject).await
    }

    /// All that is kept of the keys that match, and then what changes.
    ///
    /// # Errors
    /// As [`KeyValue::watch`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn watch_with_history(&self, pattern: &str) -> Result<Watch, KeyValueError> {
        self.watch_from(pattern, StartAt::First).await
    }

    /// Only what changes.
    ///
    /// # Errors
    /// As [`KeyValue::watch`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn watch_changes(&self, pattern: &str) -> Result<Watch, KeyValueError> {
        self.watch_from(pattern, StartAt::New).await
    }

    async fn watch_from(&self, pattern: &str, start: StartAt) -> Result<Watch, KeyValueError> {
        let config = OrderedConfig::default()
            .filter(self.pattern(pattern)?)
            .start(start);
        let messages = self.context.ordered(&self.stream, config).await?;
        Ok(Watch::new(self.clone(), messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_a_key_and_what_a_pattern() {
        for key in ["a", "a.b", "A/b=c_d-e.9"] {
            assert!(is_key(key) && is_pattern(key), "{key}");
        }
        for key in ["", ".a", "a.", "a..b", "a b", "a*", "ä", "$a"] {
            assert!(!is_key(key) && !is_pattern(key), "{key}");
        }
        for pattern in ["*", ">", "a.*", "a.>", "*.b"] {
            assert!(!is_key(pattern) && is_pattern(pattern), "{pattern}");
        }
        assert!(!is_pattern(">.a"));
    }
}
