//! Headers: exact names, tolerant reading, round trips, and raw functions against the map.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn block(fields: &str) -> Vec<u8> {
    format!("NATS/1.0\r\n{fields}\r\n").into_bytes()
}

fn parse(block: &[u8]) -> HeaderMap {
    HeaderMap::try_from(block).unwrap()
}

#[test]
fn only_exact_names_are_found() {
    // A name that merely ends, begins or otherwise resembles the wanted one has caused duplicates to be dropped before.
    for near in [
        "Orig-Nats-Msg-Id: x",
        "nats-msg-id: x",
        "Nats-Msg-Id2: x",
        "Nats-Msg-Id : x",
        " Nats-Msg-Id: x",
        "Other: Nats-Msg-Id: x",
        "Nats-Msg-Id",
        "\nNats-Msg-Id: x",
        "\rNats-Msg-Id: x",
    ] {
        let block = block(&format!("{near}\r\n"));
        assert_eq!(block::find(&block, names::MSG_ID), None, "{near:?}");
        assert_eq!(parse(&block).get(names::MSG_ID), None, "{near:?}");
        let mut same = block.clone();
        assert!(!block::remove(&mut same, names::MSG_ID));
        assert_eq!(same, block);
    }
    assert_eq!(
        block::find(b"Nats-Msg-Id: x\r\n\r\n", names::MSG_ID),
        None,
        "the first line is no field"
    );
}

#[test]
fn the_first_of_several_wins_and_all_are_kept() {
    let block = block("A: 1\r\nB: 2\r\nA: 3\r\n");
    let map = parse(&block);
    assert_eq!(block::find(&block, "A"), Some(b"1".as_slice()));
    assert_eq!(map.get("A"), Some(b"1".as_slice()));
    assert_eq!(map.get_all("A").collect::<Vec<_>>(), [b"1", b"3"]);
    assert_eq!(map.len(), 3);
    assert_eq!(map.to_bytes(), block);
}

#[test]
fn a_value_loses_leading_spaces_and_keeps_trailing_ones() {
    let block = block("A:   5 \r\nB:\r\nC:x:y\r\nD:\t1\r\nE: a\rb\nc\r\n");
    for (name, value) in [
        ("A", "5 "),
        ("B", ""),
        ("C", "x:y"),
        ("D", "\t1"),
        ("E", "a\rb\nc"),
    ] {
        assert_eq!(block::find(&block, name), Some(value.as_bytes()), "{name}");
        assert_eq!(parse(&block).get_str(name), Some(value), "{name}");
    }
}

#[test]
fn a_status_line_is_read() {
    let check = |bytes: &[u8], expected: Option<(u16, &str)>| {
        let map = parse(bytes);
        let found = map
            .status()
            .map(|s| (s.code, std::str::from_utf8(&s.description).unwrap()));
        assert_eq!(found, expected, "{}", bytes.escape_ascii());
    };
    check(b"NATS/1.0\r\n\r\n", None);
    check(b"NATS/1.0", None);
    check(b"NATS/1.0 503\r\n\r\n", Some((503, "")));
    check(
        b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
        Some((409, "Consumer Deleted")),
    );
    check(
        b"NATS/1.0   100   Idle Heartbeat  \r\n\r\n",
        Some((100, "Idle Heartbeat")),
    );
    check(b"NATS/1.0503\r\n\r\n", Some((503, "")));
    check(b"NATS/1.0 5031 x\r\n\r\n", Some((503, "1 x")));
    check(b"NATS/1.0 text\r\n\r\n", None);
    let text = block::status_text(b"NATS/1.0 409 Consumer Deleted\r\n");
    assert_eq!(text, Some(b"409 Consumer Deleted".as_slice()));
    assert_eq!(block::status_text(b"NATS/1.0\r\nA: 1\r\n\r\n"), None);
    assert_eq!(block::status_text(b""), None);
}

