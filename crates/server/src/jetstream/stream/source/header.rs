//! The header that says where a message was copied from, and what else becomes of headers on the way.
//!
//! The value is `<stream> <sequence> <filters> <destinations> <subject> <identity>`; older forms lack the end. Stream,
//! filters and destinations together are the [`key`] of a source: two sources of one stream differ in it.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use windjet_protocol::header::{block, names};
use windjet_protocol::jetstream::{StreamSource, Timestamp};

/// Between the filters, or the destinations, of one source.
const JOIN: &str = "\u{c}";
const EXPECTED: &[u8] = b"Nats-Expected-";
const BATCH: &[u8] = b"Nats-Batch-";

/// Where a message came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// The source's key.
    pub(super) key: String,
    /// Sequence at the origin.
    pub(super) seq: u64,
    /// What tells the origin from others of its name; empty where the header does not say.
    pub(super) identity: String,
}

/// Reads a header's value; nothing where it is none of the known forms.
pub(super) fn read(value: &[u8]) -> Option<Taken> {
    let value = std::str::from_utf8(value).ok()?;
    let fields: Vec<&str> = value.split(' ').collect();
    let (filter, dest) = match fields.len() {
        2 => (">", ">"),
        4..=6 => (fields[2], fields[3]),
        _ => return None,
    };
    Some(Taken {
        key: format!("{} {filter} {dest}", fields[0]),
        seq: fields[1].parse().ok()?,
        identity: fields.get(5).copied().unwrap_or_default().to_owned(),
    })
}

/// What tells a source from the others of a stream.
pub(super) fn key(source: &StreamSource) -> String {
    let or_all = |text: &str| {
        if text.is_empty() {
            ">".to_owned()
        } else {
            text.to_owned()
        }
    };
    let mut name = source.name.clone();
    // Writing to a string does not fail.
    if let Some(external) = &source.external {
        let _ = write!(name, ":{}", hash(&external.api));
    }
    if let Some(consumer) = &source.consumer {
        let _ = write!(name, ":C={}", hash(&consumer.name));
    }
    let transforms = &source.subject_transforms;
    if transforms.is_empty() {
        return format!("{name} {} >", or_all(&source.filter_subject));
    }
    let filters: Vec<String> = transforms
        .iter()
        .map(|transform| or_all(&transform.src))
        .collect();
    let dests: Vec<String> = transforms
        .iter()
        .map(|transform| or_all(&transform.dest))
        .collect();
    format!("{name} {} {}", filters.join(JOIN), dests.join(JOIN))
}

/// The header's value for a message of a source with this key.
pub(super) fn value(key: &str, seq: u64, subject: &[u8], identity: &str) -> Vec<u8> {
    let (stream, rest) = key.split_once(' ').unwrap_or((key, ""));
    let mut out = format!("{stream} {seq} {rest} ").into_bytes();
    out.extend_from_slice(subject);
    out.push(b' ');
    out.extend_from_slice(identity.as_bytes());
    out
}

/// What tells an origin from others that had its name.
pub(super) fn identity(created: Timestamp) -> String {
    hash(&created.to_string())
}

/// Eight letters and digits that stand for a text.
pub(super) fn hash(text: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    Sha256::digest(text.as_bytes())
        .iter()
        .take(8)
        .map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]))
        .collect()
}

/// A header block as the copy has it: without what only the origin's publisher was to be held to, and with `source` for
/// where it comes from.
pub(super) fn copied<'b>(original: &'b [u8], source: Option<&[u8]>) -> Cow<'b, [u8]> {
    let mut gone: Vec<String> = Vec::new();
    for (name, _) in block::fields(original) {
        let stays = !name.starts_with(EXPECTED) && !name.starts_with(BATCH);
        if let Some(name) = std::str::from_utf8(name).ok().filter(|_| !stays) {
            gone.push(name.to_owned());
        }
    }
    if gone.is_empty() && source.is_none() {
        return Cow::Borrowed(original);
    }
    let mut out = original.to_vec();
    for name in gone {
        block::remove(&mut out, &name);
    }
    if let Some(source) = source {
        block::set(&mut out, names::STREAM_SOURCE, source);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use windjet_protocol::jetstream::SubjectTransform;

    use super::*;

    fn source(name: &str, filter: &str, transforms: &[(&str, &str)]) -> StreamSource {
        StreamSource {
            name: name.into(),
            filter_subject: filter.into(),
            subject_transforms: transforms
                .iter()
                .map(|(src, dest)| SubjectTransform {
                    src: (*src).into(),
                    dest: (*dest).into(),
                })
                .collect(),
            ..StreamSource::default()
        }
    }

    #[test]
    fn a_value_reads_back_as_the_key_it_was_made_of() {
        for source in [
            source("O", "", &[]),
            source("O", "a.*", &[]),
            source("O", "", &[("a.*", "b.$1"), ("", ""), ("c", "")]),
        ] {
            let key = key(&source);
            let value = value(&key, 7, b"a.x", "abcdefgh");
            let identity = "abcdefgh".to_owned();
            assert_eq!(
                read(&value),
                Some(Taken {
                    key,
                    seq: 7,
                    identity
                })
            );
        }
        assert_eq!(
            key(&source("O", "", &[("a.*", "b.$1"), ("c", "")])),
            "O a.*\u{c}c b.$1\u{c}>"
        );
    }

    #[test]
    fn older_forms_are_read_and_others_are_not() {
        let taken = |key: &str, identity: &str| {
            Some(Taken {
                key: key.into(),
                seq: 3,
                identity: identity.into(),
            })
        };
        assert_eq!(read(b"O 3"), taken("O > >", ""));
        assert_eq!(read(b"O 3 a >"), taken("O a >", ""));
        assert_eq!(read(b"O 3 a b x"), taken("O a b", ""));
        assert_eq!(read(b"O 3 a b x ABCDEFGH"), taken("O a b", "ABCDEFGH"));
        for bad in ["", "O", "O x", "O 3 a", "O 3 a b c d e"] {
            assert_eq!(read(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn expectations_do_not_come_along() {
        let original = b"NATS/1.0\r\nNats-Expected-Stream: S\r\nA: b\r\nNats-Batch-Id: x\r\nNats-Stream-Source: P 1\r\n\r\n";
        assert_eq!(
            copied(original, Some(b"O 2")).as_ref(),
            b"NATS/1.0\r\nA: b\r\nNats-Stream-Source: O 2\r\n\r\n"
        );
        assert_eq!(
            copied(original, None).as_ref(),
            b"NATS/1.0\r\nA: b\r\nNats-Stream-Source: P 1\r\n\r\n"
        );
        let plain = b"NATS/1.0\r\nA: b\r\n\r\n";
        assert!(matches!(copied(plain, None), Cow::Borrowed(_)));
        assert_eq!(
            copied(b"", Some(b"O 1")).as_ref(),
            b"NATS/1.0\r\nNats-Stream-Source: O 1\r\n\r\n"
        );
    }
}
