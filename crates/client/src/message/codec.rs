//! How payloads are encoded, and how a received one says so.

use async_nats::HeaderMap;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::headers::{self, first};
use super::{compression, msgpack};
use crate::error::{Error, ErrorKind, Result};

/// How a payload is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MessageType {
    /// JSON, the default.
    #[default]
    Json = 1,
    /// Protobuf.
    Proto = 2,
    /// MessagePack, structs as maps.
    MessagePack = 3,
    /// Bytes as they are; no header tells their type.
    Raw = 4,
}

impl MessageType {
    /// The token in the header `Nats-Content-Type`.
    #[must_use]
    pub fn token(self) -> Option<&'static str> {
        match self {
            Self::Json => Some("json"),
            Self::Proto => Some("protobuf"),
            Self::MessagePack => Some("msgpack"),
            Self::Raw => None,
        }
    }

    /// What the headers of a message say: `Nats-Content-Type`, else `Content-Type`, without parameters and in any case.
    /// Nothing known means JSON.
    #[must_use]
    pub fn from_headers(headers: Option<&HeaderMap>) -> Self {
        headers.and_then(Self::named_in).unwrap_or_default()
    }

    /// As [`MessageType::from_headers`], but `None` when nothing known is there.
    pub(crate) fn named_in(headers: &HeaderMap) -> Option<Self> {
        if headers.is_empty() {
            return None;
        }
        let value =
            first(headers, headers::CONTENT_TYPE).or_else(|| first(headers, headers::HTTP_CONTENT_TYPE))?;
        Self::from_content_type(value)
    }

    /// The type that a content type names, as a short token or a media type.
    #[must_use]
    pub fn from_content_type(value: &str) -> Option<Self> {
        let name = value.split(';').next().unwrap_or_default().trim();
        let is = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        if is(&["json", headers::APPLICATION_JSON]) {
            Some(Self::Json)
        } else if is(&[
            "protobuf",
            headers::APPLICATION_PROTOBUF,
            headers::APPLICATION_X_PROTOBUF,
            headers::APPLICATION_VND_PROTOBUF,
        ]) {
            Some(Self::Proto)
        } else if is(&[
            "msgpack",
            headers::APPLICATION_MSGPACK,
            headers::APPLICATION_X_MSGPACK,
        ]) {
            Some(Self::MessagePack)
        } else {
            None
        }
    }
}

pub(crate) fn encode_json<T: Serialize + ?Sized>(value: &T) -> Result<Bytes> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| Error::new(ErrorKind::Encode, "encoding JSON").because(error))
}

pub(crate) fn encode_msgpack<T: Serialize + ?Sized>(value: &T) -> Result<Bytes> {
    msgpack::encode(value)
        .map(Bytes::from)
        .map_err(|error| Error::new(ErrorKind::Encode, "encoding MessagePack").because(error))
}

/// Decodes a payload of a known type.
///
/// A hostile payload allocates no more than in proportion to its bytes: lengths that it only claims are not believed, and values
/// nest 128 deep at most.
///
/// # Errors
/// [`ErrorKind::Decode`]; [`ErrorKind::InvalidMessageType`] for [`MessageType::Raw`], which has nothing to decode, and for
/// [`MessageType::Proto`], which [`decode_proto`] decodes.
pub fn decode<T: DeserializeOwned>(payload: &[u8], message_type: MessageType) -> Result<T> {
    match message_type {
        MessageType::Json => serde_json::from_slice(payload)
            .map_err(|error| Error::new(ErrorKind::Decode, "decoding JSON").because(error)),
        MessageType::MessagePack => msgpack::decode(payload)
            .map_err(|error| Error::new(ErrorKind::Decode, "decoding MessagePack").because(error)),
        MessageType::Raw => Err(Error::new(ErrorKind::InvalidMessageType, "decoding raw bytes")),
        MessageType::Proto => Err(Error::new(
            ErrorKind::InvalidMessageType,
            "decoding Protobuf into a value that is no Protobuf message",
        )),
    }
}

/// Decodes a Protobuf message.
///
/// # Errors
/// [`ErrorKind::Decode`].
pub fn decode_proto<T: prost::Message + Default>(payload: &[u8]) -> Result<T> {
    T::decode(payload).map_err(|error| Error::new(ErrorKind::Decode, "decoding Protobuf").because(error))
}

/// Decodes what is in a message, as its headers say when no type is given. Does not decompress.
///
/// # Errors
/// As [`decode`].
pub fn decode_msg<T: DeserializeOwned>(
    message: &async_nats::Message,
    message_type: Option<MessageType>,
) -> Result<T> {
    let message_type = message_type.unwrap_or_else(|| MessageType::from_headers(message.headers.as_ref()));
    decode(&message.payload, message_type)
}

/// Decompresses a message if its headers say that it is compressed, then decodes it.
///
/// # Errors
/// As [`decode`], and [`ErrorKind::UnsupportedContentEncoding`] or [`ErrorKind::PayloadTooLarge`].
pub fn decode_msg_with_decompress<T: DeserializeOwned>(
    message: &async_nats::Message,
    message_type: Option<MessageType>,
) -> Result<T> {
    let mut message = message.clone();
    compression::expand(&mut message)?;
    decode_msg(&message, message_type)
}