#[test]
fn reading_is_tolerant_except_about_the_version() {
    for bytes in ["", "hi", "NATS/2.0\r\n\r\n", "\r\nNATS/1.0\r\n\r\n"] {
        assert_eq!(
            HeaderMap::try_from(bytes.as_bytes()),
            Err(HeaderError::Version),
            "{bytes:?}"
        );
    }
    let map = parse(b"NATS/1.0\r\njunk\r\nA: 1\r\n\r\nB: 2");
    assert_eq!(
        map.iter().collect::<Vec<_>>(),
        [(b"A".as_slice(), b"1".as_slice()), (b"B", b"2")]
    );
}

#[test]
fn status_is_cut_before_storing() {
    let cut = |bytes: &[u8]| {
        let mut block = bytes.to_vec();
        block::strip_status(&mut block);
        String::from_utf8(block).unwrap()
    };
    assert_eq!(
        cut(b"NATS/1.0 503 foo\r\nA: 1\r\n\r\n"),
        "NATS/1.0\r\nA: 1\r\n\r\n"
    );
    assert_eq!(cut(b"NATS/1.0 503\r\n\r\n"), "");
    assert_eq!(cut(b"NATS/1.0\r\n\r\n"), "NATS/1.0\r\n\r\n");
    assert_eq!(cut(b"NATS/1.0\r\nA: 1\r\n\r\n"), "NATS/1.0\r\nA: 1\r\n\r\n");
    assert_eq!(cut(b"hi"), "hi");
    assert_eq!(cut(b""), "");
}

