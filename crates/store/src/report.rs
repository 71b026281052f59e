//! What recovery found.

use crate::record::SeqRange;

/// Something that recovery could not read or had to set aside. No file named here was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The stream, when it is known.
    pub stream: Option<String>,
    /// The sequences concerned, when they are known.
    pub seqs: Option<SeqRange>,
    /// The file.
    pub file: String,
    /// Why.
    pub why: Why,
}

/// The kinds of [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Why {
    /// A record that was durable is damaged.
    DamagedRecord,
    /// A whole frame that was durable is missing.
    MissingFrame,
    /// The end of the journal, never acknowledged as synced, was cut off at the first bad byte and copied aside.
    TornTail,
    /// Sequences are missing from a stream's log; they count as lost.
    LostSequences,
    /// A segment's footer was damaged and was made again from its blocks; nothing was lost by that.
    FooterRebuilt,
    /// One copy of the manifest was damaged; the other was used.
    ManifestRepaired,
    /// Both copies of the manifest miss a change.
    ManifestDamaged,
    /// A file that the manifest names is not there.
    MissingFile,
    /// A file that nothing names; left where it is.
    UnknownFile,
    /// A journal file was shorter than it had been made.
    TruncatedFile,
    /// A stream's record names a stream that is not known.
    UnknownStream,
}

impl Why {
    /// Whether something durable was not read back.
    pub(crate) fn costs(self) -> bool {
        !matches!(
            self,
            Self::TornTail | Self::FooterRebuilt | Self::ManifestRepaired
        )
    }
}

/// The outcome of an opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// What was found, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Streams recovered.
    pub streams: u64,
    /// Journal frames replayed.
    pub frames: u64,
    /// Records replayed.
    pub records: u64,
    /// Whether the store had been closed cleanly.
    pub clean: bool,
}

impl RecoveryReport {
    /// Whether everything that was durable was read back.
    pub fn is_intact(&self) -> bool {
        self.findings.iter().all(|f| !f.why.costs())
    }
}
