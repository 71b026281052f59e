//! Subjects: what is valid, what matches what, and two validated types.
//!
//! A subject is a run of non-empty tokens separated by `.`. A token is any bytes but space, tab, CR, LF and form
//! feed; UTF-8 is not required. Two tokens have a meaning, and only when they stand alone: `*` is exactly one
//! token, and `>`, as the last token, is one or more. Inside a longer token (`foo*`, `a>b`) they are ordinary bytes.
//!
//! Three notions of validity are kept apart:
//!
//! | function | accepts | used for |
//! |---|---|---|
//! | [`is_valid_subscription`] | tokens as above, `>` only at the end | `SUB`, filters, permissions |
//! | [`is_valid_publish`] | tokens as above, `*` and `>` anywhere, as plain tokens | `PUB` in the core |
//! | [`is_literal`] | [`is_valid_publish`] without wildcard tokens | `PUB` in pedantic mode, everything a stream stores |
//!
//! A published `*` or `>` token is data: `a.*` as a published subject matches the pattern `a.*` but not `a.b`.
//! Invalid published subjects match nothing, not even `>`.
//!
//! The functions are total: any bytes go in, nothing panics, nothing allocates. The router, the permission checks,
//! the stream filters and the configuration reader call them. What they do not do: they know no reserved
//! prefixes (`$SYS.`, `$JS.`, ...), which are policy of the server, and no length limit, which is the wire's.

mod queue;
#[cfg(test)]
mod tests;
mod types;

pub use queue::QueueFilter;
pub use types::{Subject, SubjectError, SubjectFilter};

use memchr::memchr;

/// The separator between tokens.
pub const SEPARATOR: u8 = b'.';

const FORM_FEED: u8 = 0x0c;

/// The wildcard token for exactly one token.
pub const ANY_TOKEN: &[u8] = b"*";

/// The wildcard token for one or more tokens; only valid as the last one.
pub const ANY_TAIL: &[u8] = b">";

/// The tokens of a subject, in order. Created by [`tokens`].
#[derive(Debug, Clone)]
pub struct Tokens<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Tokens<'a> {
    /// What has not been handed out yet, separators included; `None` after the last token.
    #[must_use]
    pub fn rest(&self) -> Option<&'a [u8]> {
        self.rest
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        if let Some(dot) = memchr(SEPARATOR, rest) {
            self.rest = Some(&rest[dot + 1..]);
            Some(&rest[..dot])
        } else {
            self.rest = None;
            Some(rest)
        }
    }
}

impl std::iter::FusedIterator for Tokens<'_> {}

/// Splits a subject at its separators. Empty tokens are yielded too, so an empty subject has one, empty, token.
#[inline]
#[must_use]
pub fn tokens(subject: &[u8]) -> Tokens<'_> {
    Tokens { rest: Some(subject) }
}

/// The number of tokens, which is the number of separators plus one.
#[inline]
#[must_use]
pub fn token_count(subject: &[u8]) -> usize {
    memchr::memchr_iter(SEPARATOR, subject).count() + 1
}

/// Whether a client may subscribe to these bytes.
#[must_use]
pub fn is_valid_subscription(subject: &[u8]) -> bool {
    if !is_valid_publish(subject) {
        return false;
    }
    // `>` as a whole token anywhere but at the end is the one thing publishing allows and subscribing does not.
    let mut from = 0;
    while let Some(at) = memchr(b'>', &subject[from..]) {
        let at = from + at;
        let starts_token = at == 0 || subject[at - 1] == SEPARATOR;
        if starts_token && subject.get(at + 1) == Some(&SEPARATOR) {
            return false;
        }
        from = at + 1;
    }
    true
}

/// Whether these bytes are a well-formed published subject: no empty token and no whitespace. Wildcard tokens are
/// accepted, as the plain tokens that they are when published; [`is_literal`] refuses them.
#[must_use]
pub fn is_valid_publish(subject: &[u8]) -> bool {
    let mut previous = SEPARATOR;
    for &byte in subject {
        if is_space(byte) || (byte == SEPARATOR && previous == SEPARATOR) {
            return false;
        }
        previous = byte;
    }
    // Covers the empty subject and a trailing separator.
    previous != SEPARATOR
}

