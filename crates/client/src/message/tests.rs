use super::compression::{
    COMPRESS_ABOVE, ENCODING_BROTLI, ENCODING_GZIP, EXPANDED_MAX, compress, decompress, expand,
};
use super::*;
use crate::observe::Carried;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Debug, Serialize, Deserialize, PartialEq, Clone)]
struct Order {
    id: String,
    price: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    value: String,
}

fn order() -> Order {
    Order {
        id: "<a&b>".into(),
        price: 67250.5,
    }
}

fn header(headers: &Option<HeaderMap>, name: &str) -> Option<String> {
    headers::first(headers.as_ref()?, name).map(str::to_owned)
}

fn received(payload: Bytes, headers: Option<HeaderMap>) -> async_nats::Message {
    async_nats::Message {
        subject: "s".into(),
        reply: None,
        payload,
        headers,
        status: None,
        description: None,
        length: 0,
    }
}

#[test]
fn every_codec_brings_the_value_back() {
    let json = Message::json(&order()).unwrap();
    assert_eq!(&json.payload()[..], br#"{"id":"<a&b>","price":67250.5}"#);
    assert_eq!(
        codec::decode::<Order>(json.payload(), MessageType::Json).unwrap(),
        order()
    );
    let packed = Message::msgpack(&order()).unwrap();
    // A map by field names, so that other languages read it.
    assert_eq!(packed.payload()[0], 0x82);
    assert_eq!(
        codec::decode::<Order>(packed.payload(), MessageType::MessagePack).unwrap(),
        order()
    );
    let text = Text { value: "hi".into() };
    let proto = Message::proto(&text);
    assert_eq!(codec::decode_proto::<Text>(proto.payload()).unwrap(), text);
}

#[test]
fn what_does_not_fit_is_an_error_of_its_kind() {
    assert_eq!(
        codec::decode::<Order>(b"{", MessageType::Json)
            .unwrap_err()
            .kind(),
        ErrorKind::Decode
    );
    assert_eq!(
        codec::decode::<Order>(b"\xc1", MessageType::MessagePack)
            .unwrap_err()
            .kind(),
        ErrorKind::Decode
    );
    assert_eq!(
        codec::decode_proto::<Text>(b"\xff").unwrap_err().kind(),
        ErrorKind::Decode
    );
    for unusable in [MessageType::Raw, MessageType::Proto] {
        assert_eq!(
            codec::decode::<Order>(b"{}", unusable).unwrap_err().kind(),
            ErrorKind::InvalidMessageType
        );
    }
}

#[test]
fn the_type_is_read_from_either_header_in_any_case_and_with_parameters() {
    use MessageType as T;
    let table = [
        ("json", T::Json),
        ("application/json; charset=utf-8", T::Json),
        ("Application/JSON", T::Json),
        ("protobuf", T::Proto),
        ("application/protobuf", T::Proto),
        ("application/x-protobuf ;v=1", T::Proto),
        ("APPLICATION/vnd.google.protobuf", T::Proto),
        (" msgpack ", T::MessagePack),
        ("application/msgpack", T::MessagePack),
        ("application/x-msgpack", T::MessagePack),
        ("text/plain", T::Json),
    ];
    for (value, expected) in table {
        for name in [headers::CONTENT_TYPE, headers::HTTP_CONTENT_TYPE] {
            let headers = Message::raw("").with_header(name, value).headers;
            assert_eq!(
                MessageType::from_headers(Some(&headers)),
                expected,
                "{name}: {value}"
            );
        }
    }
    let both = Message::raw("")
        .with_header(headers::CONTENT_TYPE, "msgpack")
        .with_header(headers::HTTP_CONTENT_TYPE, "application/json");
    assert_eq!(MessageType::from_headers(Some(both.headers())), T::MessagePack);
    assert_eq!(MessageType::from_headers(None), T::Json);
}

#[test]
fn the_content_type_is_written_where_the_contract_has_it() {
    let json = || Message::json(&1).unwrap();
    let wire = |message: &Message, path| {
        message
            .wire(Compression::Off, path, Carried::default())
            .unwrap()
            .1
    };
    // A plain JSON publish stays without headers.
    assert!(wire(&json(), Path::Publish).is_none());
    let with_id = wire(&json().with_msg_id("x"), Path::Publish);
    assert_eq!(header(&with_id, "Nats-Content-Type").as_deref(), Some("json"));
    let own = json().with_header("Nats-Content-Type", "mine");
    assert_eq!(
        header(&wire(&own, Path::Publish), "Nats-Content-Type").as_deref(),
        Some("mine")
    );

    let proto = || Message::proto(&Text { value: "x".into() });
    assert_eq!(
        header(&wire(&proto(), Path::Publish), "Nats-Content-Type").as_deref(),
        Some("protobuf")
    );
    let own = proto().with_header("Nats-Content-Type", "mine");
    assert_eq!(
        header(&wire(&own, Path::Publish), "Nats-Content-Type").as_deref(),
        Some("mine")
    );
    assert_eq!(
        header(&wire(&own, Path::Request), "Nats-Content-Type").as_deref(),
        Some("protobuf")
    );

    assert!(wire(&Message::raw("x"), Path::Publish).is_none());
    assert!(wire(&Message::raw("x"), Path::Respond).is_none());
    assert_eq!(
        header(&wire(&json(), Path::Respond), "Nats-Content-Type").as_deref(),
        Some("json")
    );
}

#[test]
fn headers_that_cannot_be_written_are_an_error_and_no_panic() {
    for (name, value) in [
        ("a", "b\nc"),
        ("a", "b\r"),
        ("a:b", "c"),
        ("", "c"),
        ("ä", "c"),
        ("a b", "c"),
        ("a\n", "c"),
    ] {
        let message = Message::raw("x").with_header(name, value);
        let error = message
            .wire(Compression::Off, Path::Publish, Carried::default())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidHeader, "{name:?} {value:?}");
    }
    let error = Message::raw("x")
        .with_msg_id("a\nb")
        .wire(Compression::Off, Path::Publish, Carried::default())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidHeader);
}

