//! Journal frames: one write, one batch of records.
//!
//! A frame begins on a 4 KiB boundary, so that no acknowledged byte is ever written again, and is padded to the next one.
//! Its head is repeated as its last 64 bytes: one damaged sector cannot hide a frame.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `WJFR` |
//! | 4..8 | CRC-32C of bytes 8..72 |
//! | 8..16 | store id |
//! | 16..20 | generation: the opening of the store that wrote it |
//! | 20..24 | slot of the journal file |
//! | 24..32 | frame number, consecutive over the life of the store |
//! | 32..40 | position in the file |
//! | 40..44 | length of the records |
//! | 44..48 | number of records |
//! | 48..56 | `durable_before`: the newest frame known to be synced when this one was written |
//! | 56..64 | size of the file |
//! | 64..68 | CRC-32C of the records: a head never stands for bytes that an older frame left in its place |
//! | 68..72 | 1 in the head, 2 in its repetition at the end |

use crate::codec::{Cursor, Put};

pub(crate) const PAGE: usize = 4096;
pub(crate) const HEAD: usize = 72;
const MAGIC: u32 = 0x5246_4A57;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) store_id: u64,
    pub(crate) generation: u32,
    pub(crate) slot: u32,
    pub(crate) number: u64,
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) count: u32,
    pub(crate) durable_before: u64,
    pub(crate) file_size: u64,
    pub(crate) body_crc: u32,
}

/// Length of a frame around `len` bytes of records.
pub(crate) fn padded(len: usize) -> usize {
    (HEAD + len + HEAD).next_multiple_of(PAGE)
}

impl Head {
    pub(crate) fn padded(&self) -> usize {
        padded(self.len as usize)
    }

    pub(crate) fn encode(&self, end: bool) -> [u8; HEAD] {
        let mut body = Vec::with_capacity(HEAD);
        body.put_u64(self.store_id);
        body.put_u32(self.generation);
        body.put_u32(self.slot);
        body.put_u64(self.number);
        body.put_u64(self.at);
        body.put_u32(self.len);
        body.put_u32(self.count);
        body.put_u64(self.durable_before);
        body.put_u64(self.file_size);
        body.put_u32(self.body_crc);
        body.put_u32(if end { 2 } else { 1 });
        let mut out = [0; HEAD];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        out[8..].copy_from_slice(&body);
        out
    }

    fn decode(bytes: &[u8], want: u32) -> Option<Self> {
        let bytes = bytes.get(..HEAD)?;
        let mut c = Cursor::new(bytes);
        if c.u32()? != MAGIC || c.u32()? != crc32c::crc32c(&bytes[8..]) {
            return None;
        }
        let head = Self {
            store_id: c.u64()?,
            generation: c.u32()?,
            slot: c.u32()?,
            number: c.u64()?,
            at: c.u64()?,
            len: c.u32()?,
            count: c.u32()?,
            durable_before: c.u64()?,
            file_size: c.u64()?,
            body_crc: c.u32()?,
        };
        (c.u32()? == want).then_some(head)
    }
}

/// Frames found in one journal file, by position; a frame whose head is damaged is known by its end.
pub(crate) fn scan(store_id: u64, slot: u32, file: &[u8]) -> Vec<Head> {
    let mut found: Vec<Head> = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let here = |h: &Head| h.store_id == store_id && h.slot == slot;
        if let Some(head) = Head::decode(&file[at..], 1).filter(|h| here(h) && h.at == at as u64) {
            found.push(head);
            // The frames behind are looked for page by page all the same: a stale head may claim pages that were
            // since given to newer frames.
        }
        let page_end = at + PAGE;
        if let Some(end) = file
            .get(page_end - HEAD..page_end)
            .and_then(|b| Head::decode(b, 2))
            && here(&end)
            && end.at as usize + end.padded() == page_end
            && !found
                .iter()
                .rev()
                .take(4096)
                .any(|h| h.number == end.number && h.generation == end.generation)
        {
            found.push(end);
        }
        at = page_end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64, at: usize, body: &[u8]) -> Vec<u8> {
        let head = Head {
            store_id: 7,
            generation: 2,
            slot: 1,
            number,
            at: at as u64,
            len: body.len() as u32,
            count: 1,
            durable_before: number - 1,
            file_size: 1 << 20,
            body_crc: crc32c::crc32c(body),
        };
        let mut out = head.encode(false).to_vec();
        out.extend_from_slice(body);
        out.resize(head.padded() - HEAD, 0);
        out.extend_from_slice(&head.encode(true));
        out
    }

    #[test]
    fn frames_are_found_by_head_or_by_end() {
        let mut file = frame(5, 0, &[1; 5000]);
        let second = file.len();
        file.extend(frame(6, second, &[2; 10]));
        file.resize(1 << 16, 0);
        let numbers = |f: &[u8]| scan(7, 1, f).iter().map(|h| h.number).collect::<Vec<_>>();
        assert_eq!(numbers(&file), [5, 6]);
        file[second + 30] ^= 1;
        assert_eq!(numbers(&file), [5, 6]);
        assert!(scan(8, 1, &file).is_empty());
        file[second + PAGE - 10] ^= 1;
        assert_eq!(numbers(&file), [5]);
    }
}