/// Whether these bytes are a well-formed subject without wildcard tokens: what a stream can store.
#[must_use]
pub fn is_literal(subject: &[u8]) -> bool {
    is_valid_publish(subject) && !has_wildcards(subject)
}

/// Whether any whole token is `*` or `>`. For a valid subscription this tells a pattern from a literal.
#[inline]
#[must_use]
pub fn has_wildcards(subject: &[u8]) -> bool {
    memchr::memchr2_iter(b'*', b'>', subject).any(|at| {
        let starts = at == 0 || subject[at - 1] == SEPARATOR;
        let ends = subject.get(at + 1).is_none_or(|&next| next == SEPARATOR);
        starts && ends
    })
}

/// Whether the published subject `literal` is matched by the subscription `pattern`.
///
/// `literal` is taken as published, so wildcard tokens in it are plain tokens, and one with an empty token matches
/// nothing. `pattern` should be a valid subscription; with anything else the answer is of no use but still given.
#[must_use]
pub fn matches(pattern: &[u8], literal: &[u8]) -> bool {
    // One walk over both, byte by byte: tokens are short, and searching each one's end first measured twice as slow.
    let (mut p, mut l) = (0, 0);
    loop {
        // Both stand at the start of a token.
        let begin = l;
        match pattern[p..] {
            [b'>'] => return no_empty_token(&literal[l..]),
            [b'*'] | [b'*', SEPARATOR, ..] => {
                p += 1;
                while l < literal.len() && literal[l] != SEPARATOR {
                    l += 1;
                }
            }
            _ => {
                while p < pattern.len() && pattern[p] != SEPARATOR {
                    if literal.get(l) != Some(&pattern[p]) {
                        return false;
                    }
                    p += 1;
                    l += 1;
                }
            }
        }
        if l == begin {
            return false;
        }
        match (pattern.get(p), literal.get(l)) {
            (None, None) => return true,
            (Some(_), Some(&SEPARATOR)) => {
                p += 1;
                l += 1;
            }
            _ => return false,
        }
    }
}

/// Whether some literal is matched by both subscriptions. Both must be valid.
#[must_use]
pub fn overlaps(a: &[u8], b: &[u8]) -> bool {
    let mut left = tokens(a);
    let mut right = tokens(b);
    loop {
        match (left.rest(), right.rest()) {
            (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(ANY_TAIL), Some(_)) | (Some(_), Some(ANY_TAIL)) => return true,
            (Some(_), Some(_)) => {}
        }
        if let (Some(x), Some(y)) = (left.next(), right.next())
            && x != y
            && x != ANY_TOKEN
            && y != ANY_TOKEN
        {
            return false;
        }
    }
}

/// Whether every literal matched by the subscription `sub` is matched by the subscription `of`. Both must be valid.
/// A subscription is a subset of itself.
#[must_use]
pub fn is_subset(sub: &[u8], of: &[u8]) -> bool {
    let mut inner = tokens(sub);
    let mut outer = tokens(of);
    loop {
        match (inner.rest(), outer.rest()) {
            (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(_), Some(ANY_TAIL)) => return true,
            (Some(ANY_TAIL), Some(_)) => return false,
            (Some(_), Some(_)) => {}
        }
        if let (Some(x), Some(y)) = (inner.next(), outer.next())
            && x != y
            && y != ANY_TOKEN
        {
            return false;
        }
    }
}

/// The bytes that end a word on a control line and therefore cannot be in a subject.
#[inline]
pub(crate) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | FORM_FEED)
}

/// No empty token in a subject or in what is left of one.
fn no_empty_token(rest: &[u8]) -> bool {
    let mut previous = SEPARATOR;
    for &byte in rest {
        if byte == SEPARATOR && previous == SEPARATOR {
            return false;
        }
        previous = byte;
    }
    previous != SEPARATOR
}
