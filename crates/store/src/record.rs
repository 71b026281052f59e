//! Records: the unit that is written, checked, kept and lost.
//!
//! Everything durable about a stream is a record, and one record is one change that happens whole or not at all. The
//! same bytes are valid in the journal and in a segment, because the checksum covers what the record says (stream
//! incarnation, sequence, time, subject, headers, payload, effects) and not where it stands.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | length of the whole record |
//! | 4..8 | CRC-32C over bytes 0..4 and 8..length |
//! | 8..10 | magic `0x4A57` |
//! | 10 | kind, see [`Kind`] |
//! | 11 | flags, zero |
//! | 12..16 | how many records of the same group follow |
//! | 16..24 | incarnation of the stream |
//! | 24..32 | sequence, 0 when the kind has none |
//! | 32..40 | time, nanoseconds since the Unix epoch |
//! | 40..42 | length of the subject |
//! | 42..44 | zero |
//! | 44..48 | length of the effects |
//! | 48..52 | length of the headers |
//! | 52.. | subject, effects, headers, payload |
//!
//! Effects are facts, never decisions: what an append evicted, the resolved bound of a purge, a dedup id's hash. Replaying
//! a record twice changes nothing.

use crate::codec::{Cursor, Put, u32_at, u64_at};

pub(crate) const HEADER_LEN: usize = 52;
pub(crate) const MAGIC: u16 = 0x4A57;

/// What a record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A stored message.
    Message = 1,
    /// A sequence given out without a stored message.
    Skip = 2,
    /// Removals and purges without a message.
    Effects = 3,
    /// The stream begins; subject = name, payload = its settings.
    Create = 4,
    /// New settings of the stream.
    Update = 5,
    /// The stream ends.
    Delete = 6,
    /// A consumer begins or has a new configuration; subject = name, payload = configuration,
    /// sequence = 1 when the consumer is new.
    ConsumerPut = 7,
    /// A consumer ends.
    ConsumerDelete = 8,
    /// The net change of a consumer; payload = the change, effects = messages it settled.
    ConsumerChange = 9,
    /// The sequence up to which a weak stream may acknowledge; after a power cut it resumes above.
    Ceiling = 10,
    /// Sequences found damaged; they count as lost and deleted.
    Lost = 11,
    /// A message whose bytes were overwritten on request; only in segments. No subject, headers or effects, zeros for payload.
    Erased = 12,
    /// A slice of a record that is longer than a frame; payload = the slice, time = its position in the record.
    Fragment = 13,
}

impl Kind {
    fn from_u8(v: u8) -> Option<Self> {
        use Kind::*;
        [
            Message,
            Skip,
            Effects,
            Create,
            Update,
            Delete,
            ConsumerPut,
            ConsumerDelete,
            ConsumerChange,
            Ceiling,
            Lost,
            Erased,
            Fragment,
        ]
        .into_iter()
        .find(|k| *k as u8 == v)
    }
}

/// An inclusive range of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqRange {
    /// The first sequence in it.
    pub first: u64,
    /// The last sequence in it; below `first` the range is empty.
    pub last: u64,
}

impl SeqRange {
    /// The range of one sequence.
    pub fn one(seq: u64) -> Self {
        Self {
            first: seq,
            last: seq,
        }
    }

    /// How many sequences are in it.
    pub fn len(&self) -> u64 {
        if self.last < self.first {
            0
        } else {
            self.last - self.first + 1
        }
    }

    /// Whether no sequence is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `seq` is in it.
    pub fn contains(&self, seq: u64) -> bool {
        (self.first..=self.last).contains(&seq)
    }
}

/// What a record does beside what its kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect<'a> {
    /// The record carries this dedup id.
    Dedup(u128),
    /// These messages are gone.
    Remove(SeqRange),
    /// All messages that match `filter` (empty: all) with a sequence below `below` are gone.
    Purge { filter: &'a [u8], below: u64 },
    /// The bytes of these messages, which are gone, are to be overwritten wherever they stand.
    Erase(SeqRange),
}

