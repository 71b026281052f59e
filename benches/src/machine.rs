//! The machine: which cores work for whom, how much processor time and memory a process used.
//!
//! Linux gives all of it through `/proc` and the scheduler calls; elsewhere the functions answer "not
//! known" and the affected metrics are left out of the report.

use std::time::Duration;

/// Which cores the server and the load generator may use.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Cores {
    /// Cores of the server; empty means all.
    pub(crate) server: Vec<usize>,
    /// Cores of the load generator; empty means all.
    pub(crate) load: Vec<usize>,
}

/// What the report says about where it was measured.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Machine {
    /// Processor model.
    pub(crate) cpu: String,
    /// Cores this process may use.
    pub(crate) cores: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// Operating system and kernel release.
    pub(crate) kernel: String,
}

impl Machine {
    /// Asks the system.
    pub(crate) fn look() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib(&meminfo, "MemTotal").unwrap_or(0) / 1024,
            kernel: format!("{} {}", std::env::consts::OS, release.trim()),
        }
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kib(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split_whitespace().next()?.parse().ok()
}

/// Memory of one process, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Pages mapped now, shared ones counted whole.
    pub(crate) rss: u64,
    /// Pages mapped now, shared ones divided among their users.
    pub(crate) pss: u64,
}

/// Memory of the process `pid`; `None` where `/proc` does not tell.
pub(crate) fn memory(pid: u32) -> Option<Memory> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(Memory {
        rss: kib(&rollup, "Rss:")? * 1024,
        pss: kib(&rollup, "Pss:")? * 1024,
    })
}

/// Processor time that process `pid` has used so far, ended threads included, to the nanosecond.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).ok()?);
    let clock = nix::time::clock_getcpuclockid(pid).ok()?;
    clock.now().ok().map(Duration::from)
}

/// Binds the calling thread, and what it spawns from now on, to `cores`; empty means it is left alone.
#[cfg(target_os = "linux")]
pub(crate) fn pin(cores: &[usize]) -> anyhow::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = nix::sched::CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?;
    Ok(())
}

/// Processor time of another process is read on Linux only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time(_pid: u32) -> Option<Duration> {
    None
}

/// Threads are bound to cores on Linux only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_cores: &[usize]) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files_are_found() {
        let text = "MemTotal:       24611808 kB\nMemFree:        1 kB\n";
        assert_eq!(kib(text, "MemTotal"), Some(24_611_808));
        assert_eq!(kib(text, "Swap"), None);
        assert_eq!(
            field("model name\t: Some CPU\n", "model name").as_deref(),
            Some("Some CPU")
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn processor_time_of_this_process_grows() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        let mut hash = 1u64;
        while cpu_time(pid).unwrap() - before < Duration::from_millis(1) {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).rotate_left(7);
        }
        assert_ne!(hash, 0);
        assert!(memory(pid).unwrap().rss > 0);
    }
}
