//! A disk that counts what its files take, and takes no more than it is told.
//!
//! [`BudgetDisk`] stands before another disk. The lengths of all files, counted when it is made and kept up with every
//! write and removal, are what the directory takes; a write that would take it over the budget fails with `StorageFull`
//! before it reaches the medium, and the store does what it does on a full disk: appends are refused, what frees space
//! goes on, appends resume by themselves. A removed file counts no more, also while a handle on it is open.
//!
//! A directory that has more than the budget when it is counted, because another budget or none was in force when it was
//! written, may take as much more as its journal and manifest have, which is what the store needs to write the journal out and
//! to begin another manifest. This bound comes down with every file that goes, until it is the budget; it never rises again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Disk, DiskFile, DiskLock, LockError};
use crate::journal::journal_slot;
use crate::manifest::manifest_pair;

/// See the module's page. Cloning gives another handle on the same count.
#[derive(Debug, Clone)]
pub struct BudgetDisk {
    disk: Arc<dyn Disk>,
    count: Arc<Count>,
}

#[derive(Debug)]
struct Count {
    used: AtomicU64,
    budget: u64,
    /// What is in force: the budget, or more for as long as there is more than that.
    limit: AtomicU64,
    /// What a directory over its budget may take more.
    slack: u64,
    files: Mutex<HashMap<String, Arc<Mutex<Length>>>>,
}

/// What is counted of one file.
#[derive(Debug, Default)]
struct Length {
    bytes: u64,
    removed: bool,
}

impl BudgetDisk {
    /// Counts what `disk` has; from then on all must go through this. Without a budget it only counts. Reads lengths
    /// only, so it may be made before the lock of the directory is taken.
    ///
    /// # Errors
    /// What the medium reports.
    pub fn new(disk: Arc<dyn Disk>, budget: Option<u64>) -> io::Result<Self> {
        let mut files = HashMap::new();
        let (mut used, mut slack) = (0, 0);
        for name in disk.list()? {
            let bytes = match disk.open(&name).and_then(|file| file.len()) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            used += bytes;
            if journal_slot(&name).is_some() || manifest_pair(&name).is_some() {
                slack += bytes;
            }
            let length = Length {
                bytes,
                removed: false,
            };
            files.insert(name, Arc::new(Mutex::new(length)));
        }
        let budget = budget.unwrap_or(u64::MAX);
        let limit = if used > budget {
            used.saturating_add(slack)
        } else {
            budget
        };
        Ok(Self {
            disk,
            count: Arc::new(Count {
                used: AtomicU64::new(used),
                budget,
                limit: AtomicU64::new(limit),
                slack,
                files: Mutex::new(files),
            }),
        })
    }

    /// Bytes of all files together.
    pub fn used(&self) -> u64 {
        self.count.used.load(Ordering::Relaxed)
    }

    /// The bound, if there is one.
    pub fn budget(&self) -> Option<u64> {
        (self.count.budget != u64::MAX).then_some(self.count.budget)
    }

    fn counted(&self, name: &str, file: Arc<dyn DiskFile>) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.count.files.lock();
        let length = match files.get(name) {
            Some(length) => length.clone(),
            None => {
                let bytes = file.len()?;
                self.count.used.fetch_add(bytes, Ordering::Relaxed);
                let length = Arc::new(Mutex::new(Length {
                    bytes,
                    removed: false,
                }));
                files.insert(name.to_owned(), length.clone());
                length
            }
        };
        Ok(Arc::new(BudgetFile {
            file,
            length,
            count: self.count.clone(),
        }))
    }
}

