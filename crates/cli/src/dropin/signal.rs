//! `--signal COMMAND=PID`: tells a running server to do something.
//!
//! Without a process the only other one called nats-server is meant, where the system lists processes under `/proc`;
//! elsewhere none is found.

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
    let pid = match target.filter(|target| !target.is_empty()) {
        Some(target) => process(target)?,
        None => only(&running(super::NAME))?,
    };
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

/// The one process that can be meant when none is named.
#[cfg(unix)]
fn only(found: &[i32]) -> Result<i32, String> {
    match found {
        [] => Err(format!("no {} processes running", super::NAME)),
        [pid] => Ok(*pid),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            let list = list.join("\n");
            Err(format!("multiple {} processes running:\n{list}", super::NAME))
        }
    }
}

/// Other processes of this name, in ascending order. None where the system has no `/proc`.
#[cfg(unix)]
fn running(name: &str) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut found: Vec<i32> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        })
        .collect();
    found.sort_unstable();
    found
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
        let gone = send("ldm=2147483646").unwrap_err();
        assert_eq!(gone, "\nsignal \"ldm\" 2147483646: no such process");
    }

    #[test]
    fn without_a_process_the_only_one_is_meant() {
        assert_eq!(only(&[7]), Ok(7));
        assert_eq!(only(&[]).unwrap_err(), "no nats-server processes running");
        assert_eq!(
            only(&[7, 12]).unwrap_err(),
            "multiple nats-server processes running:\n7\n12"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processes_are_found_by_name() {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};

        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("wj-signal-test");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        // It runs until its input ends.
        let mut child = Command::new(&program)
            .args(["-c", "echo up; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(running("wj-signal-test"), [child.id().cast_signed()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(running("wj-signal-test").is_empty());
    }

    #[test]
    fn a_pid_file_stands_for_the_pid_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.pid");
        std::fs::write(&path, "4711\n").unwrap();
        assert_eq!(process(path.to_str().unwrap()), Ok(4711));
    }
}
