//! Where log lines go: standard error, or a file that is rotated by size.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use jiff::ZonedDateTime;
use windjet_server::options::LogOptions;

/// Destination of the log.
#[derive(Debug)]
pub(super) enum Sink {
    Stderr,
    File(LogFile),
}

/// An open log file with its rotation.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    /// Size at which a new file is begun; 0 means never.
    limit: u64,
    /// Files kept, the current one included; 0 means all.
    keep: usize,
}

impl Sink {
    pub(super) fn open(options: &LogOptions) -> io::Result<Self> {
        let Some(path) = &options.file else {
            return Ok(Self::Stderr);
        };
        let (file, size) = open_append(path)?;
        Ok(Self::File(LogFile {
            path: path.clone(),
            file,
            size,
            limit: options.file_size_limit,
            keep: usize::try_from(options.file_max_num).unwrap_or(usize::MAX),
        }))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Stderr) && io::stderr().is_terminal()
    }

    /// Writes one line. Gives the name of the file that was set aside, if this line filled it.
    pub(super) fn write(&mut self, line: &[u8]) -> Option<PathBuf> {
        match self {
            Self::Stderr => {
                let _ = io::stderr().write_all(line);
                None
            }
            Self::File(log) => log.write(line),
        }
    }

    /// Opens the file anew under its name. False when the log is no file.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        match self {
            Self::Stderr => Ok(false),
            Self::File(log) => {
                (log.file, log.size) = open_append(&log.path)?;
                Ok(true)
            }
        }
    }
}

impl LogFile {
    fn write(&mut self, line: &[u8]) -> Option<PathBuf> {
        if self.file.write_all(line).is_ok() {
            self.size += line.len() as u64;
        }
        if self.limit == 0 || self.size <= self.limit {
            return None;
        }
        // When the file cannot be set aside, it goes on growing, and the next line tries again.
        self.rotate().ok()
    }

    fn rotate(&mut self) -> io::Result<PathBuf> {
        let mut backup = self.path.clone().into_os_string();
        backup.push(
            ZonedDateTime::now()
                .strftime(".%Y.%m.%d.%H.%M.%S.%9f")
                .to_string(),
        );
        let backup = PathBuf::from(backup);
        std::fs::rename(&self.path, &backup)?;
        (self.file, self.size) = open_append(&self.path)?;
        if self.keep > 0 {
            self.remove_old();
        }
        Ok(backup)
    }

    /// Removes the oldest backups. Their names sort by age.
    fn remove_old(&self) {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let Some(name) = self.path.file_name().and_then(|name| name.to_str()) else {
            return;
        };
        let Ok(entries) = std::fs::read_dir(folder) else {
            return;
        };
        let mut backups: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| {
                let found = entry.file_name();
                found.to_str().is_some_and(|found| is_backup(found, name))
            })
            .map(|entry| entry.path())
            .collect();
        backups.sort();
        let surplus = (backups.len() + 1).saturating_sub(self.keep);
        for backup in backups.iter().take(surplus) {
            let _ = std::fs::remove_file(backup);
        }
    }
}

/// Whether `found` is `name` followed by a time as [`LogFile::rotate`] writes it.
fn is_backup(found: &str, name: &str) -> bool {
    let Some(time) = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) else {
        return false;
    };
    let widths = [4, 2, 2, 2, 2, 2, 9];
    let parts: Vec<&str> = time.split('.').collect();
    parts.len() == widths.len()
        && parts
            .iter()
            .zip(widths)
            .all(|(part, width)| part.len() == width && part.bytes().all(|b| b.is_ascii_digit()))
}

fn open_append(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o640);
    }
    let file = options.open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_in(folder: &Path, limit: u64, keep: u32) -> Sink {
        let options = LogOptions {
            file: Some(folder.join("s.log")),
            file_size_limit: limit,
            file_max_num: keep,
            ..LogOptions::default()
        };
        Sink::open(&options).unwrap()
    }

    fn files(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_file_is_set_aside_under_a_name_with_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log_in(folder.path(), 10, 0);
        assert_eq!(log.write(b"12345\n"), None);
        let backup = log.write(b"67890\n").unwrap();
        assert_eq!(std::fs::read(&backup).unwrap(), b"12345\n67890\n");
        assert!(is_backup(backup.file_name().unwrap().to_str().unwrap(), "s.log"));
        assert_eq!(log.write(b"next\n"), None);
        assert_eq!(std::fs::read(folder.path().join("s.log")).unwrap(), b"next\n");
    }

    #[test]
    fn only_so_many_files_are_kept_and_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("s.log.old"), b"mine").unwrap();
        let mut log = log_in(folder.path(), 1, 3);
        let backups: Vec<PathBuf> = (0..5).map(|_| log.write(b"full\n").unwrap()).collect();
        let kept = files(folder.path());
        assert_eq!(kept.len(), 4, "{kept:?}");
        assert!(kept.contains(&"s.log.old".to_owned()));
        assert!(backups[3].exists() && backups[4].exists());
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew_on_reopen() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log_in(folder.path(), 0, 0);
        log.write(b"before\n");
        std::fs::rename(folder.path().join("s.log"), folder.path().join("moved")).unwrap();
        assert!(log.reopen().unwrap());
        log.write(b"after\n");
        assert_eq!(std::fs::read(folder.path().join("s.log")).unwrap(), b"after\n");
        assert_eq!(std::fs::read(folder.path().join("moved")).unwrap(), b"before\n");
    }

    #[test]
    fn an_existing_file_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("s.log"), b"old\n").unwrap();
        log_in(folder.path(), 0, 0).write(b"new\n");
        assert_eq!(std::fs::read(folder.path().join("s.log")).unwrap(), b"old\nnew\n");
    }
}
