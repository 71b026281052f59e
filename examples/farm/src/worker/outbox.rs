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

    /// Reports of earlier runs. A file that is no report is set aside under another name, once, and told; one that cannot be read
    /// now stays and is told.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed.
    pub(crate) fn waiting(&self) -> std::io::Result<Waiting> {
        let mut waiting = Waiting::default();
        for entry in std::fs::read_dir(&self.folder)? {
            let file = entry?.path();
            if file.extension().is_none_or(|kind| kind != "json") {
                continue;
            }
            let body = match std::fs::read(&file) {
                Ok(body) => body,
                Err(error) => {
                    waiting.unreadable.push(Unreadable::new(file, error));
                    continue;
                }
            };
            match decode(&body) {
                Ok(report) => waiting.reports.push(report),
                Err(error) => {
                    let aside = file.with_extension("spoiled");
                    let file = match std::fs::rename(&file, &aside) {
                        Ok(()) => aside,
                        Err(_) => file,
                    };
                    waiting.unreadable.push(Unreadable::new(file, error));
                }
            }
        }
        Ok(waiting)
    }
}

/// What an outbox has of earlier runs.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) reports: Vec<TaskStatusMsg>,
    /// Files that were to be reports and cannot be sent.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// A file that cannot be sent, where it is now, and why.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) file: PathBuf,
    pub(crate) reason: String,
}

impl Unreadable {
    fn new(file: PathBuf, reason: impl std::fmt::Display) -> Self {
        Self {
            file,
            reason: reason.to_string(),
        }
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
        assert_eq!(again.waiting().unwrap().reports, [report]);
        again.forget("j1-s0-t0-a1");
        assert!(again.waiting().unwrap().reports.is_empty());
    }

    /// Such files used to be passed over without a word: the task was run again, and nobody learned why.
    #[test]
    fn w05_a_spoiled_report_is_told_and_set_aside_and_the_others_are_sent() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(folder.path()).unwrap();
        let mut report = TaskStatusMsg::new(Layout::Plain, "succeeded");
        report.attempt_id = "good".to_owned();
        outbox.keep(&report).unwrap();
        std::fs::write(outbox.file("bad"), b"{\"attempt_id\":").unwrap();
        std::fs::create_dir(outbox.file("folder")).unwrap();

        let waiting = outbox.waiting().unwrap();
        assert_eq!(waiting.reports, [report]);
        let mut told: Vec<_> = waiting.unreadable.iter().map(|one| one.file.clone()).collect();
        told.sort();
        assert_eq!(told, [folder.path().join("bad.spoiled"), outbox.file("folder")]);
        assert!(waiting.unreadable.iter().all(|one| !one.reason.is_empty()));
        let kept = std::fs::read(folder.path().join("bad.spoiled")).unwrap();
        assert_eq!(kept, b"{\"attempt_id\":");

        // The spoiled one is told once; what only could not be read is tried again.
        let again = outbox.waiting().unwrap();
        assert_eq!(again.reports.len(), 1);
        assert_eq!(again.unreadable.len(), 1);
    }

    #[test]
    fn w05_an_outbox_whose_folder_is_gone_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(&folder.path().join("w1")).unwrap();
        std::fs::remove_dir(folder.path().join("w1")).unwrap();
        assert!(outbox.waiting().is_err());
    }
}
