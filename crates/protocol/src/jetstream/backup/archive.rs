//! The archive in a backup: a magic word, then entries one behind the other.
//!
//! An entry is `uvarint(name length) varint(time) uvarint(sequence) uvarint(header length) uvarint(payload length)`, then name,
//! headers and payload. Variable-length numbers are LEB128, `varint` with zig-zag. An entry of zeros ends the archive.
//!
//! Order: the state of the stream, its consumers, its messages by sequence, the end. The reader here knows entries and not
//! their order; it holds one entry, whose lengths its caller sees before any of its bytes are waited for.

/// What an archive begins with.
pub const MAGIC: &[u8; 8] = b"NATSARC1";

/// Most bytes of a name.
pub const NAME_MAX: usize = u16::MAX as usize;

/// Not an archive, or not of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("archive: invalid archive stream")]
pub struct InvalidArchive;

/// What stands before the name and the bytes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Bytes of the name.
    pub name: usize,
    /// Time, nanoseconds since the Unix epoch.
    pub time: i64,
    /// Sequence of a message, 0 for what is none.
    pub seq: u64,
    /// Bytes of the headers.
    pub headers: u64,
    /// Bytes of the payload.
    pub payload: u64,
}

impl Head {
    /// Whether it is the end of the archive.
    pub fn is_end(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes of headers and payload.
    pub fn len(&self) -> u64 {
        self.headers.saturating_add(self.payload)
    }

    /// Whether there are neither.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is, or the subject of a message.
    pub name: &'a [u8],
    /// Time, nanoseconds since the Unix epoch.
    pub time: i64,
    /// Sequence of a message, 0 for what is none.
    pub seq: u64,
    /// Headers of a message.
    pub headers: &'a [u8],
    /// The rest.
    pub payload: &'a [u8],
}

impl Entry<'_> {
    /// The end of an archive.
    pub const END: Entry<'static> = Entry {
        name: b"",
        time: 0,
        seq: 0,
        headers: b"",
        payload: b"",
    };

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(self.name.len() as u64, out);
        put((self.time << 1 ^ self.time >> 63).cast_unsigned(), out);
        put(self.seq, out);
        put(self.headers.len() as u64, out);
        put(self.payload.len() as u64, out);
        for part in [self.name, self.headers, self.payload] {
            out.extend_from_slice(part);
        }
    }
}

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A number and how many bytes it takes; `None` when its end is not here.
fn get(input: &[u8]) -> Result<Option<(u64, usize)>, InvalidArchive> {
    let mut number = 0u64;
    for (i, byte) in input.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && *byte > 1 {
            return Err(InvalidArchive);
        }
        number |= bits << (7 * i);
        if *byte < 0x80 {
            return Ok(Some((number, i + 1)));
        }
    }
    Ok(None)
}

/// Reads an archive that comes in pieces.
#[derive(Debug, Default)]
pub struct Reader {
    input: Vec<u8>,
    at: usize,
    begun: bool,
    head: Option<Head>,
}

