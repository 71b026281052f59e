//! Content that is refused, with the words in which it is.

use super::*;

#[test]
fn contents_are_refused_in_known_words() {
    let refused: &[(&str, &str)] = &[
        // Names.
        ("foo: 1", ":1:0: unknown field \"foo\""),
        ("\n foo: 1", ":2:2: unknown field \"foo\""),
        ("cluster { foo: 1 }", ":1:10: unknown field \"foo\""),
        ("jetstream { foo: 1 }", ":1:12: unknown field \"foo\""),
        ("jetstream { limits { foo: 1 } }", ":1:21: unknown field \"foo\""),
        (
            "jetstream { limits { batch { foo: 1 } } }",
            ":1:29: unknown field \"foo\"",
        ),
        ("websocket { foo: 1 }", ":1:12: unknown field \"foo\""),
        ("authorization { foo: 1 }", ":1:16: unknown field \"foo\""),
        ("accounts { A { foo: 1 } }", ":1:15: unknown field \"foo\""),
        (
            "accounts { A { exports: [ {foo: 1} ] } }",
            ":1:27: unknown field \"foo\"",
        ),
        (
            "accounts { A { imports: [ {foo: 1} ] } }",
            ":1:27: unknown field \"foo\"",
        ),
        (
            "tls { foo: 1 }",
            ":1:6: error parsing tls config, unknown field \"foo\"",
        ),
        (
            "authorization { users: [ {user: a, foo: 1} ] }",
            ":1:35: unknown field \"foo\"",
        ),
        (
            "authorization { permissions { foo: 1 } }",
            ":1:30: Unknown field \"foo\" parsing permissions",
        ),
        (
            "authorization { permissions { pub { foo: 1 } } }",
            ":1:36: Unknown field name \"foo\" parsing subject permissions, only 'allow' or 'deny' are permitted",
        ),
        (
            "accounts { A { limits { foo: 1 } } }",
            ":1:24: Unknown field \"foo\" parsing account limits",
        ),
        (
            "mappings { a: { dest: b, weight: 1, foo: 1 } }",
            ":1:36: Unknown field \"foo\" for mapping destination",
        ),
        // Types. Nothing is converted.
        (
            "debug: \"true\"",
            ":1:0: interface conversion: interface {} is string, not bool",
        ),
        (
            "port: \"4222\"",
            ":1:0: interface conversion: interface {} is string, not int64",
        ),
        (
            "host: 1",
            ":1:0: interface conversion: interface {} is int64, not string",
        ),
        (
            "authorization { user: 1234 }",
            ":1:16: interface conversion: interface {} is int64, not string",
        ),
        (
            "port:",
            ":1:0: interface conversion: interface {} is string, not int64",
        ),
        (
            "port: 1.5",
            ":1:0: interface conversion: interface {} is float64, not int64",
        ),
        (
            "lame_duck_duration: 2m",
            ":1:0: interface conversion: interface {} is int64, not string",
        ),
        (
            "authorization: x",
            ":1:0: interface conversion: interface {} is string, not map[string]interface {}",
        ),
        (
            "ping_interval: true",
            ":1:0: interface conversion: interface {} is bool, not int64",
        ),
        // Addresses.
        (
            "listen: localhost",
            ":1:0: could not parse address string \"localhost\"",
        ),
        ("listen: 'a:b'", ":1:0: could not parse port \"b\""),
        ("listen: true", ":1:0: expected port or host:port, got bool"),
        (
            "host: 127.0.0.1\nport: 99999",
            ":2:1: Error listening on port: 127.0.0.1:99999, \"listen tcp: address 99999: invalid port\"",
        ),
        // Numbers and times.
        ("max_payload: 2GB", ":1:0: max_payload value is too big"),
        ("max_control_line: 2GB", ":1:0: max_control_line value is too big"),
        ("max_sub_tokens: 256", ":1:0: max_sub_tokens value is too big"),
        (
            "max_sub_tokens: 0",
            ":1:0: max_sub_tokens value can not be negative",
        ),
        ("max_pending: -1", ":1:0: max_pending value can not be negative"),
        (
            "ping_interval: x",
            ":1:0: error parsing ping_interval: time: invalid duration \"x\"",
        ),
        (
            "lame_duck_duration: 10s",
            ":1:0: invalid lame_duck_duration of 10s, minimum is 30 seconds",
        ),
        (
            "lame_duck_duration: x",
            ":1:0: error parsing lame_duck_duration: time: invalid duration \"x\"",
        ),
        (
            "lame_duck_grace_period: '-1s'",
            ":1:0: invalid lame_duck_grace_period, needs to be positive",
        ),
        (
            "write_timeout: x",
            ":1:0: write_timeout must be 'default', 'close' or 'retry'",
        ),
        ("server_name: 'a b'", ":1:0: server name cannot contain spaces"),
        ("system_account: 1", ":1:0: system account name must be a string"),
        // Users.
        (
            "authorization { user: a, token: b }",
            ":1:0: Cannot have a user/pass and token",
        ),
        (
            "authorization { user: a, users: [] }",
            ":1:0: Can not have a single user/pass and a users array",
        ),
        (
            "authorization { token: a, users: [] }",
            ":1:0: Can not have a token and a users array",
        ),
        (
            "accounts { A { users: [ {user: a} ] } }\nauthorization { user: a }",
            ":1:15: Can not have a single user/pass and accounts",
        ),
        (
            "accounts { A { users: [ {user: a} ] } }\nauthorization { token: a }",
            ":1:15: Can not have a token and accounts",
        ),
        (
            "authorization { users: [ {user: a}, {user: a} ] }",
            ":1:0: Duplicate user \"a\" detected",
        ),
        (
            "accounts { A { users: [ {user: a} ] }, B { users: [ {user: a} ] } }",
            ":1:43: Duplicate user \"a\" detected",
        ),
        (
            "authorization { users: [ {password: a} ] }",
            ":1:26: User entry requires a user",
        ),
        (
            "authorization { users: [ {nkey: a} ] }",
            ":1:26: Not a valid public nkey for a user",
        ),
        (
            "authorization { users: [ {user: a, nkey: UDPGQVFIWZ7Q5UH4I5E6DBCZULQS6VTVBG6CYBD7JV3G3N2GMQOMNAUH} ] }",
            ":1:35: Nkey users do not take usernames or passwords",
        ),
        (
            "authorization { users: x }",
            ":1:16: Expected users field to be an array, got x",
        ),
        (
            "authorization { users: [x] }",
            ":1:24: Expected user entry to be a map/struct, got x",
        ),
        (
            "authorization { users: [ {user: a, clients: [foo, STANDARD, bar]} ] }",
            ":1:35: invalid connection types [\"FOO\" \"BAR\"]",
        ),
        (
            "authorization { timeout: x }",
            ":1:16: error parsing authorization config, 'timeout' time: invalid duration \"x\"",
        ),
        (
            "authorization { timeout: [] }",
            ":1:16: error parsing authorization config, 'timeout' wrong type",
        ),
        (
            "authorization { permissions: x }",
            ":1:16: Expected permissions to be a map/struct, got x",
        ),
        (
            "authorization { permissions { pub: \"a b\" } }",
            ":1:30: subject \"a b\" is not a valid subject",
        ),
        (
            "authorization { permissions { sub: \"a..b q\" } }",
            ":1:30: subject \"a..b\" is not a valid subject",
        ),
        (
            "authorization { permissions { sub: \"a q..x\" } }",
            ":1:30: queue \"q..x\" is not a valid queue",
        ),
        (
            "authorization { permissions { pub: 1 } }",
            ":1:30: Expected subject permissions to be a subject, or array of subjects, got int64",
        ),
        (
            "authorization { permissions { allow_responses: 1 } }",
            ":1:30: error parsing response permissions, expected a boolean or a map",
        ),
        (
            "authorization { permissions { allow_responses { ttl: 1 } } }",
            ":1:48: error parsing expires, not a duration string",
        ),
        // Accounts.
        ("accounts { \"$G\" {} }", ":1:12: \"$G\" is a Reserved Account"),
        ("accounts: [\"$G\"]", ":1:12: \"$G\" is a Reserved Account"),
        ("accounts: [A, A]", ":1:14: Duplicate Account Entry: A"),
        ("accounts { A: 1 }", ":1:11: Expected map entries for accounts"),
        (
            "accounts { A { nkey: x } }",
            ":1:15: Not a valid public nkey for an account: \"x\"",
        ),
        (
            "accounts { A { jetstream: maybe } }",
            ":1:15: Expected 'enabled' or 'disabled' for string value, got 'maybe'",
        ),
        (
            "accounts { A { jetstream { max_mem: x } } }",
            ":1:27: Expected a parseable size for \"max_mem\", got x",
        ),
        (
            "accounts { A { jetstream { max_bytes: 1 } } }",
            ":1:27: Expected a parseable bool for \"max_bytes\", got 1",
        ),
        (
            "accounts { A { exports: x } }",
            ":1:15: Exports should be an array, got string",
        ),
        (
            "accounts { A { imports: x } }",
            ":1:15: Imports should be an array, got string",
        ),
        (
            "accounts { A { exports: [x] } }",
            ":1:25: Export Items should be a map with type entry, got string",
        ),
        (
            "accounts { A { exports: [ {stream: a, service: b} ] } }",
            ":1:38: Detected service \"b\" but already saw a stream",
        ),
        (
            "accounts { A { exports: [ {stream: a, response: single} ] } }",
            ":1:38: Detected response directive on non-service",
        ),
        (
            "accounts { A { exports: [ {service: a, response: x} ] } }",
            ":1:39: Unknown response type: \"x\"",
        ),
        (
            "accounts { A { exports: [ {service: a, latency { sampling: 0, subject: s }} ] } }",
            ":1:49: bad sampling percentage, should be 1-100",
        ),
        (
            "accounts { A { imports: [ {service: {account: B}} ] } }",
            ":1:27: Expect an account name and a subject",
        ),
        (
            "accounts { A { imports: [ {stream: {account: B, subject: s}, prefix: p, to: t} ] } }",
            ":1:72: Stream import can not have a 'prefix' and a 'to' property",
        ),
        (
            "accounts { A { msg_trace: \"a.>\" } }",
            ":1:15: Trace destination \"a.>\" is not valid",
        ),
        (
            "accounts { A { msg_trace { dest: a, sampling: 0 } } }",
            ":1:36: Ttrace destination sampling value 0 is invalid, needs to be [1..100]",
        ),
        // Sharing between accounts.
        (
            "accounts { B { imports: [ {service: {account: A, subject: q}} ] } }",
            ":1:0: \"A\" account not defined for service import",
        ),
        (
            "accounts { A {}, B { imports: [ {service: {account: A, subject: q}} ] } }",
            ":1:0: Error adding service import \"q\": service import not authorized",
        ),
        (
            "accounts { A { exports: [ {stream: s, accounts: [X]} ] } }",
            ":1:0: \"X\" account not defined for stream export",
        ),
        (
            "accounts { A { exports: [ {service: q} ], imports: [ {service: {account: B, subject: q}} ] }
                        B { exports: [ {service: q} ], imports: [ {service: {account: A, subject: q}} ] } }",
            ":1:0: Error adding service import \"q\": import forms a cycle",
        ),
        (
            "accounts { A { exports: [ {stream: \"s.*\"} ] }
                        B { imports: [ {stream: {account: A, subject: \"s.*\"}, to: x} ] } }",
            ":1:0: Error adding stream import \"s.*\": failed to create mapping transform for stream import subject \
             from \"s.*\" to \"x\": invalid mapping destination: not using all of the token wildcard(s) in x",
        ),
        (
            "accounts { A { exports: [ {stream: s} ] }
                        B { imports: [ {stream: {account: A, subject: s}, prefix: \"p.*\"} ] } }",
            ":1:0: Error adding stream import \"s\": stream import prefix can not contain wildcard tokens",
        ),
        (
            "accounts { A { exports: [ {service: \"s.*\", account_token_position: 1} ] } }",
            ":1:0: Error adding service export \"s.*\": sublist: invalid subject",
        ),
        // Mappings.
        (
            "mappings { \"a..b\": c }",
            ":1:12: Subject \"a..b\" is not a valid subject",
        ),
        (
            "mappings { a: [ {dest: b, weight: 60}, {dest: c, weight: 60} ] }",
            ":1:11: Error adding mapping for \"a\" : total weight needs to be <= 100",
        ),
        (
            "mappings { a: [ {dest: b, weight: 1}, {dest: b, weight: 1} ] }",
            ":1:11: Error adding mapping for \"a\" : duplicate entry for \"b\"",
        ),
        (
            "mappings { a: { dest: b } }",
            ":1:11: Missing weight for mapping destination \"b\"",
        ),
        (
            "mappings { a: { dest: b, weight: 101 } }",
            ":1:25: Invalid weight 101 for mapping destination",
        ),
        (
            "mappings { a: { dest: b, weight: x% } }",
            ":1:25: Invalid weight \"x\" for mapping destination",
        ),
        (
            "mappings { a: 1 }",
            ":1:11: Expected an entry for the mapping destination",
        ),
        (
            "mappings { foo: \"bar.{{nope(1)}}\" }",
            ":1:11: Error adding mapping for \"foo\" to \"bar.{{nope(1)}}\" : invalid mapping destination: unknown \
             function in {{nope(1)}}",
        ),
        (
            "accounts { A { mappings { \"a.*\": \"b.$2\" } } }",
            ":1:27: Error adding mapping for \"a.*\" to \"b.$2\" : invalid mapping destination: wildcard index out of \
             range in $2: [2]",
        ),
        // TLS.
        (
            "tls { cert_file: c.pem, key_file: k.pem }",
            ":1:0: error parsing X509 certificate/key pair: open c.pem: no such file or directory",
        ),
        (
            "tls { cert_file: c.pem }",
            ":1:0: missing 'key_file' in TLS configuration",
        ),
        (
            "tls { key_file: c.pem }",
            ":1:0: missing 'cert_file' in TLS configuration",
        ),
        (
            "tls { ca_file: c.pem }",
            ":1:0: open c.pem: no such file or directory",
        ),
        (
            "tls { verify: x }",
            ":1:6: error parsing tls config, expected 'verify' to be a boolean",
        ),
        (
            "tls { cert_file: 1 }",
            ":1:6: error parsing tls config, expected 'cert_file' to be filename",
        ),
        (
            "tls { timeout: true }",
            ":1:6: error parsing tls config, 'timeout' wrong type",
        ),
        (
            "tls { min_version: 1.0 }",
            ":1:6: error parsing tls config: 'min_version' wrong type: 1",
        ),
        (
            "tls { min_version: \"1.1\" }",
            ":1:6: error parsing tls config: unsupported TLS version: TLS 1.1",
        ),
        (
            "tls { handshake_first: x }",
            ":1:6: field \"handshake_first\"'s value \"x\" is invalid",
        ),
        (
            "tls { handshake_first: 1 }",
            ":1:6: field \"handshake_first\" should be a boolean or a string, got int64",
        ),
        ("tls { cipher_suites: [x] }", ":1:6: unrecognized cipher x"),
        (
            "tls { cipher_suites: [] }",
            ":1:6: error parsing tls config, 'cipher_suites' cannot be empty",
        ),
        (
            "tls { cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA] }",
            ":1:0: insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: \
             TLS_RSA_WITH_AES_128_CBC_SHA",
        ),
        (
            "tls { curve_preferences: [x] }",
            ":1:6: unrecognized curve preference x",
        ),
        (
            "tls { pinned_certs: [x] }",
            ":1:6: error parsing tls config, 'pinned_certs' key x does not look like hex-encoded sha256 of DER \
             encoded SubjectPublicKeyInfo",
        ),
        // WebSocket.
        ("websocket: x", ":1:0: Expected websocket to be a map, got string"),
        (
            "websocket { headers { a: 1 } }",
            ":1:22: error parsing header key a: unsupported type int64",
        ),
        (
            "websocket { handshake_timeout: x }",
            ":1:12: time: invalid duration \"x\"",
        ),
        // JetStream.
        (
            "jetstream: maybe",
            ":1:0: Expected 'enabled' or 'disabled' for string value, got 'maybe'",
        ),
        (
            "jetstream: 1",
            ":1:0: Expected map, bool or string to define JetStream, got int64",
        ),
        (
            "jetstream { strict: x }",
            ":1:12: Expected 'true' or 'false' for bool value, got 'x'",
        ),
        (
            "jetstream { max_mem: 1X1 }",
            ":1:12: max_mem_store strconv.ParseInt: parsing \"1X\": invalid syntax",
        ),
        (
            "jetstream { max_file: \"1X\" }",
            ":1:12: max_file_store sizes defined as strings must end in K, M, G, T",
        ),
        (
            "jetstream { max_file: [] }",
            ":1:12: max_file_store must be int64 or string",
        ),
        (
            "jetstream { max_concurrent_io: 1 }",
            ":1:12: Expected an absolute size for \"max_concurrent_io\" between 4 and 8192, got 1",
        ),
        (
            "store_dir: /a\njetstream { store_dir: /b }",
            ":2:1: Duplicate 'store_dir' configuration",
        ),
        // Operator mode.
        (
            "operator: /nope",
            ":1:0: error parsing operator JWT: open /nope: no such file or directory",
        ),
        (
            "operator: eyJx",
            ":1:0: error parsing operator JWT: expected 3 chunks",
        ),
        (
            "resolver: x",
            ":1:0: error parsing account resolver, should be MEM or  URL(\"url\") or a map containing dir and type state=[FULL|CACHE])",
        ),
        (
            "resolver_preload: x",
            ":1:0: preload should be a map of account_public_key:account_jwt",
        ),
        (
            "resolver_preload { A: 1 }",
            ":1:19: preload map value should be a string JWT",
        ),
        ("resolver_preload { A: x }", ":1:19: invalid account JWT"),
        (
            "trusted_keys: [x]",
            ":1:0: trust key \"x\" required to be a valid public operator nkey",
        ),
    ];
    for (text, error) in refused {
        assert_eq!(bad(text), *error, "{text}");
    }
}

/// nats-server has these; ignoring them would promise what is not kept. The words are ours.
#[test]
fn what_would_weaken_a_server_when_ignored_is_refused() {
    for (text, error) in [
        (
            "jetstream { key: secret }",
            ":1:12: jetstream \"key\" asks for encryption at rest, which is not available in this server",
        ),
        (
            "jetstream { cipher: aes }",
            ":1:12: jetstream \"cipher\" asks for encryption at rest, which is not available in this server",
        ),
        (
            "jetstream { tpm { keys_file: x } }",
            ":1:12: jetstream \"tpm\" asks for encryption at rest, which is not available in this server",
        ),
        (
            "authorization { auth_callout { issuer: x } }",
            ":1:16: auth_callout is not available in this server",
        ),
        (
            "authorization { proxy_required: true }",
            ":1:16: proxy_required is not available in this server",
        ),
        (
            "leafnodes { remotes: [ {url: 'nats://h'} ] }",
            ":1:12: leafnodes \"remotes\" asks for connections to other servers, which is not available here",
        ),
        (
            "cluster { routes: [ 'nats://h' ] }",
            ":1:10: cluster \"routes\" asks for connections to other servers, which is not available here",
        ),
        (
            "gateway { gateways: [ {name: x} ] }",
            ":1:10: gateway \"gateways\" asks for connections to other servers, which is not available here",
        ),
        (
            "resolver { type: full, dir: /d }",
            ":1:0: account resolvers other than MEMORY are not available in this server; list the accounts in \
             resolver_preload",
        ),
        (
            "resolver: URL(http://h)",
            ":1:0: account resolvers other than MEMORY are not available in this server; list the accounts in \
             resolver_preload",
        ),
    ] {
        assert_eq!(bad(text), error, "{text}");
    }
    assert!(good("jetstream { key: \"\" }").jetstream.is_some());
}

#[test]
fn all_problems_are_reported_at_once_warnings_first() {
    assert_eq!(
        bad("foo: 1\nport: x\nping_interval: 1\nauthorization { bar: 1 }"),
        ":3:1: invalid use of field \"ping_interval\": ping_interval should be converted to a duration\n\
         :1:0: unknown field \"foo\"\n\
         :2:1: interface conversion: interface {} is string, not int64\n\
         :4:17: unknown field \"bar\""
    );
}

#[test]
fn options_that_do_not_go_together_are_found_when_a_server_starts() {
    for (text, problem) in [
        (
            "lame_duck_grace_period: \"3m\"",
            "lame duck grace period (3m0s) should be strictly lower than lame duck duration (2m0s)",
        ),
        (
            "max_pending: 10, max_payload: 11",
            "max_payload (11) cannot be higher than max_pending (10)",
        ),
        (
            "no_auth_user: zz",
            "no_auth_user: \"zz\" present, but users/nkeys are not defined",
        ),
        (
            "no_auth_user: zz, authorization { users: [ {user: a} ] }",
            "no_auth_user: \"zz\" not present as user or nkey in authorization block or account configuration",
        ),
        (
            "system_account: NOPE",
            "error resolving system account: account missing",
        ),
        (
            "jetstream: true, accounts { \"$SYS\" { jetstream: true } }",
            "Not allowed to enable JetStream on the system account",
        ),
        (
            "jetstream: true, system_account: S, accounts { S { jetstream: true } }",
            "Not allowed to enable JetStream on the system account",
        ),
        (
            "jetstream { domain: \"a b\" }",
            "invalid domain name: derived \"$JS.a b.API.>\" is not a valid subject",
        ),
        (
            "jetstream { domain: a.b }",
            "invalid domain name: may not contain ., * or >",
        ),
        ("websocket { port: -1 }", "websocket requires TLS configuration"),
        (
            "websocket { port: -1, no_tls: true, headers { Upgrade: x } }",
            "websocket: invalid header \"Upgrade\" not allowed",
        ),
        (
            "websocket { port: -1, no_tls: true, headers { Sec-WebSocket-X: x } }",
            "websocket: invalid header \"Sec-WebSocket-X\", \"Sec-WebSocket-\" prefix not allowed",
        ),
        (
            "websocket { port: -1, no_tls: true, allowed_origins: [x] }",
            "unable to parse allowed origin: parse \"x\": invalid URI for request",
        ),
        (
            "websocket { port: -1, no_tls: true, allowed_origins: [\"ftp://x\"] }",
            "unable to parse allowed origin \"ftp://x\": allowed origins must be absolute URLs with http or https scheme",
        ),
        (
            "websocket { port: -1, no_tls: true, allowed_origins: [\"http://\"] }",
            "unable to parse allowed origin \"http://\": host is required",
        ),
        ("https: 8443", "TLS cert and key required for HTTPS"),
        (
            "tls {}, http: 8222, https: 8443",
            "can't specify both HTTP (8222) and HTTPs (8443) ports",
        ),
    ] {
        let error = good(text).validate().unwrap_err();
        assert_eq!(error.problems, [problem], "{text}");
    }
    let all = good("lame_duck_grace_period: \"3m\", system_account: NOPE").validate();
    assert_eq!(all.unwrap_err().problems.len(), 2);
    for text in [
        "",
        "jetstream { domain: hub }",
        "websocket { port: -1, no_tls: true, allowed_origins: [\"https://h:1\"] }",
    ] {
        assert_eq!(good(text).validate(), Ok(()), "{text}");
    }
}
