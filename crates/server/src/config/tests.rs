//! Tests of the configuration language and its binding, by table.
//!
//! Expected texts were recorded from nats-server 2.15.1 unless a comment says otherwise.

mod blocks;
mod hostile;
mod language;
mod options;
mod refusals;
mod suites;

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::{ConfigError, Environment, Parsed, parse_file, parse_str};

/// Parses text that refers to no file and no variable.
fn parse(text: &str) -> Result<Parsed, ConfigError> {
    parse_str(text, &Environment::isolated())
}

/// The options of text that must be good.
fn good(text: &str) -> crate::Options {
    match parse(text) {
        Ok(parsed) => parsed.options,
        Err(error) => panic!("{text}\n{error}"),
    }
}

/// The error of text that must be bad.
fn bad(text: &str) -> String {
    match parse(text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

/// Parses `main` among files that exist in memory only.
fn parse_files(main: &str, files: &[(&str, &str)]) -> Result<Parsed, ConfigError> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    let environment = Environment::isolated().with_files(move |path: &Path| {
        let name = path.to_str().unwrap_or_default();
        match files.get(name) {
            Some(text) => Ok(text.as_bytes().to_vec()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    });
    parse_file(main, &environment)
}
