//! The two JSON documents of the handshake and the texts of `-ERR`.

use super::*;

#[test]
fn an_empty_connect_has_the_documented_defaults() {
    let options = Connect::from_json(b"{}").unwrap();
    assert_eq!(options, Connect::default());
    assert!(options.verbose && options.pedantic && options.echo);
    assert!(!options.headers && !options.no_responders && !options.tls_required && !options.new_account);
    assert_eq!(options.protocol, 0);
    assert_eq!(options.user, "");
}

#[test]
fn null_counts_as_absent_for_every_key() {
    let all = serde_json::to_value(Connect {
        lang: "x".into(),
        version: "x".into(),
        name: "x".into(),
        user: "x".into(),
        pass: "x".into(),
        auth_token: "x".into(),
        nkey: "x".into(),
        sig: "x".into(),
        jwt: "x".into(),
        account: "x".into(),
        new_account: true,
        ..Connect::default()
    })
    .unwrap();
    let keys: Vec<&String> = all.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 18);
    for key in keys {
        let json = format!("{{\"{key}\":null}}");
        assert_eq!(
            Connect::from_json(json.as_bytes()).unwrap(),
            Connect::default(),
            "{key}"
        );
    }
}

#[test]
fn unknown_keys_are_ignored_and_wrong_types_are_not() {
    let options = Connect::from_json(br#"{"verbose":false,"later":{"a":[1]},"protocol":1}"#).unwrap();
    assert!(!options.verbose);
    assert_eq!(options.protocol, 1);
    for bad in [
        "",
        "[]",
        "[]x",
        "{",
        "{\"verbose\":1}",
        "{\"verbose\":\"true\"}",
        "{\"user\":5}",
        "{\"protocol\":\"1\"}",
        "{} x",
    ] {
        assert!(Connect::from_json(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn keys_are_read_in_any_case_and_the_last_of_a_doubled_key_holds() {
    let options = Connect::from_json(br#"{"Verbose":false,"NAME":"a","name":"b","name":null}"#).unwrap();
    assert!(!options.verbose);
    assert_eq!(options.name, "b");
}

#[test]
fn a_connect_document_is_read_leniently() {
    let quiet = |json: &[u8]| !Connect::from_json(json).unwrap().verbose;
    assert!(quiet(b"{\"Verbose\":false}"));
    assert!(quiet(b"{\"verbose\":true,\"verbose\":false}"));
    assert!(quiet(b" {\"verbose\":false} "));
    assert_eq!(Connect::from_json(b"null").unwrap(), Connect::default());
    assert_eq!(
        Connect::from_json(b"{\"name\":\"\xff\"}").unwrap().name,
        "\u{fffd}"
    );
    for bad in [
        "[]",
        "{\"protocol\":1.0}",
        "{\"protocol\":99999999999999999999}",
        "{\"sig\":5}",
    ] {
        assert!(Connect::from_json(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_connect_line_is_read_back() {
    let options = Connect {
        verbose: false,
        user: "ü\"\\".into(),
        headers: true,
        ..Connect::default()
    };
    let mut out = Vec::new();
    encode::connect(&mut out, &options);
    let mut decoder = ClientDecoder::new();
    let Ok(Step::Op {
        op: ClientOp::Connect(json),
        consumed,
    }) = decoder.decode(&out)
    else {
        panic!("no CONNECT in {}", text(&out));
    };
    assert_eq!(consumed, out.len());
    assert_eq!(Connect::from_json(json).unwrap(), options);
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let options = Connect {
        pass: "hunter2".into(),
        auth_token: "hunter2".into(),
        sig: "hunter2".into(),
        jwt: "hunter2".into(),
        user: "joe".into(),
        ..Connect::default()
    };
    let shown = format!("{options:?}");
    assert!(
        !shown.contains("hunter2") && shown.contains("joe") && shown.contains("[redacted]"),
        "{shown}"
    );
}

#[test]
fn info_is_written_in_the_reference_order() {
    let info = ServerInfo {
        server_id: "NCNX".into(),
        server_name: "srv1".into(),
        version: "2.15.1".into(),
        proto: 1,
        git_commit: "b2fd3ef".into(),
        go: "go1.27.2".into(),
        host: "127.0.0.1".into(),
        port: 4222,
        headers: true,
        max_payload: 1_048_576,
        jetstream: true,
        client_id: 5,
        client_ip: "127.0.0.1".into(),
        domain: "hub".into(),
        api_lvl: 5,
        xkey: "XDEA".into(),
        ..ServerInfo::default()
    };
    let mut out = Vec::new();
    encode::info(&mut out, &info);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "INFO {\"server_id\":\"NCNX\",\"server_name\":\"srv1\",\"version\":\"2.15.1\",\"proto\":1,\
         \"git_commit\":\"b2fd3ef\",\"go\":\"go1.27.2\",\"host\":\"127.0.0.1\",\"port\":4222,\"headers\":true,\
         \"max_payload\":1048576,\"jetstream\":true,\"client_id\":5,\"client_ip\":\"127.0.0.1\",\"domain\":\"hub\",\
         \"api_lvl\":5,\"xkey\":\"XDEA\"} \r\n"
    );
}

#[test]
fn every_info_field_is_read_back_and_has_its_place() {
    let yes = true;
    let info = ServerInfo {
        server_id: "id".into(),
        server_name: "name".into(),
        version: "1.2.3".into(),
        proto: 1,
        git_commit: "c".into(),
        go: "go".into(),
        host: "h".into(),
        port: 1,
        headers: yes,
        auth_required: yes,
        tls_required: yes,
        tls_verify: yes,
        tls_available: yes,
        max_payload: -1,
        jetstream: yes,
        ip: "ip".into(),
        client_id: 9,
        client_ip: "cip".into(),
        nonce: "n".into(),
        cluster: "cl".into(),
        cluster_dynamic: yes,
        domain: "d".into(),
        connect_urls: vec!["a:1".into()],
        ws_connect_urls: vec!["b:2".into()],
        ldm: yes,
        compression: "c".into(),
        connect_info: yes,
        remote_account: "$G".into(),
        acc_is_sys: yes,
        api_lvl: 5,
        xkey: "x".into(),
    };
    let mut out = Vec::new();
    encode::info(&mut out, &info);
    let mut decoder = ServerDecoder::new();
    let Ok(Step::Op {
        op: ServerOp::Info(json),
        ..
    }) = decoder.decode(&out)
    else {
        panic!("no INFO in {}", text(&out));
    };
    assert_eq!(serde_json::from_slice::<ServerInfo>(json).unwrap(), info);
    let order = [
        "server_id",
        "server_name",
        "version",
        "proto",
        "git_commit",
        "go",
        "host",
        "port",
        "headers",
        "auth_required",
        "tls_required",
        "tls_verify",
        "tls_available",
        "max_payload",
        "jetstream",
        "ip",
        "client_id",
        "client_ip",
        "nonce",
        "cluster",
        "cluster_dynamic",
        "domain",
        "connect_urls",
        "ws_connect_urls",
        "ldm",
        "compression",
        "connect_info",
        "remote_account",
        "acc_is_sys",
        "api_lvl",
        "xkey",
    ];
    let written = String::from_utf8(json.to_vec()).unwrap();
    let places: Vec<Option<usize>> = order
        .iter()
        .map(|key| written.find(&format!("\"{key}\":")))
        .collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{written}"
    );
}

#[test]
fn denied_subjects_are_quoted() {
    assert_eq!(
        errors::publish_denied(b"bar"),
        "Permissions Violation for Publish to \"bar\""
    );
    assert_eq!(
        errors::publish_reply_denied(b"_R_.x"),
        "Permissions Violation for Publish with Reply of \"_R_.x\""
    );
    assert_eq!(
        errors::subscribe_denied(b"foo", Some(b"bad")),
        "Permissions Violation for Subscription to \"foo\" using queue \"bad\""
    );
    assert_eq!(
        errors::subscription_revoked(b"foo", None, b"1"),
        "Permissions Violation for Subscription to \"foo\" (sid \"1\")"
    );
    assert_eq!(
        errors::subscribe_too_many_tokens(b"a.b.c"),
        "Permissions Violation for Subscription to \"a.b.c\", too many tokens"
    );
}

#[test]
fn quoting_follows_go() {
    let table: &[(&[u8], &str)] = &[
        (b"plain.subject-1", r#""plain.subject-1""#),
        (b"q\"b\\s'", r#""q\"b\\s'""#),
        (b"\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
        (b"\x00\x1b\x7f", r#""\x00\x1b\x7f""#),
        (b"\xff.\x80", r#""\xff.\x80""#),
        ("é世😀".as_bytes(), r#""é世😀""#),
        ("\u{a0}\u{200b}\u{feff}".as_bytes(), r#""\u00a0\u200b\ufeff""#),
        ("\u{10ffff}".as_bytes(), r#""\U0010ffff""#),
    ];
    for &(bytes, expected) in table {
        assert_eq!(errors::quote(bytes), expected);
    }
}
