//! Payloads that expand to far more than they are allocate no more than the cap allows.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use windjet_client::ErrorKind;
use windjet_client::message::compression::{EXPANDED_MAX, decompress};

use crate::{allocated, alone, held};

const MEMBER: usize = 1 << 20;

/// A type that holds itself.
#[derive(Debug, serde::Deserialize)]
struct Tree(#[expect(dead_code, reason = "only made")] Vec<Tree>);

/// A gigabyte of zeros as gzip: one member, a thousand times.
fn gzip_bomb() -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; MEMBER]).unwrap();
    encoder.finish().unwrap().repeat(1024).into()
}

/// Somewhat more zeros than may be expanded, as Brotli.
fn brotli_bomb() -> Bytes {
    let mut packed = Vec::new();
    let params = brotli::enc::BrotliEncoderParams {
        quality: 1,
        ..Default::default()
    };
    let mut zeros = std::io::Read::take(std::io::repeat(0), 2 * EXPANDED_MAX as u64);
    brotli::BrotliCompress(&mut zeros, &mut packed, &params).unwrap();
    packed.into()
}

/// Runs `work`, and tells the most that the process held meanwhile, as another thread saw it.
fn watched<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = held();
            while !done.load(Ordering::Acquire) {
                most = most.max(held());
                std::thread::yield_now();
            }
            most
        });
        let result = work();
        done.store(true, Ordering::Release);
        (result, watcher.join().unwrap())
    })
}

#[tokio::test]
async fn a_bomb_allocates_no_more_than_the_cap() {
    let _alone = alone().await;
    for (name, bomb) in [("gzip", gzip_bomb()), ("br", brotli_bomb())] {
        assert!(bomb.len() < 4 << 20, "{name}: {} bytes are no bomb", bomb.len());
        let before = held();
        let (result, most) = watched(|| decompress(&bomb, name));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PayloadTooLarge, "{name}");
        let most = most.saturating_sub(before);
        println!("{name}: {} bytes, {most} bytes held at most", bomb.len());
        // A vector that grows by doubling ends at less than twice the cap.
        assert!(most < 2 * EXPANDED_MAX + (32 << 20), "{name}: {most} bytes");
        let kept = held().saturating_sub(before);
        assert!(kept < 1 << 20, "{name}: {kept} bytes stay");
    }
}

/// Sixteen bytes behind a window of a gigabyte, as Brotli, with its extension for large windows.
fn large_window() -> Bytes {
    // Window bits: the mark of the extension, then thirty. A block, not compressed, of sixteen bytes. The end.
    [&[0x11, 0x1e, 0x1e, 0, 0x02][..], b"sixteen bytes...", &[0x03]]
        .concat()
        .into()
}

#[tokio::test]
async fn a_window_is_not_set_aside_because_a_header_says_so() {
    let _alone = alone().await;
    let before = allocated();
    let error = decompress(&large_window(), "br").unwrap_err();
    let asked = allocated().bytes_allocated - before.bytes_allocated;
    assert!(asked < 1 << 20, "{asked} bytes");
    assert_eq!(error.kind(), ErrorKind::Decode);
    // The largest window of the standard.
    let standard: Bytes = [&[0x8f, 0x07, 0x80][..], b"sixteen bytes...", &[0x03]]
        .concat()
        .into();
    assert_eq!(decompress(&standard, "br").unwrap(), "sixteen bytes...");
}

/// Lengths that only the data claims: nothing is set aside for what is not there.
#[tokio::test]
async fn a_claimed_length_is_not_believed() {
    use windjet_client::message::MessageType;
    use windjet_client::message::codec::decode;
    let _alone = alone().await;
    let claims: [&[u8]; 4] = [
        &[0xdd, 0xff, 0xff, 0xff, 0xff],       // an array of four billion
        &[0xdf, 0xff, 0xff, 0xff, 0xff],       // a map of four billion
        &[0xdb, 0xff, 0xff, 0xff, 0xff, b'a'], // a text of four gigabytes
        &[0xc6, 0xff, 0xff, 0xff, 0xff, 0],    // as many bytes
    ];
    for claim in claims {
        let before = allocated();
        assert!(decode::<Vec<String>>(claim, MessageType::MessagePack).is_err());
        assert!(decode::<String>(claim, MessageType::MessagePack).is_err());
        assert!(decode::<serde_json::Value>(claim, MessageType::MessagePack).is_err());
        let asked = allocated().bytes_allocated - before.bytes_allocated;
        assert!(asked < 4 << 20, "{claim:x?}: {asked} bytes");
    }
    // One in another: each sets aside what a single one may. The last has what it claims, and the first the same bytes again.
    let mut nested = Vec::new();
    for level in 0..120_u32 {
        nested.push(0xdd);
        nested.extend((199_995 - 5 * level).to_be_bytes());
    }
    nested.resize(nested.len() + 199_400, 0x90);
    let before = allocated();
    assert!(decode::<Tree>(&nested, MessageType::MessagePack).is_err());
    let asked = allocated().bytes_allocated - before.bytes_allocated;
    assert!(asked < 1 << 20, "{asked} bytes for {}", nested.len());
    // Arrays in arrays without an end: an error, and not the end of the stack.
    for (nested, kind) in [
        (vec![0x91; 1 << 20], MessageType::MessagePack),
        (vec![b'['; 1 << 20], MessageType::Json),
    ] {
        let error = decode::<serde_json::Value>(&nested, kind).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Decode);
    }
}
