//! The journal: files of frames, written in order, synced together, recycled.
//!
//! [`Journal`] knows files, frames and syncs, and nothing of streams. Files are filled with zeros and synced before they are
//! used, so that a sync of a frame commits no metadata. There is one current file; when the next frame does not fit, a
//! free one becomes current. A file becomes free when the materialiser has emptied it.
//!
//! Called by the pump (`store/pump.rs`) for writing, by the materialiser for recycling and growing, by recovery.

mod contents;
pub(crate) mod frame;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

pub(crate) use contents::Contents;
use frame::{HEAD, Head, PAGE, padded};

use crate::disk::{Disk, DiskFile};
use crate::record::SeqRange;

/// The file name of a journal slot.
pub(crate) fn journal_name(slot: u32) -> String {
    format!("journal-{slot:06}")
}

/// The slot of a journal file name.
pub(crate) fn journal_slot(name: &str) -> Option<u32> {
    name.strip_prefix("journal-")?.parse().ok()
}

/// One journal file.
#[derive(Debug)]
pub(crate) struct JournalFile {
    pub(crate) slot: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) size: u64,
    /// Where the next frame goes.
    pub(crate) at: u64,
    /// The newest frame in it.
    pub(crate) last_frame: u64,
    /// Held by every chunk in it that is not applied yet.
    pub(crate) token: Arc<()>,
    unsynced: bool,
    /// What its frames hold.
    contents: Contents,
    /// What bytes of former turns hold that no frame has overwritten, and where they end.
    stale: Contents,
    stale_end: u64,
}

impl JournalFile {
    pub(crate) fn new(slot: u32, file: Arc<dyn DiskFile>, size: u64) -> Self {
        Self {
            slot,
            file,
            size,
            at: 0,
            last_frame: 0,
            token: Arc::new(()),
            unsynced: false,
            contents: Contents::default(),
            stale: Contents::default(),
            stale_end: 0,
        }
    }

    /// A file that a former opening wrote.
    pub(crate) fn adopted(slot: u32, file: Arc<dyn DiskFile>, size: u64) -> Self {
        Self {
            stale: Contents::unknown(),
            stale_end: size,
            contents: Contents::unknown(),
            ..Self::new(slot, file, size)
        }
    }

    fn begin_turn(&mut self) {
        let old = std::mem::take(&mut self.contents);
        self.stale.merge(old);
        self.stale_end = self.stale_end.max(self.at);
        self.at = 0;
    }
}

/// Where a frame goes.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) number: u64,
    pub(crate) token: Arc<()>,
}

/// The journal's files and positions.
#[derive(Debug)]
pub(crate) struct Journal {
    store_id: u64,
    generation: u32,
    pub(crate) next_frame: u64,
    /// The newest frame known to be synced.
    pub(crate) synced: u64,
    /// `durable_before` of the newest frame written.
    told: u64,
    /// Files with frames, oldest first; the last is current.
    pub(crate) used: VecDeque<JournalFile>,
    pub(crate) free: VecDeque<JournalFile>,
    next_slot: u32,
    frame: Vec<u8>,
}

impl Journal {
    pub(crate) fn new(store_id: u64, generation: u32, next_frame: u64, next_slot: u32) -> Self {
        Self {
            store_id,
            generation,
            next_frame,
            synced: next_frame - 1,
            told: next_frame - 1,
            used: VecDeque::new(),
            free: VecDeque::new(),
            next_slot,
            frame: Vec::new(),
        }
    }

    /// All files' sizes together.
    pub(crate) fn size(&self) -> u64 {
        self.used.iter().chain(&self.free).map(|f| f.size).sum()
    }

    /// Bytes that no frame occupies.
    pub(crate) fn room(&self) -> u64 {
        let current = self.used.back().map_or(0, |f| f.size - f.at);
        current + self.free.iter().map(|f| f.size).sum::<u64>()
    }

    /// How many bytes of records the next frame may have in the current file, having at least `need`; else in the next
    /// free file, which becomes current. `None` when there is no room.
    pub(crate) fn make_room(&mut self, need: usize) -> Option<usize> {
        let fits = |f: &JournalFile| f.size - f.at >= padded(need) as u64;
        if !self.used.back().is_some_and(fits) {
            let i = self.free.iter().position(fits)?;
            let mut file = self.free.remove(i)?;
            file.begin_turn();
            self.used.push_back(file);
        }
        let file = self.used.back()?;
        let room = usize::try_from(file.size - file.at).unwrap_or(usize::MAX);
        Some(room / PAGE * PAGE - 2 * HEAD)
    }

