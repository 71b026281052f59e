//! A disk in memory that forgets, tears and fails on demand.
//!
//! Every file has two images: the *volatile* one, which reads see, and the *durable* one, which a power cut leaves. A
//! write changes the volatile image and marks its 512-byte sectors; a sync copies them over. [`SimDisk::power_cut`]
//! builds what is found afterwards: of the marked sectors a sampled subset has the new bytes, some are torn in the
//! middle, a file's unsynced length may or may not have arrived, and of the unsynced creations and removals a sampled
//! subset has happened, in no order. A [`SimDisk::kill`] keeps the volatile image: the kernel lives on.
//!
//! [`SimDisk::stop_after`] makes the disk go dead at an exact operation, which is how a simulation places its crash
//! points; faults (`fail_writes`, `capacity`, ...) produce errors while it lives. Operations can be recorded
//! ([`SimDisk::record`]), so that a test checks their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Disk, DiskFile, DiskLock, LockError};

const SECTOR: usize = 512;

/// What kind of operation reached the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DiskOp {
    /// A file was made.
    Create,
    /// Bytes were written.
    Write,
    /// A file was synced.
    Sync,
    /// A name was removed.
    Remove,
    /// The directory was synced.
    SyncDir,
}

/// One recorded operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskEvent {
    /// What was done.
    pub op: DiskOp,
    /// To which file; empty for the directory.
    pub name: String,
}

/// How much of the unsynced data a power cut leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Nothing that was not synced.
    Nothing,
    /// Everything.
    Everything,
    /// Each file whole or not at all, and each name, on the throw of a coin: what was written to one file may be there
    /// without what was written to another before.
    Files,
    /// Each sector and each name on the throw of a coin; some sectors torn.
    Sampled,
}

#[derive(Debug, Default)]
struct Inode {
    data: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

#[derive(Debug)]
enum DirChange {
    Link(String, u64),
    Unlink(String),
}

#[derive(Debug)]
struct State {
    inodes: HashMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    dir_changes: Vec<DirChange>,
    next_inode: u64,
    epoch: u64,
    locked: bool,
    boot: u128,
    ops: u64,
    stop_at: Option<u64>,
    last_op: Option<(DiskOp, String)>,
    dead: bool,
    capacity: Option<u64>,
    fail_writes: Option<(String, io::ErrorKind)>,
    fail_syncs: Option<(String, io::ErrorKind)>,
    fail_reads: Option<(String, io::ErrorKind)>,
    short_writes: bool,
    events: Option<Vec<DiskEvent>>,
    rng: SmallRng,
}

/// A simulated disk. Cloning gives another handle on the same disk.
#[derive(Debug, Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

fn dead() -> io::Error {
    io::Error::other("the simulated machine has stopped")
}

impl SimDisk {
    /// An empty disk whose accidents follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            inodes: HashMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            dir_changes: Vec::new(),
            next_inode: 1,
            epoch: 0,
            locked: false,
            boot: 1,
            ops: 0,
            stop_at: None,
            last_op: None,
            dead: false,
            capacity: None,
            fail_writes: None,
            fail_syncs: None,
            fail_reads: None,
            short_writes: false,
            events: None,
            rng: SmallRng::seed_from_u64(seed),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// How many changing operations were done so far.
    pub fn ops(&self) -> u64 {
        self.state.lock().ops
    }

    /// The disk goes dead when `ops` more changing operations were begun. A write on which it dies has reached the
    /// volatile image; a sync on which it dies has not taken place.
    pub fn stop_after(&self, ops: u64) {
        let mut s = self.state.lock();
        s.stop_at = Some(s.ops + ops);
    }

    /// Whether the disk went dead.
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// The operation that was done last (or died).
    pub fn last_op(&self) -> Option<(DiskOp, String)> {
        self.state.lock().last_op.clone()
    }

