//! Deliberate mistakes, to prove that the simulation would find them.
//!
//! Each variant names one rule of `docs/store.md` that is then broken. Outside of the feature `planted-faults` none can be
//! switched on and the checks compile to nothing.

/// A mistake the store makes on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, unreachable_pub)]
pub enum Fault {
    /// Operations count as committed when written, although the stream asked for a sync.
    AckBeforeSync,
    /// New segment files are not followed by a sync of the directory.
    NoDirectorySync,
    /// A journal file is reused before the manifest names the segments that replace it.
    RecycleBeforeManifest,
    /// Frames of earlier openings are taken for frames of this one.
    NoGeneration,
    /// Dead files are removed before the manifest forgets them.
    UnlinkBeforeManifest,
    /// A duplicate is answered before the original is durable.
    DuplicateAnsweredEarly,
    /// Readers see an eviction when it is staged.
    EvictionAtStaging,
    /// After a crash sequences that were given out are given out again.
    SequenceReused,
    /// Dedup ids are forgotten when their journal file is recycled.
    DedupForgotten,
    /// Recovery applies a group whose last record is missing.
    GroupWithoutLast,
    /// A confirmed acknowledgement is not written.
    ConfirmedAckLost,
    /// A segment is synced and named before the journal it was made from is synced.
    SegmentBeforeJournal,
    /// A secure erase leaves the journal's old bytes as they are.
    EraseSkipsJournal,
}

impl Fault {
    /// All of them.
    #[cfg(feature = "planted-faults")]
    pub const ALL: [Self; 13] = [
        Self::AckBeforeSync,
        Self::NoDirectorySync,
        Self::RecycleBeforeManifest,
        Self::NoGeneration,
        Self::UnlinkBeforeManifest,
        Self::DuplicateAnsweredEarly,
        Self::EvictionAtStaging,
        Self::SequenceReused,
        Self::DedupForgotten,
        Self::GroupWithoutLast,
        Self::ConfirmedAckLost,
        Self::SegmentBeforeJournal,
        Self::EraseSkipsJournal,
    ];
}
