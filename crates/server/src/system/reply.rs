//! Answers to requests: the envelope, errors, compression.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use windjet_protocol::header::block;

use super::envelope::ServerInfo;
use crate::account::Account;
use crate::monitor::{Refused, compact};
use crate::router::Message;
use crate::server::Shared;

/// Header by which the asker says that the answer may be compressed.
const ACCEPT_ENCODING: &str = "Accept-Encoding";

/// What a request comes to.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing is sent: the request is for another server, or there is nothing to tell.
    Silent,
    /// The text, without an envelope.
    Bare(String),
    /// A document, as JSON, under `data`.
    Data(String),
    /// It is done; there is nothing to show.
    Done,
    /// The payload of the request cannot be read.
    BadRequest(String),
    /// The document cannot be given.
    NoDocument(String),
    /// The order cannot be carried out.
    Failed(String),
}

impl Answer {
    /// A document.
    pub(super) fn data<T: Serialize>(document: &T) -> Self {
        Self::Data(compact(document))
    }

    /// A document, or why there is none.
    pub(super) fn built<T: Serialize>(built: Result<T, Refused>) -> Self {
        match built {
            Ok(document) => Self::data(&document),
            Err(Refused(why)) => Self::NoDocument(why),
        }
    }

    /// The payload; `None` when there is nothing to send.
    fn text(self, shared: &Shared) -> Option<String> {
        let server = || compact(&ServerInfo::now(shared));
        let error = |code: u16, why: &str| {
            let error = ApiError {
                code,
                description: why,
            };
            compact(&error)
        };
        match self {
            Self::Silent => None,
            Self::Bare(text) => Some(text),
            Self::Data(data) => Some(format!("{{\"server\":{},\"data\":{data}}}", server())),
            Self::Done => Some(format!("{{\"server\":{}}}", server())),
            Self::BadRequest(why) => Some(format!(
                "{{\"server\":{},\"error\":{}}}",
                server(),
                error(400, &why)
            )),
            Self::NoDocument(why) => Some(format!(
                "{{\"server\":{},\"data\":null,\"error\":{}}}",
                server(),
                error(500, &why)
            )),
            Self::Failed(why) => Some(format!(
                "{{\"server\":{},\"error\":{}}}",
                server(),
                error(500, &why)
            )),
        }
    }
}

#[derive(Debug, Serialize)]
struct ApiError<'a> {
    code: u16,
    description: &'a str,
}

/// Where an answer goes, and in which form.
#[derive(Debug)]
pub(super) struct Asker {
    account: Arc<Account>,
    reply: Bytes,
    encoding: Encoding,
}

impl Asker {
    /// The one who asked; `None` when no answer is wanted.
    pub(super) fn of(account: &Arc<Account>, message: &Message<'_>) -> Option<Self> {
        Some(Self {
            account: account.clone(),
            reply: Bytes::copy_from_slice(message.reply?),
            encoding: Encoding::asked(message.headers),
        })
    }

    /// Sends the answer.
    pub(super) fn answer(&self, shared: &Shared, answer: Answer) {
        let plain = matches!(answer, Answer::Bare(_));
        let Some(text) = answer.text(shared) else { return };
        let encoding = if plain { Encoding::None } else { self.encoding };
        // Compressing into memory cannot fail; if it did, the plain text would still be right.
        let (headers, payload) = match encoding.apply(text.as_bytes()) {
            Some((headers, packed)) => (headers, Bytes::from(packed)),
            None => (&b""[..], Bytes::from(text)),
        };
        shared.publish(&self.account, &self.reply, None, headers, &payload);
    }
}

/// How an answer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// The framed format of Snappy.
    Snappy,
    /// The asker accepts none that the server has.
    Identity,
}

impl Encoding {
    fn asked(headers: &[u8]) -> Self {
        let asked = block::find(headers, ACCEPT_ENCODING).unwrap_or_default();
        Self::of(&String::from_utf8_lossy(asked))
    }

    /// The encoding that a value of `Accept-Encoding` asks for.
    pub(crate) fn of(asked: &str) -> Self {
        let asked = asked.to_ascii_lowercase();
        if asked.contains("snappy") || asked.contains("s2") {
            Self::Snappy
        } else if asked.contains("gzip") {
            Self::Gzip
        } else if asked.is_empty() {
            Self::None
        } else {
            Self::Identity
        }
    }

    /// Header block and packed bytes; `None` when the text goes as it is.
    pub(crate) fn apply(self, text: &[u8]) -> Option<(&'static [u8], Vec<u8>)> {
        match self {
            Self::None => None,
            Self::Identity => Some((b"NATS/1.0\r\nContent-Encoding: identity\r\n\r\n", text.to_vec())),
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(text).ok()?;
                let packed = encoder.finish().ok()?;
                Some((b"NATS/1.0\r\nContent-Encoding: gzip\r\n\r\n", packed))
            }
            Self::Snappy => {
                let mut encoder = snap::write::FrameEncoder::new(Vec::new());
                encoder.write_all(text).ok()?;
                let packed = encoder.into_inner().ok()?;
                Some((b"NATS/1.0\r\nContent-Encoding: snappy\r\n\r\n", packed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn both_encodings_can_be_undone() {
        let (headers, packed) = Encoding::asked(b"NATS/1.0\r\nAccept-Encoding: GZIP, br\r\n\r\n")
            .apply(b"text")
            .unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(
            (text.as_str(), block::find(headers, "Content-Encoding")),
            ("text", Some(&b"gzip"[..]))
        );
        let (_, packed) = Encoding::Snappy.apply(b"text").unwrap();
        let mut text = String::new();
        snap::read::FrameDecoder::new(&packed[..])
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "text");
        assert_eq!(
            Encoding::asked(b"NATS/1.0\r\nAccept-Encoding: br\r\n\r\n"),
            Encoding::Identity
        );
    }
}
