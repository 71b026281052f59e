//! Dedup ids on their way out of the journal, into the files of their times; see `store/ids.rs`.

use std::collections::BTreeMap;
use std::io;

use super::job::Job;
use super::{Core, Keeper};
use crate::fault::Fault;
use crate::index::Id;
use crate::manifest::{Bucket, Entry, IdsEntry};
use crate::store::ids;

/// Entries for one file.
#[derive(Debug, Default)]
struct Fresh {
    bytes: Vec<u8>,
    /// The newest time of each stream.
    newest: BTreeMap<u64, i64>,
}

impl Fresh {
    fn add(&mut self, incarnation: u64, time: i64) {
        let last = self.newest.entry(incarnation).or_insert(time);
        *last = time.max(*last);
    }
}

impl Keeper {
    /// Writes the dedup ids that the journal file is the last to tell; answers what the manifest has to say about it.
    pub(super) fn write_ids(&mut self, core: &Core, job: &Job) -> io::Result<Vec<Entry>> {
        if core.options.fault(Fault::DedupForgotten) {
            return Ok(Vec::new());
        }
        let (mut entries, mut made) = (Vec::new(), Vec::new());
        for (stretch, mut fresh) in self.leaving_ids(core, job) {
            let known = self.ids_files.get(&stretch).copied();
            let (id, at) = match known.and_then(|id| Some((id, self.manifest.image.ids.get(&id)?))) {
                Some((id, file)) => {
                    file.newest.iter().for_each(|(i, time)| fresh.add(*i, *time));
                    (id, file.bucket.map_or(0, |b| b.len))
                }
                None => (self.take_file(), 0),
            };
            if at == 0 {
                made.push(id);
            }
            if let Err(e) = ids::write(&*core.disk, id, at, &fresh.bytes) {
                // Of what a failed sync leaves behind nothing is known.
                self.ids_files.remove(&stretch);
                for id in made {
                    let _ = core.disk.remove(&ids::ids_name(id));
                }
                return Err(e);
            }
            let (from, until) = stretch;
            let len = at + fresh.bytes.len() as u64;
            let file = IdsEntry {
                newest: fresh.newest.into_iter().collect(),
                bucket: Some(Bucket { len, from, until }),
            };
            entries.push(Entry::Ids(id, file));
        }
        if !entries.is_empty() {
            core.disk.sync_dir()?;
        }
        Ok(entries)
    }

    fn leaving_ids(&self, core: &Core, job: &Job) -> BTreeMap<(i64, i64), Fresh> {
        let window = longest_window(core);
        let mut out: BTreeMap<(i64, i64), Fresh> = BTreeMap::new();
        for (stream, settled, _) in &job.settled {
            let index = stream.index.read();
            let from = index.dirty.ids_from_seq;
            let leaving = |id: &&Id| id.seq > from && id.seq <= settled.seq;
            for id in index.ids.iter().filter(leaving) {
                let mut files = self.ids_files.keys();
                let known = files.find(|(from, until)| (*from..*until).contains(&id.time));
                let stretch = known.copied().unwrap_or_else(|| ids::stretch(id.time, window));
                let fresh = out.entry(stretch).or_default();
                ids::put_id(&mut fresh.bytes, index.incarnation, id);
                fresh.add(index.incarnation, id.time);
            }
        }
        out
    }

    /// Files of ids none of which counts any more.
    pub(super) fn drop_ids(&self, core: &Core, written: &[(u64, Bucket)]) -> Vec<Entry> {
        let now = core.clock.wall_ns();
        let registry = core.registry.lock();
        let counts = |(incarnation, time): &(u64, i64)| {
            registry.all.get(incarnation).is_some_and(|s| {
                let index = s.index.read();
                let window = i64::try_from(index.options.dedup_window.as_nanos()).unwrap_or(i64::MAX);
                !index.deleted && time.saturating_add(window) > now
            })
        };
        let image = &self.manifest.image;
        image
            .ids
            .iter()
            .filter(|(id, f)| !written.iter().any(|(w, _)| w == *id) && !f.newest.iter().any(counts))
            .map(|(id, _)| Entry::IdsGone(*id))
            .collect()
    }
}

/// The longest dedup window of a living stream, in nanoseconds.
fn longest_window(core: &Core) -> i64 {
    let registry = core.registry.lock();
    let windows = registry.all.values().filter_map(|s| {
        let index = s.index.read();
        (!index.deleted).then_some(index.options.dedup_window)
    });
    let longest = windows.max().unwrap_or_default();
    i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX)
}
