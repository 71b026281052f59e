//! MessagePack: encoding, and decoding of bodies that nobody vouches for.
//!
//! A header of five bytes may claim four billion elements, and types set memory aside for what a header claims. So a body is
//! walked before it is decoded: every length in it is compared with the bytes that are there, and every value that is claimed
//! must be there, down to the last. The walk allocates nothing and ends at the end of the body's first value. What is decoded
//! then allocates in proportion to the bytes that arrived, whatever they say.
//!
//! Called by: the codecs.

use rmp_serde::Deserializer;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How deep values may nest, as in JSON. The library's own bound is eight times that, which a thread's stack does not always
/// hold.
const DEPTH_MAX: usize = 128;

/// What is wrong with a body before anybody looks at its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the body ends before what it claims")]
    Short,
    #[error("values nest deeper than {DEPTH_MAX}")]
    Deep,
    #[error("a byte that begins no value")]
    Reserved,
}

pub(super) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec_named(value)
}

pub(super) fn decode<T: DeserializeOwned>(
    body: &[u8],
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    // Only what was walked: a decoder that reads on finds the end.
    let body = &body[..extent(body)?];
    let mut from = Deserializer::from_read_ref(body);
    from.set_max_depth(DEPTH_MAX);
    Ok(T::deserialize(&mut from)?)
}

/// How long the first value of `body` is.
fn extent(body: &[u8]) -> Result<usize, Fault> {
    // Values that are still to come, of each container that is open.
    let mut open = [0_u64; DEPTH_MAX];
    let mut depth = 0;
    let mut rest = body;
    loop {
        let (bytes, values) = head(&mut rest)?;
        rest = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| rest.get(bytes..))
            .ok_or(Fault::Short)?;
        if values > 0 {
            // A value is a byte at least.
            if values > rest.len() as u64 {
                return Err(Fault::Short);
            }
            *open.get_mut(depth).ok_or(Fault::Deep)? = values;
            depth += 1;
            continue;
        }
        // A value has ended, and with it every container whose last it was.
        loop {
            let Some(last) = depth.checked_sub(1) else {
                return Ok(body.len() - rest.len());
            };
            open[last] -= 1;
            if open[last] > 0 {
                break;
            }
            depth = last;
        }
    }
}

