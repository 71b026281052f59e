//! Every top-level option under every name it has.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::Options;
use crate::options::WriteTimeoutPolicy;

/// Binds `name: value` for every name, in small and in large letters, and compares what `field` shows.
#[expect(
    clippy::needless_pass_by_value,
    reason = "tables read better without references"
)]
fn check<T: PartialEq + std::fmt::Debug>(
    names: &[&str],
    value: &str,
    field: impl Fn(&Options) -> T,
    expected: T,
) {
    for name in names {
        for name in [(*name).to_owned(), name.to_uppercase()] {
            let options = good(&format!("{name}: {value}"));
            assert_eq!(field(&options), expected, "{name}: {value}");
        }
    }
}

fn address(listen: Option<&crate::options::ListenAddress>) -> Option<(String, Option<u16>)> {
    listen.map(|listen| (listen.host.clone(), listen.port))
}

#[test]
fn listeners() {
    let main = |options: &Options| address(options.listen.as_ref());
    let at = |host: &str, port| Some((host.to_owned(), port));
    check(&["listen"], "127.0.0.1:4333", main, at("127.0.0.1", Some(4333)));
    check(&["listen"], "4333", main, at("0.0.0.0", Some(4333)));
    check(&["listen"], "'localhost:-1'", main, at("localhost", None));
    check(&["listen"], "'[::1]:4333'", main, at("::1", Some(4333)));
    check(&["host", "net"], "127.0.0.1", main, at("127.0.0.1", Some(4222)));
    check(&["port"], "-1", main, at("0.0.0.0", None));
    check(&["port"], "0", main, at("0.0.0.0", Some(4222)));
    check(&["debug"], "true", main, None);
    let http = |options: &Options| address(options.monitoring.http.as_ref());
    check(&["http"], "'127.0.0.1:-1'", http, at("127.0.0.1", None));
    check(
        &["http", "http_port", "monitor_port"],
        "8222",
        http,
        at("", Some(8222)),
    );
    check(&["http_port"], "0", http, None);
    let https = |options: &Options| address(options.monitoring.https.as_ref());
    check(&["https"], "'h:8443'", https, at("h", Some(8443)));
    check(&["https_port"], "8443", https, at("", Some(8443)));
    check(
        &["http_base_path"],
        "/nats",
        |options| options.monitoring.base_path.clone(),
        "/nats".to_owned(),
    );
    let monitoring = good("host: h1, http_port: 8222").monitoring.http.unwrap();
    let listen = good("host: h1").listen;
    assert_eq!(monitoring.with_host_of(listen.as_ref()).host, "h1");
    assert_eq!(monitoring.with_host_of(None).host, "0.0.0.0");
}

#[test]
fn names_and_labels() {
    let text = |text: &str| Some(text.to_owned());
    check(
        &["client_advertise"],
        "'h:1'",
        |o| o.client_advertise.clone(),
        text("h:1"),
    );
    check(&["server_name"], "n1", |o| o.server_name.clone(), text("n1"));
    check(&["server_name"], "''", |o| o.server_name.clone(), None);
    check(
        &["server_tags"],
        "[A, ' b:C ', a]",
        |o| o.server_tags.clone(),
        vec!["a".to_owned(), "b:c".to_owned()],
    );
    check(
        &["server_tags"],
        "one",
        |o| o.server_tags.clone(),
        vec!["one".to_owned()],
    );
    check(
        &["server_metadata"],
        "{ K: v }",
        |o| o.server_metadata.get("K").cloned(),
        text("v"),
    );
    check(
        &["feature_flags"],
        "{ F: true }",
        |o| o.feature_flags.get("F").copied(),
        Some(true),
    );
    check(
        &["system_account", "system"],
        "A",
        |o| o.system_account.clone(),
        text("A"),
    );
    check(
        &["no_system_account", "no_system", "no_sys_acc"],
        "true",
        |o| o.no_system_account,
        true,
    );
    check(&["no_auth_user"], "u", |o| o.auth.no_auth_user.clone(), text("u"));
}

