//! The disk of the operating system.
//!
//! A sync is `fdatasync` (on macOS the standard library's `sync_data` asks for `F_FULLFSYNC`). A directory is synced
//! through a handle on it where the platform allows that; on Windows metadata is journalled by the file system and
//! `sync_dir` has nothing to do.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskFile, DiskLock, LockError};

const LOCK_NAME: &str = "LOCK";

/// One directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    dir: PathBuf,
}

impl RealDisk {
    /// Uses `dir`, making it when it does not exist. The parent directory is synced after a creation.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn new(dir: impl AsRef<Path>) -> io::Result<Self> {
        let dir = dir.as_ref().to_path_buf();
        if !dir.is_dir() {
            std::fs::create_dir_all(&dir)?;
            if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
                sync_directory(parent)?;
            }
        }
        Ok(Self { dir })
    }

    /// Uses `dir` only if it exists, changing nothing; for read-only inspection.
    ///
    /// # Errors
    /// `NotFound` when it is no directory.
    pub fn existing(dir: impl AsRef<Path>) -> io::Result<Self> {
        let dir = dir.as_ref().to_path_buf();
        if dir.is_dir() {
            Ok(Self { dir })
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    if cfg!(windows) {
        Ok(())
    } else {
        File::open(dir)?.sync_all()
    }
}

/// On which machine this runs, as far as it can be told: a directory may be on a disk that several share.
fn on_host() -> String {
    let file = ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let name = file.or_else(|| std::env::var("COMPUTERNAME").ok());
    name.map_or_else(String::new, |n| format!(" on {}", n.trim()))
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.dir.join(name))?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.dir.join(name);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(RealFile { file }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
                && name != LOCK_NAME
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        sync_directory(&self.dir)
    }

    fn lock(&self, holder: &str) -> Result<Box<dyn DiskLock>, LockError> {
        let path = self.dir.join(LOCK_NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                return Err(LockError::Held {
                    holder: holder.trim().to_owned(),
                });
            }
            Err(TryLockError::Error(e)) => return Err(LockError::Io(e)),
        }
        file.set_len(0)?;
        write_at(&file, format!("{holder}{}", on_host()).as_bytes(), 0)?;
        Ok(Box::new(RealLock { _file: file }))
    }

    fn boot_id(&self) -> Option<u128> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    }
}

#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl DiskLock for RealLock {}

#[derive(Debug)]
struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match read_some(&self.file, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_at(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

#[cfg(unix)]
fn read_some(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_some(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

#[cfg(windows)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match std::os::windows::fs::FileExt::seek_write(file, &bytes[done..], offset + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_in_the_same_process_is_refused_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let a = RealDisk::new(dir.path().join("s")).unwrap();
        let b = RealDisk::new(dir.path().join("s")).unwrap();
        let held = a.lock("process 7").unwrap();
        match b.lock("process 8") {
            Err(LockError::Held { holder }) => assert!(holder.starts_with("process 7"), "{holder}"),
            other => panic!("{other:?}"),
        }
        drop(held);
        b.lock("process 8").unwrap();
    }

    #[test]
    fn bytes_written_at_a_position_are_read_back_and_the_end_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        let f = disk.create("x").unwrap();
        f.write_at(b"hello", 3).unwrap();
        f.sync().unwrap();
        disk.sync_dir().unwrap();
        let mut buf = [9; 8];
        assert_eq!(f.read_at(&mut buf, 2).unwrap(), 6);
        assert_eq!(&buf[..6], b"\0hello");
        assert_eq!(disk.create("x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.list().unwrap(), ["x"]);
    }
}
