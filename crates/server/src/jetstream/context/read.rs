//! Stored messages, read from committed state without a consumer.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::header::block;
use windjet_protocol::jetstream::Timestamp;
use windjet_store::{Found, Matcher, Message, ReadError, StreamReader};

use super::JetStreamContext;
use crate::jetstream::JetStream;
use crate::jetstream::medium::off_thread;

/// A message as it is stored.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamMessage {
    /// Its subject.
    pub subject: Bytes,
    /// Its header block in wire form, empty for none.
    pub headers: Bytes,
    /// Its payload.
    pub payload: Bytes,
    /// Its sequence.
    pub sequence: u64,
    /// When it was stored.
    pub timestamp: Timestamp,
}

impl fmt::Debug for StreamMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamMessage")
            .field("subject", &self.subject)
            .field("sequence", &self.sequence)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl StreamMessage {
    pub(super) fn new(message: &Message) -> Self {
        Self {
            subject: message.subject(),
            headers: message.headers(),
            payload: message.payload(),
            sequence: message.seq(),
            timestamp: Timestamp::from_unix_nanos(message.time()),
        }
    }

    /// The subject as text; what is no UTF-8 in it is replaced.
    #[must_use]
    pub fn subject_str(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.subject)
    }

    /// The first value of a header, if it is there and text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        block::find(&self.headers, name).and_then(|value| std::str::from_utf8(value).ok())
    }
}

/// Why a message was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// There is no such stream, or it was deleted.
    #[error("there is no stream {0:?}")]
    NoStream(String),
    /// The message is damaged on the disk; the others can be read.
    #[error("the message with sequence {sequence} is damaged")]
    Damaged {
        /// Its sequence.
        sequence: u64,
    },
    /// The disk failed; the message may be readable later.
    #[error("a message cannot be read now: {0}")]
    Unreadable(String),
    /// The server goes down.
    #[error("the server shuts down")]
    Shutdown,
}

impl From<ReadError> for GetError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { seq } => Self::Damaged { sequence: seq },
            other => Self::Unreadable(other.to_string()),
        }
    }
}

/// A message with a sequence, from memory or from the disk on a thread that may wait.
pub(super) async fn load(
    js: &Arc<JetStream>,
    reader: &StreamReader,
    seq: u64,
) -> Result<Option<Message>, ReadError> {
    match reader.read(seq) {
        Found::InMemory(message) => Ok(Some(message)),
        Found::Absent => Ok(None),
        Found::NeedsDisk(ticket) => {
            let _permit = js.reads.acquire().await;
            let interrupted = |_| Err(ReadError::Io(std::io::ErrorKind::Interrupted.into()));
            off_thread(move || ticket.read())
                .await
                .unwrap_or_else(interrupted)
        }
    }
}

impl JetStreamContext {
    pub(crate) fn reader(&self, stream: &str) -> Result<StreamReader, GetError> {
        let found = self.account.stream(stream);
        let stream = found.ok_or_else(|| GetError::NoStream(stream.to_owned()))?;
        Ok(stream.reader.clone())
    }

    async fn load(&self, reader: &StreamReader, seq: u64) -> Result<Option<StreamMessage>, GetError> {
        let message = load(&self.js, reader, seq).await?;
        Ok(message.as_ref().map(StreamMessage::new))
    }

    /// The message with a sequence, if there is one.
    ///
    /// # Errors
    /// No such stream; a damaged or unreadable message.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get_message(&self, stream: &str, sequence: u64) -> Result<Option<StreamMessage>, GetError> {
        self.load(&self.reader(stream)?, sequence).await
    }

    /// The newest message whose subject matches, if there is one.
    ///
    /// # Errors
    /// No such stream; a damaged or unreadable message.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn last_message(&self, stream: &str, subject: &str) -> Result<Option<StreamMessage>, GetError> {
        let reader = self.reader(stream)?;
        loop {
            let Some(seq) = reader.last_match(&mut Matcher::new([subject])) else {
                return Ok(None);
            };
            // One that goes meanwhile leaves another as the last.
            if let Some(message) = self.load(&reader, seq).await? {
                return Ok(Some(message));
            }
        }
    }

    /// The first message from a sequence on whose subject matches one of the filters, or any without a filter.
    ///
    /// # Errors
    /// No such stream; a damaged or unreadable message.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn next_message(
        &self,
        stream: &str,
        from_sequence: u64,
        filters: &[&str],
    ) -> Result<Option<StreamMessage>, GetError> {
        let batch = self.read_messages(stream, from_sequence, filters, 1).await?;
        Ok(batch.into_iter().next())
    }

    /// Up to `max` messages from a sequence on, in order: for a replay, go on after the last one's sequence until there are
    /// none.
    ///
    /// # Errors
    /// No such stream; a damaged or unreadable message, where none was read before it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read_messages(
        &self,
        stream: &str,
        from_sequence: u64,
        filters: &[&str],
        max: usize,
    ) -> Result<Vec<StreamMessage>, GetError> {
        let reader = self.reader(stream)?;
        let mut matcher = Matcher::new(filters.iter());
        let (mut from, mut out) = (from_sequence, Vec::new());
        while out.len() < max {
            let mut seqs = Vec::new();
            reader.next_matches(&mut matcher, from, (max - out.len()).min(1024), &mut seqs);
            let Some(last) = seqs.last() else { break };
            from = last + 1;
            for seq in seqs {
                match self.load(&reader, seq).await {
                    Ok(message) => out.extend(message),
                    Err(_) if !out.is_empty() => return Ok(out),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(out)
    }
}
