//! `windjet store`: looking into a store on disk.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use windjet_store::{Finding, RealDisk, RecoveryReport, Why, verify};

/// Looks into a store on disk.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Store {
    /// Read a whole store and list what recovery would set aside
    #[command(
        long_about = "Reads everything in a store that no server has open, changes nothing, and lists what recovery would set \
                      aside. The exit code is 0 when everything that was durable can be read, else 1."
    )]
    Verify {
        /// Folder of the store
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

impl Store {
    /// Does it.
    ///
    /// # Errors
    ///
    /// The store cannot be read at all, or something in it is damaged.
    pub(crate) fn run(self) -> Result<()> {
        let Self::Verify { folder } = self;
        let disk = RealDisk::existing(&folder)
            .with_context(|| format!("{} is no folder that can be read", folder.display()))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        let report = verify(&disk, now)
            .with_context(|| format!("{} cannot be opened as a store", folder.display()))?;
        io::stdout().write_all(describe(&report).as_bytes())?;
        if !report.is_intact() {
            bail!("the store is damaged; nothing was changed");
        }
        Ok(())
    }
}

/// The report as text, a line a finding.
fn describe(report: &RecoveryReport) -> String {
    let mut text = format!(
        "{} streams, {} records in {} journal frames, {}\n",
        report.streams,
        report.records,
        report.frames,
        if report.clean {
            "closed cleanly"
        } else {
            "not closed cleanly"
        }
    );
    for finding in &report.findings {
        text.push_str(&line(finding));
    }
    text
}

fn line(finding: &Finding) -> String {
    let stream = finding
        .stream
        .as_ref()
        .map(|stream| format!(", stream {stream}"))
        .unwrap_or_default();
    let seqs = match &finding.seqs {
        Some(range) if range.first == range.last => format!(", sequence {}", range.first),
        Some(range) => format!(", sequences {} to {}", range.first, range.last),
        None => String::new(),
    };
    format!("{}{stream}{seqs}: {}\n", finding.file, reason(finding.why))
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::DamagedRecord => "a durable record is damaged",
        Why::MissingFrame => "a durable journal frame is missing",
        Why::TornTail => "the end was never synced; recovery copies it aside",
        Why::LostSequences => "these sequences are lost",
        Why::FooterRebuilt => "the footer is damaged; recovery makes it again",
        Why::ManifestRepaired => "one copy of the manifest is damaged; the other is used",
        Why::ManifestDamaged => "both copies of the manifest miss a change",
        Why::MissingFile => "a file that the manifest names is not there",
        Why::UnknownFile => "nothing names this file; it is left where it is",
        Why::TruncatedFile => "the file is shorter than it was made",
        Why::UnknownStream => "a record names a stream that is not known",
        _ => "damaged",
    }
}
