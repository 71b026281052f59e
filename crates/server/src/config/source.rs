//! Files and variables behind one configuration, and the limits that keep hostile ones small.
//!
//! Nesting, the number of files, the depth of includes and the size of the resulting tree are bounded; a file
//! that includes itself is recognised by its path. There is no input or output except through [`Environment`].

use std::sync::Arc;

use super::environment::Environment;
use super::error::SyntaxError;
use super::grammar;
use super::text::join_include;
use super::value::{Map, Position, Value};

/// Deepest nesting of maps and arrays.
const DEPTH_MAX: usize = 128;
/// Deepest chain of includes, and of environment variables that refer to others.
const CHAIN_MAX: usize = 32;
/// Files read for one configuration.
const FILES_MAX: usize = 1_000;
/// Bytes of all files and of everything that variables copy.
const WEIGHT_MAX: usize = 32 << 20;
/// Key under which the text of an environment variable is parsed.
const VARIABLE_KEY: &str = "pk";

/// Parses `text`. `file` names it in positions and is what includes are relative to; it may be empty.
pub(super) fn parse(text: &[u8], file: &str, environment: &Environment<'_>) -> Result<Map, SyntaxError> {
    let mut session = Session {
        environment,
        including: vec![join_include(file, file.rsplit('/').next().unwrap_or(file))],
        expanding: Vec::new(),
        files: 1,
        weight: 0,
        depth: 0,
    };
    session.parse(text, file)
}

/// What is shared by all files of one configuration.
pub(super) struct Session<'e> {
    environment: &'e Environment<'e>,
    /// Cleaned paths of the files being read, outermost first.
    including: Vec<String>,
    /// Names of the environment variables being parsed.
    expanding: Vec<String>,
    files: usize,
    weight: usize,
    /// Maps and arrays that are open at present, those of including files too.
    depth: usize,
}

impl Session<'_> {
    fn parse(&mut self, bytes: &[u8], file: &str) -> Result<Map, SyntaxError> {
        self.grow(bytes.len())?;
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let position = Lines::new(bytes).position(error.valid_up_to(), &file.into());
                return Err(SyntaxError::NotUtf8 { position });
            }
        };
        grammar::parse(self, text, file)
    }

    /// Counts bytes against the limit.
    pub(super) fn grow(&mut self, weight: usize) -> Result<(), SyntaxError> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight > WEIGHT_MAX {
            return Err(SyntaxError::TooLarge {
                limit: "more than 32 MiB with all includes and variables",
            });
        }
        Ok(())
    }

    /// Opens a map or an array; [`Self::leave`] closes it.
    pub(super) fn enter(&mut self) -> Result<(), SyntaxError> {
        self.depth += 1;
        self.check_depth(0)
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Checks that `height` more levels fit at the present depth.
    pub(super) fn check_depth(&self, height: usize) -> Result<(), SyntaxError> {
        if self.depth + height > DEPTH_MAX {
            return Err(SyntaxError::TooLarge {
                limit: "maps and arrays nested deeper than 128",
            });
        }
        Ok(())
    }

    /// The entries of an included file.
    pub(super) fn include(&mut self, name: &str, from: &str) -> Result<Map, SyntaxError> {
        let path = join_include(from, name);
        if self.including.contains(&path) {
            return Err(SyntaxError::IncludeCycle { path });
        }
        self.files += 1;
        if self.files > FILES_MAX || self.including.len() > CHAIN_MAX {
            return Err(SyntaxError::TooLarge {
                limit: "more than 1000 files, or includes deeper than 32",
            });
        }
        let bytes = self
            .environment
            .read(path.as_ref())
            .map_err(|source| SyntaxError::IncludeNotRead {
                name: name.to_owned(),
                path: path.clone(),
                source,
            })?;
        self.including.push(path.clone());
        let map = self.parse(&bytes, &path).map_err(|source| SyntaxError::Include {
            name: name.to_owned(),
            source: Box::new(source),
        });
        self.including.pop();
        map
    }

    /// The value of a variable of the environment; `None` when there is none.
    pub(super) fn variable(&mut self, name: &str) -> Result<Option<Value>, SyntaxError> {
        if self.expanding.iter().any(|open| open == name) || self.expanding.len() > CHAIN_MAX {
            return Err(SyntaxError::VariableCycle {
                name: name.to_owned(),
            });
        }
        let Some(text) = self.environment.variable(name) else {
            return Ok(None);
        };
        self.expanding.push(name.to_owned());
        let parsed = self.parse(format!("{VARIABLE_KEY}={text}").as_bytes(), "");
        self.expanding.pop();
        Ok(parsed?
            .into_entries()
            .into_iter()
            .find(|(key, _)| &**key == VARIABLE_KEY)
            .map(|(_, node)| node.value))
    }
}

/// Where the lines of a text begin.
pub(super) struct Lines {
    newlines: Vec<usize>,
}

impl Lines {
    pub(super) fn new(text: &[u8]) -> Self {
        Self {
            newlines: memchr::memchr_iter(b'\n', text).collect(),
        }
    }

    /// Line of what ends before `offset`, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.newlines.partition_point(|&at| at < offset) + 1
    }

    /// Place of the byte at `offset`.
    pub(super) fn position(&self, offset: usize, file: &Arc<str>) -> Position {
        let line = self.line(offset);
        let start = if line == 1 { 0 } else { self.newlines[line - 2] };
        Position {
            file: file.clone(),
            line,
            column: offset - start,
        }
    }
}
