//! What a store and a stream can be told.

use std::time::Duration;

use bytes::Bytes;

use crate::codec::{Cursor, Put};

/// When an operation counts as committed, and with that may be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// When it is synced. Survives `kill -9` and power loss.
    #[default]
    Sync,
    /// When it is written; synced at the latest this much later. Survives `kill -9`; a power loss takes what was
    /// written since the last sync.
    Interval(Duration),
    /// When it is written; synced when something else is. Survives `kill -9`; a power loss may take more.
    Os,
}

/// Where a stream's messages live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Storage {
    /// In the journal, then in segments.
    #[default]
    File,
    /// In memory; the stream is gone when the store closes.
    Memory,
}

/// How a stream's messages are stored in segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// As they are. Damage costs a message.
    #[default]
    None,
    /// In blocks of up to 64 KiB, each compressed by Snappy if that saves an eighth. Damage costs a block. A secure erase
    /// writes whole segments anew.
    Snappy,
}

/// What the store knows about a stream. Everything else is in `config`, which it does not look into.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamOptions {
    /// The name; unique among the living streams of the store.
    pub name: String,
    /// Where its messages live. Fixed at creation.
    pub storage: Storage,
    /// When its operations count as committed.
    pub durability: Durability,
    /// How its messages are stored in segments; segments written before a change stay as they are.
    pub compression: Compression,
    /// How long a dedup id counts, measured from the stored time of its message. Zero keeps none.
    pub dedup_window: Duration,
    /// The first sequence to give out; 0 means 1. Only read at creation.
    pub first_seq: u64,
    /// The caller's own configuration, returned as it was given.
    pub config: Bytes,
}

impl StreamOptions {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (mode, every) = match self.durability {
            Durability::Sync => (0, Duration::ZERO),
            Durability::Interval(d) => (1, d),
            Durability::Os => (2, Duration::ZERO),
        };
        out.put_bytes(self.name.as_bytes());
        let memory = u8::from(self.storage == Storage::Memory);
        let packed = u8::from(self.compression == Compression::Snappy);
        out.put_u8(memory | packed << 1);
        out.put_u8(mode);
        out.put_u64(nanos(every));
        out.put_u64(nanos(self.dedup_window));
        out.put_u64(self.first_seq);
        out.put_bytes(&self.config);
    }

    pub(crate) fn decode(c: &mut Cursor<'_>) -> Option<Self> {
        let name = String::from_utf8(c.bytes()?.to_vec()).ok()?;
        let flags = c.u8()?;
        let storage = if flags & 1 == 0 {
            Storage::File
        } else {
            Storage::Memory
        };
        let compression = if flags & 2 == 0 {
            Compression::None
        } else {
            Compression::Snappy
        };
        let mode = c.u8()?;
        let every = Duration::from_nanos(c.u64()?);
        let durability = match mode {
            0 => Durability::Sync,
            1 => Durability::Interval(every),
            2 => Durability::Os,
            _ => return None,
        };
        let dedup_window = Duration::from_nanos(c.u64()?);
        let first_seq = c.u64()?;
        let config = Bytes::copy_from_slice(c.bytes()?);
        Some(Self {
            name,
            storage,
            durability,
            compression,
            dedup_window,
            first_seq,
            config,
        })
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Settings of a store. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Size of the first journal file. Default 1 MiB.
    pub journal_first: u64,
    /// Largest size of one journal file. Default 16 MiB.
    pub journal_file_max: u64,
    /// Size of all journal files together; when it is reached, appends wait for the materialiser. Default 128 MiB.
    pub journal_max: u64,
    /// Most bytes of records in one frame, unless a single record is longer. Default 1 MiB.
    pub frame_max: usize,
    /// Records longer than this are cut into slices of this size in the journal. Default 512 KiB.
    pub fragment: usize,
    /// Staged and unmaterialised bytes of the store at which appends wait. Default 64 MiB.
    pub tail_max: u64,
    /// Staged bytes of one stream at which its appends wait. Default 8 MiB.
    pub stream_staged_max: u64,
    /// Live bytes in a journal file from which on a stream gets a segment of its own. Default 1 MiB.
    pub own_segment_min: u64,
    /// Most bytes the materialiser writes between two syncs. Default 1 MiB.
    pub step: usize,
    /// Target size of a segment's block. Default 16 KiB.
    pub block: usize,
    /// Size to which compaction joins segments. Default 64 MiB.
    pub segment_max: u64,
    /// Bytes a second that compaction reads and writes at most. Default 64 MiB.
    pub compaction_rate: u64,
    /// Bytes of segment blocks kept in memory for reading. Default 64 MiB.
    pub cache_max: u64,
    /// Most open segment files. Default 256.
    pub open_files_max: usize,
    /// Dedup ids a stream remembers at most; beyond it the oldest go. Default 4,000,000.
    pub dedup_max: usize,
    /// Messages that a purge with a filter looks at before the stream's owner has its turn again. Default 262,144.
    pub turn: usize,
    /// Longest record the store takes. Default 64 MiB.
    pub record_max: usize,
    /// Size of the manifest log at which it is written anew, if most of it is out of date. Default 1 MiB.
    pub manifest_max: u64,
    /// Whether a ballast file of 1.1 times the journal's size is kept for a full disk. Default true.
    pub ballast: bool,
    #[cfg(feature = "planted-faults")]
    #[doc(hidden)]
    pub fault: Option<crate::fault::Fault>,
}

impl StoreOptions {
    /// The sizes of journal files in whole pages, as those of files that are made.
    pub(crate) fn in_pages(mut self) -> Self {
        let page = crate::journal::frame::PAGE as u64;
        let sizes = [
            &mut self.journal_first,
            &mut self.journal_file_max,
            &mut self.journal_max,
        ];
        for size in sizes {
            *size = (*size / page).max(1) * page;
        }
        self
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            journal_first: MIB,
            journal_file_max: 16 * MIB,
            journal_max: 128 * MIB,
            frame_max: MIB as usize,
            fragment: 512 << 10,
            tail_max: 64 * MIB,
            stream_staged_max: 8 * MIB,
            own_segment_min: MIB,
            step: MIB as usize,
            block: 16 << 10,
            segment_max: 64 * MIB,
            compaction_rate: 64 * MIB,
            cache_max: 64 * MIB,
            open_files_max: 256,
            dedup_max: 4_000_000,
            turn: 1 << 18,
            record_max: 64 << 20,
            manifest_max: MIB,
            ballast: true,
            #[cfg(feature = "planted-faults")]
            fault: None,
        }
    }
}

impl StoreOptions {
    /// Whether the planted fault is on; always false outside of tests of the simulation itself.
    #[cfg(feature = "planted-faults")]
    pub(crate) fn fault(&self, fault: crate::fault::Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether the planted fault is on; always false outside of tests of the simulation itself.
    #[cfg(not(feature = "planted-faults"))]
    #[inline(always)]
    pub(crate) fn fault(&self, _: crate::fault::Fault) -> bool {
        false
    }
}
