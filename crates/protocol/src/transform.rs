//! Subject transforms and weighted mappings.
//!
//! A [`Transform`] rewrites the subjects that its source pattern matches: streams use it on ingest, republish and
//! sources, accounts use it through a [`MappingTable`] on what clients publish. An [`ImportTransform`] is the reversible
//! kind that imports between accounts need.
//!
//! A destination is a subject whose tokens are literals or functions:
//!
//! | token | meaning |
//! |---|---|
//! | `$1`, `{{wildcard(1)}}` | the text of the first `*` of the source |
//! | `{{partition(n)}}`, `{{partition(n,1,2)}}` | FNV-1a hash, 32 bits, of the subject or of those wildcard tokens joined without separator, modulo `n` |
//! | `{{random(n)}}` | a uniform number below `n` |
//! | `{{splitFromLeft(1,n)}}`, `{{splitFromRight(1,n)}}` | the token cut in two after `n` bytes, or before the last `n` |
//! | `{{sliceFromLeft(1,n)}}`, `{{sliceFromRight(1,n)}}` | the token cut into pieces of `n` bytes, the odd piece last, or first |
//! | `{{split(1,x)}}` | the token cut at each `x`, empty pieces dropped; with an empty `x` at each character |
//! | `{{left(1,n)}}`, `{{right(1,n)}}` | the first, or last, `n` bytes of the token |
//! | `>` | what the `>` of the source matched; in both or in neither |
//!
//! Function names are spelled in lower or camel case, with blanks allowed inside the braces and after commas. A number
//! that does not fit the token leaves the token whole. A token that starts with `$` or braces without being one of
//! these is a literal, as in the reference server.
//!
//! Chosen differently from the reference, which produces subjects that cannot be routed or makes no sense there: a
//! wildcard index below 1 and a negative count are refused; `split` of a token made of delimiters only leaves it whole;
//! leading delimiters leave no empty token. A count of 0 gives 0, as there.
//!
//! All is pure. Where chance is needed, the plain methods use the thread's generator and the `_with` methods ask the
//! caller's function, so that simulations repeat.

mod function;
mod import;
mod mapping;
mod template;
#[cfg(test)]
mod tests;

pub use import::ImportTransform;
pub use mapping::{Mapped, Mapping, MappingError, MappingTable};
pub use template::{DestinationError, TransformError};

use template::{Piece, parse};

use crate::subject::{ANY_TAIL, SEPARATOR, SubjectFilter, matches, tokens};

/// A rewriting rule from the subjects matched by a pattern to new subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transform {
    source: SubjectFilter,
    destination: String,
    pieces: Vec<Piece>,
    /// Tokens of the source before its `>`, if it has one.
    tail_at: usize,
}

impl Transform {
    /// Builds the rule. An empty source is `>`.
    ///
    /// # Errors
    ///
    /// When the source is no subscription pattern, or the destination is no template or does not fit the source.
    /// An empty destination, which configurations use for "no transform", is an error here.
    pub fn new(source: &str, destination: &str) -> Result<Self, TransformError> {
        let invalid = || TransformError::Source {
            subject: source.to_owned(),
        };
        let pattern = match source {
            "" => SubjectFilter::all(),
            _ => SubjectFilter::try_from(source).map_err(|_| invalid())?,
        };
        let pieces = parse(&pattern, destination)?;
        let tail_at = tokens(&pattern).take_while(|&token| token != ANY_TAIL).count();
        Ok(Self {
            source: pattern,
            destination: destination.to_owned(),
            pieces,
            tail_at,
        })
    }

    /// Which subjects are rewritten.
    #[must_use]
    pub fn source(&self) -> &SubjectFilter {
        &self.source
    }

    /// The destination as it was given.
    #[must_use]
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Appends the new subject to `out`; false, and nothing appended, when the source does not match `subject`.
    pub fn apply(&self, subject: &[u8], out: &mut Vec<u8>) -> bool {
        self.apply_with(subject, out, random_below)
    }

    /// The same with the caller's chance: `random(n)` must give a number below `n`, and `n` is at least 1.
    pub fn apply_with(&self, subject: &[u8], out: &mut Vec<u8>, random: impl FnMut(u32) -> u32) -> bool {
        let matched = matches(&self.source, subject);
        if matched {
            self.write(subject, out, random);
        }
        matched
    }

    /// Writes the destination for a subject known to fit the source.
    fn write(&self, subject: &[u8], out: &mut Vec<u8>, mut random: impl FnMut(u32) -> u32) {
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                out.push(SEPARATOR);
            }
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text),
                Piece::Function(function) => function.write(subject, out, &mut random),
                Piece::Tail => out.extend_from_slice(self.tail(subject)),
            }
        }
    }

    /// What the `>` of the source stands for.
    fn tail<'s>(&self, subject: &'s [u8]) -> &'s [u8] {
        let mut walk = tokens(subject);
        for _ in 0..self.tail_at {
            walk.next();
        }
        walk.rest().unwrap_or_default()
    }
}

/// A uniform number below `n` from the thread's generator.
fn random_below(n: u32) -> u32 {
    rand::random_range(0..n)
}
