//! Functions over raw header blocks, for the publish path.
//!
//! Reading allocates nothing and keeps to the rules of the [parent module](super). Changing works on a `Vec<u8>` in
//! place and leaves every other byte of the block as the publisher sent it. An empty vector stands for a message
//! without headers: appending to it starts a block, and removing the last thing in a block empties it.

use std::ops::Range;

use memchr::memchr_iter;

use super::{EMPTY_BLOCK, VERSION};

/// The fields of a block in order, as `(name, value)`. Created by [`fields`].
#[derive(Debug, Clone)]
pub struct Fields<'b> {
    lines: Lines<'b>,
}

impl<'b> Iterator for Fields<'b> {
    type Item = (&'b [u8], &'b [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = self.lines.next()?;
            if let Some(colon) = memchr::memchr(b':', line) {
                return Some((&line[..colon], skip_spaces(&line[colon + 1..])));
            }
        }
    }
}

impl std::iter::FusedIterator for Fields<'_> {}

/// All fields, in order, for a pass over many names at once. Lines without a colon are passed over.
#[must_use]
pub fn fields(block: &[u8]) -> Fields<'_> {
    let mut lines = Lines { rest: block };
    lines.next();
    Fields { lines }
}

/// The value of the first field with exactly this name.
#[inline]
#[must_use]
pub fn find<'b>(block: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let mut lines = Lines { rest: block };
    lines.next();
    lines.find_map(|line| value_of(line, name))
}

/// Whether there is a field with exactly this name.
#[must_use]
pub fn contains(block: &[u8], name: &str) -> bool {
    find(block, name).is_some()
}

/// The text after `NATS/1.0` on the first line, without surrounding spaces; `None` when there is none.
#[must_use]
pub fn status_text(block: &[u8]) -> Option<&[u8]> {
    let mut lines = Lines { rest: block };
    let text = lines.next()?.strip_prefix(VERSION)?.trim_ascii();
    (!text.is_empty()).then_some(text)
}

/// Cuts what follows `NATS/1.0` on the first line, as is done before a message is stored. A block that says nothing
/// else becomes empty. A block without a status is left alone.
pub fn strip_status(block: &mut Vec<u8>) {
    if !block.starts_with(VERSION) {
        return;
    }
    let end = line_end(block);
    if end > VERSION.len() {
        block.drain(VERSION.len()..end);
        clear_if_bare(block);
    }
}

/// Appends a field at the end of the block, which is begun if there is none. The name must be free of colons and line
/// ends, the value of line ends.
pub fn append(block: &mut Vec<u8>, name: &str, value: &[u8]) {
    if block.is_empty() {
        block.extend_from_slice(EMPTY_BLOCK);
    }
    block.reserve(name.len() + value.len() + 6);
    if block.ends_with(b"\r\n") {
        block.truncate(block.len() - 2);
    }
    // Only a block that was never well formed lacks this line end.
    if !block.ends_with(b"\r\n") {
        block.extend_from_slice(b"\r\n");
    }
    block.extend_from_slice(name.as_bytes());
    block.extend_from_slice(b": ");
    block.extend_from_slice(value);
    block.extend_from_slice(b"\r\n\r\n");
}

/// Removes every field with exactly this name; true when there was one. A block with nothing left becomes empty.
pub fn remove(block: &mut Vec<u8>, name: &str) -> bool {
    let mut removed = false;
    while let Some(line) = line_of(block, name) {
        block.drain(line);
        removed = true;
    }
    if removed {
        clear_if_bare(block);
    }
    removed
}

/// Removes every field with this name and appends one with the new value.
pub fn set(block: &mut Vec<u8>, name: &str, value: &[u8]) {
    remove(block, name);
    append(block, name, value);
}

/// The lines of a block, without their line ends; the last one may lack its own.
#[derive(Debug, Clone)]
pub(super) struct Lines<'b> {
    rest: &'b [u8],
}

impl<'b> Lines<'b> {
    pub(super) fn new(block: &'b [u8]) -> Self {
        Self { rest: block }
    }
}

impl<'b> Iterator for Lines<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = line_end(self.rest);
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..).unwrap_or_default();
        Some(line)
    }
}

/// Where the first CR LF is, or the end. A CR or LF alone is an ordinary byte.
#[inline]
fn line_end(text: &[u8]) -> usize {
    memchr_iter(b'\n', text)
        .find(|&at| at > 0 && text[at - 1] == b'\r')
        .map_or(text.len(), |at| at - 1)
}

/// The value, when the line is a field with exactly this name.
#[inline]
fn value_of<'b>(line: &'b [u8], name: &str) -> Option<&'b [u8]> {
    match line.strip_prefix(name.as_bytes())? {
        [b':', value @ ..] => Some(skip_spaces(value)),
        _ => None,
    }
}

/// The bytes of the first field with this name, its line end included.
fn line_of(block: &[u8], name: &str) -> Option<Range<usize>> {
    let mut lines = Lines { rest: block };
    lines.next();
    loop {
        let start = block.len() - lines.rest.len();
        let line = lines.next()?;
        if value_of(line, name).is_some() {
            return Some(start..block.len() - lines.rest.len());
        }
    }
}

#[inline]
pub(super) fn skip_spaces(value: &[u8]) -> &[u8] {
    let spaces = value.iter().take_while(|&&byte| byte == b' ').count();
    &value[spaces..]
}

fn clear_if_bare(block: &mut Vec<u8>) {
    if block.len() <= EMPTY_BLOCK.len() {
        block.clear();
    }
}