#[test]
fn a_block_is_changed_in_place() {
    let mut block = Vec::new();
    block::append(&mut block, "A", b"1");
    block::append(&mut block, "B", b"2");
    block::append(&mut block, "A", b"3");
    assert_eq!(block, b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n");
    block::set(&mut block, "B", b"4");
    assert_eq!(block, b"NATS/1.0\r\nA: 1\r\nA: 3\r\nB: 4\r\n\r\n");
    assert!(block::remove(&mut block, "A"));
    assert_eq!(block, b"NATS/1.0\r\nB: 4\r\n\r\n");
    assert!(!block::remove(&mut block, "A"));
    assert!(block::remove(&mut block, "B"));
    assert_eq!(block, b"");
    let mut status = b"NATS/1.0 100 x\r\nB: 4\r\n\r\n".to_vec();
    assert!(block::remove(&mut status, "B"));
    assert_eq!(status, b"NATS/1.0 100 x\r\n\r\n");
    let mut ragged = b"hi".to_vec();
    block::append(&mut ragged, "A", b"1");
    assert_eq!(block::find(&ragged, "A"), Some(b"1".as_slice()));
}

#[test]
fn a_map_is_changed_in_order() {
    let mut map = parse(&block("A: 1\r\nB: 2\r\nA: 3\r\nC: 4\r\nA: 5\r\n"));
    map.insert("A", "new").unwrap();
    map.append("B", "  again").unwrap();
    map.insert("D", Bytes::from_static(b"\xff")).unwrap();
    assert_eq!(
        &map.to_bytes()[..],
        b"NATS/1.0\r\nA: new\r\nB: 2\r\nC: 4\r\nB: again\r\nD: \xff\r\n\r\n"
    );
    assert_eq!(map.get_str("D"), None);
    assert!(map.contains("C") && map.remove("B") && !map.remove("B"));
    assert_eq!(map.len(), 3);
    map.set_status(Some(Status {
        code: 409,
        description: Bytes::from_static(b"Consumer Deleted"),
    }));
    assert!(
        map.to_bytes()
            .starts_with(b"NATS/1.0 409 Consumer Deleted\r\nA: new\r\n")
    );
    assert!(!map.is_empty() && HeaderMap::new().is_empty());
    assert_eq!(HeaderMap::new().to_bytes(), EMPTY_BLOCK);
}

#[test]
fn fields_cannot_break_out_of_their_line() {
    let mut map = HeaderMap::new();
    for name in ["", "a:b", "a b", "a\r\nb", "é", "a\0"] {
        assert_eq!(map.append(name, "x"), Err(HeaderError::Name), "{name:?}");
        assert_eq!(map.insert(name, "x"), Err(HeaderError::Name), "{name:?}");
    }
    for value in ["a\r\nB: 1", "a\nb", "\r"] {
        assert_eq!(map.append("A", value), Err(HeaderError::Value), "{value:?}");
        assert_eq!(map.insert("A", value), Err(HeaderError::Value), "{value:?}");
    }
    assert!(map.is_empty());
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("A".to_owned()),
        Just("AB".to_owned()),
        Just("a".to_owned()),
        "[!-9;-~]{1,6}"
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_map(|byte| if b"\r\n".contains(&byte) { b' ' } else { byte });
    prop::collection::vec(byte, 0..8)
}

/// Bytes that look like a header block often enough.
fn messy() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "NATS/1.0",
            "\r\n",
            "\r",
            "\n",
            ":",
            " ",
            "A",
            "B",
            "A: 1\r\n",
            "A:2\r\n",
            "AA: 3\r\n",
            "\r\n\r\n",
            "503",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..3),
    ];
    (any::<bool>(), prop::collection::vec(piece, 0..12)).prop_map(|(proper, pieces)| {
        let mut block = if proper {
            b"NATS/1.0\r\n".to_vec()
        } else {
            Vec::new()
        };
        block.extend(pieces.concat());
        block
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_back(
        fields in prop::collection::vec((name(), value()), 0..8),
        status in prop::option::of((0_u16..1000, "[a-zA-Z]([a-zA-Z ]{0,10}[a-z])?|")),
    ) {
        let mut map = HeaderMap::new();
        map.set_status(status.map(|(code, text)| Status { code, description: text.into() }));
        let mut raw = Vec::new();
        for (name, value) in fields {
            map.append(&name, value.clone()).unwrap();
            block::append(&mut raw, &name, &value);
        }
        let bytes = map.to_bytes();
        prop_assert_eq!(bytes.len(), map.encoded_len());
        prop_assert_eq!(&HeaderMap::parse(bytes.clone()).unwrap(), &map);
        // Built raw, the fields are the same, whatever spaces the values began with.
        if !raw.is_empty() {
            prop_assert!(block::fields(&raw).eq(map.iter()));
        }
    }

    #[test]
    fn raw_functions_agree_with_the_map(bytes in messy(), name in name()) {
        let found = block::find(&bytes, &name);
        let first = block::fields(&bytes).find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value);
        prop_assert_eq!(found, first);
        if let Ok(map) = HeaderMap::try_from(bytes.as_slice()) {
            prop_assert_eq!(map.get(&name), found);
            prop_assert!(map.iter().eq(block::fields(&bytes)));
        }
    }

    #[test]
    fn raw_changes_touch_only_what_they_name(bytes in messy(), name in name()) {
        let others = |block: &[u8]| -> Vec<(Vec<u8>, Vec<u8>)> {
            block::fields(block)
                .filter(|(key, _)| *key != name.as_bytes())
                .map(|(key, value)| (key.to_vec(), value.to_vec()))
                .collect()
        };
        let mut block = bytes.clone();
        let had = block::contains(&block, &name);
        prop_assert_eq!(block::remove(&mut block, &name), had);
        prop_assert!(!block::contains(&block, &name));
        if !block.is_empty() {
            prop_assert_eq!(others(&block), others(&bytes));
        }
        block::set(&mut block, &name, b"new");
        prop_assert_eq!(block::find(&block, &name), Some(b"new".as_slice()));
        let mut stored = bytes.clone();
        block::strip_status(&mut stored);
        prop_assert!(stored.is_empty() || others(&stored) == others(&bytes));
    }
}
