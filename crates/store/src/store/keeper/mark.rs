//! Noting in the manifest how far a quiet store came.
//!
//! While records are in the journal alone, nothing tells of its newest frames but frames behind them. When nothing was written
//! for [`QUIET`] the manifest is told the newest frame and every stream's last sequence, once. Should the journal then lose
//! its end, the opening knows what is missing, reports it and gives no sequence out twice. What was written in the last moment
//! before a kill has no such note.

use std::io;
use std::time::Duration;

use super::changes::positions;
use super::{Core, Keeper};
use crate::manifest::{Entry, Image};
use crate::store::pump::Step;

/// How long nothing must have been written.
const QUIET: Duration = Duration::from_secs(1);

/// What was noted, and since when nothing else was written.
#[derive(Debug, Default)]
pub(super) struct Mark {
    noted: u64,
    newest: u64,
    since: Duration,
}

impl Mark {
    /// Of a store that was just opened, which knows the frames before by their generation.
    pub(super) fn of(image: &Image) -> Self {
        let opened = image.openings.last();
        Self {
            noted: opened.map_or(0, |o| o.first_frame.saturating_sub(1)),
            ..Self::default()
        }
    }
}

impl Keeper {
    /// Notes the newest frame when the store has been quiet and it is not noted yet.
    pub(super) fn mark_step(&mut self, core: &Core) -> io::Result<Step> {
        let now = core.clock.monotonic();
        let (newest, drained) = {
            let journal = &core.pump.lock().journal;
            (journal.written(), journal.is_drained())
        };
        if self.mark.newest != newest {
            (self.mark.newest, self.mark.since) = (newest, now);
        }
        let quiet = now.saturating_sub(self.mark.since) >= QUIET;
        if drained || self.mark.noted == newest || !quiet {
            return Ok(Step::Idle);
        }
        let mut entries = positions(core, &self.manifest.image);
        entries.push(Entry::Next {
            incarnation: core.registry.lock().next_incarnation,
            file: self.manifest.image.next_file,
        });
        entries.push(Entry::End(newest));
        self.append(core, entries)?;
        self.mark.noted = newest;
        Ok(Step::Worked)
    }
}
