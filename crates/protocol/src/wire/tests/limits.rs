//! Section 2.3: the control line and payload limits, to the byte, and how early they strike.

use super::*;

fn too_long(len: usize) -> Option<DecodeError> {
    Some(DecodeError::ControlLineTooLong {
        len,
        limit: DEFAULT_MAX_CONTROL_LINE,
    })
}

/// A `SUB` line whose argument text has exactly `len` bytes.
fn sub_line(len: usize, end: &str) -> Vec<u8> {
    format!("SUB {} 1{end}", "a".repeat(len - 2)).into_bytes()
}

#[test]
fn the_control_line_limit_counts_the_argument_text() {
    for end in ["\r\n", "\n"] {
        assert_eq!(from_client(&sub_line(4096, end)).error, None);
        assert_eq!(from_client(&sub_line(4097, end)).error, too_long(4097));
    }
    // Whitespace after the verb is not counted, inner and trailing whitespace is.
    let padded = [b"SUB \t  ".as_slice(), &sub_line(4096, "\r\n")[4..]].concat();
    assert_eq!(from_client(&padded).error, None);
    assert_eq!(from_client(&sub_line(4096, " \r\n")).error, too_long(4097));
}

#[test]
fn the_control_line_limit_holds_for_unfinished_lines() {
    assert_eq!(from_client(&sub_line(4096, "")).error, None);
    assert_eq!(
        from_client(&sub_line(4096, "\r")).error,
        None,
        "the CR may be half of the line end"
    );
    assert_eq!(from_client(&sub_line(4097, "")).error, too_long(4097));
    assert_eq!(from_client(&sub_line(4096, "\r\r")).error, too_long(4097));
}

#[test]
fn the_control_line_limit_holds_for_every_operation() {
    let long = "x".repeat(5000);
    for verb in [
        "CONNECT ", "INFO ", "-ERR ", "PUB ", "HPUB ", "SUB ", "UNSUB ", "PING", "PONG", "+OK",
    ] {
        assert_eq!(
            from_client(format!("{verb}{long}\r\n").as_bytes()).error,
            too_long(5000),
            "{verb}"
        );
        assert_eq!(
            from_client(format!("{verb}{long}").as_bytes()).error,
            too_long(5000),
            "{verb} unfinished"
        );
    }
}

#[test]
fn endless_whitespace_after_a_verb_is_bounded() {
    assert_eq!(
        from_client(format!("PUB {}", " ".repeat(4095)).as_bytes()).error,
        None
    );
    assert_eq!(
        from_client(format!("PUB {}", " ".repeat(4096)).as_bytes()).error,
        too_long(4097)
    );
}

#[test]
fn the_payload_limit_strikes_on_the_control_line() {
    let decoder = || limited(DEFAULT_MAX_CONTROL_LINE, 10);
    let over = |size| Some(DecodeError::PayloadTooLarge { size, limit: 10 });
    assert_eq!(
        from_client_with(decoder(), [b"PUB a 10\r\n".as_slice()]).error,
        None
    );
    assert_eq!(
        from_client_with(decoder(), [b"PUB a 11\r\n".as_slice()]).error,
        over(11)
    );
    assert_eq!(
        from_client_with(decoder(), [b"HPUB a 6 11\r\n".as_slice()]).error,
        over(11)
    );
    assert_eq!(
        from_client_with(decoder(), [b"PUB a 999999999\r\n".as_slice()]).error,
        over(999_999_999)
    );
    let ten_digits = from_client_with(decoder(), [b"PUB a 9999999999\r\n".as_slice()]);
    assert_eq!(ten_digits.error, Some(malformed("PUB", Malformed::Size)));
}

#[test]
fn a_negative_payload_limit_is_no_limit() {
    let mut decoder = limited(DEFAULT_MAX_CONTROL_LINE, -1);
    let step = decoder.decode(b"PUB a 999999999\r\n");
    assert_eq!(
        step,
        Ok(Step::Incomplete {
            want: 17 + 999_999_999 + 2
        })
    );
    let zero = limited(DEFAULT_MAX_CONTROL_LINE, 0);
    assert_eq!(
        from_client_with(zero, [b"PUB a 0\r\n\r\n".as_slice()]).ops,
        ["PUB a - []"]
    );
}

#[test]
fn limits_can_change_between_operations() {
    let mut decoder = ClientDecoder::new();
    decoder.max_payload = 1;
    assert_eq!(
        decoder.decode(b"PUB a 2\r\n"),
        Err(DecodeError::PayloadTooLarge { size: 2, limit: 1 })
    );
    decoder.max_payload = 2;
    assert_eq!(decoder.decode(b"PUB a 2\r\n"), Ok(Step::Incomplete { want: 13 }));
    // A message that was let in stays in.
    decoder.max_payload = 1;
    assert!(matches!(
        decoder.decode(b"PUB a 2\r\nhi\r\n"),
        Ok(Step::Op { consumed: 13, .. })
    ));
}

#[test]
fn headers_that_were_not_negotiated_are_refused_on_the_control_line() {
    let mut decoder = ClientDecoder::new();
    decoder.headers = false;
    let outcome = from_client_with(decoder, [b"PUB a 0\r\n\r\nHPUB a 12 12\r\n".as_slice()]);
    assert_eq!(outcome.ops.len(), 1);
    assert_eq!(outcome.error, Some(DecodeError::HeadersNotNegotiated));
}

#[test]
fn each_error_knows_what_to_tell_the_peer() {
    let told = |bytes: &[u8]| from_client(bytes).error.and_then(|error| error.reply());
    assert_eq!(told(b"\r\n"), Some("Unknown Protocol Operation"));
    assert_eq!(
        told(&sub_line(4097, "\r\n")),
        Some("maximum control line exceeded")
    );
    assert_eq!(told(b"PUB a 2000000\r\n"), Some("Maximum Payload Violation"));
    assert_eq!(told(b"PUB a -1\r\n"), None);
    assert_eq!(told(b"HPUB a 3 2\r\n"), None);
    assert_eq!(DecodeError::HeadersNotNegotiated.reply(), None);
}

#[test]
fn the_default_payload_limit_is_one_mebibyte() {
    assert_eq!(from_client(b"PUB a 1048576\r\n").error, None);
    assert!(from_client(b"PUB a 1048577\r\n").error.is_some());
}

#[test]
fn a_waiting_decoder_says_how_much_it_wants() {
    let mut decoder = ClientDecoder::new();
    assert!(decoder.is_idle());
    assert_eq!(decoder.decode(b""), Ok(Step::Incomplete { want: 1 }));
    assert!(decoder.is_idle());
    assert_eq!(decoder.decode(b"PUB a"), Ok(Step::Incomplete { want: 6 }));
    assert!(!decoder.is_idle());
    assert_eq!(
        decoder.decode(b"PUB a 500\r\nx"),
        Ok(Step::Incomplete { want: 11 + 502 })
    );
    assert_eq!(
        decoder.decode(b"PUB a 500\r\nxyz"),
        Ok(Step::Incomplete { want: 11 + 502 })
    );
    assert!(!decoder.is_idle());
}
