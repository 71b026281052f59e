//! Limits of the process.

/// Raises the number of files this process may have open as far as it may by itself. Every connection is one.
/// Gives the number in force, if the system tells it.
#[cfg(unix)]
pub(crate) fn raise_file_limit() -> Option<u64> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft >= hard {
        return Some(soft);
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    Some(if raised { hard } else { soft })
}

/// Nothing to raise on this system.
#[cfg(not(unix))]
pub(crate) fn raise_file_limit() -> Option<u64> {
    None
}
