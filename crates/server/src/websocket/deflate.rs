//! permessage-deflate without context takeover: each message is compressed by itself (RFC 7692).

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// What a compressed message ends with, and what the wire leaves out.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// The tail, and an empty last block, so that the decoder sees the end of a stream.
const END: [u8; 9] = [0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// Compresses one message.
pub(super) fn deflate(message: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(message.len() / 2 + 64), Compression::fast());
    // Writing into a vector does not fail; a flush ends the message on a byte boundary, with the tail.
    let _ = encoder.write_all(message).and_then(|()| encoder.flush());
    let mut out = std::mem::take(encoder.get_mut());
    if out.ends_with(&TAIL) {
        out.truncate(out.len() - TAIL.len());
    }
    out
}

/// Decompresses one message of at most `limit` bytes; `None` when it is damaged or larger.
pub(super) fn inflate(message: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let bounded = DeflateDecoder::new(message.chain(&END[..]))
        .take(limit as u64 + 1)
        .read_to_end(&mut out);
    (bounded.is_ok() && out.len() <= limit).then_some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bomb_is_refused_at_its_limit() {
        let bomb = deflate(&vec![0; 10 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(inflate(&bomb, 1 << 20), None);
        assert_eq!(inflate(&bomb, 10 << 20).map(|out| out.len()), Some(10 << 20));
    }

    proptest! {
        #[test]
        fn what_was_deflated_inflates(message in prop::collection::vec(any::<u8>(), 0..5_000)) {
            prop_assert!(inflate(&deflate(&message), 5_000) == Some(message));
        }

        #[test]
        fn damage_is_no_panic(message in prop::collection::vec(any::<u8>(), 0..1_000)) {
            let _ = inflate(&message, 10_000);
        }
    }
}
