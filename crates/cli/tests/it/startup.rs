//! What a starting server writes: log lines, pid file, ports file, and why it does not start.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use windjet_testkit::process::Signal;
use windjet_testkit::server::PATIENCE;

use crate::{dropin, err, finish, text_of};

#[test]
fn the_log_has_the_lines_that_suites_wait_for_in_their_order() {
    let mut server = dropin().flags(["-n", "srv1"]).start().unwrap();
    let address = server.client_addr().unwrap();
    let lines = server.log();
    let texts: Vec<&str> = lines.iter().map(|line| text_of(line).unwrap()).collect();
    let id = texts
        .iter()
        .find_map(|text| text.strip_prefix("[INF]   ID:       "))
        .unwrap();
    assert!(id.len() == 56 && id.starts_with('N'), "{id}");
    assert_eq!(
        texts,
        [
            "[INF] Starting nats-server",
            "[INF]   Version:  2.15.1",
            &format!("[INF]   Git:      [windjet {}]", env!("CARGO_PKG_VERSION")),
            "[INF]   Name:     srv1",
            &format!("[INF]   ID:       {id}"),
            &format!("[INF] Listening for client connections on {address}"),
            "[INF] Server is ready",
        ]
    );
    let pid = server.running().unwrap().id();
    assert!(lines.iter().all(|line| line.starts_with(&format!("[{pid}] "))));
}

#[test]
fn a_server_that_says_it_is_ready_accepts_clients() {
    let server = dropin().start().unwrap();
    TcpStream::connect_timeout(&server.client_addr().unwrap(), Duration::from_secs(5)).unwrap();
}

#[test]
fn log_pid_and_ports_files_are_written_and_the_latter_two_removed_at_the_end() {
    let mut server = dropin()
        .flags(["-l", "s.log", "-P", "s.pid", "--ports_file_dir", "."])
        .log_file("s.log")
        .start()
        .unwrap();
    let pid = server.running().unwrap().id();
    let (pid_file, ports_file) = (
        server.dir().join("s.pid"),
        server.dir().join(format!("nats-server_{pid}.ports")),
    );
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap(), pid.to_string());
    // The ports file is written once everything listens, after the last line of the log.
    windjet_testkit::deadline::until("the ports file", PATIENCE, || ports_file.exists()).unwrap();
    let address = server.client_addr().unwrap();
    assert_eq!(
        std::fs::read_to_string(&ports_file).unwrap(),
        format!(r#"{{"nats":["nats://{address}"]}}"#)
    );
    assert!(
        server.running().unwrap().lines().is_empty(),
        "nothing goes to standard error"
    );
    assert!(server.stop().unwrap().success());
    assert!(!pid_file.exists() && !ports_file.exists());
    let log = server.log();
    let end: Vec<&str> = log
        .iter()
        .rev()
        .take(3)
        .filter_map(|line| text_of(line))
        .collect();
    assert_eq!(
        end,
        [
            "[INF] Server Exiting..",
            "[INF] Initiating Shutdown...",
            r#"[INF] Trapped "terminated" signal"#
        ]
    );
}

#[test]
fn flags_without_effect_are_accepted_and_named() {
    let server = dropin()
        .flags([
            "--cluster_listen",
            "nats://127.0.0.1:-1",
            "--cluster_name",
            "c",
            "--profile",
            "-1",
            "-s",
        ])
        .start()
        .unwrap();
    let log = server.log();
    for part in ["cluster flags", "--profile", "syslog"] {
        let warned = log
            .iter()
            .any(|line| line.contains("[WRN]") && line.contains(part));
        assert!(warned, "{part}: {log:#?}");
    }
}

#[test]
fn times_can_be_left_out() {
    let server = dropin().flags(["-T=false"]).start().unwrap();
    let first = server.log().swap_remove(0);
    assert!(first.ends_with("] [INF] Starting nats-server"), "{first}");
    assert_eq!(first.split(' ').count(), 4, "{first}");
}

#[test]
fn a_trace_shows_the_protocol_without_secrets_and_can_be_cut_short() {
    let mut server = dropin()
        .flags([
            "-DV",
            "--max_traced_msg_len",
            "3",
            "--user",
            "u",
            "--pass",
            "hush-hush",
        ])
        .start()
        .unwrap();
    let mut client = TcpStream::connect(server.client_addr().unwrap()).unwrap();
    client
        .write_all(
            b"CONNECT {\"verbose\":false,\"user\":\"u\",\"pass\":\"hush-hush\",\"lang\":\"test\",\"version\":\"1\"}\r\n\
              SUB foo 7\r\nPUB foo bar 5\r\nhello\r\nPING\r\n",
        )
        .unwrap();
    server
        .wait_for_log("the trace of the end", PATIENCE, |line| {
            line.contains("->> [PONG]").then_some(())
        })
        .unwrap();
    let port = client.local_addr().unwrap().port();
    let log = server.log();
    assert!(!log.iter().any(|line| line.contains("hush-hush")), "{log:?}");
    let name = format!("127.0.0.1:{port} - cid:1");
    let bound = format!("{name} - \"v1:test\" - \"$G/user:u\"");
    let expected = [
        format!("[DBG] {name} - Client connection created"),
        format!("[TRC] {bound} - <<- [SUB foo 7]"),
        format!("[TRC] {bound} - <<- [PUB foo bar 5]"),
        format!("[TRC] {bound} - <<- MSG_PAYLOAD: [\"hel...\"]"),
        format!("[TRC] {bound} - ->> [MSG foo 7 bar 5]"),
        format!("[TRC] {bound} - ->> MSG_PAYLOAD: [\"hel...\"]"),
        format!("[TRC] {bound} - <<- [PING]"),
        format!("[TRC] {bound} - ->> [PONG]"),
    ];
    let texts: Vec<&str> = log.iter().filter_map(|line| text_of(line)).collect();
    let mut rest = texts.iter();
    for line in &expected {
        assert!(
            rest.any(|text| text == line),
            "{line} is missing or too early in {texts:#?}"
        );
    }
    assert!(
        texts.iter().any(|text| text.contains("<<- [CONNECT {")),
        "{texts:#?}"
    );
}

