//! Why a configuration was refused.
//!
//! The texts are those of nats-server behind its `nats-server: ` prefix, so that a program prints
//! `nats-server: {error}` and says what the users and test suites of that server know.

use std::io;
use std::path::PathBuf;

use super::text::open_error;
use super::value::Position;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}", open_error(&path.to_string_lossy(), source))]
    Read {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The text does not follow the grammar, or an include or a variable failed.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The text is well formed; its content is not acceptable. All problems are listed.
    #[error("{}", lines(warnings, problems))]
    Invalid {
        /// Warnings that were found beside the problems.
        warnings: Vec<Problem>,
        /// What has to change.
        problems: Vec<Problem>,
    },
}

/// One thing that is wrong with the content of a configuration, or merely doubtful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where; `None` when no single place is to blame.
    pub position: Option<Position>,
    /// What, in nats-server's words where it has the same check.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.position {
            Some(position) => write!(f, "{position}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

fn lines(warnings: &[Problem], problems: &[Problem]) -> String {
    let all: Vec<String> = warnings.iter().chain(problems).map(ToString::to_string).collect();
    all.join("\n")
}

/// Text that does not follow the grammar.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyntaxError {
    /// A character that does not fit.
    #[error("Parse error on line {line}: '{message}'")]
    Unexpected {
        /// Line, from 1.
        line: usize,
        /// What was expected and what was found.
        message: String,
    },
    /// A number or date that cannot be represented.
    #[error("{message}")]
    Unrepresentable {
        /// Line, from 1.
        line: usize,
        /// The literal and what is wrong with it.
        message: String,
    },
    /// The file ends behind a key.
    #[error("config is invalid ({position})")]
    Incomplete {
        /// The end of the file.
        position: Position,
    },
    /// The file is not UTF-8.
    #[error("config is not valid UTF-8 ({position})")]
    NotUtf8 {
        /// The first bad byte.
        position: Position,
    },
    /// A variable that neither an enclosing map nor the environment defines.
    #[error("variable reference for '{name}' on line {line} can not be found")]
    VariableNotFound {
        /// Its name without `$`.
        name: String,
        /// Line of the reference, from 1.
        line: usize,
    },
    /// A variable of the environment whose text is no value.
    #[error("variable reference for '{name}' on line {line} could not be parsed: {source}")]
    VariableNotParsed {
        /// Its name without `$`.
        name: String,
        /// Line of the reference, from 1.
        line: usize,
        /// What is wrong with the text.
        source: Box<SyntaxError>,
    },
    /// A variable of the environment that refers to itself.
    #[error("variable reference cycle for '{name}'")]
    VariableCycle {
        /// Its name without `$`.
        name: String,
    },
    /// An included file that could not be read.
    #[error("error parsing include file '{name}', {}", open_error(path, source))]
    IncludeNotRead {
        /// The name in the include.
        name: String,
        /// The path that was tried.
        path: String,
        /// Why it was not read.
        source: io::Error,
    },
    /// An included file with an error of its own.
    #[error("error parsing include file '{name}', {source}")]
    Include {
        /// The name in the include.
        name: String,
        /// The error inside.
        source: Box<SyntaxError>,
    },
    /// A file that includes itself, directly or through others.
    #[error("include cycle through '{path}'")]
    IncludeCycle {
        /// The file that is already being read.
        path: String,
    },
    /// A configuration that is larger or deeper than any sensible one.
    #[error("config is too large: {limit}")]
    TooLarge {
        /// The limit that was hit.
        limit: &'static str,
    },
}
