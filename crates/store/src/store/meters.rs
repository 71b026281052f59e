//! What the store measures, through the `metrics` facade: nothing goes anywhere unless the program installs a recorder,
//! which it does before it opens the store.
//!
//! | name | kind | |
//! |---|---|---|
//! | `windjet_store_sync_seconds` | histogram | a sync of the journal |
//! | `windjet_store_batch_bytes` | histogram | written to the journal between two syncs |
//! | `windjet_store_staged_bytes` | gauge | submitted and not through the journal |
//! | `windjet_store_tail_bytes` | gauge | committed and not in segments |
//! | `windjet_store_journal_used_bytes` | gauge | occupied by frames that cannot be overwritten yet |
//! | `windjet_store_lag_files` | gauge | journal files that wait to be emptied into segments |
//! | `windjet_store_segment_bytes_total` | counter | written to segments, compaction included |
//! | `windjet_store_recovery_seconds` | gauge | the opening |
//! | `windjet_store_quarantined_total` | counter | findings of recovery that cost something |
//! | `windjet_store_refused_total` | counter, by `reason` | operations that were not staged |
//! | `windjet_store_stream_records_total` | counter, by `stream` | sequences committed |
//! | `windjet_store_stream_unsynced_seconds` | gauge, by `stream` | how long what is acknowledged may be without a sync: 0 when it is synced first, infinite when nothing but the system syncs it, or when it is kept in memory only |
//! | `windjet_store_stream_lost_records` | gauge, by `stream` | sequences that count as lost to damage |
//! | `windjet_store_stream_quarantined_records_total` | counter, by `stream` | sequences that recovery could not read; a finding that knows no sequences counts as one |
//!
//! The gauges of a stream are 0 when it was deleted.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::error::StageError;
use crate::index::StreamIndex;
use crate::options::{Durability, Storage};
use crate::report::RecoveryReport;

/// Handles made when the store opens, so that measuring allocates nothing.
pub(crate) struct Meters {
    pub(crate) sync: Histogram,
    pub(crate) batch: Histogram,
    pub(crate) staged: Gauge,
    pub(crate) tail: Gauge,
    pub(crate) journal_used: Gauge,
    pub(crate) lag: Gauge,
    pub(crate) segments: Counter,
    busy: Counter,
    disk_full: Counter,
    failed: Counter,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

impl Meters {
    pub(crate) fn new() -> Self {
        let refused = |reason: &'static str| counter!("windjet_store_refused_total", "reason" => reason);
        Self {
            sync: histogram!("windjet_store_sync_seconds"),
            batch: histogram!("windjet_store_batch_bytes"),
            staged: gauge!("windjet_store_staged_bytes"),
            tail: gauge!("windjet_store_tail_bytes"),
            journal_used: gauge!("windjet_store_journal_used_bytes"),
            lag: gauge!("windjet_store_lag_files"),
            segments: counter!("windjet_store_segment_bytes_total"),
            busy: refused("busy"),
            disk_full: refused("disk_full"),
            failed: refused("failed"),
        }
    }

    /// Tells an opening.
    pub(crate) fn opened(took: Duration, report: &RecoveryReport) {
        gauge!("windjet_store_recovery_seconds").set(took.as_secs_f64());
        let quarantined = report.findings.iter().filter(|f| f.why.costs()).count();
        counter!("windjet_store_quarantined_total").increment(quarantined as u64);
        for finding in report.findings.iter().filter(|f| f.why.costs()) {
            let Some(stream) = &finding.stream else { continue };
            let records = finding.seqs.map_or(1, |seqs| seqs.last - seqs.first + 1);
            counter!("windjet_store_stream_quarantined_records_total", "stream" => stream.clone())
                .increment(records);
        }
    }

    pub(crate) fn refused(&self, why: StageError) {
        match why {
            StageError::Busy => self.busy.increment(1),
            StageError::DiskFull => self.disk_full.increment(1),
            StageError::Failed => self.failed.increment(1),
            _ => {}
        }
    }
}

/// What is measured of one stream.
pub(crate) struct StreamMeters {
    /// Sequences committed.
    pub(crate) records: Counter,
    unsynced: Gauge,
    lost: Gauge,
}

impl StreamMeters {
    /// Of a stream that is there.
    pub(crate) fn new(index: &StreamIndex) -> Self {
        let label = || index.options.name.clone();
        let meters = Self {
            records: counter!("windjet_store_stream_records_total", "stream" => label()),
            unsynced: gauge!("windjet_store_stream_unsynced_seconds", "stream" => label()),
            lost: gauge!("windjet_store_stream_lost_records", "stream" => label()),
        };
        if index.deleted {
            meters.gone();
        } else {
            meters.tell(Told::of(index));
        }
        meters
    }

    /// Tells what changes seldom.
    pub(crate) fn tell(&self, told: Told) {
        self.unsynced.set(told.unsynced);
        self.lost.set(told.lost as f64);
    }

    /// The stream is deleted.
    pub(crate) fn gone(&self) {
        self.unsynced.set(0.0);
        self.lost.set(0.0);
    }
}

/// What changes seldom of a stream, told when it did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Told {
    unsynced: f64,
    lost: u64,
}

impl Told {
    pub(crate) fn of(index: &StreamIndex) -> Self {
        let unsynced = match (index.options.storage, index.options.durability) {
            (Storage::Memory, _) | (_, Durability::Os) => f64::INFINITY,
            (_, Durability::Interval(every)) => every.as_secs_f64(),
            (_, Durability::Sync) => 0.0,
        };
        Self {
            unsynced,
            lost: index.lost(),
        }
    }
}