    /// Power is cut and comes back: only what `survival` leaves is there, open handles are void, the boot id is new.
    pub fn power_cut(&self, survival: Survival) {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        let p = match survival {
            Survival::Nothing => 0.0,
            Survival::Everything => 1.0,
            Survival::Files => 0.5,
            Survival::Sampled => [0.1, 0.5, 0.9][s.rng.random_range(0..3)],
        };
        let torn = survival == Survival::Sampled;
        let mut ids: Vec<u64> = s.inodes.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(inode) = s.inodes.get_mut(&id) else {
                continue;
            };
            let p = match survival {
                Survival::Files => f64::from(u8::from(s.rng.random_bool(p))),
                _ => p,
            };
            let keep_len = s.rng.random_bool(p);
            for sector in std::mem::take(&mut inode.dirty) {
                if !s.rng.random_bool(p) {
                    continue;
                }
                let start = sector * SECTOR;
                let mut end = (start + SECTOR).min(inode.data.len());
                if start >= end {
                    continue;
                }
                if torn && s.rng.random_bool(0.1) {
                    end = start + s.rng.random_range(0..=(end - start));
                }
                if inode.durable.len() < end {
                    inode.durable.resize(end, 0);
                }
                inode.durable[start..end].copy_from_slice(&inode.data[start..end]);
            }
            if keep_len {
                inode.durable.resize(inode.data.len(), 0);
            }
            inode.data = inode.durable.clone();
        }
        for change in std::mem::take(&mut s.dir_changes) {
            if s.rng.random_bool(p) {
                apply_change(&mut s.durable_names, change);
            }
        }
        s.names = s.durable_names.clone();
        s.boot += 1;
        s.restart();
    }

    /// The process is killed: what was written stays, the boot id too, open handles are void.
    pub fn kill(&self) {
        self.state.lock().restart();
    }

    /// Writes to files whose name starts with `prefix` fail, until cleared with `None`.
    pub fn fail_writes(&self, fault: Option<(&str, io::ErrorKind)>) {
        self.state.lock().fail_writes = fault.map(|(p, k)| (p.to_owned(), k));
    }

    /// Syncs of files whose name starts with `prefix` fail, until cleared with `None`.
    pub fn fail_syncs(&self, fault: Option<(&str, io::ErrorKind)>) {
        self.state.lock().fail_syncs = fault.map(|(p, k)| (p.to_owned(), k));
    }

    /// Reads of files whose name starts with `prefix` fail, until cleared with `None`.
    pub fn fail_reads(&self, fault: Option<(&str, io::ErrorKind)>) {
        self.state.lock().fail_reads = fault.map(|(p, k)| (p.to_owned(), k));
    }

    /// Whether a failing write leaves the first half of its bytes behind.
    pub fn short_writes(&self, on: bool) {
        self.state.lock().short_writes = on;
    }

    /// At most `bytes` in all files together; more is `StorageFull`. `None` lifts the bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// The sum of all file lengths.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Starts recording operations, forgetting earlier ones.
    pub fn record(&self) {
        self.state.lock().events = Some(Vec::new());
    }

    /// The operations since the last call, or since [`SimDisk::record`].
    pub fn take_events(&self) -> Vec<DiskEvent> {
        self.state
            .lock()
            .events
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The name of a file that has `needle` in it now, or would have it after a power cut.
    pub fn holds(&self, needle: &[u8]) -> Option<String> {
        let s = self.state.lock();
        let has = |bytes: &[u8]| bytes.windows(needle.len().max(1)).any(|w| w == needle);
        s.names
            .iter()
            .chain(&s.durable_names)
            .find(|(_, id)| s.inodes.get(id).is_some_and(|i| has(&i.data) || has(&i.durable)))
            .map(|(name, _)| name.clone())
    }

    /// The bytes of a file, both images made equal to them on [`SimDisk::set_contents`].
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let s = self.state.lock();
        s.names
            .get(name)
            .and_then(|id| s.inodes.get(id))
            .map(|i| i.data.clone())
    }

    /// Replaces a file in both images: bit rot, truncation, a foreign file.
    pub fn set_contents(&self, name: &str, bytes: Vec<u8>) {
        let mut s = self.state.lock();
        let id = match s.names.get(name) {
            Some(id) => *id,
            None => {
                let id = s.next_inode;
                s.next_inode += 1;
                s.names.insert(name.to_owned(), id);
                s.durable_names.insert(name.to_owned(), id);
                id
            }
        };
        s.inodes.insert(
            id,
            Inode {
                data: bytes.clone(),
                durable: bytes,
                dirty: BTreeSet::new(),
            },
        );
    }