#[test]
fn limits() {
    check(&["max_connections", "max_conn"], "10", |o| o.max_connections, 10);
    check(&["max_connections", "max_conn"], "0", |o| o.max_connections, 0);
    check(&["max_connections"], "-1", |o| o.max_connections, -1);
    check(
        &["max_subscriptions", "max_subs"],
        "7",
        |o| o.max_subscriptions,
        7,
    );
    check(
        &["max_sub_tokens", "max_subscription_tokens"],
        "8",
        |o| o.max_sub_tokens,
        8,
    );
    check(&["max_control_line"], "2KB", |o| o.max_control_line, 2048);
    check(&["max_control_line"], "0", |o| o.max_control_line, 4096);
    check(&["max_payload"], "128KB", |o| o.max_payload, 131_072);
    check(&["max_payload"], "-1", |o| o.max_payload, -1);
    check(&["max_payload"], "0", |o| o.max_payload, 1 << 20);
    check(&["max_pending"], "1MB", |o| o.max_pending, 1 << 20);
    check(&["max_closed_clients"], "5", |o| o.max_closed_clients, 5);
    check(&["max_traced_msg_len"], "9", |o| o.max_traced_msg_len, 9);
    check(&["ping_max"], "3", |o| o.ping_max, 3);
    check(&["ping_max"], "0", |o| o.ping_max, 2);
}

#[test]
fn durations() {
    let secs = Duration::from_secs;
    check(
        &["ping_interval"],
        "\"100ms\"",
        |o| o.ping_interval,
        Duration::from_millis(100),
    );
    check(&["ping_interval"], "5", |o| o.ping_interval, secs(5));
    check(&["ping_interval"], "\"0s\"", |o| o.ping_interval, secs(120));
    check(&["write_deadline"], "30s", |o| o.write_deadline, secs(30));
    check(
        &["lame_duck_duration"],
        "\"1m\"",
        |o| o.lame_duck_duration,
        secs(60),
    );
    check(
        &["lame_duck_grace_period"],
        "5s",
        |o| o.lame_duck_grace_period,
        secs(5),
    );
    check(
        &["write_timeout"],
        "retry",
        |o| o.write_timeout,
        WriteTimeoutPolicy::Retry,
    );
    check(
        &["write_timeout"],
        "close",
        |o| o.write_timeout,
        WriteTimeoutPolicy::Close,
    );
    check(
        &["write_timeout"],
        "default",
        |o| o.write_timeout,
        WriteTimeoutPolicy::Close,
    );
}

#[test]
fn switches() {
    check(&["debug"], "true", |o| o.log.debug, true);
    check(&["trace"], "on", |o| o.log.trace, true);
    check(
        &["trace_verbose"],
        "yes",
        |o| (o.log.trace, o.log.trace_verbose),
        (true, true),
    );
    check(
        &["trace_headers"],
        "true",
        |o| (o.log.trace, o.log.trace_headers),
        (true, true),
    );
    check(&["logtime"], "false", |o| o.log.no_time, true);
    check(&["logtime_utc"], "true", |o| o.log.utc, true);
    check(&["allow_non_tls"], "true", |o| o.allow_non_tls, true);
    check(&["no_header_support"], "true", |o| o.no_header_support, true);
    check(
        &["no_fast_producer_stall"],
        "true",
        |o| o.no_fast_producer_stall,
        true,
    );
}

