//! Memory streams: the room of removed messages.

use std::sync::Arc;

use super::keeper::live_bytes;
use crate::index::{NO_RECORD, TailChunk};
use crate::record::Record;
use crate::stream::shared::StreamShared;

/// Lets go of a memory stream's dead bytes: dead chunks at once, and all chunks are copied when most of it is dead.
pub(crate) fn reclaim_memory(stream: &StreamShared) {
    let mut guard = stream.index.write();
    let index = &mut *guard;
    let first = index.first_seq;
    index.tail.retain(|c| c.end_seq() > first);
    let held: u64 = index.tail.iter().map(|c| c.bytes.len() as u64).sum();
    if held < 1 << 20 || held < index.bytes.saturating_add(index.messages * 64) * 2 {
        return;
    }
    let chunks: Vec<_> = index.tail.iter().cloned().collect();
    for chunk in chunks {
        let live = live_bytes(index, &chunk);
        if live == 0 {
            index.tail.retain(|c| !Arc::ptr_eq(c, &chunk));
        } else if live * 2 < chunk.bytes.len() as u64 {
            let mut bytes = Vec::new();
            let mut offsets = Vec::with_capacity(chunk.offsets.len());
            for (i, at) in chunk.offsets.iter().enumerate() {
                let record = chunk.bytes.get(*at as usize..).and_then(Record::parse);
                match record.filter(|_| index.get(chunk.first_seq + i as u64).is_some()) {
                    Some(r) => {
                        offsets.push(bytes.len() as u32);
                        bytes.extend_from_slice(r.bytes());
                    }
                    None => offsets.push(NO_RECORD),
                }
            }
            let (first_seq, last_time, first_frame) = (chunk.first_seq, chunk.last_time, chunk.first_frame);
            let copy = TailChunk {
                bytes: bytes.into(),
                first_seq,
                offsets,
                last_time,
                first_frame,
            };
            index.tail.replace(&chunk, Arc::new(copy));
        }
    }
}
