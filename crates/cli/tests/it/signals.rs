//! Signals, and `--signal` which sends them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::time::Duration;

use windjet_testkit::process::Signal;
use windjet_testkit::server::{PATIENCE, ServerUnderTest};

use crate::{dropin, err, finish};

fn wait_for(server: &mut ServerUnderTest, text: &str) {
    server
        .wait_for_log(text, PATIENCE, |line| line.contains(text).then_some(()))
        .unwrap();
}

/// Sends a signal by a second run of the program.
fn send(server: &ServerUnderTest, argument: &str) {
    let mut command = server.command();
    command.args(["--signal", argument]);
    let output = finish(command);
    assert!(output.status.success(), "{}", err(&output));
}

#[test]
fn interrupt_and_terminate_end_the_server_cleanly_and_clients_see_the_end() {
    for (signal, name) in [(Signal::Int, "interrupt"), (Signal::Term, "terminated")] {
        let mut server = dropin().start().unwrap();
        let client = TcpStream::connect(server.client_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = BufReader::new(client);
        let mut info = String::new();
        client.read_line(&mut info).unwrap();
        assert!(info.starts_with("INFO "), "{info}");
        server.signal(signal).unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        let status = server
            .running()
            .unwrap()
            .wait_exit(Duration::from_secs(5))
            .unwrap();
        assert_eq!(status.code(), Some(0));
        wait_for(&mut server, &format!("Trapped {name:?} signal"));
        wait_for(&mut server, "Server Exiting..");
    }
}

#[test]
fn a_log_file_that_was_moved_away_is_opened_again() {
    let mut server = dropin()
        .flags(["-l", "s.log", "-P", "s.pid"])
        .log_file("s.log")
        .start()
        .unwrap();
    std::fs::rename(server.dir().join("s.log"), server.dir().join("old.log")).unwrap();
    send(&server, "reopen=s.pid");
    wait_for(&mut server, "File log re-opened");
    let old = std::fs::read_to_string(server.dir().join("old.log")).unwrap();
    assert!(old.contains("Trapped \"user defined signal 1\" signal"), "{old}");
}

#[test]
fn reopening_standard_error_does_nothing() {
    let mut server = dropin().start().unwrap();
    server.signal(Signal::Usr1).unwrap();
    wait_for(&mut server, "File log re-open ignored, not a file logger");
}

#[test]
fn lame_duck_without_clients_is_a_shutdown() {
    let mut server = dropin().start().unwrap();
    let pid = server.running().unwrap().id();
    send(&server, &format!("ldm={pid}"));
    let status = server.running().unwrap().wait_exit(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0));
    wait_for(&mut server, "Entering lame duck mode, stop accepting new clients");
    wait_for(&mut server, "Server Exiting..");
}

#[test]
fn lame_duck_keeps_clients_refuses_new_ones_and_ignores_terminate() {
    let mut server = dropin().start().unwrap();
    let client = TcpStream::connect(server.client_addr().unwrap()).unwrap();
    let mut first = [0; 5];
    (&client).read_exact(&mut first).unwrap();
    server.signal(Signal::Usr2).unwrap();
    server.wait_until_refusing().unwrap();
    server.signal(Signal::Term).unwrap();
    wait_for(&mut server, "Trapped \"terminated\" signal");
    server.signal(Signal::Usr1).unwrap();
    wait_for(&mut server, "File log re-open ignored");
    // The client leaves by itself, and the server with it.
    drop(client);
    let status = server.running().unwrap().wait_exit(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_reload_without_a_configuration_file_is_refused_and_changes_nothing() {
    let mut server = dropin().start().unwrap();
    server.signal(Signal::Hup).unwrap();
    wait_for(
        &mut server,
        "[ERR] Failed to reload server configuration: \
         can only reload config when a file is provided using -c or --config",
    );
    TcpStream::connect(server.client_addr().unwrap()).unwrap();
}

#[test]
fn stop_kills() {
    let mut server = dropin().start().unwrap();
    let pid = server.running().unwrap().id();
    send(&server, &format!("stop={pid}"));
    let status = server.running().unwrap().wait_exit(PATIENCE).unwrap();
    assert_eq!(status.code(), None, "killed by a signal");
}
