//! System errors in the words that Go programs print, which client test suites look for.

use std::io;

/// The reason alone: `no such file or directory`.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    // Rust adds the number behind the system's text, which begins with a capital.
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text.to_owned(),
    }
}

/// `open PATH: REASON`.
pub(crate) fn open(path: &std::path::Path, error: &io::Error) -> String {
    format!("open {}: {}", path.display(), reason(error))
}

/// `listen tcp ADDRESS: bind: REASON`, or that the name in the address is unknown.
pub(crate) fn listen(address: &str, error: &io::Error) -> String {
    if error.raw_os_error().is_some() {
        return format!("listen tcp {address}: bind: {}", reason(error));
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    format!("listen tcp: lookup {host}: no such host")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn system_errors_read_as_go_prints_them() {
        let missing = std::fs::File::open("/nope/x").unwrap_err();
        assert_eq!(
            open("/nope/x".as_ref(), &missing),
            "open /nope/x: no such file or directory"
        );
        let used = io::Error::from_raw_os_error(nix::errno::Errno::EADDRINUSE as i32);
        assert_eq!(
            listen("127.0.0.1:1", &used),
            "listen tcp 127.0.0.1:1: bind: address already in use"
        );
        let unknown = io::Error::other("failed to lookup address information");
        assert_eq!(
            listen("a.invalid:1", &unknown),
            "listen tcp: lookup a.invalid: no such host"
        );
        let other = io::Error::other("Odd");
        assert_eq!(reason(&other), "odd");
    }
}