/// Encodes effects, one after the other.
pub(crate) fn put_effect(out: &mut Vec<u8>, effect: &Effect<'_>) {
    match effect {
        Effect::Dedup(id) => {
            out.put_u8(1);
            out.put_u128(*id);
        }
        Effect::Remove(range) => {
            out.put_u8(2);
            out.put_u64(range.first);
            out.put_u64(range.last);
        }
        Effect::Purge { filter, below } => {
            out.put_u8(3);
            out.put_u64(*below);
            out.put_bytes(filter);
        }
        Effect::Erase(range) => {
            out.put_u8(4);
            out.put_u64(range.first);
            out.put_u64(range.last);
        }
    }
}

/// Iterates encoded effects; stops at the first that is not understood.
pub(crate) fn effects(bytes: &[u8]) -> impl Iterator<Item = Effect<'_>> {
    let mut cursor = Cursor::new(bytes);
    std::iter::from_fn(move || match cursor.u8()? {
        1 => Some(Effect::Dedup(cursor.u128()?)),
        2 => Some(Effect::Remove(SeqRange {
            first: cursor.u64()?,
            last: cursor.u64()?,
        })),
        3 => {
            let below = cursor.u64()?;
            Some(Effect::Purge {
                filter: cursor.bytes()?,
                below,
            })
        }
        4 => Some(Effect::Erase(SeqRange {
            first: cursor.u64()?,
            last: cursor.u64()?,
        })),
        _ => None,
    })
}

/// What is encoded into a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) kind: Kind,
    pub(crate) remaining: u32,
    pub(crate) incarnation: u64,
    pub(crate) seq: u64,
    pub(crate) time: i64,
    pub(crate) subject: &'a [u8],
    pub(crate) effects: &'a [u8],
    pub(crate) headers: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Parts<'_> {
    pub(crate) fn encoded_len(&self) -> usize {
        HEADER_LEN + self.subject.len() + self.effects.len() + self.headers.len() + self.payload.len()
    }

    /// Appends the record. The caller has bounded the lengths: subject below 64 KiB, the whole below 4 GiB.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let len = self.encoded_len();
        out.reserve(len);
        let mut header = [0u8; HEADER_LEN];
        header[0..4].copy_from_slice(&(len as u32).to_le_bytes());
        header[8..10].copy_from_slice(&MAGIC.to_le_bytes());
        header[10] = self.kind as u8;
        header[12..16].copy_from_slice(&self.remaining.to_le_bytes());
        header[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        header[24..32].copy_from_slice(&self.seq.to_le_bytes());
        header[32..40].copy_from_slice(&self.time.to_le_bytes());
        header[40..42].copy_from_slice(&(self.subject.len() as u16).to_le_bytes());
        header[44..48].copy_from_slice(&(self.effects.len() as u32).to_le_bytes());
        header[48..52].copy_from_slice(&(self.headers.len() as u32).to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(self.subject);
        out.extend_from_slice(self.effects);
        out.extend_from_slice(self.headers);
        out.extend_from_slice(self.payload);
        let crc = checksum(&out[start..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn checksum(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..4]), &record[8..])
}

/// A record seen in a byte slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    bytes: &'a [u8],
    pub(crate) kind: Kind,
    subject_len: usize,
    effects_len: usize,
    headers_len: usize,
}

