//! The names of headers in the kit's wire contract, and small readers for them.

use std::str::FromStr as _;

use async_nats::{HeaderMap, HeaderValue};

/// The type of the payload: `json`, `protobuf` or `msgpack`.
pub const CONTENT_TYPE: &str = "Nats-Content-Type";
/// The same in the manner of HTTP; read, never written.
pub const HTTP_CONTENT_TYPE: &str = "Content-Type";
/// How the payload is compressed: `br` or `gzip`.
pub const CONTENT_ENCODING: &str = "Content-Encoding";
/// The id by which a stream stores a message only once.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// The trace id, in lower-case hexadecimal.
pub const TRACE_ID: &str = "Trace-Id";

/// The content type of JSON.
pub const APPLICATION_JSON: &str = "application/json";
/// The content type of MessagePack.
pub const APPLICATION_MSGPACK: &str = "application/msgpack";
/// The older content type of MessagePack.
pub const APPLICATION_X_MSGPACK: &str = "application/x-msgpack";
/// The content type of Protobuf.
pub const APPLICATION_PROTOBUF: &str = "application/protobuf";
/// The older content type of Protobuf.
pub const APPLICATION_X_PROTOBUF: &str = "application/x-protobuf";
/// The vendor's content type of Protobuf.
pub const APPLICATION_VND_PROTOBUF: &str = "application/vnd.google.protobuf";

/// The trace id that a message names, if it does.
#[must_use]
pub fn trace_id(headers: &HeaderMap) -> Option<&str> {
    first(headers, TRACE_ID)
}

/// The first value of a header; `None` when it is absent or empty.
pub(crate) fn first<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let name = super::header_name(name)?;
    headers
        .get(name)
        .map(HeaderValue::as_str)
        .filter(|value| !value.is_empty())
}

/// A header value made of any text: line breaks become blanks, and it is cut to `max` bytes between characters.
pub(crate) fn sanitized(text: &str, max: usize) -> HeaderValue {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let clean: String = text[..end]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    HeaderValue::from_str(clean.trim()).unwrap_or_default()
}

/// The same headers without one of them.
pub(crate) fn without(headers: &HeaderMap, name: &str) -> HeaderMap {
    let mut rest = HeaderMap::new();
    for (other, values) in headers.iter() {
        let other_name: &str = other.as_ref();
        if other_name == name {
            continue;
        }
        for value in values {
            rest.append(other.clone(), value.clone());
        }
    }
    rest
}
