//! The only door to the disk.
//!
//! A store lives in one flat directory; a file is known by its name in it. [`Disk`] and [`DiskFile`] list everything the
//! store asks of a medium: positional reads and writes, two kinds of sync, an exclusive lock. [`RealDisk`] does it on the
//! file system; `SimDisk` (feature `test-util`) keeps a volatile and a durable image, loses what was not synced, and
//! fails on demand, so that a test of a power cut is an ordinary test.
//!
//! What the store trusts a medium for is written in `docs/store.md`; in short: after [`DiskFile::sync`] returned, the
//! file's bytes and length are there after a power cut; after [`Disk::sync_dir`] returned, so are the names. Nothing is
//! assumed about what was not synced: any subset of it may be there, in any order.

mod budget;
mod real;
#[cfg(feature = "test-util")]
mod sim;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

pub use budget::BudgetDisk;
pub use real::RealDisk;
#[cfg(feature = "test-util")]
pub use sim::{DiskEvent, DiskOp, SimDisk, Survival};

/// A directory that holds one store.
pub trait Disk: Debug + Send + Sync {
    /// Makes an empty file.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, else what the medium reports.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// `NotFound` when there is none, else what the medium reports.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a name; open handles stay usable.
    ///
    /// # Errors
    /// `NotFound` when there is none, else what the medium reports.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// All names, in no particular order.
    ///
    /// # Errors
    /// What the medium reports.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all creations and removals so far durable.
    ///
    /// # Errors
    /// What the medium reports; the changes must then be taken as not durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// Takes the exclusive lock of the directory, leaving `holder` as a text for whoever is refused.
    ///
    /// # Errors
    /// [`LockError::Held`] with the other holder's text, or an I/O error.
    fn lock(&self, holder: &str) -> Result<Box<dyn DiskLock>, LockError>;

    /// A number that changes when the kernel restarts, `None` when unknown.
    fn boot_id(&self) -> Option<u128>;

    /// How many bytes the files may still take together, if that is known: the store then compacts sooner when it is little.
    fn room(&self) -> Option<u64> {
        None
    }
}

/// One open file. All positions are absolute; there is no cursor.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads until `buf` is full or the file ends; returns how many bytes were read.
    ///
    /// # Errors
    /// What the medium reports.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`, extending the file as needed.
    ///
    /// # Errors
    /// What the medium reports; any part of the range may then have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the file's bytes and length durable.
    ///
    /// # Errors
    /// What the medium reports; what was not durable before must then be taken as not durable for good.
    fn sync(&self) -> io::Result<()>;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// What the medium reports.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// What the medium reports.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A held directory lock; dropping it releases the lock.
pub trait DiskLock: Debug + Send + Sync {}

/// Why a directory lock was not obtained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another store, in this process or another, has the directory.
    #[error("the store directory is in use by {holder}")]
    Held {
        /// What the holder wrote about itself; may be empty or out of date.
        holder: String,
    },
    /// The lock file could not be used.
    #[error("lock file")]
    Io(#[from] io::Error),
}

/// Reads the whole file.
pub(crate) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut buf = vec![0; len];
    let n = file.read_at(&mut buf, 0)?;
    buf.truncate(n);
    Ok(buf)
}
