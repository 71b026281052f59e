//! Section 2.1 of the wire specification, row by row, in both directions.

use super::*;

/// The stream decodes to exactly these operations, with nothing left and no error.
fn gives(bytes: &[u8], ops: &[&str]) {
    let outcome = from_client(bytes);
    assert_eq!(outcome.error, None, "{}", text(bytes));
    assert_eq!(outcome.ops, ops, "{}", text(bytes));
    assert_eq!(outcome.left, 0, "{}", text(bytes));
}

fn fails(bytes: &[u8], error: DecodeError) {
    let outcome = from_client(bytes);
    assert_eq!(outcome.error, Some(error), "{}", text(bytes));
}

#[test]
fn every_operation_is_read() {
    gives(
        b"CONNECT {\"verbose\":false}\r\n",
        &[r#"CONNECT {\"verbose\":false}"#],
    );
    gives(b"PING\r\n", &["PING"]);
    gives(b"PONG\r\n", &["PONG"]);
    gives(b"+OK\r\n", &["+OK"]);
    gives(b"INFO {}\r\n", &["INFO {}"]);
    gives(b"-ERR 'no'\r\n", &[r"-ERR \'no\'"]);
    gives(b"PUB foo 5\r\nhello\r\n", &["PUB foo - [hello]"]);
    gives(b"PUB foo bar 5\r\nhello\r\n", &["PUB foo bar [hello]"]);
    gives(
        b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        &[r"HPUB foo - 12 [NATS/1.0\r\n\r\nhi]"],
    );
    gives(
        b"HPUB foo re 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        &[r"HPUB foo re 12 [NATS/1.0\r\n\r\nhi]"],
    );
    gives(b"SUB foo 1\r\n", &["SUB foo - 1"]);
    gives(b"SUB foo workers 1\r\n", &["SUB foo workers 1"]);
    gives(b"UNSUB 1\r\n", &["UNSUB 1 None"]);
    gives(b"UNSUB 1 10\r\n", &["UNSUB 1 Some(10)"]);
}

#[test]
fn verbs_are_read_in_any_case() {
    gives(
        b"pub a 0\r\n\r\nPuB a 0\r\n\r\nhPuB a 0 0\r\n\r\nsUb a 1\r\nuNsUb 1\r\ncOnNeCt {}\r\npInG\r\nPoNg\r\n+oK\r\n-eRr x\r\niNfO {}\r\n",
        &[
            "PUB a - []",
            "PUB a - []",
            "HPUB a - 0 []",
            "SUB a - 1",
            "UNSUB 1 None",
            "CONNECT {}",
            "PING",
            "PONG",
            "+OK",
            "-ERR x",
            "INFO {}",
        ],
    );
}

#[test]
fn whitespace_between_words_is_any_run_of_spaces_and_tabs() {
    gives(b"PUB\tfoo\t2\r\nhi\r\n", &["PUB foo - [hi]"]);
    gives(b"PUB  \t foo \t bar  2 \t \r\nhi\r\n", &["PUB foo bar [hi]"]);
    gives(b"SUB\t \tfoo  q\t\t1 \r\n", &["SUB foo q 1"]);
    gives(b"UNSUB   7   3  \r\n", &["UNSUB 7 Some(3)"]);
    gives(b"CONNECT \t {}\r\n", &["CONNECT {}"]);
}

#[test]
fn a_control_line_may_end_in_a_bare_lf() {
    gives(
        b"PING\nSUB a 1\nPUB a 1\nx\r\nCONNECT {}\n",
        &["PING", "SUB a - 1", "PUB a - [x]", "CONNECT {}"],
    );
}

#[test]
fn other_first_letters_are_refused_at_once() {
    for first in 0..=u8::MAX {
        let known = b"cphsui+-".contains(&first.to_ascii_lowercase());
        let outcome = from_client(&[first]);
        assert_eq!(outcome.error.is_none(), known, "{first:#x}");
    }
    fails(b"MSG foo 1 0\r\n\r\n", DecodeError::UnknownOperation);
    fails(b"RS+ foo", DecodeError::UnknownOperation);
}

#[test]
fn a_wrong_verb_is_refused_before_its_line_ends() {
    for bytes in [
        "PX", "PUX", "PINX", "POX", "PUBX", "HPUBX", "SUBX", "UNX", "CONNEX", "INFX", "+X", "-ERX", "-ERRX",
    ] {
        fails(bytes.as_bytes(), DecodeError::UnknownOperation);
        let prefix = &bytes[..bytes.len() - 1];
        assert_eq!(from_client(prefix.as_bytes()).error, None, "{prefix}");
    }
}

#[test]
fn a_verb_with_arguments_needs_a_space_after_it() {
    for verb in ["PUB", "HPUB", "SUB", "UNSUB", "-ERR"] {
        fails(format!("{verb}\r\n").as_bytes(), DecodeError::UnknownOperation);
        fails(format!("{verb}\n").as_bytes(), DecodeError::UnknownOperation);
    }
}

#[test]
fn a_document_may_follow_its_verb_at_once() {
    gives(
        b"CONNECT{}\r\nINFO{\"a\":1}\r\nconnect\r\n",
        &["CONNECT {}", r#"INFO {\"a\":1}"#, "CONNECT "],
    );
}

#[test]
fn a_cr_within_a_line_separates_only_in_subscriptions() {
    gives(
        b"PUB a\rb 1\r\nx\r\nPUB \ra 0\r\n\r\n",
        &[r"PUB a\rb - [x]", r"PUB \ra - []"],
    );
    gives(
        b"SUB a\rq 1\r\r\nUNSUB 1\r2\r\n",
        &["SUB a q 1", "UNSUB 1 Some(2)"],
    );
    fails(b"PUB a 5\r\r\nhello\r\n", malformed("PUB", Malformed::Size));
}

#[test]
fn text_after_ping_pong_and_ok_is_ignored() {
    gives(
        b"PINGxyz\r\nPONG what ever\r\n+OKay\nPING\r\r\n",
        &["PING", "PONG", "+OK", "PING"],
    );
}

#[test]
fn an_empty_line_is_an_unknown_operation() {
    fails(b"\r\n", DecodeError::UnknownOperation);
    fails(b"\n", DecodeError::UnknownOperation);
    fails(b" PING\r\n", DecodeError::UnknownOperation);
    let outcome = from_client(b"PING\r\n\r\n");
    assert_eq!(
        (outcome.ops.len(), outcome.error),
        (1, Some(DecodeError::UnknownOperation))
    );
}

#[test]
fn a_payload_must_be_followed_by_cr_lf() {
    let wrong = [
        "PUB a 2\r\nhi\n",
        "PUB a 2\r\nhix",
        "PUB a 2\r\nhi\rx",
        "PUB a 2\r\nhello\r\n",
        "PUB a 3\r\nhi\r\n",
        "PUB a 0\r\nx",
    ];
    for bytes in wrong {
        fails(bytes.as_bytes(), DecodeError::UnknownOperation);
    }
    assert_eq!(
        from_client(b"PUB a 4\r\nhi\r\n").error,
        None,
        "that CR LF is payload, the end is still to come"
    );
}

#[test]
fn publish_arguments_are_two_or_three_words() {
    for bytes in [
        "PUB \r\n",
        "PUB \n",
        "PUB foo\r\n",
        "PUB foo bar baz 1\r\n",
        "PUB  \t\r\n",
    ] {
        fails(bytes.as_bytes(), malformed("PUB", Malformed::ArgumentCount));
    }
    for bytes in [
        "HPUB \r\n",
        "HPUB foo\r\n",
        "HPUB foo 1\r\n",
        "HPUB a b c 1 2\r\n",
    ] {
        fails(bytes.as_bytes(), malformed("HPUB", Malformed::ArgumentCount));
    }
}

#[test]
fn numbers_have_one_to_nine_digits() {
    for size in ["-1", "+1", "1234567890", "0x1", "1.0", "one", "1_0", "\u{ff11}"] {
        fails(
            format!("PUB foo {size}\r\n").as_bytes(),
            malformed("PUB", Malformed::Size),
        );
        fails(
            format!("HPUB foo {size} 12\r\n").as_bytes(),
            malformed("HPUB", Malformed::HeaderSize),
        );
        fails(
            format!("HPUB foo 12 {size}\r\n").as_bytes(),
            malformed("HPUB", Malformed::Size),
        );
    }
    gives(b"PUB foo 000000002\r\nhi\r\n", &["PUB foo - [hi]"]);
}

#[test]
fn a_header_block_cannot_be_longer_than_its_message() {
    fails(b"HPUB foo 13 12\r\n", malformed("HPUB", Malformed::HeaderOverrun));
    gives(b"HPUB foo 2 2\r\nhi\r\n", &["HPUB foo - 2 [hi]"]);
    gives(b"HPUB foo 0 2\r\nhi\r\n", &["HPUB foo - 0 [hi]"]);
}

#[test]
fn subscribe_arguments_are_two_or_three_words() {
    for bytes in ["SUB \r\n", "SUB foo\r\n", "SUB a b c d\r\n"] {
        fails(bytes.as_bytes(), malformed("SUB", Malformed::ArgumentCount));
    }
    for bytes in ["UNSUB \r\n", "UNSUB 1 2 3\r\n"] {
        fails(bytes.as_bytes(), malformed("UNSUB", Malformed::ArgumentCount));
    }
}

#[test]
fn a_sid_is_any_word() {
    gives(
        b"SUB foo sid-\xff!\r\nUNSUB sid-\xff!\r\n",
        &[r"SUB foo - sid-\xff!", r"UNSUB sid-\xff! None"],
    );
}

#[test]
fn an_unreadable_or_zero_unsubscribe_count_means_now() {
    gives(
        b"UNSUB 1 0\r\nUNSUB 1 -5\r\nUNSUB 1 x\r\nUNSUB 1 1234567890\r\nUNSUB 1 999999999\r\n",
        &[
            "UNSUB 1 None",
            "UNSUB 1 None",
            "UNSUB 1 None",
            "UNSUB 1 None",
            "UNSUB 1 Some(999999999)",
        ],
    );
}

#[test]
fn subjects_may_hold_any_bytes_but_whitespace() {
    gives(b"PUB \x00\xff\x0c..> 0\r\n\r\n", &[r"PUB \x00\xff\x0c..> - []"]);
}

#[test]
fn payloads_are_opaque() {
    gives(
        b"PUB a 12\r\nPUB b 1\r\nx\r\n\r\n",
        &[r"PUB a - [PUB b 1\r\nx\r\n]"],
    );
}

#[test]
fn connect_arguments_keep_what_json_may_need() {
    gives(
        b"CONNECT {\"name\":\"a b\"}  \r\n",
        &[r#"CONNECT {\"name\":\"a b\"}  "#],
    );
    gives(b"CONNECT \r\n", &["CONNECT "]);
}

#[test]
fn a_server_stream_is_read() {
    let outcome = from_server(
        b"INFO {\"server_id\":\"N\"} \r\nPING\r\npong\r\n+OK\r\n-ERR 'Stale Connection'\r\n\
          MSG inb 1  5\r\nhello\r\nMSG foo 9 reply.to 0\r\n\r\n\
          HMSG r 2 16 18\r\nNATS/1.0 503\r\n\r\nok\r\nHMSG r 2 back 16 16\r\nNATS/1.0 503\r\n\r\n\r\n-ERR bare\r\n",
    );
    assert_eq!(outcome.error, None);
    assert_eq!(
        outcome.ops,
        [
            r#"INFO {\"server_id\":\"N\"}"#,
            "PING",
            "PONG",
            "+OK",
            "-ERR Stale Connection",
            "MSG inb 1 - [hello]",
            "MSG foo 9 reply.to []",
            r"HMSG r 2 - 16 [NATS/1.0 503\r\n\r\nok]",
            r"HMSG r 2 back 16 [NATS/1.0 503\r\n\r\n]",
            "-ERR bare",
        ]
    );
    assert_eq!(outcome.left, 0);
}

#[test]
fn a_server_stream_is_checked() {
    for bytes in ["PUB a 1\r\n", "X", "MSGX", "MSG a 1 1\r\nab\r\n"] {
        assert_eq!(
            from_server(bytes.as_bytes()).error,
            Some(DecodeError::UnknownOperation),
            "{bytes}"
        );
    }
    let count = Some(malformed("MSG", Malformed::ArgumentCount));
    assert_eq!(from_server(b"MSG a 1\r\n").error, count);
    assert_eq!(from_server(b"MSG a 1 r 1 1\r\n").error, count);
    assert_eq!(
        from_server(b"HMSG a 1 1\r\n").error,
        Some(malformed("HMSG", Malformed::ArgumentCount))
    );
    assert_eq!(
        from_server(b"HMSG a 1 5 1\r\n").error,
        Some(malformed("HMSG", Malformed::HeaderOverrun))
    );
    assert_eq!(
        from_server(b"MSG a 1 x\r\n").error,
        Some(malformed("MSG", Malformed::Size))
    );
}
