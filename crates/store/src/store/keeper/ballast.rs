//! A full disk: the ballast is given up, appends are refused, and resume when it could be made again.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Core, FAILURES_MAX, Keeper};
use crate::journal::{fill, make_file};

/// The file whose room is used when the disk is full.
pub(crate) const BALLAST: &str = "ballast";

#[derive(Debug, Default)]
pub(super) struct Ballast {
    pub(super) made: bool,
    pub(super) checked: bool,
    pub(super) next_try: Duration,
}

impl Keeper {
    /// Refuses appends and frees the ballast, which is enough to materialise the whole journal.
    pub(super) fn disk_full(&mut self, core: &Core) {
        if !core.disk_full.swap(true, Ordering::Relaxed) {
            self.ballast.next_try = core.clock.monotonic() + Duration::from_secs(1);
        }
        if core.disk.remove(BALLAST).is_ok() {
            self.ballast.made = false;
        }
    }

    fn ballast_size(core: &Core) -> u64 {
        core.options.journal_max / 10 * 11
    }

    pub(super) fn check_ballast(&mut self, core: &Core) -> io::Result<()> {
        self.ballast.checked = true;
        if core.options.ballast && !self.ballast.made {
            self.make_ballast(core)?;
        }
        Ok(())
    }

    fn make_ballast(&mut self, core: &Core) -> io::Result<()> {
        let size = Self::ballast_size(core);
        match core.disk.open(BALLAST) {
            Ok(file) => {
                let len = file.len()?;
                if len > size {
                    // Made for a larger journal.
                    drop(file);
                    core.disk.remove(BALLAST)?;
                    make_file(&*core.disk, BALLAST, size)?;
                } else if len < size {
                    fill(&*file, len, size)?;
                }
            }
            Err(_) => {
                make_file(&*core.disk, BALLAST, size)?;
            }
        }
        core.disk.sync_dir()?;
        self.ballast.made = true;
        Ok(())
    }

    /// Once a second: appends resume when the ballast can be made again, and when that segments could not be written was
    /// the reason, once one was.
    pub(super) fn try_resume(&mut self, core: &Core) -> io::Result<()> {
        let now = core.clock.monotonic();
        if now < self.ballast.next_try || self.failures >= FAILURES_MAX {
            return Ok(());
        }
        self.ballast.next_try = now + Duration::from_secs(1);
        if core.options.ballast {
            match self.make_ballast(core) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                    let _ = core.disk.remove(BALLAST);
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        core.disk_full.store(false, Ordering::Relaxed);
        core.wake_waiting();
        Ok(())
    }
}
