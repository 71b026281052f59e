//! The NATS configuration file: its language and its meaning.
//!
//! [`parse_file`] and [`parse_str`] turn a file written for nats-server 2.15 into [`Options`]. They are plain
//! blocking functions without state: a server calls them before it starts and again for a reload.
//!
//! | module | question it answers |
//! |---|---|
//! | `lexer`, `grammar`, `source` | what does the text say? A tree of values with positions |
//! | `bind` | what does the tree mean? Options, errors, warnings, notices |
//! | `digest` | are two configurations the same? |
//! | `environment` | what may the parser see of files and variables? |
//!
//! What is refused, is refused in nats-server's words; [`ConfigError`] prints what that server prints behind its
//! `nats-server: `. All problems of content are reported at once. What is accepted has the meaning it has there,
//! or appears in [`Parsed::notices`] when Windjet has no use for it. Nothing that would weaken a server when
//! ignored is ignored: encryption at rest, authentication callouts, required proxies and peers are errors.
//! `docs/configuration.md` lists every option.
//!
//! Checks that need all options together are not made here but by [`Options::validate`], when a server starts;
//! nats-server's `-t` does not make them either.
//!
//! ```
//! use windjet_server::config::{Environment, parse_str};
//!
//! let parsed = parse_str("listen: 127.0.0.1:4222, max_payload: 8MB", &Environment::new())?;
//! assert_eq!(parsed.options.max_payload, 8 << 20);
//! # Ok::<(), windjet_server::config::ConfigError>(())
//! ```

mod bind;
mod digest;
mod duration;
mod environment;
mod error;
mod grammar;
mod lexer;
mod size;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod value;

use std::path::Path;

pub(crate) use duration::format_duration;
pub use environment::Environment;
pub use error::{ConfigError, Problem, SyntaxError};
pub use size::format_size;
pub use value::Position;

use crate::options::Options;

/// A configuration that can be used.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The options. `listen` is `None` when the file says nothing about host and port; a program that behaves
    /// like nats-server then listens on `0.0.0.0:4222`.
    pub options: Options,
    /// What nats-server warns about. Its `-t` counts each of them as an error.
    pub warnings: Vec<Problem>,
    /// Settings that were accepted and have no effect. They are worth a line in the log, and no more.
    pub notices: Vec<Problem>,
    /// `sha256:<hex>` over the content, the number nats-server shows for the same file.
    pub digest: String,
}

/// Reads and parses a configuration file. Includes are relative to the file that includes.
///
/// Blocks on the file system; an async program calls it before it starts or on a thread for blocking work.
///
/// # Errors
///
/// The file or an include cannot be read, does not follow the grammar, or says something unacceptable.
pub fn parse_file(path: impl AsRef<Path>, environment: &Environment<'_>) -> Result<Parsed, ConfigError> {
    let path = path.as_ref();
    let bytes = environment.read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut parsed = parse(&bytes, &path.to_string_lossy(), environment)?;
    parsed.options.config_file = Some(path.to_owned());
    Ok(parsed)
}

/// Parses a configuration that is in memory. Includes are relative to the working directory.
///
/// # Errors
///
/// As [`parse_file`]. Positions have no file name: `:1:0: unknown field "foo"`.
pub fn parse_str(text: &str, environment: &Environment<'_>) -> Result<Parsed, ConfigError> {
    parse(text.as_bytes(), "", environment)
}

fn parse(bytes: &[u8], file: &str, environment: &Environment<'_>) -> Result<Parsed, ConfigError> {
    let map = source::parse(bytes, file, environment)?;
    let digest = digest::digest(&map);
    let mut context = bind::Context::new(environment);
    if map.is_empty() {
        context.warnings.push(Problem {
            position: None,
            message: format!("{file}: config has no values or is empty"),
        });
    }
    let mut options = bind::bind(&mut context, &map);
    if !context.errors.is_empty() {
        return Err(ConfigError::Invalid {
            warnings: context.warnings,
            problems: context.errors,
        });
    }
    options.config_digest.clone_from(&digest);
    Ok(Parsed {
        options,
        warnings: context.warnings,
        notices: context.notices,
        digest,
    })
}
