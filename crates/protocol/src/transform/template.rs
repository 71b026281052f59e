//! Destinations: parsing them against a source, and the functions in them.

use std::fmt;

use crate::subject::{ANY_TAIL, ANY_TOKEN, SEPARATOR, SubjectFilter, is_valid_publish, tokens};

/// Why a transform cannot be built. The texts are the reference server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// The source is not a subscription pattern.
    #[error("invalid subject {subject}")]
    Source {
        /// The source as given.
        subject: String,
    },
    /// The destination is empty, has a `*`, or has a `>` where the source has none, or none where it has one.
    #[error("invalid subject")]
    Destination,
    /// A token of the destination is at fault.
    #[error("invalid mapping destination: {reason}{}", InToken(.token))]
    Token {
        /// What is wrong.
        reason: DestinationError,
        /// The token, or what there is to say about it; empty when there is nothing.
        token: String,
    },
}

/// What is wrong with a token of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// An empty token, whitespace outside a function, or a token after `>`.
    #[error("invalid transform")]
    Invalid,
    /// Braces with a name that is no function.
    #[error("unknown function")]
    UnknownFunction,
    /// A wildcard that the source does not have.
    #[error("wildcard index out of range")]
    IndexOutOfRange,
    /// Too few arguments.
    #[error("not enough arguments passed to the function")]
    NotEnoughArguments,
    /// Too many arguments.
    #[error("too many arguments passed to the function")]
    TooManyArguments,
    /// An argument that is not a number where one is needed, or not a possible delimiter.
    #[error("function argument is invalid or in the wrong format")]
    InvalidArgument,
    /// An import must use all wildcards of its source.
    #[error("not using all of the token wildcard(s)")]
    NotUsingAllWildcards,
    /// An import can only move tokens.
    #[error("the only mapping function allowed for import transforms is {{{{Wildcard()}}}}")]
    NotSupportedForImport,
}

struct InToken<'t>(&'t str);

impl fmt::Display for InToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " in {}", self.0)
        }
    }
}

/// A part of a destination; parts are joined by separators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// One or more literal tokens.
    Literal(Vec<u8>),
    Function(Function),
    /// What the source's `>` matched.
    Tail,
}

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

/// Names in camel case; capitals may also be written small, nothing else may vary.
const NAMES: [(&str, Name); 10] = [
    ("Wildcard", Name::Wildcard),
    ("Partition", Name::Partition),
    ("Random", Name::Random),
    ("Split", Name::Split),
    ("SplitFromLeft", Name::Cut(Cut::SplitFromLeft)),
    ("SplitFromRight", Name::Cut(Cut::SplitFromRight)),
    ("SliceFromLeft", Name::Cut(Cut::SliceFromLeft)),
    ("SliceFromRight", Name::Cut(Cut::SliceFromRight)),
    ("Left", Name::Cut(Cut::Left)),
    ("Right", Name::Cut(Cut::Right)),
];

#[derive(Debug, Clone, Copy)]
enum Name {
    Wildcard,
    Partition,
    Random,
    Split,
    Cut(Cut),
}

/// Parses a destination for a source.
pub(super) fn parse(source: &SubjectFilter, destination: &str) -> Result<Vec<Piece>, TransformError> {
    if destination.is_empty() {
        return Err(TransformError::Destination);
    }
    check_tokens(destination)?;
    let source_tail = tokens(source).any(|token| token == ANY_TAIL);
    let destination_tail = destination.split('.').any(|token| token.as_bytes() == ANY_TAIL);
    let star = destination.split('.').any(|token| token.as_bytes() == ANY_TOKEN);
    if star || source_tail != destination_tail {
        return Err(TransformError::Destination);
    }
    let wildcards: Vec<usize> = tokens(source)
        .enumerate()
        .filter(|&(_, token)| token == ANY_TOKEN)
        .map(|(index, _)| index)
        .collect();
    let mut pieces = Vec::new();
    for token in destination.split('.') {
        if token.as_bytes() == ANY_TAIL {
            pieces.push(Piece::Tail);
        } else if let Some(function) = parse_token(token, &wildcards)? {
            pieces.push(Piece::Function(function));
        } else if let Some(Piece::Literal(text)) = pieces.last_mut() {
            text.push(SEPARATOR);
            text.extend_from_slice(token.as_bytes());
        } else {
            pieces.push(Piece::Literal(token.as_bytes().to_vec()));
        }
    }
    Ok(pieces)
}

/// The checks that come before any function is looked into.
fn check_tokens(destination: &str) -> Result<(), TransformError> {
    let error = |reason, token: &str| {
        Err(TransformError::Token {
            reason,
            token: token.to_owned(),
        })
    };
    let mut after_tail = false;
    for token in destination.split('.') {
        if token.is_empty() || after_tail {
            return error(DestinationError::Invalid, token);
        }
        after_tail = token.as_bytes() == ANY_TAIL;
        if let Some(inner) = braced(token) {
            if function_call(inner).is_none() {
                return error(DestinationError::UnknownFunction, token);
            }
        } else if !is_valid_publish(token.as_bytes()) {
            return error(DestinationError::Invalid, "");
        }
    }
    Ok(())
}

