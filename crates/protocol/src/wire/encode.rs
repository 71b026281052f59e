//! Writing operations into a byte vector.
//!
//! Every function appends one operation, or one control line, to `out` and nothing else. Sizes are computed here, so
//! what is written is well formed as long as subjects, reply subjects, queue names and sids are free of whitespace,
//! which the caller answers for. Words are separated by one space.
//!
//! The `*_line` functions write only the control line, for messages whose bytes are queued separately; after the
//! message the caller writes [`CRLF`].

use super::{CRLF, Connect, ServerInfo};

/// Appends decimal digits.
#[inline]
fn number(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a word and a space.
#[inline]
fn word(out: &mut Vec<u8>, word: &[u8]) {
    out.extend_from_slice(word);
    out.push(b' ');
}

/// More than the fixed parts of any message: verb, spaces, two sizes, three line ends.
const MESSAGE_OVERHEAD: usize = 48;

/// `MSG subject sid [reply] size` and the payload.
#[inline]
pub fn msg(out: &mut Vec<u8>, subject: &[u8], sid: &[u8], reply: Option<&[u8]>, payload: &[u8]) {
    let words = subject.len() + sid.len() + reply.map_or(0, <[u8]>::len);
    out.reserve(words + payload.len() + MESSAGE_OVERHEAD);
    msg_line(out, subject, sid, reply, payload.len());
    out.extend_from_slice(payload);
    out.extend_from_slice(CRLF);
}

/// The control line of [`msg`], for a payload of `size` bytes.
#[inline]
pub fn msg_line(out: &mut Vec<u8>, subject: &[u8], sid: &[u8], reply: Option<&[u8]>, size: usize) {
    out.extend_from_slice(b"MSG ");
    word(out, subject);
    word(out, sid);
    if let Some(reply) = reply {
        word(out, reply);
    }
    number(out, size);
    out.extend_from_slice(CRLF);
}

/// `HMSG subject sid [reply] headers total`, the header block and the payload.
#[inline]
pub fn hmsg(
    out: &mut Vec<u8>,
    subject: &[u8],
    sid: &[u8],
    reply: Option<&[u8]>,
    headers: &[u8],
    payload: &[u8],
) {
    let total = headers.len() + payload.len();
    let words = subject.len() + sid.len() + reply.map_or(0, <[u8]>::len);
    out.reserve(words + total + MESSAGE_OVERHEAD);
    hmsg_line(out, subject, sid, reply, headers.len(), total);
    out.extend_from_slice(headers);
    out.extend_from_slice(payload);
    out.extend_from_slice(CRLF);
}

/// The control line of [`hmsg`], for a message of `total` bytes that begins with `header_len` bytes of headers.
#[inline]
pub fn hmsg_line(
    out: &mut Vec<u8>,
    subject: &[u8],
    sid: &[u8],
    reply: Option<&[u8]>,
    header_len: usize,
    total: usize,
) {
    out.extend_from_slice(b"HMSG ");
    word(out, subject);
    word(out, sid);
    if let Some(reply) = reply {
        word(out, reply);
    }
    number(out, header_len);
    out.push(b' ');
    number(out, total);
    out.extend_from_slice(CRLF);
}

/// `PUB subject [reply] size` and the payload.
#[inline]
pub fn publish(out: &mut Vec<u8>, subject: &[u8], reply: Option<&[u8]>, payload: &[u8]) {
    out.reserve(subject.len() + reply.map_or(0, <[u8]>::len) + payload.len() + MESSAGE_OVERHEAD);
    out.extend_from_slice(b"PUB ");
    word(out, subject);
    if let Some(reply) = reply {
        word(out, reply);
    }
    number(out, payload.len());
    out.extend_from_slice(CRLF);
    out.extend_from_slice(payload);
    out.extend_from_slice(CRLF);
}

/// `HPUB subject [reply] headers total`, the header block and the payload.
#[inline]
pub fn hpublish(out: &mut Vec<u8>, subject: &[u8], reply: Option<&[u8]>, headers: &[u8], payload: &[u8]) {
    let total = headers.len() + payload.len();
    out.reserve(subject.len() + reply.map_or(0, <[u8]>::len) + total + MESSAGE_OVERHEAD);
    out.extend_from_slice(b"HPUB ");
    word(out, subject);
    if let Some(reply) = reply {
        word(out, reply);
    }
    number(out, headers.len());
    out.push(b' ');
    number(out, total);
    out.extend_from_slice(CRLF);
    out.extend_from_slice(headers);
    out.extend_from_slice(payload);
    out.extend_from_slice(CRLF);
}

/// `SUB subject [queue] sid`.
pub fn subscribe(out: &mut Vec<u8>, subject: &[u8], queue: Option<&[u8]>, sid: &[u8]) {
    out.extend_from_slice(b"SUB ");
    word(out, subject);
    if let Some(queue) = queue {
        word(out, queue);
    }
    out.extend_from_slice(sid);
    out.extend_from_slice(CRLF);
}

/// `UNSUB sid [max]`. A `max` over nine digits cannot be read by a server, which then unsubscribes at once.
pub fn unsubscribe(out: &mut Vec<u8>, sid: &[u8], max: Option<u64>) {
    out.extend_from_slice(b"UNSUB ");
    out.extend_from_slice(sid);
    if let Some(max) = max {
        out.push(b' ');
        out.extend_from_slice(itoa::Buffer::new().format(max).as_bytes());
    }
    out.extend_from_slice(CRLF);
}

/// `CONNECT {json}`.
pub fn connect(out: &mut Vec<u8>, options: &Connect) {
    out.extend_from_slice(b"CONNECT ");
    json(out, options);
    out.extend_from_slice(CRLF);
}

/// `INFO {json}`, with the space before the line end that the reference server writes.
pub fn info(out: &mut Vec<u8>, info: &ServerInfo) {
    out.extend_from_slice(b"INFO ");
    json(out, info);
    out.extend_from_slice(b" \r\n");
}

/// `-ERR 'text'`. Quotes inside the text are not escaped; that is the protocol.
pub fn err(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(b"-ERR '");
    out.extend_from_slice(text);
    out.extend_from_slice(b"'\r\n");
}

/// `+OK`.
#[inline]
pub fn ok(out: &mut Vec<u8>) {
    out.extend_from_slice(b"+OK\r\n");
}

/// `PING`.
#[inline]
pub fn ping(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PING\r\n");
}

/// `PONG`.
#[inline]
pub fn pong(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PONG\r\n");
}

/// Appends compact JSON.
fn json<T: serde::Serialize>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    let written = serde_json::to_writer(&mut *out, value);
    // Both documents are plain structs of strings, numbers and flags, and a vector takes every write, so this cannot
    // fail; should it ever, an empty document is at least well-formed JSON.
    if written.is_err() {
        out.truncate(start);
        out.extend_from_slice(b"{}");
    }
}
