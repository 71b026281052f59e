//! `--signal COMMAND=PID`: tells a running server to do something.

/// Sends the signal that `argument` asks for.
///
/// # Errors
///
/// A sentence in nats-server's words.
#[cfg(unix)]
pub(super) fn send(argument: &str) -> Result<(), String> {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let (command, target) = match argument.split_once('=') {
        Some((command, target)) => (command, Some(target)),
        None => (argument, None),
    };
    let signal = match command {
        "stop" => Signal::SIGKILL,
        "quit" => Signal::SIGINT,
        "term" => Signal::SIGTERM,
        "reopen" => Signal::SIGUSR1,
        "reload" => Signal::SIGHUP,
        "ldm" => Signal::SIGUSR2,
        _ => return Err(format!("unknown signal {command:?}")),
    };
    let target = target.filter(|target| !target.is_empty()).ok_or_else(|| {
        format!("signal {command:?} needs a process: {command}=PID, or the path of a pid file")
    })?;
    let pid = process(target)?;
    kill(Pid::from_raw(pid), signal)
        .map_err(|errno| format!("\nsignal {command:?} {pid}: {}", errno.desc().to_lowercase()))
}

/// Refuses: this system has no signals.
///
/// # Errors
///
/// Always.
#[cfg(not(unix))]
pub(super) fn send(_argument: &str) -> Result<(), String> {
    Err("this system has no signals".to_owned())
}

/// A process id, or the path of a file that has one.
#[cfg(unix)]
fn process(target: &str) -> Result<i32, String> {
    let invalid = || format!("invalid pid: {target}");
    let pid = match target.parse::<i32>() {
        Ok(pid) => pid,
        Err(_) => {
            let text = std::fs::read_to_string(target).map_err(|_| invalid())?;
            text.trim().parse().map_err(|_| invalid())?
        }
    };
    // Zero and negative numbers name groups of processes.
    if pid > 0 { Ok(pid) } else { Err(invalid()) }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn commands_and_processes_that_do_not_exist_are_named() {
        assert_eq!(send("foo=1").unwrap_err(), r#"unknown signal "foo""#);
        assert_eq!(send("ldm=abc").unwrap_err(), "invalid pid: abc");
        assert_eq!(send("ldm=-1").unwrap_err(), "invalid pid: -1");
        assert_eq!(send("ldm=0").unwrap_err(), "invalid pid: 0");
        assert!(send("ldm").unwrap_err().contains("needs a process"));
        let gone = send("ldm=2147483646").unwrap_err();
        assert_eq!(gone, "\nsignal \"ldm\" 2147483646: no such process");
    }

    #[test]
    fn a_pid_file_stands_for_the_pid_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.pid");
        std::fs::write(&path, "4711\n").unwrap();
        assert_eq!(process(path.to_str().unwrap()), Ok(4711));
    }
}
