//! What both decoders share: finding the verb, the end of a control line, its words, and a message's body.
//!
//! The scanner keeps offsets into the caller's buffer and nothing else. It relies on the rule that a buffer only grows
//! between two calls; a caller that breaks it gets nonsense, never a panic.

use memchr::memchr;

use super::{DecodeError, Malformed, Step};

/// What the front of a buffer says about the verb.
pub(super) enum Found<V> {
    /// A whole verb and its length.
    Whole(V, usize),
    /// So far it could become one.
    Prefix,
    /// It never will.
    Nothing,
}

/// What follows a verb on its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing that counts.
    Ignored,
    /// Whitespace, then arguments.
    Words,
    /// A document, after whitespace or at once.
    Json,
}

/// A direction's set of verbs.
pub(super) trait Verb: Copy {
    /// Looks at the front of the buffer.
    fn find(buf: &[u8]) -> Found<Self>;
    /// What follows the verb.
    fn rest(self) -> Rest;
}

/// Chooses among verbs that share their first letter. No verb may be the beginning of another.
#[inline]
pub(super) fn pick<V: Copy>(buf: &[u8], candidates: &[(&[u8], V)]) -> Found<V> {
    for &(name, verb) in candidates {
        let have = name.len().min(buf.len());
        if buf[..have].eq_ignore_ascii_case(&name[..have]) {
            return if have == name.len() {
                Found::Whole(verb, have)
            } else {
                Found::Prefix
            };
        }
    }
    Found::Nothing
}

/// A complete control line, as offsets.
pub(super) struct Line<V> {
    pub(super) verb: V,
    /// Where the argument text begins.
    pub(super) start: usize,
    /// Where it ends, line end excluded.
    pub(super) end: usize,
    /// Where the next thing begins.
    pub(super) next: usize,
}

/// How far a control line has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan<V> {
    /// The verb is not complete.
    Verb,
    /// In the whitespace after the verb, which began at `from`; all before `at` is whitespace.
    Spaces { verb: V, from: usize, at: usize },
    /// In the arguments; no LF before `searched`.
    Args { verb: V, start: usize, searched: usize },
}

impl<V: Verb> Scan<V> {
    /// Advances to the end of the control line. `None`: the line is not complete.
    #[inline]
    pub(super) fn line(&mut self, buf: &[u8], limit: usize) -> Result<Option<Line<V>>, DecodeError> {
        loop {
            match *self {
                Self::Verb => match V::find(buf) {
                    Found::Whole(verb, len) => match (verb.rest(), buf.get(len)) {
                        (Rest::Ignored, _) => {
                            *self = Self::Args {
                                verb,
                                start: len,
                                searched: len,
                            }
                        }
                        (_, None) => return Ok(None),
                        (_, Some(b' ' | b'\t')) => {
                            *self = Self::Spaces {
                                verb,
                                from: len,
                                at: len + 1,
                            }
                        }
                        (Rest::Json, Some(_)) => {
                            *self = Self::Args {
                                verb,
                                start: len,
                                searched: len,
                            }
                        }
                        (Rest::Words, Some(_)) => return Err(DecodeError::UnknownOperation),
                    },
                    Found::Prefix => return Ok(None),
                    Found::Nothing => return Err(DecodeError::UnknownOperation),
                },
                Self::Spaces { verb, from, at } => {
                    let rest = buf.get(at..).unwrap_or_default();
                    let start = at
                        + rest
                            .iter()
                            .take_while(|&&byte| matches!(byte, b' ' | b'\t'))
                            .count();
                    within(start - from, limit)?;
                    if start >= buf.len() {
                        *self = Self::Spaces {
                            verb,
                            from,
                            at: start,
                        };
                        return Ok(None);
                    }
                    *self = Self::Args {
                        verb,
                        start,
                        searched: start,
                    };
                }
                Self::Args {
                    verb,
                    start,
                    searched,
                } => {
                    let rest = buf.get(searched..).unwrap_or_default();
                    let (lf, found) = match memchr(b'\n', rest) {
                        Some(at) => (searched + at, true),
                        None => (buf.len(), false),
                    };
                    // A CR is not counted, as it may be half of the line end.
                    let end = if lf > start && buf[lf - 1] == b'\r' {
                        lf - 1
                    } else {
                        lf
                    };
                    within(end.saturating_sub(start), limit)?;
                    if !found {
                        *self = Self::Args {
                            verb,
                            start,
                            searched: lf,
                        };
                        return Ok(None);
                    }
                    *self = Self::Verb;
                    return Ok(Some(Line {
                        verb,
                        start,
                        end,
                        next: lf + 1,
                    }));
                }
            }
        }
    }
}

