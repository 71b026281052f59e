//! What holds for any text given to the configuration parser. Used by the fuzz target and by the test that replays its
//! corpus.

use windjet_server::config::{ConfigError, Environment, Parsed, parse_file};

/// How far a text came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It does not follow the grammar, or an include or a variable failed.
    Nothing,
    /// It says something that is not acceptable.
    Tree,
    /// It is a configuration.
    Options,
}

/// Parses the bytes, and panics when the result is not the same twice or says nothing.
///
/// The bytes are divided at lines of `%%`. The first part is the configuration, the second the content of every file
/// that it includes or names, the third the text of every variable. A part that is absent means that there is no such
/// thing.
pub(crate) fn check(bytes: &[u8]) -> Reached {
    let parts = divide(bytes);
    let first = parse(&parts);
    let again = parse(&parts);
    match (first, again) {
        (Ok(parsed), Ok(again)) => {
            assert!(parsed.digest.starts_with("sha256:"));
            assert_eq!(parsed.digest, again.digest);
            assert_eq!(format!("{:?}", parsed.options), format!("{:?}", again.options));
            // Whether the options go together is another question; asking it must be safe.
            let _ = parsed.options.validate();
            Reached::Options
        }
        (Err(error), Err(again)) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(error.to_string(), again.to_string());
            match error {
                ConfigError::Invalid { .. } => Reached::Tree,
                _ => Reached::Nothing,
            }
        }
        _ => panic!("not the same twice"),
    }
}

fn divide(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match parts.last_mut() {
            Some(part) if line.trim_ascii_end() != b"%%" => part.extend_from_slice(line),
            _ => parts.push(Vec::new()),
        }
    }
    parts
}

fn parse(parts: &[Vec<u8>]) -> Result<Parsed, ConfigError> {
    let environment = Environment::isolated()
        .with_files(|path| {
            let part = if path.as_os_str() == "main.conf" { 0 } else { 1 };
            parts
                .get(part)
                .cloned()
                .ok_or_else(|| std::io::ErrorKind::NotFound.into())
        })
        .with_variables(|_| {
            parts
                .get(2)
                .map(|text| String::from_utf8_lossy(text).into_owned())
        });
    parse_file("main.conf", &environment)
}