impl Count {
    /// Takes `bytes` more, or nothing if that is over the budget.
    fn take(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Counts so many bytes no more.
    fn give_back(&self, bytes: u64) {
        let used = self
            .used
            .fetch_sub(bytes, Ordering::Relaxed)
            .saturating_sub(bytes);
        let needed = used.saturating_add(self.slack).max(self.budget);
        self.limit.fetch_min(needed, Ordering::Relaxed);
    }
}

impl Disk for BudgetDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(name)?;
        self.counted(name, file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(name)?;
        self.counted(name, file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)?;
        if let Some(length) = self.count.files.lock().remove(name) {
            let mut length = length.lock();
            length.removed = true;
            self.count.give_back(length.bytes);
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }

    fn lock(&self, holder: &str) -> Result<Box<dyn DiskLock>, LockError> {
        self.disk.lock(holder)
    }

    fn boot_id(&self) -> Option<u128> {
        self.disk.boot_id()
    }

    fn room(&self) -> Option<u64> {
        let limit = self.count.limit.load(Ordering::Relaxed);
        (limit != u64::MAX).then(|| limit.saturating_sub(self.used()))
    }
}

#[derive(Debug)]
struct BudgetFile {
    file: Arc<dyn DiskFile>,
    length: Arc<Mutex<Length>>,
    count: Arc<Count>,
}

impl DiskFile for BudgetFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        // Two writers of one file would have to agree on its length; the store has one.
        let mut length = self.length.lock();
        if end <= length.bytes || length.removed {
            drop(length);
            return self.file.write_at(bytes, offset);
        }
        let grows = end - length.bytes;
        if !self.count.take(grows) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.file.write_at(bytes, offset);
        let now = match &written {
            Ok(()) => end,
            // Any part of it may be there.
            Err(_) => self.file.len().map_or(end, |len| len.clamp(length.bytes, end)),
        };
        self.count.give_back(end - now);
        length.bytes = now;
        written
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn files_count_from_the_start_and_a_removed_one_no_more() {
        let sim = SimDisk::new(1);
        sim.create("a").unwrap().write_at(&[1; 100], 0).unwrap();
        let disk = BudgetDisk::new(Arc::new(sim), Some(250)).unwrap();
        assert_eq!((disk.used(), disk.budget()), (100, Some(250)));
        let b = disk.create("b").unwrap();
        b.write_at(&[2; 100], 50).unwrap();
        assert_eq!(disk.used(), 250);
        b.write_at(&[3; 150], 0).unwrap();
        let refused = b.write_at(&[4; 1], 150).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!((b.len().unwrap(), disk.used()), (150, 250));
        disk.remove("a").unwrap();
        b.write_at(&[4; 100], 150).unwrap();
        assert_eq!(disk.used(), 250);
        disk.remove("b").unwrap();
        b.write_at(&[5; 1000], 0).unwrap();
        assert_eq!(disk.used(), 0);
    }

    #[test]
    fn what_is_over_the_budget_at_first_comes_down_to_it_and_never_rises_again() {
        let sim = SimDisk::new(1);
        sim.create("journal-000001")
            .unwrap()
            .write_at(&[1; 100], 0)
            .unwrap();
        sim.create("a").unwrap().write_at(&[1; 300], 0).unwrap();
        let disk = BudgetDisk::new(Arc::new(sim), Some(200)).unwrap();
        assert_eq!(
            (disk.used(), disk.budget(), disk.room()),
            (400, Some(200), Some(100))
        );
        let b = disk.create("b").unwrap();
        b.write_at(&[2; 100], 0).unwrap();
        b.write_at(&[2; 1], 100).unwrap_err();
        disk.remove("journal-000001").unwrap();
        assert_eq!((disk.used(), disk.room()), (400, Some(100)));
        disk.remove("a").unwrap();
        assert_eq!((disk.used(), disk.room()), (100, Some(100)));
        b.write_at(&[2; 100], 100).unwrap();
        b.write_at(&[2; 1], 200).unwrap_err();
    }

    #[test]
    fn a_write_that_failed_halfway_counts_what_is_there() {
        let sim = SimDisk::new(1);
        let disk = BudgetDisk::new(Arc::new(sim.clone()), None).unwrap();
        let file = disk.create("a").unwrap();
        sim.fail_writes(Some(("a", io::ErrorKind::Other)));
        sim.short_writes(true);
        file.write_at(&[1; 100], 0).unwrap_err();
        assert_eq!((disk.used(), file.len().unwrap(), disk.budget()), (50, 50, None));
    }
}
