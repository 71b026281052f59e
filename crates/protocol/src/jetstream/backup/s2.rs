//! S2 streams: the framing of Snappy with another name and longer blocks, and blocks that may repeat an offset.
//!
//! | chunk | first byte | body |
//! | --- | --- | --- |
//! | stream identifier | `ff` | `S2sTwO`, or `sNaPpY` for a Snappy stream |
//! | compressed block | `00` | masked CRC-32C of the content, then the block |
//! | plain block | `01` | masked CRC-32C of the content, then the content |
//! | to be skipped | `80` to `fe` | anything |
//!
//! Each chunk has its length in three bytes, little-endian, behind the first byte. A stream begins with an identifier. Blocks
//! have at most 4 MiB of content.
//!
//! What is written is Snappy's subset of S2, under the identifier of S2. [`Unpacker`] gives one block at a time, so that a
//! little input that stands for much output costs its reader one block of memory.

/// Most content of a block.
pub const BLOCK_MAX: usize = 4 << 20;
/// Most bytes that a block of the longest content can take, and its checksum.
const CHUNK_MAX: usize = 4 + 32 + BLOCK_MAX + BLOCK_MAX / 6;
/// Content of the blocks that are written.
const WRITTEN: usize = 64 << 10;

const IDENTIFIER: u8 = 0xff;
const COMPRESSED: u8 = 0x00;
const PLAIN: u8 = 0x01;
const NAMES: [&[u8]; 2] = [b"S2sTwO", b"sNaPpY"];
/// Written before everything else.
const BEGINNING: &[u8; 10] = b"\xff\x06\x00\x00S2sTwO";

/// What is no S2 stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum S2Error {
    /// A chunk or block that cannot be, or the end within one.
    #[error("s2: corrupt input")]
    Corrupt,
    /// The content is not what was written.
    #[error("s2: corrupt input, crc mismatch")]
    Checksum,
    /// A block longer than there may be, or a chunk of an unknown kind that must not be skipped.
    #[error("s2: unsupported input")]
    Unsupported,
}