#[inline]
fn within(len: usize, limit: usize) -> Result<(), DecodeError> {
    if len > limit {
        Err(DecodeError::ControlLineTooLong { len, limit })
    } else {
        Ok(())
    }
}

/// Offsets of one word.
pub(super) type Word = (usize, usize);

/// Splits `buf[start..end]` at runs of gaps into at most `N` words; `None` when there are more. Offsets are those of
/// `buf`.
#[inline]
pub(super) fn split<const N: usize>(
    buf: &[u8],
    start: usize,
    end: usize,
    is_gap: impl Fn(u8) -> bool,
) -> Option<([Word; N], usize)> {
    let text = &buf[..end];
    let mut words = [(0, 0); N];
    let mut count = 0;
    let mut at = start;
    loop {
        while at < text.len() && is_gap(text[at]) {
            at += 1;
        }
        if at >= text.len() {
            return Some((words, count));
        }
        let begin = at;
        while at < text.len() && !is_gap(text[at]) {
            at += 1;
        }
        *words.get_mut(count)? = (begin, at);
        count += 1;
    }
}

/// What separates the words of a message's control line.
#[inline]
pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// What separates the words of `SUB` and `UNSUB`.
#[inline]
pub(super) const fn is_blank_or_cr(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// A number of one to nine decimal digits.
#[inline]
pub(super) fn parse_size(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    let mut value = 0_usize;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + usize::from(digit);
    }
    Some(value)
}

/// The bytes of one word.
#[inline]
pub(super) fn word(buf: &[u8], (start, end): Word) -> &[u8] {
    &buf[start..end]
}

/// A message whose control line has been parsed, as offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) subject: Word,
    /// Only from a server.
    pub(super) sid: Word,
    pub(super) reply: Option<Word>,
    /// `None` for a message without a header block.
    pub(super) header_len: Option<usize>,
    /// Where the message begins.
    pub(super) start: usize,
    /// Its length, header block included.
    pub(super) size: usize,
}

/// The sizes at the end of a message's control line: header size, if any, and message size.
#[inline]
pub(super) fn sizes(
    buf: &[u8],
    verb: &'static str,
    header: Option<Word>,
    total: Word,
    max_payload: i64,
) -> Result<(Option<usize>, usize), DecodeError> {
    let malformed = |reason| DecodeError::Malformed { verb, reason };
    let header_len = match header {
        Some(digits) => Some(parse_size(word(buf, digits)).ok_or_else(|| malformed(Malformed::HeaderSize))?),
        None => None,
    };
    let size = parse_size(word(buf, total)).ok_or_else(|| malformed(Malformed::Size))?;
    if header_len.is_some_and(|len| len > size) {
        return Err(malformed(Malformed::HeaderOverrun));
    }
    // The size has at most nine digits.
    if max_payload >= 0 && size as i64 > max_payload {
        return Err(DecodeError::PayloadTooLarge {
            size,
            limit: max_payload,
        });
    }
    Ok((header_len, size))
}

impl Body {
    /// The message and the bytes used once it and its CR LF are there; otherwise how long the buffer must get.
    #[inline]
    pub(super) fn take<'b>(&self, buf: &'b [u8]) -> Result<Step<&'b [u8]>, DecodeError> {
        let end = self.start + self.size;
        match buf.get(end..) {
            Some([b'\r', b'\n', ..]) => Ok(Step::Op {
                op: &buf[self.start..end],
                consumed: end + 2,
            }),
            Some([] | [b'\r']) | None => Ok(Step::Incomplete { want: end + 2 }),
            Some(_) => Err(DecodeError::UnknownOperation),
        }
    }
}
