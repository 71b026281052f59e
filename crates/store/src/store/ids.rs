//! Files of dedup ids, for ids whose journal file was recycled before their window ended.
//!
//! Each materialised journal file leaves one file with the ids that still count; it is dropped whole when all have ended.
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

/// Writes and syncs a file of entries.
pub(crate) fn write(disk: &dyn Disk, id: u64, entries: &[u8]) -> io::Result<()> {
    let file = disk.create(&ids_name(id))?;
    file.write_at(entries, 0)?;
    file.sync()
}

/// Reads the entries of a file; the second value counts damaged ones.
pub(crate) fn read(disk: &dyn Disk, id: u64) -> io::Result<(Vec<(u64, Id)>, usize)> {
    let bytes = read_all(&*disk.open(&ids_name(id))?)?;
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