impl Reader {
    /// Takes the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.input.drain(..self.at);
        self.at = 0;
        self.input.extend_from_slice(piece);
    }

    /// What the next entry will be, as soon as that is known.
    ///
    /// # Errors
    ///
    /// When it is no archive; there is nothing to be read behind an error.
    pub fn head(&mut self) -> Result<Option<Head>, InvalidArchive> {
        if let Some(head) = self.head {
            return Ok(Some(head));
        }
        if !self.begun {
            let Some((magic, _)) = self.input[self.at..].split_first_chunk::<8>() else {
                return Ok(None);
            };
            if magic != MAGIC {
                return Err(InvalidArchive);
            }
            self.at += MAGIC.len();
            self.begun = true;
        }
        let (mut numbers, mut at) = ([0u64; 5], self.at);
        for number in &mut numbers {
            match get(&self.input[at..])? {
                Some((value, taken)) => {
                    *number = value;
                    at += taken;
                }
                None => return Ok(None),
            }
        }
        let [name, time, seq, headers, payload] = numbers;
        let name = usize::try_from(name)
            .ok()
            .filter(|len| *len <= NAME_MAX)
            .ok_or(InvalidArchive)?;
        let head = Head {
            name,
            time: (time >> 1).cast_signed() ^ -(time & 1).cast_signed(),
            seq,
            headers,
            payload,
        };
        self.at = at;
        self.head = Some(head);
        Ok(Some(head))
    }

    /// The name of the entry whose head was read, as soon as it is here.
    pub fn name(&self) -> Option<&[u8]> {
        let head = self.head?;
        self.input.get(self.at..self.at + head.name)
    }

    /// The entry whose head was read, as soon as all of it is here.
    pub fn take(&mut self) -> Option<Entry<'_>> {
        let head = self.head?;
        let len = usize::try_from(head.len()).ok()?.checked_add(head.name)?;
        let end = self.at.checked_add(len)?;
        if self.input.len() < end {
            return None;
        }
        self.head = None;
        let (name, rest) = self.input[self.at..end].split_at(head.name);
        self.at = end;
        // The two lengths add up to that of the rest, so the first one fits.
        let (headers, payload) = rest.split_at(usize::try_from(head.headers).unwrap_or(rest.len()));
        Some(Entry {
            name,
            time: head.time,
            seq: head.seq,
            headers,
            payload,
        })
    }

    /// Whether the beginning of an archive was read.
    pub fn has_begun(&self) -> bool {
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (Vec<u8>, i64, u64, Vec<u8>, Vec<u8>);

    fn read(archive: &[u8], piece: usize) -> Result<Vec<Owned>, InvalidArchive> {
        let (mut reader, mut out) = (Reader::default(), Vec::new());
        for piece in archive.chunks(piece) {
            reader.push(piece);
            while reader.head()?.is_some() {
                let Some(e) = reader.take() else { break };
                out.push((
                    e.name.to_vec(),
                    e.time,
                    e.seq,
                    e.headers.to_vec(),
                    e.payload.to_vec(),
                ));
            }
        }
        Ok(out)
    }

    #[test]
    fn the_end_is_five_zeros() {
        let mut out = Vec::new();
        Entry::END.encode(&mut out);
        assert_eq!(out, [0; 5]);
        let mut reader = Reader::default();
        reader.push(MAGIC);
        reader.push(&out);
        assert!(reader.head().unwrap().unwrap().is_end());
    }

    #[test]
    fn lengths_are_told_before_their_bytes_are_waited_for() {
        let mut input = MAGIC.to_vec();
        for number in [3, 0, 7, u64::MAX, u64::MAX] {
            put(number, &mut input);
        }
        let mut reader = Reader::default();
        reader.push(&input);
        let head = reader.head().unwrap().unwrap();
        assert_eq!((head.name, head.seq, head.len()), (3, 7, u64::MAX));
        assert_eq!(reader.take(), None);
        assert_eq!(reader.name(), None);
        reader.push(b"abc");
        assert_eq!(reader.name(), Some(&b"abc"[..]));
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        assert_eq!(read(b"NATSARC2....", 5), Err(InvalidArchive));
        let mut long = MAGIC.to_vec();
        put(NAME_MAX as u64 + 1, &mut long);
        long.extend_from_slice(&[0; 4]);
        assert_eq!(read(&long, 5), Err(InvalidArchive));
        let mut endless = MAGIC.to_vec();
        endless.extend_from_slice(&[0xff; 12]);
        assert_eq!(read(&endless, 50), Err(InvalidArchive));
    }

    proptest! {
        #[test]
        fn entries_read_back(
            entries in proptest::collection::vec(
                (
                    proptest::collection::vec(any::<u8>(), 0..20),
                    any::<i64>(),
                    any::<u64>(),
                    proptest::collection::vec(any::<u8>(), 0..200),
                    proptest::collection::vec(any::<u8>(), 0..200),
                ),
                0..8,
            ),
            piece in 1usize..300,
        ) {
            let mut archive = MAGIC.to_vec();
            for (name, time, seq, headers, payload) in &entries {
                Entry { name, time: *time, seq: *seq, headers, payload }.encode(&mut archive);
            }
            prop_assert_eq!(read(&archive, piece), Ok(entries));
        }

        #[test]
        fn no_input_panics(input in proptest::collection::vec(any::<u8>(), 0..200), piece in 1usize..40) {
            let mut archive = MAGIC.to_vec();
            archive.extend(input);
            let _ = read(&archive, piece);
        }
    }
}
