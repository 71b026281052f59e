//! What changed in all streams, told to the manifest in one batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Core;
use crate::index::{SPAN, Settled, StreamIndex};
use crate::manifest::{ConsumerEntry, Entry, Image, LiveEntry, PositionEntry, StreamEntry};
use crate::options::Storage;
use crate::stream::shared::StreamShared;

/// What the manifest says about a stream.
pub(crate) fn stream_entry(index: &StreamIndex, settled: Settled) -> StreamEntry {
    StreamEntry {
        options: index.options.clone(),
        settled_seq: settled.seq,
        settled_time: settled.time,
        floor: index.first_seq,
        last_seq: index.last_seq,
        last_time: index.last_time,
        ceiling: index.ceiling,
        lost: index.lost.iter().map(|(first, last)| (*first, *last)).collect(),
    }
}

fn position(index: &StreamIndex, settled: Settled) -> PositionEntry {
    PositionEntry {
        settled_seq: settled.seq,
        settled_time: settled.time,
        floor: index.first_seq,
        last_seq: index.last_seq,
        last_time: index.last_time,
    }
}

/// Where each stream is of which the manifest does not know that; nothing of this is taken as told.
pub(super) fn positions(core: &Core, image: &Image) -> Vec<Entry> {
    let streams: Vec<_> = core.registry.lock().all.values().cloned().collect();
    let files = streams.into_iter().filter(|s| s.storage == Storage::File);
    let untold = |stream: Arc<StreamShared>| {
        let index = stream.index.read();
        let told = image.streams.get(&stream.incarnation);
        match told {
            _ if !index.created || index.deleted => None,
            None => Some(Entry::Stream(
                stream.incarnation,
                stream_entry(&index, index.settled),
            )),
            Some(told) if (told.last_seq, told.last_time) == (index.last_seq, index.last_time) => None,
            Some(_) => Some(Entry::Position(
                stream.incarnation,
                position(&index, index.settled),
            )),
        }
    };
    files.filter_map(untold).collect()
}

/// Which settled messages of a span are live.
fn live_entry(index: &StreamIndex, number: u64, upto: u64) -> LiveEntry {
    let start = number * SPAN as u64;
    let mut bits = index
        .spans
        .get(&number)
        .map_or([0; SPAN / 64], crate::index::Span::live_bits);
    let end = usize::try_from((upto + 1).saturating_sub(start)).unwrap_or(SPAN);
    for (i, word) in bits.iter_mut().enumerate() {
        // Of the word only what is below the end.
        let keep = end.saturating_sub(i * 64).min(64);
        *word &= u64::MAX.checked_shr(64 - keep as u32).unwrap_or(0);
    }
    LiveEntry::new(upto, &bits)
}

/// What changed in all streams, taken for one batch of the manifest.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    changed: Vec<(Arc<StreamShared>, BTreeSet<u64>, BTreeSet<String>)>,
    gone: Vec<u64>,
}

impl Gathered {
    pub(super) fn take(core: &Core, settled: &BTreeMap<u64, Settled>, entries: &mut Vec<Entry>) -> Self {
        let streams: Vec<_> = core.registry.lock().all.values().cloned().collect();
        let mut out = Self::default();
        for stream in streams.into_iter().filter(|s| s.storage == Storage::File) {
            let incarnation = stream.incarnation;
            let moved = settled.get(&incarnation);
            let mut index = stream.index.write();
            if !index.created {
                continue;
            }
            let d = &mut index.dirty;
            if moved.is_none() && !d.stream && d.spans.is_empty() && d.consumers.is_empty() && !d.erasing {
                continue;
            }
            let (spans, consumers) = (std::mem::take(&mut d.spans), std::mem::take(&mut d.consumers));
            d.stream = false;
            let settings = std::mem::take(&mut d.settings);
            let erasing = std::mem::take(&mut d.erasing);
            for number in &spans {
                if let Some(span) = index.spans.get_mut(number) {
                    span.unmark();
                }
            }
            if index.deleted {
                entries.push(Entry::StreamGone(incarnation));
                out.gone.push(incarnation);
            } else {
                let to = moved.copied().unwrap_or(index.settled);
                entries.push(if settings {
                    Entry::Stream(incarnation, stream_entry(&index, to))
                } else {
                    Entry::Position(incarnation, position(&index, to))
                });
                for number in &spans {
                    entries.push(Entry::Live(
                        incarnation,
                        *number,
                        live_entry(&index, *number, to.seq),
                    ));
                }
                for name in &consumers {
                    entries.push(consumer_entry(&index, incarnation, name));
                }
                if erasing {
                    let ranges = index.erasing.iter().map(|e| (e.range.first, e.range.last));
                    entries.push(Entry::Erasing(incarnation, ranges.collect()));
                }
            }
            drop(index);
            out.changed.push((stream, spans, consumers));
        }
        out
    }

    /// The batch was not written: everything is still to be said.
    pub(super) fn put_back(self) {
        for (stream, spans, consumers) in self.changed {
            let mut index = stream.index.write();
            (index.dirty.stream, index.dirty.settings) = (true, true);
            index.dirty.erasing = true;
            index.dirty.spans.extend(spans);
            index.dirty.consumers.extend(consumers);
        }
    }

    /// The batch is durable: deleted streams need no place any more.
    /// Answers those of which bytes are still to be overwritten.
    pub(super) fn forget_gone(self, core: &Core) -> Vec<Arc<StreamShared>> {
        let mut erasing = Vec::new();
        for incarnation in self.gone {
            let stream = core.registry.lock().all.remove(&incarnation);
            if let Some(stream) = stream {
                let mut index = stream.index.write();
                index.parts.clear();
                let left: u64 = index.tail.iter().map(|c| c.bytes.len() as u64).sum();
                index.tail = crate::index::Tail::default();
                core.tail_shrank(left);
                if !index.erasing.is_empty() {
                    drop(index);
                    erasing.push(stream);
                }
            }
        }
        erasing
    }
}

fn consumer_entry(index: &StreamIndex, incarnation: u64, name: &str) -> Entry {
    match index.consumers.get(name) {
        None => Entry::ConsumerGone(incarnation, name.to_owned()),
        Some(c) => {
            let mut state = Vec::new();
            c.state.as_change().encode(&mut state);
            Entry::Consumer(
                incarnation,
                name.to_owned(),
                ConsumerEntry {
                    config: c.config.clone(),
                    state: state.into(),
                },
            )
        }
    }
}
