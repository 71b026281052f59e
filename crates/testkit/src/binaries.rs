//! Where the programs under test are.
//!
//! [`nats_server_path`] finds the real server that `scripts/fetch-nats-server` has put into the user's cache;
//! [`windjet_path`] finds our own. Both fail with the command that helps: a test that needs a program is never
//! skipped in silence.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The version of the real server that everything is compared with.
pub const REFERENCE_VERSION: &str = "2.15.1";

/// The real nats-server: `NATS_SERVER` when set, else the copy in the user's cache.
///
/// # Errors
/// When there is none; the message names the script that fetches it.
pub fn nats_server_path() -> Result<PathBuf> {
    if let Some(given) = env::var_os("NATS_SERVER").filter(|given| !given.is_empty()) {
        let given = PathBuf::from(given);
        if !given.is_file() {
            bail!("NATS_SERVER names {}, which is not a file", given.display());
        }
        return Ok(given);
    }
    let cached = cache_folder()?
        .join(format!("nats-server-{REFERENCE_VERSION}"))
        .join(program("nats-server"));
    if !cached.is_file() {
        bail!(
            "the real nats-server {REFERENCE_VERSION} is not at {}: run scripts/fetch-nats-server, \
             or set NATS_SERVER to its path",
            cached.display()
        );
    }
    Ok(cached)
}

/// Our own server: `WINDJET_BIN` when set, else the binary built beside the running test.
///
/// # Errors
/// When there is none; the message names the command that builds it.
pub fn windjet_path() -> Result<PathBuf> {
    if let Some(given) = env::var_os("WINDJET_BIN").filter(|given| !given.is_empty()) {
        let given = PathBuf::from(given);
        if !given.is_file() {
            bail!("WINDJET_BIN names {}, which is not a file", given.display());
        }
        return Ok(given);
    }
    let running = env::current_exe().context("where the running test is")?;
    // A binary lies in the profile's folder, a test one level deeper in `deps`.
    let found = running
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(program("windjet")));
    found.into_iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "no windjet binary near {}: run `cargo build -p windjet-cli`, or set WINDJET_BIN to its path",
            running.display()
        )
    })
}

fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Ok(base
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("windjet"))
}

fn program(name: &str) -> PathBuf {
    Path::new(name).with_extension(env::consts::EXE_EXTENSION)
}