    /// A disk with the same contents, all of it durable, and its own fate.
    pub fn fork(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        {
            let from = self.state.lock();
            let mut to = copy.state.lock();
            to.boot = from.boot;
            to.next_inode = from.next_inode;
            to.names = from.names.clone();
            to.durable_names = from.names.clone();
            for (id, inode) in &from.inodes {
                let data = inode.data.clone();
                to.inodes.insert(
                    *id,
                    Inode {
                        durable: data.clone(),
                        data,
                        dirty: BTreeSet::new(),
                    },
                );
            }
        }
        copy
    }
}

fn apply_change(names: &mut BTreeMap<String, u64>, change: DirChange) {
    match change {
        DirChange::Link(name, id) => {
            names.insert(name, id);
        }
        DirChange::Unlink(name) => {
            names.remove(&name);
        }
    }
}

impl State {
    fn restart(&mut self) {
        self.epoch += 1;
        self.locked = false;
        self.dead = false;
        self.stop_at = None;
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|id| self.inodes.get(id))
            .map(|i| i.data.len() as u64)
            .sum()
    }

    /// Counts a changing operation. `Ok(true)` means it is the one on which the disk dies.
    fn begin(&mut self, op: DiskOp, name: &str) -> io::Result<bool> {
        if self.dead {
            return Err(dead());
        }
        self.ops += 1;
        self.last_op = Some((op, name.to_owned()));
        if self.stop_at.is_some_and(|at| self.ops >= at) {
            self.dead = true;
            return Ok(true);
        }
        if let Some(events) = &mut self.events {
            events.push(DiskEvent {
                op,
                name: name.to_owned(),
            });
        }
        Ok(false)
    }

    fn fault(fault: &Option<(String, io::ErrorKind)>, name: &str) -> io::Result<()> {
        match fault {
            Some((prefix, kind)) if name.starts_with(prefix.as_str()) => Err((*kind).into()),
            _ => Ok(()),
        }
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut s = self.state.lock();
        if s.begin(DiskOp::Create, name)? {
            return Err(dead());
        }
        if s.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        State::fault(&s.fail_writes, name)?;
        let id = s.next_inode;
        s.next_inode += 1;
        s.inodes.insert(id, Inode::default());
        s.names.insert(name.to_owned(), id);
        s.dir_changes.push(DirChange::Link(name.to_owned(), id));
        Ok(Arc::new(SimFile {
            state: self.state.clone(),
            id,
            epoch: s.epoch,
            name: name.to_owned(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let s = self.state.lock();
        if s.dead {
            return Err(dead());
        }
        State::fault(&s.fail_reads, name)?;
        let id = *s.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile {
            state: self.state.clone(),
            id,
            epoch: s.epoch,
            name: name.to_owned(),
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut s = self.state.lock();
        if s.begin(DiskOp::Remove, name)? {
            return Err(dead());
        }
        s.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        s.dir_changes.push(DirChange::Unlink(name.to_owned()));
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let s = self.state.lock();
        if s.dead {
            return Err(dead());
        }
        Ok(s.names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut s = self.state.lock();
        if s.begin(DiskOp::SyncDir, "")? {
            return Err(dead());
        }
        s.dir_changes.clear();
        s.durable_names = s.names.clone();
        Ok(())
    }

    fn lock(&self, _holder: &str) -> Result<Box<dyn DiskLock>, LockError> {
        let mut s = self.state.lock();
        if s.dead {
            return Err(dead().into());
        }
        if s.locked {
            return Err(LockError::Held {
                holder: "a simulated store".to_owned(),
            });
        }
        s.locked = true;
        Ok(Box::new(SimLock {
            state: self.state.clone(),
            epoch: s.epoch,
        }))
    }

    fn boot_id(&self) -> Option<u128> {
        Some(self.state.lock().boot)
    }
}

#[derive(Debug)]
struct SimLock {
    state: Arc<Mutex<State>>,
    epoch: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut s = self.state.lock();
        if s.epoch == self.epoch {
            s.locked = false;
        }
    }
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    id: u64,
    epoch: u64,
    name: String,
}

impl SimFile {
    fn check(&self, s: &State) -> io::Result<()> {
        if s.dead || s.epoch != self.epoch {
            Err(dead())
        } else {
            Ok(())
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let s = self.state.lock();
        self.check(&s)?;
        State::fault(&s.fail_reads, &self.name)?;
        let inode = s.inodes.get(&self.id).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(inode.data.len());
        let n = buf.len().min(inode.data.len() - start);
        buf[..n].copy_from_slice(&inode.data[start..start + n]);
        Ok(n)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        self.check(s)?;
        let dies = s.begin(DiskOp::Write, &self.name)?;
        let used = if s.capacity.is_some() { s.used() } else { 0 };
        let offset = usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let inode = s.inodes.get_mut(&self.id).ok_or(io::ErrorKind::NotFound)?;
        let end = offset + bytes.len();
        let grows = end.saturating_sub(inode.data.len()) as u64;
        let mut result = State::fault(&s.fail_writes, &self.name);
        if s.capacity.is_some_and(|c| grows > 0 && used + grows > c) {
            result = Err(io::ErrorKind::StorageFull.into());
        }
        let n = match (&result, s.short_writes) {
            (Ok(()), _) => bytes.len(),
            (Err(_), true) => bytes.len() / 2,
            (Err(_), false) => 0,
        };
        if n > 0 {
            let end = offset + n;
            if inode.data.len() < end {
                inode.data.resize(end, 0);
            }
            inode.data[offset..end].copy_from_slice(&bytes[..n]);
            inode.dirty.extend(offset / SECTOR..=(end - 1) / SECTOR);
        }
        if dies { Err(dead()) } else { result }
    }

    fn sync(&self) -> io::Result<()> {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        self.check(s)?;
        if s.begin(DiskOp::Sync, &self.name)? {
            return Err(dead());
        }
        State::fault(&s.fail_syncs, &self.name)?;
        let inode = s.inodes.get_mut(&self.id).ok_or(io::ErrorKind::NotFound)?;
        if inode.durable.len() != inode.data.len() {
            inode.durable.resize(inode.data.len(), 0);
        }
        for sector in std::mem::take(&mut inode.dirty) {
            let (a, b) = (sector * SECTOR, ((sector + 1) * SECTOR).min(inode.data.len()));
            if a < b {
                inode.durable[a..b].copy_from_slice(&inode.data[a..b]);
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let s = self.state.lock();
        self.check(&s)?;
        Ok(s.inodes.get(&self.id).ok_or(io::ErrorKind::NotFound)?.data.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_survives_and_what_was_not_may_not() {
        let disk = SimDisk::new(1);
        let f = disk.create("a").unwrap();
        f.write_at(&[1; 600], 0).unwrap();
        f.sync().unwrap();
        disk.sync_dir().unwrap();
        f.write_at(&[2; 600], 0).unwrap();
        disk.create("b").unwrap();
        disk.power_cut(Survival::Nothing);
        assert_eq!(disk.contents("a").unwrap(), vec![1; 600]);
        assert_eq!(disk.list().unwrap(), ["a"]);
        assert!(f.len().is_err(), "handles from before the cut are void");
    }

    #[test]
    fn a_sampled_cut_keeps_sectors_independently() {
        let mut mixed = false;
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            let f = disk.create("a").unwrap();
            f.write_at(&[1; 4096], 0).unwrap();
            f.sync().unwrap();
            disk.sync_dir().unwrap();
            f.write_at(&[2; 4096], 0).unwrap();
            disk.power_cut(Survival::Sampled);
            let data = disk.contents("a").unwrap();
            mixed |= data.contains(&1) && data.contains(&2);
        }
        assert!(mixed);
    }

    #[test]
    fn the_disk_dies_at_the_chosen_operation() {
        let disk = SimDisk::new(1);
        let f = disk.create("a").unwrap();
        disk.stop_after(2);
        f.write_at(b"x", 0).unwrap();
        assert!(f.sync().is_err());
        assert!(disk.is_dead());
        disk.kill();
        assert_eq!(disk.contents("a").unwrap(), b"x");
    }

    #[test]
    fn a_full_disk_refuses_growth_only() {
        let disk = SimDisk::new(1);
        let f = disk.create("a").unwrap();
        f.write_at(&[0; 100], 0).unwrap();
        disk.set_capacity(Some(100));
        f.write_at(&[1; 100], 0).unwrap();
        assert_eq!(
            f.write_at(&[1; 1], 100).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
    }
}
