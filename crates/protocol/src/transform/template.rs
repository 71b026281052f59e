//! Parsing a destination against its source.
//!
//! The checks and their order are the reference server's, because their texts reach users. What the functions then do is
//! in the sibling module `function`.

use std::fmt;

use super::function::{Cut, Function};
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
                // The reference does not say which where there is no wildcard at all.
                token: if self.wildcards.is_empty() {
                    self.token.to_owned()
                } else {
                    format!("{}: [{index}]", self.token)
                },
            })
    }
}
