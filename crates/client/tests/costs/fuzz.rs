//! Bodies from nobody knows where: whatever is in them, decoding and expanding ends with a value or an error, and allocates no
//! more than its bound.
//!
//! Bodies are random bytes, mutated encodings, and claims of lengths. A run takes a few seconds and prints its seed; a failing
//! case prints its own, and `WINDJET_FUZZ_SEED` with that number begins with that case. `WINDJET_FUZZ_SECONDS` makes it longer.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use windjet_client::async_nats::HeaderMap;
use windjet_client::message::codec::{decode, decode_msg_with_decompress, decode_proto};
use windjet_client::message::compression::{COMPRESS_ABOVE, EXPANDED_MAX, compress, decompress};
use windjet_client::message::{Compression, Message, MessageType};

use crate::{allocated, alone};

/// Most bytes that a decoder may ask for, for each byte of a body: a map of one short key is three bytes, and the tree's node
/// that it becomes has room for eleven.
const EACH: usize = 400;
/// And in any case: errors and their texts.
const ANYWAY: usize = 64 << 10;
/// What Brotli's decoder holds besides what it has expanded: its window of 16 MiB at most, and its tables.
const BROTLI_HOLDS: usize = 24 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Tree(Vec<Tree>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Kind {
    Plain,
    Named(String),
    Pair(i8, f64),
    Record { flags: Vec<bool>, count: Option<u64> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: String,
    amounts: Vec<u64>,
    kinds: Vec<Kind>,
    notes: HashMap<String, String>,
    #[serde(default)]
    raw: Vec<u8>,
    more: Option<Box<Order>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Wire {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(uint64, repeated, tag = "3")]
    numbers: Vec<u64>,
    #[prost(double, repeated, tag = "4")]
    weights: Vec<f64>,
    #[prost(btree_map = "string, int32", tag = "5")]
    counts: BTreeMap<String, i32>,
    #[prost(message, repeated, tag = "6")]
    inner: Vec<Wire>,
}

fn text(rng: &mut StdRng, longest: usize) -> String {
    let length = rng.random_range(0..=longest);
    (0..length)
        .map(|_| char::from_u32(rng.random_range(0x20..0x2ff)).unwrap_or('?'))
        .collect()
}

fn bytes(rng: &mut StdRng, longest: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..=longest)];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn order(rng: &mut StdRng, depth: usize) -> Order {
    let kinds = (0..rng.random_range(0..5)).map(|_| match rng.random_range(0..4) {
        0 => Kind::Plain,
        1 => Kind::Named("a name".into()),
        2 => Kind::Pair(-3, 1.5),
        _ => Kind::Record {
            flags: vec![true; 3],
            count: Some(u64::MAX),
        },
    });
    Order {
        kinds: kinds.collect(),
        id: text(rng, 40),
        amounts: (0..rng.random_range(0..30)).map(|_| rng.next_u64()).collect(),
        notes: (0..rng.random_range(0..4))
            .map(|n| (n.to_string(), text(rng, 9)))
            .collect(),
        raw: bytes(rng, 80),
        more: (depth > 0).then(|| Box::new(order(rng, depth - 1))),
    }
}

fn wire(rng: &mut StdRng, depth: usize) -> Wire {
    Wire {
        name: text(rng, 40),
        raw: bytes(rng, 80),
        numbers: (0..rng.random_range(0..30)).map(|_| rng.next_u64()).collect(),
        weights: vec![0.5; rng.random_range(0..9)],
        counts: (0..rng.random_range(0..5)).map(|n| (n.to_string(), n)).collect(),
        inner: (0..depth).map(|_| wire(rng, depth - 1)).collect(),
    }
}

/// Changes a body as a broken or hostile sender would.
fn mutate(rng: &mut StdRng, body: &mut Vec<u8>) {
    /// Heads of MessagePack that claim much, Protobuf's longest number, Brotli's windows.
    const CLAIMS: [&[u8]; 12] = [
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0xdb, 0xff, 0xff, 0xff, 0xff],
        &[0xc6, 0xff, 0xff, 0xff, 0xff],
        &[0xc9, 0xff, 0xff, 0xff, 0xff, 0x01],
        &[0xdc, 0xff, 0xff],
        &[0xde, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        &[0x91],
        b"[",
        b"{\"a\":",
        &[0x11, 0x1e],
    ];
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..=body.len());
        match rng.random_range(0..7) {
            0 => body.truncate(at),
            1 if at < body.len() => body[at] ^= 1 << rng.random_range(0..8),
            2 if at < body.len() => body[at] = rng.random(),
            3 => {
                let claim = CLAIMS[rng.random_range(0..CLAIMS.len())];
                // Nested claims add up.
                let claim = claim.repeat(if rng.random_ratio(1, 4) { 150 } else { 1 });
                let end = (at + claim.len()).min(body.len());
                body.splice(at..end, claim);
            }
            4 => {
                let some = bytes(rng, 20);
                body.splice(at..at, some);
            }
            5 => {
                let end = rng.random_range(at..=body.len());
                let part = body[at..end].to_vec();
                body.splice(at..at, part);
            }
            _ => drop(body.drain(at..(at + 3).min(body.len()))),
        }
    }
}

/// What `work` asked for meanwhile.
fn asked<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = allocated().bytes_allocated;
    let result = work();
    (result, allocated().bytes_allocated - before)
}

