//! Windjet under the name `nats-server`.
//!
//! Client test suites start a server by that name, with that program's flags, and read its log, its pid file and its
//! ports file. When the binary is called so (by a link or a copy), it behaves as nats-server 2.15 does on one
//! machine, down to the texts: section 6 of the core specification is the table of them. Defaults are the
//! reference's too; notably, clients are awaited on every address without authentication.
//!
//! | module | what |
//! |---|---|
//! | `flags`, `options` | the command line, and what it means |
//! | `startup` | the lines that suites wait for |
//! | `files` | pid file and ports file |
//! | `run` | from start to exit code |
//! | `signal` | `--signal`, sent to another process |

mod files;
mod flags;
mod options;
mod run;
mod signal;
mod startup;
mod usage;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use flags::Flags;

/// Name under which the binary becomes this.
pub(crate) const NAME: &str = "nats-server";

/// Runs as nats-server: `words` are the arguments behind the program's name.
pub(crate) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let (flags, rest) = match flags::parse(&words) {
        Ok(read) => read,
        Err(error) => {
            complain(&error.to_string());
            print(usage::USAGE);
            return ExitCode::SUCCESS;
        }
    };
    match act(&flags, rest) {
        Ok(code) => code,
        Err(text) => {
            complain(&format!("{NAME}: {text}"));
            ExitCode::FAILURE
        }
    }
}

fn act(flags: &Flags, rest: &[String]) -> Result<ExitCode, String> {
    let word = rest.first().map(|word| word.to_ascii_lowercase());
    match word.as_deref() {
        _ if flags.version == Some(true) => {}
        _ if flags.help == Some(true) => {}
        _ if flags.help_tls == Some(true) => {}
        None | Some("version" | "help") => {}
        Some(_) => return Err(format!("unrecognized command: {:?}", rest[0])),
    }
    if flags.version == Some(true) || word.as_deref() == Some("version") {
        print(&format!("{NAME}: v{}\n", windjet_server::PROTOCOL_VERSION));
        return Ok(ExitCode::SUCCESS);
    }
    if flags.help == Some(true) || word.as_deref() == Some("help") {
        print(usage::USAGE);
        return Ok(ExitCode::SUCCESS);
    }
    if flags.help_tls == Some(true) {
        print(usage::TLS);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(argument) = flags.signal.as_deref().filter(|argument| !argument.is_empty()) {
        signal::send(argument)?;
        return Ok(ExitCode::SUCCESS);
    }
    run::run(flags)
}

/// Writes to standard output. When nobody reads it, there is nobody to tell.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Writes a line to standard error.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
