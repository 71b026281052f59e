//! The blocks: authorization, accounts, mappings, TLS, WebSocket, JetStream, operator mode.

use std::time::Duration;

use nkeys::KeyPair;
use serde_json::json;

use super::*;
use crate::auth::jwt::test_support::{claims, open_account, sign};
use crate::options::{
    ConnectionType, ExportKind, HandshakeFirst, ImportKind, ResponseType, TlsVersion, UserCredential,
};

const USER_KEY: &str = "UDPGQVFIWZ7Q5UH4I5E6DBCZULQS6VTVBG6CYBD7JV3G3N2GMQOMNAUH";

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn authorization_takes_one_user_a_token_or_users() {
    let auth = good("authorization { username: a, pass: b, timeout: 0.5 }").auth;
    assert_eq!(auth.user, Some(("a".to_owned(), "b".to_owned())));
    assert_eq!(auth.timeout, Some(Duration::from_millis(500)));
    assert!(auth.block_defined);
    for timeout in ["3", "3.0", "3s", "\"3s\""] {
        let auth = good(&format!("authorization {{ token: t, timeout: {timeout} }}")).auth;
        assert_eq!((auth.token.as_deref(), auth.timeout), (Some("t"), Some(secs(3))));
    }
    let auth =
        good("authorization { users: [ {user: a, pass: b}, {username: c, password: $2a$11$x} ] }").auth;
    let password = |name: &str, password: &str| UserCredential::Password {
        name: name.to_owned(),
        password: password.to_owned(),
    };
    assert_eq!(auth.users[0].credential, password("a", "b"));
    assert_eq!(auth.users[1].credential, password("c", "$2a$11$x"));
    let auth = good(&format!("authorization {{ users: [ {{nkey: {USER_KEY}}} ] }}")).auth;
    assert_eq!(
        auth.users[0].credential,
        UserCredential::Nkey(USER_KEY.to_owned())
    );
}

#[test]
fn a_long_authorization_timeout_is_warned_about() {
    let parsed = parse("authorization { token: t, timeout: 2m }").unwrap();
    assert_eq!(
        parsed.warnings[0].to_string(),
        ":1:26: invalid use of field \"timeout\": timeout of 2000000 (2000000.000000 seconds) is high, \
         consider keeping it under 60 seconds. possibly caused by unquoted duration; use '1m' instead of \
         1m, for example"
    );
}

#[test]
fn permissions_come_in_all_forms_and_names() {
    for (publish, subscribe, permissions) in [
        ("publish", "subscribe", "permissions"),
        ("pub", "sub", "permission"),
        ("import", "export", "authorization"),
    ] {
        let text = format!(
            "authorization {{ users: [ {{user: a, {permissions}: {{ {publish}: \"foo\", \
             {subscribe}: {{ allow: [\"a.>\", \"q grp\"], deny: x }} }} }} ] }}"
        );
        let users = good(&text).auth.users;
        let permissions = users[0].permissions.as_ref().unwrap();
        assert_eq!(permissions.publish.allow, ["foo"]);
        assert_eq!(permissions.subscribe.allow, ["a.>", "q grp"]);
        assert_eq!(permissions.subscribe.deny, ["x"]);
    }
    for name in ["default_permission", "default_permissions", "permissions"] {
        let auth = good(&format!("authorization {{ {name}: {{ pub: [a, b] }} }}")).auth;
        assert_eq!(auth.default_permissions.unwrap().publish.allow, ["a", "b"]);
    }
}

#[test]
fn allow_responses_has_defaults_and_no_limits() {
    let of = |text: &str| {
        let auth = good(&format!("authorization {{ permissions: {{ {text} }} }}")).auth;
        auth.default_permissions
            .unwrap()
            .allow_responses
            .map(|permission| (permission.max, permission.expires))
    };
    assert_eq!(of("allow_responses: true"), Some((1, Some(secs(120)))));
    assert_eq!(of("publish_allow_responses: true"), Some((1, Some(secs(120)))));
    assert_eq!(of("allow_responses: false"), None);
    for max in ["max", "max_msgs", "max_messages", "max_responses"] {
        for expires in ["expires", "expiration", "ttl"] {
            let text = format!("allow_responses: {{ {max}: 5, {expires}: \"1m\" }}");
            assert_eq!(of(&text), Some((5, Some(secs(60)))));
        }
    }
    assert_eq!(of("allow_responses: { max: -1, ttl: \"-1s\" }"), Some((-1, None)));
    assert_eq!(
        of("allow_responses: { max: 0, ttl: \"0s\" }"),
        Some((1, Some(secs(120))))
    );
}

