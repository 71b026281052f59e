//! The harness against the real nats-server: it starts, answers, restarts in place and goes away.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests themselves"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use windjet_testkit::{ServerUnderTest, Signal, until};

fn greeting(server: &ServerUnderTest) -> String {
    let mut stream = TcpStream::connect(server.client_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
        .write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let info = lines.next().unwrap().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "PONG");
    info
}

#[test]
fn a_server_with_configuration_and_flags_answers_and_its_log_is_kept() {
    let setup = ServerUnderTest::real().unwrap();
    let server = setup
        .config("server_name: harbour\nhttp: 127.0.0.1:-1\n")
        .flags(["-D"])
        .start()
        .unwrap();
    assert!(greeting(&server).contains("\"server_name\":\"harbour\""));
    assert!(server.monitor_addr().is_ok());
    assert!(server.websocket_addr().is_err());
    assert!(
        server
            .log()
            .iter()
            .any(|line| line.contains("[INF] Starting nats-server"))
    );
}

#[test]
fn a_killed_server_comes_back_in_its_folder_on_its_port() {
    let setup = ServerUnderTest::real().unwrap();
    let mut server = setup.flags(["-js", "-sd", "store"]).start().unwrap();
    let before = server.client_addr().unwrap();
    std::fs::write(server.dir().join("kept"), "yes").unwrap();
    server.restart().unwrap();
    assert_eq!(server.client_addr().unwrap(), before);
    assert!(server.dir().join("kept").exists());
    assert!(server.dir().join("store/jetstream").is_dir());
    greeting(&server);
}

#[test]
fn a_server_that_logs_to_a_file_is_found_ready_through_that_file() {
    let setup = ServerUnderTest::real().unwrap();
    let mut server = setup
        .flags(["-l", "server.log"])
        .log_file("server.log")
        .start()
        .unwrap();
    greeting(&server);
    assert!(server.stop().unwrap().success());
    assert!(server.log().iter().any(|line| line.contains("Server Exiting..")));
}

#[test]
fn a_server_that_refuses_its_configuration_fails_the_start_with_its_words() {
    let setup = ServerUnderTest::real().unwrap();
    let error = setup.config("nonsense: 1\n").start().unwrap_err();
    assert!(
        error.to_string().contains("unknown field \"nonsense\""),
        "{error}"
    );
}

#[test]
fn a_dropped_server_is_gone_with_its_folder() {
    let mut server = ServerUnderTest::real().unwrap().start().unwrap();
    let (dir, addr) = (server.dir().to_owned(), server.client_addr().unwrap());
    server.signal(Signal::Usr1).unwrap();
    drop(server);
    until("the port to be free", Duration::from_secs(10), || {
        TcpStream::connect(addr).is_err()
    })
    .unwrap();
    assert!(!dir.exists());
}
