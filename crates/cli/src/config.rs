//! The configuration file, read at the start and at every reload.

use std::path::Path;

use windjet_server::config::{ConfigError, Environment, Parsed, parse_file};
use windjet_server::options::Options;
use windjet_server::{ReloadError, ReloadReport, Server};

/// Reads a file. `$NAME` in it may refer to this process's environment.
///
/// # Errors
///
/// The file cannot be read or used.
pub(crate) fn load(file: &Path) -> Result<Parsed, ConfigError> {
    let environment = Environment::new().with_variables(|name| std::env::var(name).ok());
    parse_file(file, &environment)
}

/// Applies options to a running server, on a thread that may wait for certificate files.
///
/// # Errors
///
/// The server refuses them; nothing has changed then.
pub(crate) async fn apply(server: &Server, options: Options) -> Result<ReloadReport, ReloadError> {
    let server = server.clone();
    match tokio::task::spawn_blocking(move || server.reload(options)).await {
        Ok(result) => result,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