/// Runs cases until the time is over; each has a seed of its own.
fn cases(name: &str, mut case: impl FnMut(&mut StdRng) -> Result<(), String>) {
    let setting = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = setting("WINDJET_FUZZ_SEED").unwrap_or_else(rand::random);
    let length = Duration::from_secs(setting("WINDJET_FUZZ_SECONDS").unwrap_or(3));
    println!("{name}: WINDJET_FUZZ_SEED={first}");
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < length {
        let seed = first.wrapping_add(count);
        if let Err(what) = case(&mut StdRng::seed_from_u64(seed)) {
            panic!("{name}, WINDJET_FUZZ_SEED={seed}: {what}");
        }
        count += 1;
    }
    println!("{name}: {count} bodies");
}

fn within<T>(what: &str, body: &[u8], (_, asked): (T, usize)) -> Result<(), String> {
    let bound = EACH * body.len() + ANYWAY;
    if asked > bound {
        let shown = &body[..body.len().min(60)];
        return Err(format!("{what}: {asked} bytes for {} of {shown:x?}", body.len()));
    }
    Ok(())
}

fn decoded_within(body: &[u8], kind: MessageType) -> Result<(), String> {
    within("a tree", body, asked(|| decode::<Tree>(body, kind)))?;
    within("an order", body, asked(|| decode::<Order>(body, kind)))?;
    within(
        "any value",
        body,
        asked(|| decode::<serde_json::Value>(body, kind)),
    )?;
    within(
        "maps",
        body,
        asked(|| decode::<HashMap<String, Vec<HashMap<u8, Vec<[u64; 8]>>>>>(body, kind)),
    )?;
    within(
        "big elements",
        body,
        asked(|| decode::<Vec<Vec<Vec<Vec<[u8; 32]>>>>>(body, kind)),
    )
}

fn same<T: PartialEq + Debug, E: Debug>(value: &T, found: &Result<T, E>) -> Result<(), String> {
    if !found.as_ref().is_ok_and(|found| found == value) {
        return Err(format!("{value:?} came back as {found:?}"));
    }
    Ok(())
}

#[tokio::test]
async fn no_body_makes_a_codec_allocate_beyond_its_bound() {
    let _alone = alone().await;
    cases("codecs", |rng| {
        let deep = rng.random_range(0..4);
        let (order, wire) = (order(rng, deep), wire(rng, 2));
        let json = Message::json(&order).map_err(|error| error.to_string())?;
        let packed = Message::msgpack(&order).map_err(|error| error.to_string())?;
        let proto = Message::proto(&wire);
        same(&order, &decode::<Order>(json.payload(), MessageType::Json))?;
        same(
            &order,
            &decode::<Order>(packed.payload(), MessageType::MessagePack),
        )?;
        same(&wire, &decode_proto::<Wire>(proto.payload()))?;
        let mut bodies = [
            json.payload().to_vec(),
            packed.payload().to_vec(),
            proto.payload().to_vec(),
            bytes(rng, 300),
        ];
        for body in &mut bodies {
            mutate(rng, body);
            decoded_within(body, MessageType::Json)?;
            decoded_within(body, MessageType::MessagePack)?;
            within("protobuf", body, asked(|| decode_proto::<Wire>(body)))?;
        }
        Ok(())
    });
}

/// A body that shrinks when it is compressed.
fn repetitive(rng: &mut StdRng) -> Vec<u8> {
    let part = bytes(rng, 2000);
    let mut body = part.repeat(rng.random_range(1..200));
    for _ in 0..rng.random_range(0..50) {
        if let Some(byte) = rng.random_range(0..=body.len()).checked_sub(1) {
            body[byte] = rng.random();
        }
    }
    body
}

#[tokio::test]
async fn no_body_makes_expanding_allocate_beyond_its_cap() {
    let _alone = alone().await;
    cases("compression", |rng| {
        let plain = Bytes::from(repetitive(rng));
        for (mode, name) in [(Compression::Gzip, "gzip"), (Compression::Brotli, "br")] {
            let body = match compress(&plain, mode) {
                Some((packed, named)) => {
                    if named != name || packed.len() >= plain.len() || plain.len() <= COMPRESS_ABOVE {
                        return Err(format!("{} bytes as {} of {named}", plain.len(), packed.len()));
                    }
                    same(&plain, &decompress(&packed, name))?;
                    packed
                }
                None => Bytes::from(bytes(rng, 300)),
            };
            let mut body = body.to_vec();
            mutate(rng, &mut body);
            let body = Bytes::from(body);
            let (result, asked) = asked(|| decompress(&body, name));
            // A vector that grows by doubling, until there is too much.
            let grown = match &result {
                Ok(expanded) if expanded.len() > EXPANDED_MAX => return Err("more than the cap".into()),
                Ok(expanded) => 2 * expanded.len(),
                Err(_) => 2 * EXPANDED_MAX,
            };
            if asked > grown + BROTLI_HOLDS {
                let shown = &body[..body.len().min(60)];
                return Err(format!("{name}: {asked} bytes for {} of {shown:x?}", body.len()));
            }
            // As a message, with a codec behind: one that is broken is an error, and nothing else.
            let mut headers = HeaderMap::new();
            headers.insert("Content-Encoding", name);
            headers.insert("Nats-Content-Type", "msgpack");
            let message = windjet_client::async_nats::Message {
                subject: "s".into(),
                reply: None,
                payload: body,
                headers: Some(headers),
                status: None,
                description: None,
                length: 0,
            };
            let _ = decode_msg_with_decompress::<serde_json::Value>(&message, None);
        }
        Ok(())
    });
}