fn checksum(content: &[u8]) -> u32 {
    crc32c::crc32c(content).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Reads a stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Unpacker {
    input: Vec<u8>,
    /// Read up to here.
    at: usize,
    /// Bytes of a chunk to be skipped that did not come yet.
    skip: usize,
    begun: bool,
}

impl Unpacker {
    /// Takes the next piece. The caller reads all blocks that it completes before the next one.
    pub fn push(&mut self, piece: &[u8]) {
        let skipped = self.skip.min(piece.len());
        self.skip -= skipped;
        self.input.drain(..self.at);
        self.at = 0;
        self.input.extend_from_slice(&piece[skipped..]);
    }

    /// The content of the next block, as soon as all of it is here.
    ///
    /// # Errors
    ///
    /// When the input is no S2 stream; there is nothing to be read behind an error.
    pub fn next_block(&mut self) -> Result<Option<Vec<u8>>, S2Error> {
        loop {
            let Some((head, rest)) = self.input[self.at..].split_first_chunk::<4>() else {
                return Ok(None);
            };
            let (kind, len) = (
                head[0],
                u32::from_le_bytes([head[1], head[2], head[3], 0]) as usize,
            );
            match kind {
                _ if !self.begun && kind != IDENTIFIER => return Err(S2Error::Corrupt),
                IDENTIFIER if len != BEGINNING.len() - 4 => return Err(S2Error::Corrupt),
                IDENTIFIER => {}
                COMPRESSED | PLAIN if !(4..=CHUNK_MAX).contains(&len) => return Err(S2Error::Unsupported),
                COMPRESSED | PLAIN => {}
                0x80..=0xfe => {
                    let here = len.min(rest.len());
                    self.at += 4 + here;
                    self.skip = len - here;
                    continue;
                }
                _ => return Err(S2Error::Unsupported),
            }
            let Some(body) = rest.get(..len) else {
                return Ok(None);
            };
            self.at += 4 + len;
            if kind == IDENTIFIER {
                if !NAMES.contains(&body) {
                    return Err(S2Error::Corrupt);
                }
                self.begun = true;
                continue;
            }
            let (sum, body) = body.split_first_chunk::<4>().ok_or(S2Error::Corrupt)?;
            let content = match kind {
                COMPRESSED => block(body)?,
                _ if body.len() > BLOCK_MAX => return Err(S2Error::Unsupported),
                _ => body.to_vec(),
            };
            if checksum(&content) != u32::from_le_bytes(*sum) {
                return Err(S2Error::Checksum);
            }
            return Ok(Some(content));
        }
    }

    /// Whether the input may end here: not within a chunk.
    pub fn is_between_chunks(&self) -> bool {
        self.at == self.input.len() && self.skip == 0
    }
}

/// Takes `n` bytes off the front, as a number.
fn number(input: &mut &[u8], n: usize) -> Result<usize, S2Error> {
    let (bytes, rest) = input.split_at_checked(n).ok_or(S2Error::Corrupt)?;
    *input = rest;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

/// The content of one block.
///
/// # Errors
///
/// When it is no block, or has more content than [`BLOCK_MAX`].
pub fn block(mut input: &[u8]) -> Result<Vec<u8>, S2Error> {
    let mut len = 0;
    for shift in (0..).step_by(7).take(5) {
        let byte = number(&mut input, 1)?;
        len |= (byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        if shift == 28 {
            return Err(S2Error::Corrupt);
        }
    }
    if len > BLOCK_MAX {
        return Err(S2Error::Unsupported);
    }
    let mut out = Vec::with_capacity(len);
    // 0 until the first copy, which therefore cannot be a repetition.
    let mut offset = 0;
    while !input.is_empty() {
        let tag = number(&mut input, 1)?;
        let count = match tag & 3 {
            0 => {
                let count = match tag >> 2 {
                    short @ ..60 => short,
                    long => number(&mut input, long - 59)?,
                } + 1;
                let (literal, rest) = input.split_at_checked(count).ok_or(S2Error::Corrupt)?;
                if literal.len() > len - out.len() {
                    return Err(S2Error::Corrupt);
                }
                out.extend_from_slice(literal);
                input = rest;
                continue;
            }
            1 => {
                let distance = (tag >> 5) << 8 | number(&mut input, 1)?;
                let count = tag >> 2 & 7;
                if distance > 0 {
                    offset = distance;
                    count + 4
                } else {
                    match count {
                        5 => number(&mut input, 1)? + 8,
                        6 => number(&mut input, 2)? + 260,
                        7 => number(&mut input, 3)? + 65_540,
                        short => short + 4,
                    }
                }
            }
            2 => {
                offset = number(&mut input, 2)?;
                (tag >> 2) + 1
            }
            _ => {
                offset = number(&mut input, 4)?;
                (tag >> 2) + 1
            }
        };
        if offset == 0 || offset > out.len() || count > len - out.len() {
            return Err(S2Error::Corrupt);
        }
        let mut left = count;
        let from = out.len() - offset;
        while left > 0 {
            // What is copied may overlap what it makes: then it is a run that doubles.
            let here = left.min(out.len() - from);
            out.extend_from_within(from..from + here);
            left -= here;
        }
    }
    if out.len() != len {
        return Err(S2Error::Corrupt);
    }
    Ok(out)
}

/// Writes a stream.
#[derive(Debug)]
pub struct Packer {
    encoder: snap::raw::Encoder,
    waiting: Vec<u8>,
    begun: bool,
}

impl Default for Packer {
    fn default() -> Self {
        Self {
            encoder: snap::raw::Encoder::new(),
            waiting: Vec::new(),
            begun: false,
        }
    }
}

impl Packer {
    /// Where content is put; what is there is written by [`Packer::pack`].
    pub fn content(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Appends the chunks of the content so far to `out`: of whole blocks only, or with `rest` of everything.
    pub fn pack(&mut self, rest: bool, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(BEGINNING);
        }
        let whole = self.waiting.len() / WRITTEN * WRITTEN;
        let end = if rest { self.waiting.len() } else { whole };
        for content in self.waiting[..end].chunks(WRITTEN) {
            // Compressing fails only for content of gigabytes; plain is right as well.
            let packed = self
                .encoder
                .compress_vec(content)
                .ok()
                .filter(|p| p.len() < content.len());
            let (kind, body) = match &packed {
                Some(packed) => (COMPRESSED, packed.as_slice()),
                None => (PLAIN, content),
            };
            out.push(kind);
            out.extend_from_slice(&(body.len() as u32 + 4).to_le_bytes()[..3]);
            out.extend_from_slice(&checksum(content).to_le_bytes());
            out.extend_from_slice(body);
        }
        self.waiting.drain(..end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unpack(stream: &[u8], piece: usize) -> Result<Vec<u8>, S2Error> {
        let (mut unpacker, mut out) = (Unpacker::default(), Vec::new());
        for piece in stream.chunks(piece) {
            unpacker.push(piece);
            while let Some(block) = unpacker.next_block()? {
                out.extend(block);
            }
        }
        if unpacker.is_between_chunks() {
            Ok(out)
        } else {
            Err(S2Error::Corrupt)
        }
    }

    fn pack(content: &[u8]) -> Vec<u8> {
        let (mut packer, mut out) = (Packer::default(), Vec::new());
        for part in content.chunks(50_000) {
            packer.content().extend_from_slice(part);
            packer.pack(false, &mut out);
        }
        packer.pack(true, &mut out);
        out
    }

    #[test]
    fn repetitions_of_every_length_are_read() {
        // A literal, a copy that sets the offset, then repetitions in the five ways to write a length.
        let mut input = vec![0, 3 << 2];
        input.extend_from_slice(b"abcd");
        input.extend_from_slice(&[0b0000_0001, 4]);
        let mut len = 8;
        for (tag, extra, count) in [
            (0, &[][..], 4),
            (4, &[][..], 8),
            (5, &[200][..], 208),
            (6, &[1, 1][..], 260 + 257),
            (7, &[1, 0, 1][..], 65_540 + 65_537),
        ] {
            input.push(tag << 2 | 1);
            input.push(0);
            input.extend_from_slice(extra);
            len += count;
        }
        let mut head = Vec::new();
        let mut n = len;
        while n >= 0x80 {
            head.push(n as u8 | 0x80);
            n >>= 7;
        }
        head.push(n as u8);
        input.splice(..1, head);
        let out = block(&input).unwrap();
        assert_eq!(out.len(), len);
        assert!(out.chunks(4).all(|part| b"abcd".starts_with(part)));
    }

    #[test]
    fn a_repetition_before_any_copy_is_refused() {
        assert_eq!(block(&[5, 0, b'a', 1, 0]), Err(S2Error::Corrupt));
    }

    #[test]
    fn content_that_is_not_what_was_written_is_told() {
        let mut stream = pack(b"some content that is long enough to be there");
        let last = stream.len() - 1;
        stream[last] ^= 1;
        assert_eq!(unpack(&stream, 7), Err(S2Error::Checksum));
        assert_eq!(unpack(&stream[..last], 7), Err(S2Error::Corrupt));
        assert_eq!(unpack(&stream[10..], 7), Err(S2Error::Corrupt));
        assert_eq!(unpack(b"hello world", 7), Err(S2Error::Corrupt));
        assert_eq!(unpack(b"", 7), Ok(Vec::new()));
    }

    #[test]
    fn a_chunk_to_be_skipped_is_never_held() {
        let mut stream = BEGINNING.to_vec();
        stream.extend_from_slice(&[0x99, 0xff, 0xff, 0xff]);
        let mut unpacker = Unpacker::default();
        unpacker.push(&stream);
        assert_eq!(unpacker.next_block(), Ok(None));
        for _ in 0..0xff {
            unpacker.push(&[0; 0x1_0000]);
            assert_eq!(unpacker.next_block(), Ok(None));
            assert!(unpacker.input.is_empty() && !unpacker.is_between_chunks());
        }
        unpacker.push(&[0; 0xffff]);
        unpacker.push(&pack(b"x"));
        assert_eq!(unpacker.next_block(), Ok(Some(b"x".to_vec())));
    }

    #[test]
    fn a_block_that_promises_too_much_is_refused() {
        assert_eq!(block(&[0x81, 0x80, 0x80, 0x02, 0]), Err(S2Error::Unsupported));
        assert_eq!(block(&[0xff; 9]), Err(S2Error::Corrupt));
        let mut stream = BEGINNING.to_vec();
        stream.extend_from_slice(&[PLAIN, 0xff, 0xff, 0xff]);
        assert_eq!(unpack(&stream, 4096), Err(S2Error::Unsupported));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(parts in proptest::collection::vec(("[ab]{1,4}", 1usize..20_000), 0..12), piece in 1usize..9000) {
            let content: Vec<u8> = parts.iter().flat_map(|(text, n)| text.repeat(*n).into_bytes()).collect();
            prop_assert_eq!(unpack(&pack(&content), piece), Ok(content));
        }

        #[test]
        fn snappy_blocks_are_blocks(content in proptest::collection::vec(0u8..4, 0..5000)) {
            let packed = snap::raw::Encoder::new().compress_vec(&content).unwrap();
            prop_assert_eq!(block(&packed), Ok(content));
        }

        #[test]
        fn no_input_panics(input in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..40) {
            let _ = block(&input);
            let mut stream = BEGINNING.to_vec();
            stream.extend(input);
            let _ = unpack(&stream, piece);
        }
    }
}
