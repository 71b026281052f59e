//! [`HeaderMap`]: headers as an ordered list of names and values.

use std::fmt;

use bytes::Bytes;

use super::VERSION;
use super::block::{Lines, skip_spaces};

/// Why headers could not be read or a field could not be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// A block does not begin with `NATS/1.0`.
    #[error("header block does not begin with the protocol version")]
    Version,
    /// A name is empty, has a colon, or has anything but printable ASCII.
    #[error("header name is not printable text without colons")]
    Name,
    /// A value has a CR or LF.
    #[error("header value has a line break")]
    Value,
}

/// The status on the first line of a header block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Up to three digits, such as 503.
    pub code: u16,
    /// The text after it, possibly empty.
    pub description: Bytes,
}

/// Headers of one message, in order, with their case, duplicates kept.
///
/// Names are compared exactly. Maps are small, so look-ups are linear. Values are bytes; [`get_str`](Self::get_str) is
/// for those that are text. A map read from [`Bytes`] shares that buffer and keeps it alive.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HeaderMap {
    status: Option<Status>,
    fields: Vec<(Bytes, Bytes)>,
}

impl HeaderMap {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            status: None,
            fields: Vec::new(),
        }
    }

    /// Reads a header block without copying it. Lines without a colon are passed over, as is a status that does not
    /// begin with a digit; a missing last line end is forgiven.
    ///
    /// # Errors
    ///
    /// [`HeaderError::Version`] when the block does not begin with `NATS/1.0`.
    #[expect(clippy::needless_pass_by_value, reason = "the map keeps the buffer")]
    pub fn parse(block: Bytes) -> Result<Self, HeaderError> {
        let mut lines = Lines::new(&block);
        let first = lines
            .next()
            .and_then(|line| line.strip_prefix(VERSION))
            .ok_or(HeaderError::Version)?;
        let status = parse_status(&block, first.trim_ascii());
        let mut fields = Vec::new();
        for line in lines {
            if let Some(colon) = memchr::memchr(b':', line) {
                let value = skip_spaces(&line[colon + 1..]);
                fields.push((block.slice_ref(&line[..colon]), block.slice_ref(value)));
            }
        }
        Ok(Self { status, fields })
    }

    /// The value of the first field with exactly this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|&(key, _)| key == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// The same as text; `None` also when the value is not UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// The values of every field with exactly this name, in order.
    pub fn get_all<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m [u8]> + 'm {
        self.iter()
            .filter(move |&(key, _)| key == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// Whether there is a field with exactly this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All fields, in order, as `(name, value)`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(name, value)| (&name[..], &value[..]))
    }

    /// The number of fields; the status is none.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is neither a field nor a status, so that the message needs no header block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.status.is_none()
    }

    /// The status, if the first line has one.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// Sets or removes the status. A code over 999 or a line break in the description cannot be read back.
    pub fn set_status(&mut self, status: Option<Status>) {
        self.status = status;
    }

    /// Sets a field: the first one of that name gets the value in its place, further ones go; without one it is
    /// appended. Spaces at the front of the value are dropped, as they cannot be told from the separator.
    ///
    /// # Errors
    ///
    /// When name or value could not be read back.
    pub fn insert(&mut self, name: &str, value: impl Into<Bytes>) -> Result<(), HeaderError> {
        let value = checked(name, &value.into())?;
        let place = self.fields.iter().position(|(key, _)| key == name.as_bytes());
        let Some(place) = place else {
            self.fields.push((Bytes::copy_from_slice(name.as_bytes()), value));
            return Ok(());
        };
        self.fields[place].1 = value;
        let mut index = 0;
        self.fields.retain(|(key, _)| {
            let keep = index <= place || key != name.as_bytes();
            index += 1;
            keep
        });
        Ok(())
    }

    /// Adds a field at the end, also when there is one of that name already. Spaces at the front of the value are
    /// dropped.
    ///
    /// # Errors
    ///
    /// When name or value could not be read back.
    pub fn append(&mut self, name: &str, value: impl Into<Bytes>) -> Result<(), HeaderError> {
        let value = checked(name, &value.into())?;
        self.fields.push((Bytes::copy_from_slice(name.as_bytes()), value));
        Ok(())
    }

    /// Removes every field with exactly this name; true when there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.fields.len();
        self.fields.retain(|(key, _)| key != name.as_bytes());
        self.fields.len() != before
    }

    /// Appends the header block to `out`, also when the map is empty.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        out.extend_from_slice(VERSION);
        if let Some(status) = &self.status {
            out.push(b' ');
            out.extend_from_slice(itoa::Buffer::new().format(status.code).as_bytes());
            if !status.description.is_empty() {
                out.push(b' ');
                out.extend_from_slice(&status.description);
            }
        }
        out.extend_from_slice(b"\r\n");
        for (name, value) in &self.fields {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// The length of the block that [`encode`](Self::encode) writes, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let status = self.status.as_ref().map_or(0, |status| {
            let digits = itoa::Buffer::new().format(status.code).len();
            let description = status.description.len();
            1 + digits + if description == 0 { 0 } else { 1 + description }
        });
        let fields: usize = self
            .fields
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum();
        VERSION.len() + status + fields + 4
    }

    /// The header block as bytes of its own.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.encoded_len());
        self.encode(&mut out);
        out.into()
    }
}

impl TryFrom<Bytes> for HeaderMap {
    type Error = HeaderError;

    fn try_from(block: Bytes) -> Result<Self, HeaderError> {
        Self::parse(block)
    }
}

impl TryFrom<&[u8]> for HeaderMap {
    type Error = HeaderError;

    /// Copies the block once.
    fn try_from(block: &[u8]) -> Result<Self, HeaderError> {
        Self::parse(Bytes::copy_from_slice(block))
    }
}

impl fmt::Debug for HeaderMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        if let Some(status) = &self.status {
            list.entry(status);
        }
        list.entries(&self.fields).finish()
    }
}

/// Up to three digits and what follows.
fn parse_status(block: &Bytes, text: &[u8]) -> Option<Status> {
    let digits = text
        .iter()
        .take(3)
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if digits == 0 {
        return None;
    }
    let code = text[..digits]
        .iter()
        .fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    Some(Status {
        code,
        description: block.slice_ref(text[digits..].trim_ascii()),
    })
}

/// The value as it will be read back.
fn checked(name: &str, value: &Bytes) -> Result<Bytes, HeaderError> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
        return Err(HeaderError::Name);
    }
    if memchr::memchr2(b'\r', b'\n', value).is_some() {
        return Err(HeaderError::Value);
    }
    let spaces = value.len() - skip_spaces(value).len();
    Ok(value.slice(spaces..))
}
