//! A message as an in-process client receives it.

use std::str::Utf8Error;

use bytes::Bytes;
use windjet_protocol::header::{HeaderError, HeaderMap};

/// A received message. Cloning it copies no payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The subject it was published to, after mapping.
    pub subject: Bytes,
    /// Where replies go, if the publisher wants any.
    pub reply: Option<Bytes>,
    /// The payload.
    pub payload: Bytes,
    pub(crate) header_block: Bytes,
}

impl Message {
    /// The subject as text.
    ///
    /// # Errors
    ///
    /// When the subject is not UTF-8, which the protocol allows.
    pub fn subject_str(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.subject)
    }

    /// The headers; `None` when the message has none.
    ///
    /// # Errors
    ///
    /// When the publisher sent a header block that cannot be parsed; the server passes such blocks on unchanged.
    pub fn headers(&self) -> Result<Option<HeaderMap>, HeaderError> {
        if self.header_block.is_empty() {
            Ok(None)
        } else {
            HeaderMap::parse(self.header_block.clone()).map(Some)
        }
    }

    /// The header block as it came: `NATS/1.0`, lines, and the closing blank line. Empty when there are no headers.
    #[must_use]
    pub fn header_block(&self) -> &Bytes {
        &self.header_block
    }

    /// Bytes that the message counts for in its mailbox.
    pub(crate) fn size(&self) -> usize {
        self.header_block.len() + self.payload.len() + self.subject.len()
    }
}