/// The inside of `{{...}}`, if there is any.
fn braced(token: &str) -> Option<&str> {
    token
        .strip_prefix("{{")?
        .strip_suffix("}}")
        .filter(|inner| !inner.is_empty())
}

/// Name and argument text of a call of a known function.
fn function_call(inner: &str) -> Option<(Name, &str)> {
    let (name, rest) = inner.split_once('(')?;
    let args = rest.trim_end_matches(is_blank).strip_suffix(')')?;
    let name = name.trim_matches(is_blank);
    let spelled = |known: &str| {
        known.len() == name.len()
            && known
                .bytes()
                .zip(name.bytes())
                .all(|(wanted, given)| given == wanted || given == wanted.to_ascii_lowercase())
    };
    NAMES
        .iter()
        .find(|(known, _)| spelled(known))
        .map(|&(_, name)| (name, args))
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}')
}

/// The function a token stands for; `None` for a literal.
fn parse_token(token: &str, wildcards: &[usize]) -> Result<Option<Function>, TransformError> {
    let call = Call { token, wildcards };
    if let Some(index) = token.strip_prefix('$') {
        // Subjects such as `$JS.API` are literals.
        return index
            .parse()
            .ok()
            .map(|index| call.wildcard(index).map(Function::Wildcard))
            .transpose();
    }
    match braced(token).and_then(function_call) {
        Some((name, args)) => call.parse(name, args).map(Some),
        None => Ok(None),
    }
}

/// A function call being parsed, for its errors and its wildcards.
struct Call<'t> {
    token: &'t str,
    wildcards: &'t [usize],
}

impl Call<'_> {
    fn parse(&self, name: Name, args: &str) -> Result<Function, TransformError> {
        let args: Vec<&str> = args
            .split(',')
            .enumerate()
            .map(|(index, arg)| {
                if index == 0 {
                    arg
                } else {
                    arg.trim_start_matches(is_blank)
                }
            })
            .collect();
        match (name, args.as_slice()) {
            (Name::Wildcard, [""]) => Err(self.error(DestinationError::NotEnoughArguments)),
            (Name::Wildcard, [index]) => Ok(Function::Wildcard(self.wildcard(self.number(index)?)?)),
            (Name::Wildcard, _) => Err(self.error(DestinationError::TooManyArguments)),
            (Name::Partition, [count, indexes @ ..]) => {
                let count = self.count(count)?;
                let indexes: Vec<i64> = indexes.iter().map(|i| self.number(i)).collect::<Result<_, _>>()?;
                let tokens = indexes
                    .into_iter()
                    .map(|i| self.wildcard(i))
                    .collect::<Result<_, _>>()?;
                Ok(Function::Partition { count, tokens })
            }
            (Name::Random, [count]) => Ok(Function::Random(self.count(count)?)),
            // The reference says "not enough" for any number of arguments but one.
            (Name::Random, _) => Err(self.error(DestinationError::NotEnoughArguments)),
            (Name::Split | Name::Cut(_), [_]) => Err(self.error(DestinationError::NotEnoughArguments)),
            (Name::Split, [index, delimiter]) => {
                let index = self.number(index)?;
                if delimiter.contains(' ') {
                    return Err(self.error(DestinationError::InvalidArgument));
                }
                Ok(Function::Split {
                    token: self.wildcard(index)?,
                    delimiter: delimiter.as_bytes().to_vec(),
                })
            }
            (Name::Cut(cut), [index, size]) => {
                let (index, size) = (self.number(index)?, self.number(size)?);
                // A size that cannot be leaves the token whole, and so does 0.
                Ok(Function::Cut {
                    cut,
                    token: self.wildcard(index)?,
                    size: usize::try_from(size).unwrap_or(0),
                })
            }
            _ => Err(self.error(DestinationError::TooManyArguments)),
        }
    }

    fn error(&self, reason: DestinationError) -> TransformError {
        TransformError::Token {
            reason,
            token: self.token.to_owned(),
        }
    }

    fn number(&self, arg: &str) -> Result<i64, TransformError> {
        arg.trim_matches(' ')
            .parse()
            .map_err(|_| self.error(DestinationError::InvalidArgument))
    }

    fn count(&self, arg: &str) -> Result<u32, TransformError> {
        let count = i32::try_from(self.number(arg)?)
            .ok()
            .and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| self.error(DestinationError::InvalidArgument))
    }

    /// The token of the subject that the `index`-th wildcard of the source stands at.
    fn wildcard(&self, index: i64) -> Result<usize, TransformError> {
        let place = usize::try_from(index).ok().and_then(|index| index.checked_sub(1));
        place
            .and_then(|place| self.wildcards.get(place))
            .copied()
            .ok_or_else(|| TransformError::Token {
                reason: DestinationError::IndexOutOfRange,
                token: format!("{}: [{index}]", self.token),
            })
    }
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