/// Takes the head of a value: the bytes of it that follow, and the values that are in it.
fn head(rest: &mut &[u8]) -> Result<(u64, u64), Fault> {
    let [marker] = take(rest)?;
    Ok(match marker {
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => (0, 0),
        0x80..=0x8f => (0, 2 * u64::from(marker & 0x0f)),
        0x90..=0x9f => (0, u64::from(marker & 0x0f)),
        0xa0..=0xbf => (u64::from(marker & 0x1f), 0),
        0xc1 => return Err(Fault::Reserved),
        0xc4 | 0xd9 => (u64::from(u8::from_be_bytes(take(rest)?)), 0),
        0xc5 | 0xda => (u64::from(u16::from_be_bytes(take(rest)?)), 0),
        0xc6 | 0xdb => (u64::from(u32::from_be_bytes(take(rest)?)), 0),
        // An extension has its type in front of its bytes.
        0xc7 => (1 + u64::from(u8::from_be_bytes(take(rest)?)), 0),
        0xc8 => (1 + u64::from(u16::from_be_bytes(take(rest)?)), 0),
        0xc9 => (1 + u64::from(u32::from_be_bytes(take(rest)?)), 0),
        0xd4..=0xd8 => (1 + (1 << (marker - 0xd4)), 0),
        0xcc | 0xd0 => (1, 0),
        0xcd | 0xd1 => (2, 0),
        0xca | 0xce | 0xd2 => (4, 0),
        0xcb | 0xcf | 0xd3 => (8, 0),
        0xdc => (0, u64::from(u16::from_be_bytes(take(rest)?))),
        0xdd => (0, u64::from(u32::from_be_bytes(take(rest)?))),
        0xde => (0, 2 * u64::from(u16::from_be_bytes(take(rest)?))),
        0xdf => (0, 2 * u64::from(u32::from_be_bytes(take(rest)?))),
    })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (bytes, behind) = rest.split_first_chunk().ok_or(Fault::Short)?;
    *rest = behind;
    Ok(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Serialize, Deserialize, PartialEq, Clone)]
    enum Shape {
        None,
        Circle(f64),
        Line { from: (i16, i64), to: Option<u8> },
    }

    #[derive(Debug, Serialize, Deserialize, PartialEq, Clone)]
    struct Drawing {
        name: String,
        shapes: Vec<Shape>,
        tags: BTreeMap<String, Option<i64>>,
        #[serde(with = "bytes_of")]
        image: Vec<u8>,
    }

    /// Bytes as MessagePack's binary.
    mod bytes_of {
        use serde::{Deserialize as _, Deserializer, Serializer};

        pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
            to.serialize_bytes(bytes)
        }

        pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
            Vec::<u8>::deserialize(from)
        }
    }

    fn shape() -> impl Strategy<Value = Shape> {
        prop_oneof![
            Just(Shape::None),
            any::<f64>()
                .prop_filter("a number", |n| !n.is_nan())
                .prop_map(Shape::Circle),
            (any::<(i16, i64)>(), any::<Option<u8>>()).prop_map(|(from, to)| Shape::Line { from, to }),
        ]
    }

    prop_compose! {
        fn drawing()(
            name in ".{0,300}",
            shapes in prop::collection::vec(shape(), 0..40),
            tags in prop::collection::btree_map("[a-z]{0,40}", any::<Option<i64>>(), 0..40),
            image in prop::collection::vec(any::<u8>(), 0..600),
        ) -> Drawing {
            Drawing { name, shapes, tags, image }
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_walked_to_its_end_and_decoded(drawing in drawing(), behind in prop::collection::vec(any::<u8>(), 0..9)) {
            let mut body = encode(&drawing).unwrap();
            prop_assert_eq!(extent(&body), Ok(body.len()));
            for cut in (0..body.len()).step_by(7) {
                prop_assert_eq!(extent(&body[..cut]), Err(Fault::Short));
            }
            let whole = body.len();
            body.extend(behind);
            prop_assert_eq!(extent(&body), Ok(whole));
            prop_assert_eq!(decode::<Drawing>(&body).unwrap(), drawing);
        }
    }

    #[test]
    fn every_kind_of_value_has_its_length() {
        let long = |head: &[u8], bytes: usize| [head, &vec![0; bytes]].concat();
        let bodies = [
            vec![0x00],
            vec![0x7f],
            vec![0xe0],
            vec![0xff],
            vec![0xc0],
            vec![0xc2],
            vec![0xc3],
            vec![0x80],
            vec![0x81, 0, 0],
            vec![0x90],
            vec![0x92, 0x91, 0, 0],
            vec![0xa0],
            long(&[0xbf], 31),
            long(&[0xc4, 3], 3),
            long(&[0xc5, 1, 0], 256),
            long(&[0xc6, 0, 1, 0, 0], 65_536),
            long(&[0xc7, 3], 4),
            long(&[0xc8, 1, 0], 257),
            long(&[0xc9, 0, 1, 0, 0], 65_537),
            long(&[0xca], 4),
            long(&[0xcb], 8),
            long(&[0xcc], 1),
            long(&[0xcd], 2),
            long(&[0xce], 4),
            long(&[0xcf], 8),
            long(&[0xd0], 1),
            long(&[0xd1], 2),
            long(&[0xd2], 4),
            long(&[0xd3], 8),
            long(&[0xd4], 2),
            long(&[0xd5], 3),
            long(&[0xd6], 5),
            long(&[0xd7], 9),
            long(&[0xd8], 17),
            long(&[0xd9, 32], 32),
            long(&[0xda, 1, 0], 256),
            long(&[0xdb, 0, 1, 0, 0], 65_536),
            long(&[0xdc, 1, 0], 256),
            long(&[0xdd, 0, 1, 0, 0], 65_536),
            long(&[0xde, 1, 0], 512),
            long(&[0xdf, 0, 1, 0, 0], 131_072),
        ];
        for body in bodies {
            let shown = &body[..body.len().min(5)];
            assert_eq!(extent(&body), Ok(body.len()), "{shown:x?}");
            assert_eq!(extent(&body[..body.len() - 1]), Err(Fault::Short), "{shown:x?}");
            // The library reads the same.
            decode::<serde::de::IgnoredAny>(&body).unwrap();
        }
        assert_eq!(extent(&[0xc1]), Err(Fault::Reserved));
        assert_eq!(extent(&[]), Err(Fault::Short));
    }

    #[test]
    fn values_nest_as_deep_as_in_json() {
        let nested = |deep: usize| [vec![0x91; deep], vec![0xc0]].concat();
        assert_eq!(extent(&nested(DEPTH_MAX)), Ok(DEPTH_MAX + 1));
        assert_eq!(extent(&nested(DEPTH_MAX + 1)), Err(Fault::Deep));
    }

    /// Notes the greatest length that it was told to expect, as a type would that sets memory aside for it.
    struct Expects(u64);

    impl<'de> Deserialize<'de> for Expects {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Expects;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("anything")
                }

                fn visit_unit<E>(self) -> Result<Expects, E> {
                    Ok(Expects(0))
                }

                fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Expects, A::Error> {
                    let mut most = seq.size_hint().unwrap_or(0) as u64;
                    SEEN.with(|seen| seen.set(seen.get().max(most)));
                    while let Some(Expects(inner)) = seq.next_element()? {
                        most = most.max(inner);
                    }
                    Ok(Expects(most))
                }
            }
            from.deserialize_any(Visitor)
        }
    }

    thread_local! {
        static SEEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn no_type_is_told_of_more_than_is_there() {
        let claim = [0xdd, 0xff, 0xff, 0xff, 0xff];
        let bodies = [
            claim.to_vec(),
            // Each claims the bytes behind it and no more; only the innermost has them.
            (0..64_u32)
                .flat_map(|level| [0xdd].into_iter().chain((1000 - 5 * level).to_be_bytes()))
                .chain([0xc0; 1000])
                .collect(),
            [&[0x92, 0xc0][..], &claim].concat(),
        ];
        for body in bodies {
            SEEN.with(|seen| seen.set(0));
            assert!(decode::<Expects>(&body).is_err());
            let seen = SEEN.with(std::cell::Cell::get);
            assert_eq!(seen, 0, "{} bytes", body.len());
        }
        let body = [vec![0x93], vec![0xc0; 3]].concat();
        assert_eq!(decode::<Expects>(&body).unwrap().0, 3);
    }
}