#[test]
fn a_second_server_on_the_same_port_ends_with_the_reason() {
    let server = dropin().start().unwrap();
    let port = server.client_addr().unwrap().port().to_string();
    let mut command = server.command();
    command.args(["-a", "127.0.0.1", "-p", &port, "-P", "second.pid"]);
    let output = finish(command);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "[FTL] Error listening on port: 127.0.0.1:{port}, \
         \"listen tcp 127.0.0.1:{port}: bind: address already in use\""
    );
    let log = err(&output);
    assert_eq!(
        log.lines().last().and_then(text_of),
        Some(expected.as_str()),
        "{log}"
    );
    assert!(!server.dir().join("second.pid").exists());
}

#[test]
fn every_listener_is_announced_and_in_the_ports_file() {
    let mut server = dropin()
        .config("http: \"127.0.0.1:-1\"\nwebsocket { listen: \"127.0.0.1:-1\", no_tls: true }\n")
        .flags(["--ports_file_dir", "."])
        .start()
        .unwrap();
    let (client, monitor, websocket) = (
        server.client_addr().unwrap(),
        server.monitor_addr().unwrap(),
        server.websocket_addr().unwrap(),
    );
    let lines = server.log();
    let texts: Vec<&str> = lines
        .iter()
        .rev()
        .take(5)
        .filter_map(|line| text_of(line))
        .collect();
    assert_eq!(
        texts,
        [
            "[INF] Server is ready",
            &format!("[INF] Listening for client connections on {client}"),
            "[WRN] Websocket not configured with TLS. DO NOT USE IN PRODUCTION!",
            &format!("[INF] Listening for websocket clients on ws://{websocket}"),
            &format!("[INF] Starting http monitor on {monitor}"),
        ]
    );
    let pid = server.running().unwrap().id();
    let path = server.dir().join(format!("nats-server_{pid}.ports"));
    windjet_testkit::deadline::until("the ports file", PATIENCE, || path.exists()).unwrap();
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        format!(
            r#"{{"nats":["nats://{client}"],"monitoring":["http://{monitor}"],"websocket":["ws://{websocket}"]}}"#
        )
    );
    for address in [client, monitor, websocket] {
        TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn ports_of_other_listeners_in_use_end_the_start_as_well() {
    let server = dropin().start().unwrap();
    let port = server.client_addr().unwrap().port();
    let taken = format!("listen tcp 127.0.0.1:{port}: bind: address already in use");
    let cases = [
        (
            format!("http: \"127.0.0.1:{port}\"\n"),
            format!("[FTL] Can't start monitoring: can't listen to the monitor port: {taken}"),
        ),
        (
            format!("websocket {{ listen: \"127.0.0.1:{port}\", no_tls: true }}\n"),
            format!("[FTL] Unable to listen for websocket connections: {taken}"),
        ),
    ];
    for (config, expected) in cases {
        server.write_config(&config).unwrap();
        let mut command = server.command();
        command.args(["-a", "127.0.0.1", "-p", "-1", "-c", "server.conf"]);
        let output = finish(command);
        let log = err(&output);
        assert_eq!(
            log.lines().last().and_then(text_of),
            Some(expected.as_str()),
            "{log}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_pid_file_that_cannot_be_written_ends_the_start() {
    let server = dropin().prepare().unwrap();
    let mut command = server.command();
    command.args(["-a", "127.0.0.1", "-p", "-1", "-P", "/nope/x.pid"]);
    let output = finish(command);
    let log = err(&output);
    assert_eq!(
        log.lines().last().and_then(text_of),
        Some("[FTL] Could not write pidfile: open /nope/x.pid: no such file or directory")
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_killed_server_comes_back_on_the_same_port() {
    let mut server = dropin().start().unwrap();
    let before = server.client_addr().unwrap();
    // A connection left half open by the kill must not hold the port.
    let client = TcpStream::connect(before).unwrap();
    server.restart().unwrap();
    assert_eq!(server.client_addr().unwrap(), before);
    drop(client);
    server.signal(Signal::Term).unwrap();
}
