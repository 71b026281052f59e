//! What the process takes from the machine: memory and processor time.
//!
//! Read from `/proc`, whose files are made on reading and wait for no disk. Where there is none both are 0.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Clock ticks a second in `/proc/self/stat`: the same on every Linux.
const TICKS: f64 = 100.0;
/// A share of processor time is measured over at least this long.
const WINDOW_MIN: Duration = Duration::from_millis(500);

/// Measures the share of processor time between two questions.
#[derive(Debug, Default)]
pub(crate) struct Process {
    last: Mutex<Option<Sample>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    ticks: u64,
    percent: f64,
}

impl Process {
    /// Processor time since the last question in percent of one processor, to a tenth.
    pub(crate) fn cpu_percent(&self) -> f64 {
        let Some(ticks) = ticks() else { return 0.0 };
        let at = Instant::now();
        let mut last = self.last.lock();
        let percent = match *last {
            None => 0.0,
            Some(last) if at.duration_since(last.at) < WINDOW_MIN => return last.percent,
            Some(last) => {
                let spent = ticks.saturating_sub(last.ticks) as f64 / TICKS;
                let share = spent / at.duration_since(last.at).as_secs_f64();
                (share * 1_000.0).round() / 10.0
            }
        };
        *last = Some(Sample { at, ticks, percent });
        percent
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> u64 {
        std::fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| resident(&status))
            .unwrap_or(0)
    }
}

/// Bytes of memory that the machine has; `None` where it does not tell.
pub(crate) fn memory_of_machine() -> Option<u64> {
    kib("MemTotal:", &std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Processors that the process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn ticks() -> Option<u64> {
    user_and_system(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Fields 14 and 15; the name in field 2 may hold blanks and stands in parentheses.
fn user_and_system(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn resident(status: &str) -> Option<u64> {
    kib("VmRSS:", status)
}

/// Bytes behind a label in a list of sizes in kibibytes.
fn kib(label: &str, list: &str) -> Option<u64> {
    let line = list.lines().find_map(|line| line.strip_prefix(label))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_a_name_with_blanks() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0 20";
        assert_eq!(user_and_system(stat), Some(42));
        assert_eq!(user_and_system("7 (a) S 1"), None);
    }

    #[test]
    fn resident_memory_is_read_in_kibibytes() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
    }
}
