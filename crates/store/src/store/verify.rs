//! Reading a store without changing it, and telling what recovery would set aside.

use std::collections::BTreeMap;
use std::io;

use super::recover;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::index::StreamIndex;
use crate::journal::journal_slot;
use crate::manifest::manifest_pair;
use crate::options::StoreOptions;
use crate::record::{Kind, SeqRange};
use crate::report::{Finding, RecoveryReport, Why};
use crate::segment::{BlockHeader, read_block, read_footer, segment_name};

/// Reads everything in a store and reports damage; `now_ns` is the wall time, by which dedup ids have ended or not. The
/// store must not be open elsewhere. Changes nothing and takes no lock.
///
/// # Errors
/// When there is no store, or it could not be opened either.
pub fn verify(disk: &dyn Disk, now_ns: i64) -> Result<RecoveryReport, OpenError> {
    let names = disk.list()?;
    if !names
        .iter()
        .any(|name| manifest_pair(name).is_some() || journal_slot(name).is_some() || name.starts_with("seg-"))
    {
        return Err(OpenError::Missing);
    }
    let mut loaded = recover::load(&StoreOptions::default(), disk, now_ns)?;
    for name in names {
        if let Some(id) = name.strip_prefix("seg-").and_then(|n| n.parse().ok()) {
            segment(disk, id, &loaded.indexes, &mut loaded.report)?;
        }
    }
    Ok(loaded.report)
}

fn segment(
    disk: &dyn Disk,
    id: u64,
    streams: &BTreeMap<u64, StreamIndex>,
    report: &mut RecoveryReport,
) -> io::Result<()> {
    let name = segment_name(id);
    let file = disk.open(&name)?;
    let (parts, _) = read_footer(id, &*file)?;
    for part in parts {
        let stream = streams.get(&part.incarnation).map(|s| s.options.name.clone());
        let mut seqs = part.seqs.iter().peekable();
        for (i, block) in part.blocks.iter().enumerate() {
            let end = part.blocks.get(i + 1).map_or(u64::MAX, |b| b.first_seq);
            let mut head = [0; crate::segment::BLOCK_HEADER];
            file.read_at(&mut head, block.at)?;
            if BlockHeader::decode(&head).is_none() {
                let (stream, seqs, file) = (None, None, name.clone());
                report.findings.push(Finding {
                    stream,
                    seqs,
                    file,
                    why: Why::FooterRebuilt,
                });
            }
            let mut present = Vec::new();
            read_block(&*file, *block)?.each(part.incarnation, |_, r| {
                if matches!(r.kind, Kind::Message | Kind::Erased) {
                    present.push(r.seq());
                }
                true
            });
            while let Some(seq) = seqs.next_if(|s| *s < end) {
                if present.binary_search(&seq).is_err() {
                    report.findings.push(Finding {
                        stream: stream.clone(),
                        seqs: Some(SeqRange::one(seq)),
                        file: name.clone(),
                        why: Why::DamagedRecord,
                    });
                }
            }
        }
    }
    Ok(())
}
