//! What the parser may see of the outside world: files and environment variables.
//!
//! The library reads no environment by itself. A program that wants `$NAME` to reach its environment says so:
//!
//! ```
//! use windjet_server::config::Environment;
//!
//! let environment = Environment::new().with_variables(|name| std::env::var(name).ok());
//! # drop(environment);
//! ```

use std::io;
use std::path::Path;

type Variables<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;
type Files<'a> = Box<dyn Fn(&Path) -> io::Result<Vec<u8>> + 'a>;

/// Files and variables a configuration may refer to.
pub struct Environment<'a> {
    variables: Variables<'a>,
    files: Files<'a>,
}

impl std::fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl Default for Environment<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Environment<'a> {
    /// The files of this machine and no variables.
    pub fn new() -> Self {
        Self {
            variables: Box::new(|_| None),
            files: Box::new(|path| std::fs::read(path)),
        }
    }

    /// No files and no variables: parsing does no input or output at all.
    pub fn isolated() -> Self {
        Self::new().with_files(|_| Err(io::ErrorKind::NotFound.into()))
    }

    /// Looks variables up with `variables` when no enclosing map defines them.
    #[must_use]
    pub fn with_variables(mut self, variables: impl Fn(&str) -> Option<String> + 'a) -> Self {
        self.variables = Box::new(variables);
        self
    }

    /// Reads files with `files`: the configuration itself, includes, certificates, operator JWTs.
    #[must_use]
    pub fn with_files(mut self, files: impl Fn(&Path) -> io::Result<Vec<u8>> + 'a) -> Self {
        self.files = Box::new(files);
        self
    }

    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name)
    }

    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        (self.files)(path)
    }
}
