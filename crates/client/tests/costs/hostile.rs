//! Payloads that expand to far more than they are allocate no more than the cap allows.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use windjet_client::ErrorKind;
use windjet_client::message::compression::{EXPANDED_MAX, decompress};

use crate::{allocated, alone, held};

const MEMBER: usize = 1 << 20;

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
    // Arrays in arrays without an end: an error, and not the end of the stack.
    for (nested, kind) in [
        (vec![0x91; 1 << 20], MessageType::MessagePack),
        (vec![b'['; 1 << 20], MessageType::Json),
    ] {
        let error = decode::<serde_json::Value>(&nested, kind).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Decode);
    }
}