#[test]
fn texts_become_header_values_whatever_is_in_them() {
    assert_eq!(headers::sanitized("a\r\nb\tc", 100).as_str(), "a  b c");
    assert_eq!(headers::sanitized("grüße", 3).as_str(), "gr");
    assert_eq!(headers::sanitized("grüße", 4).as_str(), "grü");
    assert_eq!(headers::sanitized("", 4).as_str(), "");
}

#[test]
fn the_trace_id_is_read() {
    let message = Message::raw("").with_header(headers::TRACE_ID, "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        headers::trace_id(message.headers()),
        Some("0af7651916cd43dd8448eb211c80319c")
    );
    assert_eq!(headers::trace_id(&HeaderMap::new()), None);
}

#[test]
fn an_expected_sequence_of_zero_is_not_the_same_as_none() {
    let zero = Message::raw("x").with_expected_last_seq(0);
    let headers = zero
        .wire(Compression::Off, Path::Publish, Carried::default())
        .unwrap()
        .1;
    assert_eq!(
        header(&headers, "Nats-Expected-Last-Sequence").as_deref(),
        Some("0")
    );
    assert!(
        Message::raw("x")
            .wire(Compression::Off, Path::Publish, Carried::default())
            .unwrap()
            .1
            .is_none()
    );
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

#[test]
fn only_what_is_large_and_shrinks_is_compressed() {
    let zeros = vec![0; COMPRESS_ABOVE + 1];
    assert!(compress(&zeros[1..], Compression::Auto).is_none());
    assert!(compress(&zeros, Compression::Off).is_none());
    assert_eq!(compress(&zeros, Compression::Auto).unwrap().1, ENCODING_BROTLI);
    assert_eq!(compress(&zeros, Compression::Brotli).unwrap().1, ENCODING_BROTLI);
    assert_eq!(compress(&zeros, Compression::Gzip).unwrap().1, ENCODING_GZIP);
    let noise = noise(COMPRESS_ABOVE + 1);
    for mode in [Compression::Auto, Compression::Gzip, Compression::Brotli] {
        assert!(compress(&noise, mode).is_none(), "{mode:?}");
    }
}

#[test]
fn what_says_how_it_is_encoded_is_left_alone() {
    let large = Message::raw(vec![0; 100_000]).with_header(headers::CONTENT_ENCODING, "identity");
    let (payload, headers) = large
        .wire(Compression::Auto, Path::Publish, Carried::default())
        .unwrap();
    assert_eq!(payload.len(), 100_000);
    assert_eq!(
        header(&headers, headers::CONTENT_ENCODING).as_deref(),
        Some("identity")
    );
}

/// The original wrote the encoding into the caller's headers; the second publish then sent plain bytes marked as
/// compressed.
#[test]
fn a_message_may_be_sent_twice() {
    let message = Message::json(&"a".repeat(100_000)).unwrap().with_msg_id("1");
    let before = message.headers().clone();
    for _ in 0..2 {
        let (payload, headers) = message
            .wire(Compression::Auto, Path::Publish, Carried::default())
            .unwrap();
        assert!(payload.len() < 50_000, "{}", payload.len());
        let mut arrived = received(payload, headers);
        assert!(expand(&mut arrived).unwrap());
        assert_eq!(
            codec::decode_msg::<String>(&arrived, None).unwrap().len(),
            100_000
        );
    }
    assert_eq!(*message.headers(), before);
}

#[test]
fn expanding_is_capped() {
    let bomb = |len: usize| {
        let (packed, _) = compress(&vec![0; len], Compression::Gzip).unwrap();
        decompress(&packed, "gzip")
    };
    assert_eq!(bomb(EXPANDED_MAX).unwrap().len(), EXPANDED_MAX);
    assert_eq!(
        bomb(EXPANDED_MAX + 1).unwrap_err().kind(),
        ErrorKind::PayloadTooLarge
    );
}

#[test]
fn encodings_are_known_by_name() {
    let data = Bytes::from_static(b"plain");
    for plain in ["", "identity", " IDENTITY "] {
        assert_eq!(decompress(&data, plain).unwrap(), data);
    }
    let error = decompress(&data, "deflate").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedContentEncoding);
    assert_eq!(decompress(&data, "gzip").unwrap_err().kind(), ErrorKind::Decode);
    assert_eq!(decompress(&data, "BR").unwrap_err().kind(), ErrorKind::Decode);
}

