//! Spelling of values inside error texts, as nats-server spells them.
//!
//! Clients and operators search logs for these texts, so quoting, file errors and cleaned paths follow the
//! conventions of the Go programs they know.

use std::borrow::Cow;
use std::io;

use windjet_protocol::wire::errors;

/// Quotes `text` with double quotes and backslash escapes.
pub(super) fn quote(text: &str) -> String {
    errors::quote(text.as_bytes())
}

/// `open x: no such file or directory`.
pub(super) fn open_error(path: &str, error: &io::Error) -> String {
    let reason: Cow<'_, str> = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::NotADirectory => "not a directory".into(),
        io::ErrorKind::IsADirectory => return format!("read {path}: is a directory"),
        _ => error.to_string().into(),
    };
    format!("open {path}: {reason}")
}

/// Joins the folder of `file` with `name` and resolves `.` and `..` by text alone.
///
/// `name` is always taken as relative, even with a leading slash; that is how nats-server includes files.
pub(super) fn join_include(file: &str, name: &str) -> String {
    let folder = match file.rfind('/') {
        Some(0) => "/",
        Some(at) => &file[..at],
        None => ".",
    };
    clean(&format!("{folder}/{name}"))
}

fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_escapes_what_cannot_be_printed() {
        assert_eq!(quote("a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(quote("\n\t\u{1}\u{7f}é"), "\"\\n\\t\\x01\\x7fé\"");
        assert_eq!(quote("\u{85}\u{2028}"), "\"\\u0085\\u2028\"");
    }

    #[test]
    fn includes_are_relative_to_the_including_file() {
        assert_eq!(join_include("x.conf", "./y.conf"), "y.conf");
        assert_eq!(join_include("x.conf", "../y.conf"), "../y.conf");
        assert_eq!(join_include("/a/b/x.conf", "../y.conf"), "/a/y.conf");
        assert_eq!(join_include("/x.conf", "../../y.conf"), "/y.conf");
        assert_eq!(join_include("a/x.conf", "/etc/y.conf"), "a/etc/y.conf");
        assert_eq!(join_include("", "y.conf"), "y.conf");
    }
}
