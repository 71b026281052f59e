//! Reports of ended tasks, on disk until the server's stream has them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use windjet_bus::message::{TaskStatusMsg, decode, encode};

/// A folder with one file for each report.
#[derive(Debug)]
pub(crate) struct Outbox {
    folder: PathBuf,
}

impl Outbox {
    pub(crate) fn open(folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    fn file(&self, attempt: &str) -> PathBuf {
        self.folder.join(format!("{attempt}.json"))
    }

    /// Keeps a report: whole, or not there.
    pub(crate) fn keep(&self, report: &TaskStatusMsg) -> std::io::Result<()> {
        let body = encode(report).map_err(std::io::Error::other)?;
        let beside = self.folder.join(format!("{}.new", report.attempt_id));
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(&body)?;
        file.sync_all()?;
        std::fs::rename(&beside, self.file(&report.attempt_id))?;
        // The name, too, is to outlive a power cut.
        std::fs::File::open(&self.folder)?.sync_all()
    }

    /// Forgets a report that is stored elsewhere.
    pub(crate) fn forget(&self, attempt: &str) {
        if let Err(error) = std::fs::remove_file(self.file(attempt)) {
            tracing::debug!(attempt, %error, "a report that was sent stays and is sent again at the next start");
        }
    }

    /// Reports of earlier runs.
    pub(crate) fn waiting(&self) -> Vec<TaskStatusMsg> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let files = entries.flatten().map(|entry| entry.path());
        let reports = files.filter(|file| file.extension().is_some_and(|kind| kind == "json"));
        reports
            .filter_map(|file| decode(&std::fs::read(file).ok()?).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windjet_bus::Layout;

    #[test]
    fn w05_a_report_outlives_the_process_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let mut report = TaskStatusMsg::new(Layout::Plain, "succeeded");
        report.attempt_id = "j1-s0-t0-a1".to_owned();
        Outbox::open(folder.path()).unwrap().keep(&report).unwrap();
        let again = Outbox::open(folder.path()).unwrap();
        assert_eq!(again.waiting(), [report]);
        again.forget("j1-s0-t0-a1");
        assert!(again.waiting().is_empty());
    }
}
