//! A message as it lies in its stream.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::{Error, ErrorKind, Result};
use crate::message::{MessageType, header_name};

/// A message read from a stream by its sequence. The payload is as stored, compressed if it was.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredMessage {
    /// When it was stored.
    pub time: OffsetDateTime,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its subject.
    pub subject: String,
    /// Its payload.
    pub data: Bytes,
    /// Its sequence.
    pub sequence: u64,
    /// How the payload is encoded, as the headers say.
    pub message_type: MessageType,
}

/// What the API answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    message: Raw,
}

#[derive(Debug, Deserialize)]
struct Raw {
    subject: String,
    seq: u64,
    #[serde(default)]
    data: String,
    #[serde(default)]
    hdrs: String,
    time: String,
}

impl Answer {
    pub(crate) fn read(self, what: &str) -> Result<StoredMessage> {
        let broken = |error: String| Error::new(ErrorKind::Protocol, what).because(error);
        let bytes = |text: &str| STANDARD.decode(text).map_err(|error| broken(error.to_string()));
        let headers = headers(&bytes(&self.message.hdrs)?);
        let time =
            OffsetDateTime::parse(&self.message.time, &Rfc3339).map_err(|error| broken(error.to_string()))?;
        Ok(StoredMessage {
            time,
            message_type: MessageType::from_headers(Some(&headers)),
            headers,
            subject: self.message.subject,
            data: bytes(&self.message.data)?.into(),
            sequence: self.message.seq,
        })
    }
}

/// Headers of a stored message. Lines that are none are left out.
fn headers(block: &[u8]) -> HeaderMap {
    let mut map = HeaderMap::new();
    let text = String::from_utf8_lossy(block);
    for line in text.split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(':')
            && let Some(name) = header_name(name)
            && let Ok(value) = value.trim().parse::<async_nats::HeaderValue>()
        {
            map.append(name, value);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_read_with_all_their_values() {
        let map = headers(b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB:x:y \r\nno header\r\n\r\n");
        let all: Vec<_> = map.get_all("A").map(|value| value.as_str().to_owned()).collect();
        assert_eq!(all, ["1", "2"]);
        assert_eq!(map.get("B").unwrap().as_str(), "x:y");
        assert_eq!(map.len(), 2);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(block in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = headers(&block);
        }
    }
}
