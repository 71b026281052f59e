//! Configuration files: checking, warnings, flags over them, reload.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;

use windjet_testkit::process::Signal;
use windjet_testkit::server::{PATIENCE, ServerUnderTest};

use crate::{dropin, err, finish, text_of};

fn check(config: &str) -> (Option<i32>, String) {
    let server = dropin().config(config).prepare().unwrap();
    let mut command = server.command();
    command.args(["-t", "-c", "server.conf"]);
    let output = finish(command);
    (output.status.code(), err(&output))
}

fn wait_for(server: &mut ServerUnderTest, text: &str) {
    server
        .wait_for_log(text, PATIENCE, |line| line.contains(text).then_some(()))
        .unwrap();
}

/// The INFO line that a new client gets.
fn info(server: &ServerUnderTest) -> String {
    let client = TcpStream::connect(server.client_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).unwrap();
    line
}

#[test]
fn a_valid_configuration_is_confirmed_with_its_digest() {
    let (code, text) = check("port: 4222\n");
    assert_eq!(code, Some(0));
    let digest = text
        .strip_prefix("nats-server: configuration file server.conf is valid (sha256:")
        .and_then(|rest| rest.strip_suffix(")\n"))
        .unwrap();
    assert!(
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{text}"
    );
}

#[test]
fn a_bad_configuration_is_refused_with_the_place() {
    let (code, text) = check("foo: 1\n");
    assert_eq!(code, Some(1));
    assert_eq!(text, "nats-server: server.conf:1:0: unknown field \"foo\"\n\n");
    let (code, text) = check("port: [\n");
    assert_eq!(code, Some(1));
    assert!(text.starts_with("nats-server: Parse error on line "), "{text}");
}

#[test]
fn a_warning_counts_as_an_error_only_when_checking() {
    let config = "ping_interval: 30\n";
    let (code, text) = check(config);
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("nats-server: server.conf:1:0: invalid use of field"),
        "{text}"
    );
    let server = dropin().config(config).start().unwrap();
    assert!(server.log()[0].starts_with("server.conf:1:0: invalid use of field"));
}

#[test]
fn the_file_is_named_in_the_log_and_flags_win_over_it() {
    let server = dropin()
        .config("listen: \"127.0.0.1:1\", server_name: from_file\n")
        .flags(["-n", "from_flag"])
        .start()
        .unwrap();
    let log = server.log();
    let texts: Vec<&str> = log.iter().filter_map(|line| text_of(line)).collect();
    assert!(texts.contains(&"[INF]   Name:     from_flag"), "{texts:?}");
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with("[INF] Using configuration file: server.conf (sha256:")),
        "{texts:?}"
    );
    assert_ne!(server.client_addr().unwrap().port(), 1);
}

#[test]
fn plain_passwords_are_warned_about() {
    let server = dropin()
        .config("authorization { user: u, password: p }\n")
        .start()
        .unwrap();
    let found = server
        .log()
        .iter()
        .any(|line| line.ends_with("[WRN] Plaintext passwords detected, use nkeys or bcrypt"));
    assert!(found, "{:?}", server.log());
}

#[test]
fn options_that_contradict_each_other_end_the_start_but_pass_a_check() {
    let config = "lame_duck_grace_period: \"3m\"\n";
    assert_eq!(check(config).0, Some(0));
    let server = dropin().config(config).prepare().unwrap();
    let mut command = server.command();
    command.args(["-c", "server.conf"]);
    let output = finish(command);
    assert_eq!(
        err(&output),
        "nats-server: lame duck grace period (3m0s) should be strictly lower than lame duck duration (2m0s)\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_the_reference_notices_late_is_in_the_log() {
    let server = dropin()
        .config("http: \"127.0.0.1:-1\"\nhttps: \"127.0.0.1:-1\"\n")
        .prepare()
        .unwrap();
    let mut command = server.command();
    command.args(["-a", "127.0.0.1", "-p", "-1", "-c", "server.conf"]);
    let output = finish(command);
    let log = err(&output);
    assert_eq!(
        log.lines().last().and_then(text_of),
        Some("[FTL] Can't start monitoring: can't specify both HTTP (-1) and HTTPs (-1) ports")
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn blocks_of_clusters_are_accepted_with_a_warning() {
    let server = dropin()
        .config("leafnodes { listen: \"127.0.0.1:-1\" }\ncluster { name: c, listen: \"127.0.0.1:-1\" }\n")
        .start()
        .unwrap();
    let warnings = server.log().iter().filter(|line| line.contains("[WRN]")).count();
    assert_eq!(warnings, 2, "{:?}", server.log());
}

#[test]
fn a_reload_applies_what_it_can_and_says_so() {
    let mut server = dropin().config("max_payload: 1000\n").start().unwrap();
    assert!(info(&server).contains("\"max_payload\":1000,"));
    server.write_config("max_payload: 2000\ndebug: true\n").unwrap();
    server.signal(Signal::Hup).unwrap();
    wait_for(&mut server, "[INF] Reloaded: max_payload = 2000");
    wait_for(&mut server, "[INF] Reloaded server configuration (sha256:");
    assert!(info(&server).contains("\"max_payload\":2000,"));
    wait_for(&mut server, "[DBG]");
}

#[test]
fn a_reload_that_fails_says_why_and_changes_nothing() {
    let mut server = dropin().config("max_payload: 1000\n").start().unwrap();
    server
        .write_config("max_payload: 2000\nserver_name: other\n")
        .unwrap();
    server.signal(Signal::Hup).unwrap();
    wait_for(
        &mut server,
        "[ERR] Failed to reload server configuration: config reload not supported for ServerName",
    );
    server.write_config("nonsense: 1\n").unwrap();
    server.signal(Signal::Hup).unwrap();
    wait_for(
        &mut server,
        "[ERR] Failed to reload server configuration: server.conf:1:0: unknown field \"nonsense\"",
    );
    assert!(info(&server).contains("\"max_payload\":1000,"));
}

#[test]
fn a_reload_moves_log_pid_and_ports_files() {
    let mut server = dropin()
        .config("pid_file: a.pid, ports_file_dir: one\n")
        .file("one/.keep", "")
        .file("two/.keep", "")
        .start()
        .unwrap();
    let pid = server.running().unwrap().id();
    let ports = |folder: &str| format!("{folder}/nats-server_{pid}.ports");
    let dir = server.dir().to_owned();
    windjet_testkit::deadline::until("the ports file", PATIENCE, || dir.join(ports("one")).exists()).unwrap();
    server
        .write_config("pid_file: b.pid, ports_file_dir: two, logfile: moved.log\n")
        .unwrap();
    server.signal(Signal::Hup).unwrap();
    let log = dir.join("moved.log");
    windjet_testkit::deadline::until("the reload", PATIENCE, || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("Reloaded server configuration"))
    })
    .unwrap();
    assert!(!dir.join("a.pid").exists() && dir.join("b.pid").exists());
    assert!(!dir.join(ports("one")).exists() && dir.join(ports("two")).exists());
}

#[test]
fn variables_may_come_from_the_environment() {
    let server = dropin()
        .env("WINDJET_TEST_PAYLOAD", "3000")
        .config("max_payload: $WINDJET_TEST_PAYLOAD\n")
        .start()
        .unwrap();
    assert!(info(&server).contains("\"max_payload\":3000,"));
}