    /// Starts a frame: a buffer that the caller extends with records and gives to [`Journal::write`].
    pub(crate) fn begin(&mut self) -> Vec<u8> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.resize(HEAD, 0);
        frame
    }

    /// Where the next frame will be.
    pub(crate) fn next(&self) -> Option<Written> {
        let file = self.used.back()?;
        Some(Written {
            number: self.next_frame,
            token: file.token.clone(),
        })
    }

    /// Writes a frame and answers its length. After an error nothing is known about it and nothing more may be written.
    pub(crate) fn write(&mut self, frame: Vec<u8>, count: u32) -> io::Result<u64> {
        self.frame = frame;
        let len = self.frame.len() - HEAD;
        let number = self.next_frame;
        let file = self.used.back_mut().ok_or(io::ErrorKind::StorageFull)?;
        let head = Head {
            store_id: self.store_id,
            generation: self.generation,
            slot: file.slot,
            number,
            at: file.at,
            len: len as u32,
            count,
            durable_before: self.synced,
            file_size: file.size,
            body_crc: crc32c::crc32c(&self.frame[HEAD..]),
        };
        self.frame[..HEAD].copy_from_slice(&head.encode(false));
        self.frame.resize(head.padded() - HEAD, 0);
        self.frame.extend_from_slice(&head.encode(true));
        file.unsynced = true;
        file.file.write_at(&self.frame, file.at)?;
        file.at += self.frame.len() as u64;
        file.last_frame = number;
        self.next_frame += 1;
        self.told = self.synced;
        Ok(self.frame.len() as u64)
    }

    /// Notes that the next frame holds messages of a stream.
    pub(crate) fn note(&mut self, incarnation: u64, range: SeqRange) {
        if let Some(file) = self.used.back_mut() {
            file.contents.note(incarnation, range);
        }
    }

    /// Files that wait for the materialiser.
    pub(crate) fn lag(&self) -> usize {
        self.used.len().saturating_sub(1)
    }

    /// Whether no file has a frame that is not settled.
    pub(crate) fn is_drained(&self) -> bool {
        self.used.iter().all(|f| f.at == 0)
    }

    /// Whether a frame that is not settled may hold what `hit` looks for.
    pub(crate) fn in_use(&self, hit: impl Fn(&Contents) -> bool) -> bool {
        self.used.iter().any(|f| hit(&f.contents))
    }

    /// Overwrites up to `step` bytes behind the frames of a file where `hit` may stand; answers the file, which is then
    /// to be synced. `None` when there are no such bytes. After an error nothing more may be written.
    pub(crate) fn wipe(
        &mut self,
        hit: impl Fn(&Contents) -> bool,
        step: usize,
    ) -> io::Result<Option<Arc<dyn DiskFile>>> {
        for f in self.used.iter_mut().chain(&mut self.free) {
            if f.stale_end <= f.at {
                f.stale = Contents::default();
                continue;
            }
            if !hit(&f.stale) {
                continue;
            }
            let from = f.stale_end.saturating_sub(step as u64).max(f.at);
            let zeros = vec![0; usize::try_from(f.stale_end - from).unwrap_or(0)];
            f.file.write_at(&zeros, from)?;
            f.stale_end = from;
            return Ok(Some(f.file.clone()));
        }
        Ok(None)
    }

    /// The newest frame written.
    pub(crate) fn written(&self) -> u64 {
        self.next_frame - 1
    }

    /// Whether the newest synced frame is not yet told by a frame behind it.
    pub(crate) fn untold(&self) -> bool {
        self.told < self.synced
    }

    /// Syncs all frames written. After an error nothing more may be written.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        for file in self.used.iter_mut().filter(|f| f.unsynced) {
            file.file.sync()?;
            file.unsynced = false;
        }
        self.synced = self.written();
        Ok(())
    }

    /// Makes the oldest file free again. It must not be current.
    pub(crate) fn recycle_oldest(&mut self) {
        if self.used.len() > 1
            && let Some(mut file) = self.used.pop_front()
        {
            file.token = Arc::new(());
            file.begin_turn();
            self.free.push_back(file);
        }
    }

    /// Ends the current file early, so that it can be emptied.
    pub(crate) fn close_current(&mut self) -> bool {
        match self.free.pop_front() {
            Some(mut file) => {
                file.begin_turn();
                self.used.push_back(file);
                true
            }
            None => false,
        }
    }

    /// The slot a new file will have.
    pub(crate) fn take_slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }
}

/// The size of the next file to make, `None` when the journal has its full size.
pub(crate) fn next_size(first: u64, file_max: u64, max: u64, have: u64) -> Option<u64> {
    let size = have
        .clamp(first, file_max.max(first))
        .min(max.saturating_sub(have));
    let size = size / PAGE as u64 * PAGE as u64;
    (size >= first).then_some(size)
}

/// Makes a file of zeros and syncs it; the directory is the caller's to sync.
pub(crate) fn make_file(disk: &dyn Disk, name: &str, size: u64) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.create(name)?;
    if let Err(e) = fill(&*file, 0, size) {
        // A file that could not be filled is of no use and would only take room on a full disk.
        let _ = disk.remove(name);
        return Err(e);
    }
    Ok(file)
}

/// Writes zeros from `from` to `to` and syncs.
pub(crate) fn fill(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0u8; 1 << 18];
    let mut at = from;
    while at < to {
        let n = zeros.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
        file.write_at(&zeros[..n], at)?;
        at += n as u64;
    }
    file.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_grows_by_its_own_size_up_to_its_bound() {
        const MIB: u64 = 1 << 20;
        let mut sizes = Vec::new();
        let mut have = 0;
        while let Some(size) = next_size(MIB, 16 * MIB, 128 * MIB, have) {
            sizes.push(size / MIB);
            have += size;
        }
        assert_eq!(sizes, [1, 1, 2, 4, 8, 16, 16, 16, 16, 16, 16, 16]);
    }
}