#[test]
fn files() {
    let path = |path: &str| Some(Path::new(path).to_owned());
    check(
        &["logfile", "log_file"],
        "/tmp/a.log",
        |o| o.log.file.clone(),
        path("/tmp/a.log"),
    );
    check(
        &["logfile_size_limit", "log_size_limit"],
        "1MB",
        |o| o.log.file_size_limit,
        1 << 20,
    );
    check(
        &["logfile_max_num", "log_max_num"],
        "3",
        |o| o.log.file_max_num,
        3,
    );
    check(
        &["pid_file", "pidfile"],
        "/tmp/p",
        |o| o.pid_file.clone(),
        path("/tmp/p"),
    );
    check(
        &["ports_file_dir"],
        "/tmp",
        |o| o.ports_file_dir.clone(),
        path("/tmp"),
    );
    check(
        &["store_dir", "storedir"],
        "/data",
        |o| o.store_dir.clone(),
        path("/data"),
    );
}

#[test]
fn what_has_no_effect_is_accepted_and_told() {
    for text in [
        "syslog: true",
        "remote_syslog: 'udp://h'",
        "disable_sublist_cache: true",
        "no_sublist_cache: true",
        "proxy_protocol: true",
        "prof_port: 1",
        "prof_block_rate: 1",
        "ocsp: true",
        "ocsp_cache: { type: local }",
        "proxies { trusted: [] }",
        "default_js_domain { A: hub }",
        "resolver_tls {}",
        "resolver_pinned_accounts: [A]",
        "cluster { name: c, listen: '127.0.0.1:-1', routes: [] }",
        "gateway { name: g, port: -1 }",
        "leafnodes { listen: '127.0.0.1:-1' }",
        "leaf { port: -1, isolate: true }",
        "mqtt { port: 1883 }",
        "jetstream { max_concurrent_io: 8, }",
        "jetstream { extension_hint: x }",
        "jetstream { limits { max_ha_assets: 1 } }",
        "accounts { A { exports: [ {service: q, latency: t} ] } }",
        "accounts { A { jetstream { cluster_traffic: owner } } }",
        "mappings { a: [ {dest: b, weight: 10}, {dest: c, weight: 10, cluster: x} ] }",
        "authorization { password: x }",
    ] {
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.notices.len(), 1, "{text}");
        assert!(parsed.warnings.is_empty(), "{text}");
    }
    for text in [
        "syslog: false",
        "connect_error_reports: 1",
        "reconnect_error_reports: 1",
    ] {
        assert!(parse(text).unwrap().notices.is_empty(), "{text}");
    }
}

#[test]
fn integers_for_durations_are_seconds_with_a_warning() {
    let parsed = parse("ping_interval: 5\nwrite_deadline: 2").unwrap();
    let warnings: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            ":1:0: invalid use of field \"ping_interval\": ping_interval should be converted to a duration",
            ":2:1: invalid use of field \"write_deadline\": write_deadline should be converted to a duration",
        ]
    );
}

#[test]
fn files_without_values_are_warned_about() {
    for text in ["", "\n # nothing\n"] {
        let parsed = parse(text).unwrap();
        assert_eq!(
            parsed.warnings[0].to_string(),
            ": config has no values or is empty"
        );
        assert_eq!(parsed.options.listen, None);
    }
}

#[test]
fn used_variables_are_no_unknown_fields() {
    assert_eq!(good("P: 4333, port: $P").listen.unwrap().port, Some(4333));
    assert_eq!(bad("P: 4333, port: 4222"), ":1:0: unknown field \"P\"");
    let options = good("authorization { PASS: secret, users: [ {user: a, password: $PASS} ] }");
    assert_eq!(options.auth.users.len(), 1);
    let options = good("accounts { PASS: secret, A { users: [ {user: a, password: $PASS} ] } }");
    assert_eq!(options.accounts.len(), 1);
}

#[test]
fn the_file_and_its_digest_are_kept() {
    let parsed = parse_files("x.conf", &[("x.conf", "{\"port\": 4222}")]).unwrap();
    assert_eq!(parsed.options.config_file.as_deref(), Some(Path::new("x.conf")));
    assert_eq!(
        parsed.digest,
        "sha256:797533ebd0dfba7d34a0f9337ecf147e442871f48ddfd07ed751575a5737267e"
    );
    assert_eq!(parsed.options.config_digest, parsed.digest);
}
