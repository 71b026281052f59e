//! The manifest: which files make up the store, and what the journal no longer tells.
//!
//! A log of batches, each whole or absent, in two copies (`manifest-N-a`, `manifest-N-b`) with the same bytes at the same
//! places: damage to one is read from the other. Every opening, and growth beyond a bound, begins a new pair with an
//! image of everything; the old pair goes when the new one is durable. A batch is appended only after everything it names
//! is synced.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `WJMANI00` |
//! | 8..12 | format version |
//! | 12..20 | store id |
//! | 20..36 | key of the store's hashes |
//! | 36..40 | CRC-32C of bytes 0..36 |
//! | 40..64 | zero |
//! | 64.. | batches: `u32` length of the entries, `u32` CRC-32C of what follows, `u64` number, entries |
//!
//! The first twelve bytes keep their meaning in all future versions, so that an older program can refuse a newer store.

pub(crate) mod entry;
mod image;

use std::io;
use std::sync::Arc;

pub(crate) use entry::{
    Bucket, ConsumerEntry, Entry, IdsEntry, LiveEntry, Opening, PositionEntry, SegmentEntry, StreamEntry,
};
pub(crate) use image::Image;

use crate::codec::{Cursor, Put, u32_at, u64_at};
use crate::disk::{Disk, DiskFile, read_all};
use crate::error::OpenError;

/// The format this program writes. Older ones are read: what 2 has beyond 1 are entries, effects and codecs of its own, what
/// 3 has beyond 2 are entries.
pub(crate) const FORMAT: u32 = 3;
const MAGIC: &[u8; 8] = b"WJMANI00";
const HEADER: usize = 64;
const BATCH: usize = 16;
/// Most bytes written between two syncs.
const STEP: usize = 512 << 10;

/// What identifies a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) store_id: u64,
    pub(crate) key: (u64, u64),
}

/// The open manifest.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) identity: Identity,
    pub(crate) image: Image,
    copies: [Arc<dyn DiskFile>; 2],
    pair: u64,
    at: u64,
    batch: u64,
    /// Length of the first batch, which holds the image.
    base: u64,
}

/// What was found of a manifest.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) identity: Identity,
    pub(crate) image: Image,
    /// Copies that had damage; what they should say is known from the other.
    pub(crate) repaired: Vec<String>,
    /// Whether batches are missing from both copies.
    pub(crate) damaged: bool,
}

fn name(pair: u64, copy: usize) -> String {
    format!("manifest-{pair:08}-{}", ["a", "b"][copy])
}

/// The pair number of a manifest's file name.
pub(crate) fn manifest_pair(name: &str) -> Option<u64> {
    let (pair, copy) = name.strip_prefix("manifest-")?.split_once('-')?;
    if copy == "a" || copy == "b" {
        pair.parse().ok()
    } else {
        None
    }
}

fn header(id: Identity) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.put_u32(FORMAT);
    out.put_u64(id.store_id);
    out.put_u64(id.key.0);
    out.put_u64(id.key.1);
    let crc = crc32c::crc32c(&out);
    out.put_u32(crc);
    out.resize(HEADER, 0);
    out
}

fn encode_batch(number: u64, entries: &[Entry]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(number);
    entries.iter().for_each(|e| e.encode(&mut body));
    let mut out = Vec::with_capacity(body.len() + 8);
    out.put_u32((body.len() - 8) as u32);
    let crc = crc32c::crc32c(&body);
    out.put_u32(crc);
    out.extend_from_slice(&body);
    out
}

/// The batch with this number at this place, with its whole length.
fn batch_at(file: &[u8], at: usize, number: u64) -> Option<(Vec<Entry>, usize)> {
    let len = u32_at(file, at) as usize;
    let end = at.checked_add(BATCH)?.checked_add(len)?;
    let body = file.get(at + 8..end)?;
    if crc32c::crc32c(body) != u32_at(file, at + 4) || u64_at(body, 0) != number {
        return None;
    }
    let mut c = Cursor::new(&body[8..]);
    let mut entries = Vec::new();
    while !c.is_empty() {
        entries.push(Entry::decode(&mut c)?);
    }
    Some((entries, end - at))
}

