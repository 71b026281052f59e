//! What the functions of a destination do with a subject.
//!
//! They are total: a number that does not fit leaves the token whole, a count of 0 gives 0. Given a literal subject, what
//! they write has no empty token.

use crate::subject::{SEPARATOR, tokens};

/// A function on tokens of the subject. Tokens are given by their index in the subject, from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Function {
    Wildcard(usize),
    /// Without tokens the whole subject is hashed.
    Partition {
        count: u32,
        tokens: Vec<usize>,
    },
    Random(u32),
    Cut {
        cut: Cut,
        token: usize,
        size: usize,
    },
    Split {
        token: usize,
        delimiter: Vec<u8>,
    },
}

/// The functions of one token and one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    SplitFromLeft,
    SplitFromRight,
    SliceFromLeft,
    SliceFromRight,
    Left,
    Right,
}

impl Function {
    /// Appends the function's value for a subject that fits the source.
    pub(super) fn write(&self, subject: &[u8], out: &mut Vec<u8>, random: &mut impl FnMut(u32) -> u32) {
        match self {
            Self::Wildcard(token) => out.extend_from_slice(nth(subject, *token)),
            Self::Partition { count, tokens } => {
                let hash = if tokens.is_empty() {
                    fnv1a(FNV_OFFSET, subject)
                } else {
                    tokens
                        .iter()
                        .fold(FNV_OFFSET, |hash, &token| fnv1a(hash, nth(subject, token)))
                };
                number(out, hash.checked_rem(*count).unwrap_or(0));
            }
            Self::Random(count) => number(out, if *count == 0 { 0 } else { random(*count) }),
            Self::Cut { cut, token, size } => cut.write(nth(subject, *token), *size, out),
            Self::Split { token, delimiter } => split(nth(subject, *token), delimiter, out),
        }
    }
}

impl Cut {
    fn write(self, token: &[u8], size: usize, out: &mut Vec<u8>) {
        let len = token.len();
        if size == 0 || size >= len {
            out.extend_from_slice(token);
            return;
        }
        match self {
            Self::Left => out.extend_from_slice(&token[..size]),
            Self::Right => out.extend_from_slice(&token[len - size..]),
            Self::SplitFromLeft => join(out, [&token[..size], &token[size..]]),
            Self::SplitFromRight => join(out, [&token[..len - size], &token[len - size..]]),
            Self::SliceFromLeft => join(out, token.chunks(size)),
            Self::SliceFromRight => {
                let (odd, even) = token.split_at(len % size);
                join(
                    out,
                    std::iter::once(odd)
                        .filter(|odd| !odd.is_empty())
                        .chain(even.chunks(size)),
                );
            }
        }
    }
}

/// Cuts a token at each delimiter, or at each character when the delimiter is empty.
fn split(token: &[u8], delimiter: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    if delimiter.is_empty() {
        join(out, characters(token));
        return;
    }
    let mut rest = token;
    loop {
        let found = memchr::memmem::find(rest, delimiter);
        let piece = &rest[..found.unwrap_or(rest.len())];
        if !piece.is_empty() {
            if out.len() > start {
                out.push(SEPARATOR);
            }
            out.extend_from_slice(piece);
        }
        let Some(found) = found else { break };
        rest = &rest[found + delimiter.len()..];
    }
    if out.len() == start {
        out.extend_from_slice(token);
    }
}

/// The characters of a token; bytes that are not UTF-8 stand alone.
fn characters(token: &[u8]) -> impl Iterator<Item = &[u8]> {
    token.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid();
        let whole = valid
            .char_indices()
            .map(|(at, c)| &valid.as_bytes()[at..at + c.len_utf8()]);
        whole.chain(chunk.invalid().chunks(1))
    })
}

fn join<'p>(out: &mut Vec<u8>, pieces: impl IntoIterator<Item = &'p [u8]>) {
    for (index, piece) in pieces.into_iter().enumerate() {
        if index > 0 {
            out.push(SEPARATOR);
        }
        out.extend_from_slice(piece);
    }
}

fn number(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A token of a subject that fits the source, which therefore has it.
fn nth(subject: &[u8], index: usize) -> &[u8] {
    tokens(subject).nth(index).unwrap_or_default()
}

const FNV_OFFSET: u32 = 0x811c_9dc5;

fn fnv1a(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