#[test]
fn several_gzip_members_are_one_payload() {
    let (one, _) = compress(&vec![7; 40_000], Compression::Gzip).unwrap();
    let two: Bytes = [&one[..], &one[..]].concat().into();
    assert_eq!(decompress(&two, "gzip").unwrap().len(), 80_000);
}

#[test]
fn expanding_takes_the_header_away_and_decoding_alone_does_not_expand() {
    let message = Message::json(&"a".repeat(100_000)).unwrap();
    let (payload, headers) = message
        .wire(Compression::Gzip, Path::Publish, Carried::default())
        .unwrap();
    let arrived = received(payload, headers);
    assert_eq!(
        codec::decode_msg::<String>(&arrived, None).unwrap_err().kind(),
        ErrorKind::Decode
    );
    assert_eq!(
        codec::decode_msg_with_decompress::<String>(&arrived, None)
            .unwrap()
            .len(),
        100_000
    );
    let mut expanded = arrived.clone();
    assert!(expand(&mut expanded).unwrap());
    assert!(expanded.headers.is_none());
    assert!(!expand(&mut expanded).unwrap());
}

proptest! {
    #[test]
    fn whatever_is_sent_compressed_comes_back(
        seed in proptest::collection::vec(any::<u8>(), 1..200),
        times in 1_usize..600,
    ) {
        let plain: Vec<u8> = seed.iter().copied().cycle().take(seed.len() * times).collect();
        for mode in [Compression::Auto, Compression::Gzip, Compression::Brotli] {
            if let Some((packed, name)) = compress(&plain, mode) {
                prop_assert!(packed.len() < plain.len());
                prop_assert_eq!(&decompress(&packed, name).unwrap()[..], &plain[..]);
            }
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let data = Bytes::from(bytes);
        let _ = decompress(&data, "gzip");
        let _ = decompress(&data, "br");
        let _ = codec::decode::<Order>(&data, MessageType::Json);
        let _ = codec::decode::<Order>(&data, MessageType::MessagePack);
        let _ = codec::decode_proto::<Text>(&data);
    }
}

/// The table of the kit's page names tests; none may be made up or have been renamed.
#[test]
fn the_tests_named_in_the_documentation_exist() {
    use std::path::Path;

    fn sources(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&home.join("src"), &mut text);
    sources(&home.join("tests"), &mut text);
    sources(&home.join("../windjet/tests"), &mut text);
    let page = std::fs::read_to_string(home.join("../../docs/client.md")).unwrap();
    let named = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.trim_end_matches(['|', ' ']).rsplit('|').next())
        .filter(|last| last.trim().starts_with('`') && last.trim().ends_with('`'))
        .flat_map(|last| last.split('`').skip(1).step_by(2));
    let (missing, found): (Vec<&str>, Vec<&str>) =
        named.partition(|name| !text.contains(&format!("fn {name}(")));
    assert!(missing.is_empty(), "{missing:?}");
    assert!(found.len() > 200, "{}", found.len());
}