impl<'a> Record<'a> {
    /// Reads the record at the start of `bytes` without checking its sum; for bytes that this process encoded or has
    /// already checked.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < HEADER_LEN || u16::from_le_bytes([bytes[8], bytes[9]]) != MAGIC {
            return None;
        }
        let bytes = bytes.get(..u32_at(bytes, 0) as usize)?;
        if bytes.len() < HEADER_LEN {
            return None;
        }
        let kind = Kind::from_u8(bytes[10])?;
        let subject_len = usize::from(u16::from_le_bytes([bytes[40], bytes[41]]));
        let (effects_len, headers_len) = (u32_at(bytes, 44) as usize, u32_at(bytes, 48) as usize);
        let body = HEADER_LEN
            .checked_add(subject_len)?
            .checked_add(effects_len)?
            .checked_add(headers_len)?;
        (body <= bytes.len()).then_some(Self {
            bytes,
            kind,
            subject_len,
            effects_len,
            headers_len,
        })
    }

    /// Reads the record at the start of `bytes` and checks its sum.
    pub(crate) fn parse_checked(bytes: &'a [u8]) -> Option<Self> {
        let record = Self::parse(bytes)?;
        (checksum(record.bytes) == u32_at(record.bytes, 4)).then_some(record)
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn remaining(&self) -> u32 {
        u32_at(self.bytes, 12)
    }

    pub(crate) fn incarnation(&self) -> u64 {
        u64_at(self.bytes, 16)
    }

    pub(crate) fn seq(&self) -> u64 {
        u64_at(self.bytes, 24)
    }

    pub(crate) fn time(&self) -> i64 {
        u64_at(self.bytes, 32) as i64
    }

    pub(crate) fn subject(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..HEADER_LEN + self.subject_len]
    }

    pub(crate) fn effects(&self) -> &'a [u8] {
        let start = HEADER_LEN + self.subject_len;
        &self.bytes[start..start + self.effects_len]
    }

    /// Where the headers begin, where the payload begins.
    pub(crate) fn body_offsets(&self) -> (usize, usize) {
        let headers = HEADER_LEN + self.subject_len + self.effects_len;
        (headers, headers + self.headers_len)
    }

    pub(crate) fn headers(&self) -> &'a [u8] {
        let (h, p) = self.body_offsets();
        &self.bytes[h..p]
    }

    pub(crate) fn payload(&self) -> &'a [u8] {
        &self.bytes[self.body_offsets().1..]
    }
}

/// The next position at or after `from` where a whole record with a right checksum begins.
pub(crate) fn find_next(bytes: &[u8], from: usize) -> Option<usize> {
    let magic = MAGIC.to_le_bytes();
    (from..bytes.len().saturating_sub(HEADER_LEN - 1))
        .find(|&at| bytes[at + 8..at + 10] == magic && Record::parse_checked(&bytes[at..]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(subject: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut effects_bytes = Vec::new();
        put_effect(&mut effects_bytes, &Effect::Dedup(7));
        put_effect(
            &mut effects_bytes,
            &Effect::Remove(SeqRange { first: 1, last: 3 }),
        );
        put_effect(
            &mut effects_bytes,
            &Effect::Purge {
                filter: b"a.>",
                below: 9,
            },
        );
        let parts = Parts {
            kind: Kind::Message,
            remaining: 2,
            incarnation: 3,
            seq: 4,
            time: -5,
            subject,
            effects: &effects_bytes,
            headers: b"h: v",
            payload,
        };
        let mut out = Vec::new();
        parts.encode(&mut out);
        out
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let bytes = sample(b"a.b", b"payload");
        let r = Record::parse_checked(&bytes).unwrap();
        assert_eq!(
            (r.kind, r.remaining(), r.incarnation(), r.seq(), r.time()),
            (Kind::Message, 2, 3, 4, -5)
        );
        assert_eq!(
            (r.subject(), r.headers(), r.payload()),
            (&b"a.b"[..], &b"h: v"[..], &b"payload"[..])
        );
        let all: Vec<_> = effects(r.effects()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(
            all[2],
            Effect::Purge {
                filter: b"a.>",
                below: 9
            }
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample(b"a.b", b"payload");
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::parse_checked(&bad).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn the_next_record_is_found_behind_damage() {
        let mut bytes = sample(b"a", b"one");
        let second = bytes.len();
        bytes.extend(sample(b"b", b"two"));
        bytes[0] = 0xff;
        assert_eq!(find_next(&bytes, 0), Some(second));
        assert_eq!(find_next(&bytes, second + 1), None);
    }
}