enum HeaderState {
    Good(Identity),
    Newer(u32),
    Bad,
}

fn read_header(file: &[u8]) -> HeaderState {
    let Some(h) = file.get(..HEADER).filter(|h| &h[..8] == MAGIC) else {
        return HeaderState::Bad;
    };
    let version = u32_at(h, 8);
    if crc32c::crc32c(&h[..36]) != u32_at(h, 36) {
        return HeaderState::Bad;
    }
    if version > FORMAT {
        return HeaderState::Newer(version);
    }
    HeaderState::Good(Identity {
        store_id: u64_at(h, 12),
        key: (u64_at(h, 20), u64_at(h, 28)),
    })
}

/// Looks for the newest readable manifest. `None` when the directory has no manifest file at all.
pub(crate) fn find(disk: &dyn Disk, names: &[String]) -> Result<Option<Found>, OpenError> {
    let mut pairs: Vec<u64> = names.iter().filter_map(|n| manifest_pair(n)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    if pairs.is_empty() {
        return Ok(None);
    }
    for pair in pairs.iter().rev() {
        let copies = [0, 1].map(|copy| {
            let name = name(*pair, copy);
            disk.open(&name).and_then(|f| read_all(&*f)).unwrap_or_default()
        });
        if let Some(found) = fold(*pair, &copies)? {
            return Ok(Some(found));
        }
    }
    Err(OpenError::ManifestUnreadable)
}

fn fold(pair: u64, copies: &[Vec<u8>; 2]) -> Result<Option<Found>, OpenError> {
    let mut identity = None;
    let mut bad = [false; 2];
    for (i, copy) in copies.iter().enumerate() {
        match read_header(copy) {
            HeaderState::Good(id) => identity = Some(id),
            HeaderState::Newer(found) => return Err(OpenError::NewerFormat { found, known: FORMAT }),
            HeaderState::Bad => bad[i] = true,
        }
    }
    let Some(identity) = identity else { return Ok(None) };
    let mut image = Image::default();
    let (mut at, mut number) = (HEADER, 0);
    loop {
        let read = [0, 1].map(|i| batch_at(&copies[i], at, number));
        // A copy that merely ends early missed the last append; one that has other bytes there is damaged.
        for i in 0..2 {
            bad[i] |= read[i].is_none() && read[1 - i].is_some() && copies[i].len() > at;
        }
        let [a, b] = read;
        let Some((entries, len)) = a.or(b) else { break };
        entries.into_iter().for_each(|e| image.fold(e));
        at += len;
        number += 1;
    }
    if number == 0 {
        return Ok(None);
    }
    let later = |file: &[u8]| {
        (at + 1..file.len())
            .any(|p| u64_at(file, p + 8) == number + 1 && batch_at(file, p, number + 1).is_some())
    };
    let damaged = copies.iter().any(|c| later(c));
    let repaired = (0..2).filter(|i| bad[*i]).map(|i| name(pair, i)).collect();
    Ok(Some(Found {
        identity,
        image,
        repaired,
        damaged,
    }))
}

/// Writes and syncs in steps, so that no sync of the journal has to wait for a long one.
fn write_synced(file: &dyn DiskFile, bytes: &[u8], mut at: u64) -> io::Result<()> {
    for step in bytes.chunks(STEP) {
        file.write_at(step, at)?;
        file.sync()?;
        at += step.len() as u64;
    }
    Ok(())
}

impl Manifest {
    /// Begins a new pair with `image`, and when it is durable removes all others in `names`.
    pub(crate) fn begin(
        disk: &dyn Disk,
        identity: Identity,
        pair: u64,
        image: Image,
        names: &[String],
    ) -> io::Result<Self> {
        let mut bytes = header(identity);
        bytes.extend_from_slice(&encode_batch(0, &image.dump()));
        let make = |copy| -> io::Result<Arc<dyn DiskFile>> {
            let file = disk.create(&name(pair, copy))?;
            write_synced(&*file, &bytes, 0)?;
            Ok(file)
        };
        let copies = match make(0).and_then(|a| Ok([a, make(1)?])) {
            Ok(copies) => copies,
            Err(e) => {
                // An unfinished pair is passed over when reading, but would take room on a full disk.
                let _ = disk.remove(&name(pair, 0));
                let _ = disk.remove(&name(pair, 1));
                return Err(e);
            }
        };
        disk.sync_dir()?;
        for old in names
            .iter()
            .filter(|n| manifest_pair(n).is_some_and(|p| p != pair))
        {
            disk.remove(old)?;
        }
        let at = bytes.len() as u64;
        Ok(Self {
            identity,
            image,
            copies,
            pair,
            at,
            batch: 1,
            base: at,
        })
    }

    /// Appends a batch to both copies and syncs them. After an error the batch may or may not be there, and the manifest
    /// must be begun anew before it is used again.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        let bytes = encode_batch(self.batch, &entries);
        for copy in &self.copies {
            write_synced(&**copy, &bytes, self.at)?;
        }
        self.at += bytes.len() as u64;
        self.batch += 1;
        entries.into_iter().for_each(|e| self.image.fold(e));
        Ok(())
    }

    /// Whether most of the log is out of date and it is longer than `max`.
    pub(crate) fn wants_rewrite(&self, max: u64) -> bool {
        self.at > max && self.at > self.base * 2
    }

    /// Begins the next pair with the present image.
    pub(crate) fn rewrite(&mut self, disk: &dyn Disk) -> io::Result<()> {
        // Pairs of rewrites that failed half way keep their numbers.
        let names = disk.list()?;
        let pair = names
            .iter()
            .filter_map(|n| manifest_pair(n))
            .max()
            .unwrap_or(self.pair)
            .max(self.pair)
            + 1;
        *self = Self::begin(disk, self.identity, pair, self.image.clone(), &names)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    const ID: Identity = Identity {
        store_id: 5,
        key: (1, 2),
    };

    fn store() -> (SimDisk, Manifest) {
        let disk = SimDisk::new(1);
        let m = Manifest::begin(&disk, ID, 1, Image::default(), &[]).unwrap();
        (disk, m)
    }

    #[test]
    fn batches_fold_in_order_and_the_old_pair_goes() {
        let (disk, mut m) = store();
        m.append(vec![Entry::Trim(3)]).unwrap();
        m.append(vec![Entry::Trim(7)]).unwrap();
        m.rewrite(&disk).unwrap();
        m.append(vec![Entry::StreamGone(1)]).unwrap();
        let names = disk.list().unwrap();
        assert_eq!(names.len(), 2);
        let found = find(&disk, &names).unwrap().unwrap();
        assert_eq!((found.image.trim, found.identity), (7, ID));
        assert!(found.repaired.is_empty() && !found.damaged);
    }

    #[test]
    fn any_flipped_byte_in_one_copy_is_read_from_the_other() {
        let (disk, mut m) = store();
        m.append(vec![Entry::Trim(3)]).unwrap();
        m.append(vec![Entry::Trim(7)]).unwrap();
        let names = disk.list().unwrap();
        for n in &names {
            let good = disk.contents(n).unwrap();
            for i in 0..good.len() {
                let mut bad = good.clone();
                bad[i] ^= 0x55;
                disk.set_contents(n, bad);
                assert_eq!(
                    find(&disk, &names).unwrap().unwrap().image.trim,
                    7,
                    "{n} byte {i}"
                );
            }
            disk.set_contents(n, Vec::new());
            assert_eq!(find(&disk, &names).unwrap().unwrap().image.trim, 7);
            disk.set_contents(n, good);
        }
    }

    #[test]
    fn a_newer_format_is_refused_by_number() {
        let (disk, _) = store();
        let names = disk.list().unwrap();
        for n in &names {
            let mut bytes = disk.contents(n).unwrap();
            bytes[8] = 9;
            let crc = crc32c::crc32c(&bytes[..36]);
            bytes[36..40].copy_from_slice(&crc.to_le_bytes());
            disk.set_contents(n, bytes);
        }
        let ops = disk.ops();
        assert!(matches!(
            find(&disk, &names),
            Err(OpenError::NewerFormat {
                found: 9,
                known: FORMAT
            })
        ));
        assert_eq!(disk.ops(), ops, "nothing was written");
    }
}
