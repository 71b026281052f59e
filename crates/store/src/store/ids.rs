//! Files of dedup ids, for ids whose journal file was recycled before their window ended.
//!
//! One file for each stretch of time, an eighth of the longest window of any stream: an id goes into the file of the time
//! at which its message was stored, and a file is dropped whole when all in it have ended. A file grows with each journal
//! file that is emptied, and what is in it beyond the length that the manifest says does not count: it is written again
//! by the next attempt. After a failed write or sync the file is not added to any more.
//!
//! An entry is 44 bytes: incarnation `u64`, hash `u128`, sequence `u64`, time `i64`, CRC-32C of the 40 bytes before. Ids
//! live apart from their messages: a removed message's id counts until its window ends.

use std::io;

use crate::codec::{Cursor, Put};
use crate::disk::{Disk, read_all};
use crate::index::Id;

const ENTRY: usize = 44;

/// The file name of a set of ids.
pub(crate) fn ids_name(id: u64) -> String {
    format!("ids-{id:012}")
}

/// Encodes one entry.
pub(crate) fn put_id(out: &mut Vec<u8>, incarnation: u64, id: &Id) {
    let start = out.len();
    out.put_u64(incarnation);
    out.put_u128(id.hash);
    out.put_u64(id.seq);
    out.put_i64(id.time);
    let crc = crc32c::crc32c(&out[start..]);
    out.put_u32(crc);
}

/// Writes and syncs entries into a file that has `at` bytes that count; with none it is made.
pub(crate) fn write(disk: &dyn Disk, id: u64, at: u64, entries: &[u8]) -> io::Result<()> {
    let name = ids_name(id);
    let file = if at == 0 {
        disk.create(&name)?
    } else {
        disk.open(&name)?
    };
    file.write_at(entries, at)?;
    file.sync()
}

/// Where the stretch of time begins and ends to which `time` belongs, with `window` the longest one.
pub(crate) fn stretch(time: i64, window: i64) -> (i64, i64) {
    let width = (window / 8).max(1);
    let from = time.div_euclid(width).saturating_mul(width);
    (from, from.saturating_add(width))
}

/// Reads the entries of a file, of which `len` bytes count; the second value counts damaged ones.
pub(crate) fn read(disk: &dyn Disk, id: u64, len: Option<u64>) -> io::Result<(Vec<(u64, Id)>, usize)> {
    let mut bytes = read_all(&*disk.open(&ids_name(id))?)?;
    if let Some(len) = len {
        // What a file that was cut short no longer has is damage.
        bytes.resize(
            usize::try_from(len)
                .unwrap_or(usize::MAX)
                .min(bytes.len() + ENTRY),
            0,
        );
    }
    let mut damaged = usize::from(bytes.len() % ENTRY != 0);
    let mut out = Vec::with_capacity(bytes.len() / ENTRY);
    for entry in bytes.chunks_exact(ENTRY) {
        let mut c = Cursor::new(entry);
        let mut one = || {
            Some((
                c.u64()?,
                Id {
                    hash: c.u128()?,
                    seq: c.u64()?,
                    time: c.i64()?,
                },
                c.u32()?,
            ))
        };
        match one() {
            Some((incarnation, id, crc)) if crc == crc32c::crc32c(&entry[..ENTRY - 4]) => {
                out.push((incarnation, id));
            }
            _ => damaged += 1,
        }
    }
    Ok((out, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn a_time_belongs_to_the_eighth_of_the_window_around_it() {
        assert_eq!(stretch(0, 80), (0, 10));
        assert_eq!(stretch(79, 80), (70, 80));
        assert_eq!(stretch(-1, 80), (-10, 0));
        assert_eq!(stretch(5, 3), (5, 6));
        assert!(stretch(i64::MAX, i64::MAX).0 < i64::MAX);
    }

    #[test]
    fn what_lies_beyond_the_length_that_counts_is_not_read_and_written_over() {
        let disk = SimDisk::new(1);
        let entry = |seq| {
            let mut out = Vec::new();
            let id = Id {
                hash: 7,
                seq,
                time: 3,
            };
            put_id(&mut out, 1, &id);
            out
        };
        let seqs = |len| {
            let (found, damaged) = read(&disk, 4, len).unwrap();
            (found.iter().map(|(_, id)| id.seq).collect::<Vec<_>>(), damaged)
        };
        write(&disk, 4, 0, &[entry(1), entry(2)].concat()).unwrap();
        assert_eq!(seqs(None), (vec![1, 2], 0));
        assert_eq!(seqs(Some(44)), (vec![1], 0));
        write(&disk, 4, 44, &entry(3)).unwrap();
        assert_eq!(seqs(Some(88)), (vec![1, 3], 0));
        assert_eq!(seqs(Some(1 << 40)), (vec![1, 3], 1));
    }
}
