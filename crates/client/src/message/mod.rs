//! Messages to send, and what stands in the headers of those received.
//!
//! A [`Message`] is an encoded payload with headers. It is encoded once, when it is made; publishing it never changes it,
//! so the same value may be published twice. Header values are checked when the message is published, and before
//! anything is sent: the official client panics on a line break.
//!
//! Called by: the publisher, requester and responder, the dead-letter layer.

pub mod codec;
pub mod compression;
pub mod headers;
mod msgpack;

use std::str::FromStr as _;

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use serde::Serialize;

pub use codec::MessageType;
pub use compression::Compression;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::Carried;

/// A message to publish: an encoded payload and its headers.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Message {
    payload: Bytes,
    headers: HeaderMap,
    message_type: MessageType,
    /// The first header that cannot be written.
    fault: Option<String>,
}

impl Message {
    /// A value as JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Encode`].
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        Ok(Self::of(codec::encode_json(value)?, MessageType::Json))
    }

    /// A value as MessagePack, structs as maps by field name.
    ///
    /// # Errors
    /// [`ErrorKind::Encode`].
    pub fn msgpack<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        Ok(Self::of(codec::encode_msgpack(value)?, MessageType::MessagePack))
    }

    /// A Protobuf message.
    pub fn proto<T: prost::Message>(value: &T) -> Self {
        Self::of(value.encode_to_vec().into(), MessageType::Proto)
    }

    /// Bytes as they are.
    pub fn raw(payload: impl Into<Bytes>) -> Self {
        Self::of(payload.into(), MessageType::Raw)
    }

    fn of(payload: Bytes, message_type: MessageType) -> Self {
        Self {
            payload,
            message_type,
            ..Self::default()
        }
    }

    /// Sets a header. One that cannot be written makes the publish fail with [`ErrorKind::InvalidHeader`].
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        match (header_name(name), HeaderValue::from_str(value)) {
            (Some(name), Ok(value)) => self.headers.insert(name, value),
            _ => self.fault = self.fault.or_else(|| Some(name.to_owned())),
        }
        self
    }

    /// Sets headers that were received, all values of each.
    pub fn with_headers(mut self, headers: &HeaderMap) -> Self {
        for (name, values) in headers.iter() {
            for value in values {
                self.headers.append(name.clone(), value.clone());
            }
        }
        self
    }

    /// Sets the id by which a stream with a duplicate window stores this only once.
    pub fn with_msg_id(self, id: &str) -> Self {
        self.with_header(headers::MSG_ID, id)
    }

    /// Only into this stream.
    pub fn with_expected_stream(self, stream: &str) -> Self {
        self.with_header("Nats-Expected-Stream", stream)
    }

    /// Only if this is the stream's last sequence; 0 means that the stream must be empty.
    pub fn with_expected_last_seq(self, sequence: u64) -> Self {
        self.with_header("Nats-Expected-Last-Sequence", &sequence.to_string())
    }

    /// Only if this is the last sequence of the message's subject; 0 means that the subject must be new.
    pub fn with_expected_last_seq_per_subject(self, sequence: u64) -> Self {
        self.with_header("Nats-Expected-Last-Subject-Sequence", &sequence.to_string())
    }

    /// Only if this is the stream's last message id.
    pub fn with_expected_last_msg_id(self, id: &str) -> Self {
        self.with_header("Nats-Expected-Last-Msg-Id", id)
    }

    /// How the payload is encoded.
    #[must_use]
    pub fn message_type(&self) -> MessageType {
        self.message_type
    }

    /// The encoded payload.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The headers set so far.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// What goes over the wire: payload and headers with content type and compression, or no headers at all.
    /// `carried` goes with it, in place of what the message has of another span.
    pub(crate) fn wire(
        &self,
        compression: Compression,
        path: Path,
        carried: Carried,
    ) -> Result<(Bytes, Option<HeaderMap>)> {
        if let Some(name) = &self.fault {
            return Err(Error::new(
                ErrorKind::InvalidHeader,
                format!("writing the header {name:?}"),
            ));
        }
        let bare = self.headers.is_empty() && carried.is_empty();
        let mut added: Vec<(&'static str, &'static str)> = Vec::new();
        if let Some(token) = self.message_type.token() {
            let present = has(&self.headers, headers::CONTENT_TYPE);
            let write = match (path, self.message_type) {
                (Path::Respond, _) => true,
                (Path::Request, MessageType::Proto | MessageType::MessagePack) => true,
                (_, MessageType::Json) => !bare && !present,
                _ => !present,
            };
            if write {
                added.push((headers::CONTENT_TYPE, token));
            }
        }
        let mut payload = self.payload.clone();
        if !has(&self.headers, headers::CONTENT_ENCODING)
            && let Some((smaller, encoding)) = compression::compress(&payload, compression)
        {
            payload = smaller;
            added.push((headers::CONTENT_ENCODING, encoding));
        }
        if bare && added.is_empty() {
            return Ok((payload, None));
        }
        let mut headers = self.headers.clone();
        for (name, value) in added {
            // The values are constants of this crate and have no line breaks, at which this would panic.
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
        carried.write(&mut headers);
        Ok((payload, Some(headers)))
    }
}

/// Which way a message goes; the rules for its content type differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    Publish,
    Request,
    Respond,
}

/// A header name that can be written.
pub(crate) fn header_name(name: &str) -> Option<HeaderName> {
    let fine = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    fine.then(|| HeaderName::from_str(name).ok()).flatten()
}

fn has(headers: &HeaderMap, name: &'static str) -> bool {
    !headers.is_empty() && headers.get(name).is_some_and(|value| !value.as_str().is_empty())
}

#[cfg(test)]
mod tests;