#[test]
fn connection_types_are_listed_in_any_case() {
    for name in ["allowed_connection_types", "connection_types", "clients"] {
        let text = format!(
            "authorization {{ users: [ {{user: a, {name}: [standard, WebSocket, in_process, STANDARD]}} ] }}"
        );
        assert_eq!(
            good(&text).auth.users[0].allowed_connection_types,
            [
                ConnectionType::Standard,
                ConnectionType::WebSocket,
                ConnectionType::InProcess
            ]
        );
    }
}

#[test]
fn accounts_have_users_limits_and_jetstream() {
    let account_key = KeyPair::new_account().public_key();
    let options = good(&format!(
        "accounts {{ A {{ nkey: {account_key}, users: [ {{user: a}} ],
            default_permissions {{ pub: x }}
            limits {{ max_conn: 1, max_subs: 2, max_pay: 3, max_leafs: -1 }}
            jetstream {{ max_mem: 1M, max_file: -1, max_streams: 3, max_consumers: -1, max_stream_bytes: true }}
            msg_trace {{ dest: t.x, sampling: \"25%\" }}
            mappings {{ foo: bar }} }}
          b {{ jetstream: enabled, trace_dest: t, limits {{ max_connections: 0 }} }}
          C {{ jetstream: disabled }} }}"
    ));
    let a = &options.accounts["A"];
    assert_eq!(a.nkey.as_deref(), Some(account_key.as_str()));
    assert_eq!(a.users.len(), 1);
    assert_eq!(a.default_permissions.as_ref().unwrap().publish.allow, ["x"]);
    let limits = a.limits;
    assert_eq!(
        (
            limits.max_connections,
            limits.max_subscriptions,
            limits.max_payload,
            limits.max_leafnodes
        ),
        (Some(1), Some(2), Some(3), None)
    );
    let jetstream = a.jetstream.as_ref().unwrap();
    assert_eq!(
        (jetstream.max_memory, jetstream.max_store, jetstream.max_streams),
        (Some(1_000_000), None, Some(3))
    );
    assert_eq!(
        (jetstream.max_consumers, jetstream.max_bytes_required),
        (None, true)
    );
    assert_eq!(a.msg_trace, Some(("t.x".to_owned(), 25)));
    assert_eq!(a.mappings[0].source, "foo");
    let b = &options.accounts["b"];
    assert_eq!(b.jetstream, Some(Default::default()));
    assert_eq!(b.msg_trace, Some(("t".to_owned(), 100)));
    assert_eq!(b.limits.max_connections, Some(0));
    assert_eq!(options.accounts["C"].jetstream, None);
    let names: Vec<_> = good("accounts: [A, B]").accounts.into_keys().collect();
    assert_eq!(names, ["A", "B"]);
}

#[test]
fn account_limits_have_all_their_names() {
    for (names, value) in [
        (&["max_memory", "max_mem", "mem", "memory"][..], "1"),
        (&["max_store", "max_file", "max_disk", "store", "disk"], "1"),
        (&["max_streams", "streams"], "1"),
        (&["max_consumers", "consumers"], "1"),
        (&["max_bytes_required", "max_stream_bytes", "max_bytes"], "true"),
        (&["mem_max_stream_bytes", "memory_max_stream_bytes"], "1"),
        (&["disk_max_stream_bytes", "store_max_stream_bytes"], "1"),
        (&["max_ack_pending"], "1"),
    ] {
        let of = |name: &str| {
            good(&format!("accounts {{ A {{ jetstream {{ {name}: {value} }} }} }}")).accounts["A"].clone()
        };
        let first = of(names[0]).jetstream.unwrap();
        assert_ne!(first, Default::default(), "{}", names[0]);
        for name in names {
            assert_eq!(of(name).jetstream.as_ref(), Some(&first), "{name}");
        }
    }
}

#[test]
fn exports_and_imports_say_what_and_to_whom() {
    let options = good(
        "accounts {
           A { exports: [
             {service: \"q.>\"}
             {service: \"priv.*\", accounts: [B], response_type: stream, threshold: \"2s\", allow_trace: true}
             {service: c, response: chunked}
             {stream: \"s.>\"}
             {stream: \"t.*\", account_token_position: 2} ] }
           B { imports: [
             {service: {account: A, subject: \"q.one\"}, to: \"ask.one\", share: true}
             {service: {account: A, subject: c}}
             {stream: {account: A, subject: \"s.>\"}, prefix: fromA}
             {stream: {account: A, subject: s.x}, to: xx, allow_trace: true} ] } }",
    );
    let exports = &options.accounts["A"].exports;
    assert_eq!(
        (exports[0].kind, exports[0].subject.as_str()),
        (ExportKind::Service, "q.>")
    );
    assert_eq!(exports[0].response_type, ResponseType::Singleton);
    assert_eq!(exports[1].accounts, ["B"]);
    assert_eq!(exports[1].response_type, ResponseType::Stream);
    assert_eq!(exports[1].response_threshold, Some(secs(2)));
    assert!(exports[1].allow_trace);
    assert_eq!(exports[2].response_type, ResponseType::Chunked);
    assert_eq!(exports[3].kind, ExportKind::Stream);
    assert_eq!(exports[4].account_token_position, Some(2));
    let imports = &options.accounts["B"].imports;
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        imports[0].kind,
        ImportKind::Service {
            to: some("ask.one"),
            share: true
        }
    );
    assert_eq!(
        (imports[0].account.as_str(), imports[0].subject.as_str()),
        ("A", "q.one")
    );
    assert_eq!(
        imports[2].kind,
        ImportKind::Stream {
            prefix: some("fromA"),
            to: None
        }
    );
    assert_eq!(
        imports[3].kind,
        ImportKind::Stream {
            prefix: None,
            to: some("xx")
        }
    );
    assert!(imports[3].allow_trace);
}

#[test]
fn mappings_come_in_all_forms_and_keep_their_order() {
    for name in ["mappings", "maps"] {
        let mappings = good(&format!(
            "{name} {{ z: bar, \"a.*\": \"b.$1\", x: {{ dest: y, weight: 50% }},
              ord: [ {{ dest: ord.v1, weight: 80 }}, {{ destination: ord.v2, weight: \"20%\" }} ] }}"
        ))
        .mappings;
        let shown: Vec<_> = mappings
            .iter()
            .map(|mapping| {
                let destinations: Vec<_> = mapping
                    .destinations
                    .iter()
                    .map(|destination| format!("{} {}", destination.subject, destination.weight))
                    .collect();
                format!("{} -> {}", mapping.source, destinations.join(", "))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "z -> bar 100",
                "a.* -> b.$1 100",
                "x -> y 50",
                "ord -> ord.v1 80, ord.v2 20"
            ]
        );
    }
}

#[test]
fn tls_takes_files_switches_and_times() {
    let files = [
        ("cert.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("key.pem", "-----BEGIN EC PRIVATE KEY-----\n"),
        ("ca.pem", "-----BEGIN CERTIFICATE-----\n"),
    ];
    let tls = |body: &str| {
        let text = format!("tls {{ {body} }}");
        let mut files = files.to_vec();
        files.push(("x.conf", &text));
        parse_files("x.conf", &files).unwrap().options.tls.unwrap()
    };
    let full = tls(
        "cert_file: cert.pem, key_file: key.pem, ca_file: ca.pem, verify: true, timeout: 1.5, \
         min_version: \"1.3\", connection_rate_limit: 10",
    );
    assert_eq!(
        full.certificates,
        [(Path::new("cert.pem").to_owned(), Path::new("key.pem").to_owned())]
    );
    assert_eq!(full.ca_file.as_deref(), Some(Path::new("ca.pem")));
    assert_eq!((full.verify, full.verify_and_map), (true, false));
    assert_eq!(full.timeout, Duration::from_millis(1500));
    assert_eq!(full.min_version, TlsVersion::V1_3);
    assert_eq!(full.connection_rate_limit, 10);
    let mapped = tls("verify_and_map: true");
    assert_eq!((mapped.verify, mapped.verify_and_map), (true, true));
    assert_eq!(tls("timeout: \"3s\"").timeout, secs(3));
    assert_eq!(tls("timeout: 0").timeout, secs(2));
    assert_eq!(
        tls(&format!("pinned_certs: [{}]", "AB".repeat(32))).pinned_certs,
        ["ab".repeat(32)]
    );
    for name in ["certs", "certificates"] {
        let pair = "{cert_file: cert.pem, key_file: key.pem}";
        assert_eq!(tls(&format!("{name}: [{pair}, {pair}]")).certificates.len(), 2);
    }
    let millis = Duration::from_millis;
    for name in ["handshake_first", "first", "immediate"] {
        for (value, expected) in [
            ("true", HandshakeFirst::Required),
            ("\"on\"", HandshakeFirst::Required),
            ("false", HandshakeFirst::No),
            ("\"off\"", HandshakeFirst::No),
            ("auto", HandshakeFirst::Auto(millis(50))),
            ("auto_fallback", HandshakeFirst::Auto(millis(50))),
            ("300ms", HandshakeFirst::Auto(millis(300))),
        ] {
            assert_eq!(tls(&format!("{name}: {value}")).handshake_first, expected);
        }
    }
}

#[test]
fn websocket_takes_all_its_fields() {
    for name in ["websocket", "ws"] {
        let websocket = good(&format!(
            "{name} {{ port: -1, host: h, advertise: 'a:1', no_tls: true, same_origin: true,
               handshake_timeout: 3, compression: true, authorization {{ user: u, pass: p, timeout: 2 }},
               jwt_cookie: j, user_cookie: uc, pass_cookie: pc, token_cookie: tc, no_auth_user: n,
               headers {{ X-A: b }}, ping_interval: \"5s\" }}"
        ))
        .websocket
        .unwrap();
        assert_eq!(
            (websocket.listen.host.as_str(), websocket.listen.port),
            ("h", None)
        );
        assert_eq!(websocket.advertise.as_deref(), Some("a:1"));
        assert!(websocket.no_tls && websocket.same_origin && websocket.compression);
        assert_eq!(websocket.handshake_timeout, secs(3));
        assert_eq!(websocket.user, Some(("u".to_owned(), "p".to_owned())));
        assert_eq!(websocket.auth_timeout, Some(secs(2)));
        assert_eq!(websocket.jwt_cookie.as_deref(), Some("j"));
        assert_eq!(websocket.user_cookie.as_deref(), Some("uc"));
        assert_eq!(websocket.pass_cookie.as_deref(), Some("pc"));
        assert_eq!(websocket.token_cookie.as_deref(), Some("tc"));
        assert_eq!(websocket.no_auth_user.as_deref(), Some("n"));
        assert_eq!(websocket.headers["X-A"], "b");
        assert_eq!(websocket.ping_interval, Some(secs(5)));
    }
    assert!(good("websocket { no_tls: true }").websocket.is_none());
    let listen = good(
        "websocket { listen: 8080, handshake_timeout: \"1s\", compress: on, authentication { token: t } }",
    );
    let websocket = listen.websocket.unwrap();
    assert_eq!(
        (websocket.listen.host.as_str(), websocket.listen.port),
        ("0.0.0.0", Some(8080))
    );
    assert_eq!(websocket.token.as_deref(), Some("t"));
    for name in [
        "allowed_origins",
        "allowed_origin",
        "allow_origins",
        "allow_origin",
        "origins",
        "origin",
    ] {
        let websocket = good(&format!("ws {{ port: 1, {name}: 'http://a' }}"))
            .websocket
            .unwrap();
        assert_eq!(websocket.allowed_origins, ["http://a"]);
    }
}

#[test]
fn jetstream_is_a_switch_or_a_block() {
    for on in [
        "true",
        "enabled",
        "enable",
        "{}",
        "{ enabled: true }",
        "{ enable: true }",
    ] {
        assert!(good(&format!("jetstream: {on}")).jetstream.is_some(), "{on}");
    }
    for off in ["false", "disabled", "disable", "{ enabled: false }"] {
        assert!(good(&format!("jetstream: {off}")).jetstream.is_none(), "{off}");
    }
    for (dir, memory, file, sync) in [
        ("store_dir", "max_memory_store", "max_file_store", "sync_interval"),
        ("store", "max_mem_store", "max_file", "sync"),
        ("storedir", "max_mem", "max_file", "sync"),
    ] {
        let jetstream = good(&format!(
            "jetstream {{ {dir}: /d, {memory}: 64MiB, {file}: \"10G\", {sync}: \"2m\", domain: hub, strict: false,
              unique_tag: \" AZ: \", request_queue_limit: 5, info_queue_limit: 6,
              limits {{ max_ack_pending: 1, max_request_batch: 2, duplicate_window: \"1m\",
                batch {{ max_inflight_per_stream: 3, max_inflight_total: 4, max_msgs: 5, timeout: \"6s\" }} }} }}"
        ))
        .jetstream
        .unwrap();
        assert_eq!(jetstream.store_dir.as_deref(), Some(Path::new("/d")));
        assert_eq!(jetstream.max_memory_store, Some(64 << 20));
        assert_eq!(jetstream.max_file_store, Some(10 << 30));
        assert_eq!(jetstream.sync_interval, Some(secs(120)));
        assert_eq!(jetstream.domain.as_deref(), Some("hub"));
        assert_eq!(jetstream.unique_tag.as_deref(), Some("az:"));
        assert_eq!(
            (jetstream.request_queue_limit, jetstream.info_queue_limit),
            (Some(5), Some(6))
        );
        assert!(!jetstream.strict);
        let limits = jetstream.limits;
        assert_eq!(
            (limits.max_ack_pending, limits.max_request_batch),
            (Some(1), Some(2))
        );
        assert_eq!(limits.duplicate_window, Some(secs(60)));
        assert_eq!(limits.batch_max_inflight_per_stream, Some(3));
        assert_eq!(limits.batch_max_inflight_total, Some(4));
        assert_eq!(
            (limits.batch_max_msgs, limits.batch_timeout),
            (Some(5), Some(secs(6)))
        );
    }
    assert_eq!(
        good("jetstream { sync: always }")
            .jetstream
            .unwrap()
            .sync_interval,
        None
    );
    let legacy = good("store_dir: /d\njetstream: true").jetstream.unwrap();
    assert_eq!(legacy.store_dir.as_deref(), Some(Path::new("/d")));
}

#[test]
fn operator_mode_takes_inline_jwts_files_and_preloads() {
    let (issuer, subject) = (KeyPair::new_operator(), KeyPair::new_account());
    let operator = sign(
        &issuer,
        &claims(&issuer, &issuer, "operator", json!({}), json!({})),
    );
    let account = sign(
        &issuer,
        &claims(&issuer, &subject, "account", open_account(), json!({})),
    );
    for name in [
        "operator",
        "operators",
        "root",
        "roots",
        "root_operator",
        "root_operators",
    ] {
        for resolver in ["MEMORY", "MEM", "memory", "{ type: mem }"] {
            let trust = good(&format!(
                "{name}: {operator}\nresolver: {resolver}\nresolver_preload {{ A1: {account} }}"
            ))
            .auth
            .jwt
            .unwrap();
            assert_eq!(trust.operators, std::slice::from_ref(&operator));
            assert_eq!(trust.preload["A1"], account);
        }
    }
    let file = format!("-----BEGIN NATS OPERATOR JWT-----\n{operator}\n------END NATS OPERATOR JWT------\n");
    let options = parse_files(
        "x.conf",
        &[
            ("x.conf", "operator: [ './op.jwt' ], account_resolver: MEM"),
            ("./op.jwt", &file),
        ],
    )
    .unwrap()
    .options;
    assert_eq!(options.validate(), Ok(()));
    for name in ["trusted", "trusted_keys"] {
        let trust = good(&format!("{name}: {}", issuer.public_key()))
            .auth
            .jwt
            .unwrap();
        assert_eq!(trust.trusted_keys, [issuer.public_key()]);
    }
    assert_eq!(
        bad(&format!("operator: {operator}")),
        ":1:0: operators require an account resolver to be configured"
    );
    assert_eq!(
        bad(&format!("operator: {account}, resolver: MEM")),
        ":1:0: error parsing operator JWT: not operator claim but \"account\""
    );
    assert_eq!(
        bad(&format!("operator: {operator}x, resolver: MEM")),
        ":1:0: error parsing operator JWT: signature is not base64"
    );
}
