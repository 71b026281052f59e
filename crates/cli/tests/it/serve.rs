//! `windjet serve` and the help of `windjet`.

use std::net::TcpStream;
use std::process::Command;

use windjet_testkit::process::{Process, Signal, Stream};
use windjet_testkit::server::PATIENCE;
use windjet_testkit::tls::certificates;

use crate::{BINARY, err, out, run_windjet};

fn serve(words: &[&str]) -> Process {
    let mut command = Command::new(BINARY);
    command.arg("serve").args(["--port", "0"]).args(words);
    Process::spawn(command).unwrap()
}

/// The URL for clients that a server prints.
fn url(server: &mut Process) -> String {
    server
        .wait_for_line("the URL", PATIENCE, |line| {
            let url = line.text.trim().strip_prefix("clients")?.trim();
            (line.stream == Stream::Out).then(|| url.to_owned())
        })
        .unwrap()
}

#[test]
fn without_arguments_a_short_help_says_how_to_begin() {
    let output = run_windjet(&[]);
    let text = out(&output);
    assert!(text.contains("windjet serve"), "{text}");
    assert!(text.lines().count() <= 25, "{text}");
    assert!(output.status.success());
}

#[test]
fn the_server_prints_a_loopback_url_that_works_and_ends_at_interrupt() {
    let mut server = serve(&[]);
    let url = url(&mut server);
    let address = url.strip_prefix("nats://").unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    TcpStream::connect(address).unwrap();
    server.signal(Signal::Int).unwrap();
    assert_eq!(server.wait_exit(PATIENCE).unwrap().code(), Some(0));
}

#[test]
fn other_addresses_need_authentication_or_insecure() {
    let output = run_windjet(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("--insecure"), "{}", err(&output));
    assert!(out(&output).is_empty());

    let mut insecure = serve(&["--host", "0.0.0.0", "--insecure"]);
    assert!(url(&mut insecure).starts_with("nats://0.0.0.0:"));
    let mut with_token = serve(&["--host", "0.0.0.0", "--token", "t"]);
    url(&mut with_token);
}

#[test]
fn a_configuration_that_opens_the_door_is_refused_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("open.conf");
    std::fs::write(&file, "host: 0.0.0.0\nport: -1\n").unwrap();
    let output = run_windjet(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("refusing to listen on 0.0.0.0"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_port_in_use_is_explained() {
    let mut first = serve(&[]);
    let url = url(&mut first);
    let port = url.rsplit_once(':').unwrap().1;
    let output = run_windjet(&["serve", "--port", port]);
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    assert!(
        text.contains("address already in use") && text.contains("--port"),
        "{text}"
    );
}

#[test]
fn secrets_of_the_environment_are_not_shown_in_help() {
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--help"])
        .env("WINDJET_TOKEN", "hush-hush");
    let output = crate::finish(command);
    assert!(out(&output).contains("WINDJET_TOKEN"));
    assert!(!out(&output).contains("hush-hush"));
}

#[test]
fn a_reload_reads_the_configuration_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.conf");
    std::fs::write(&file, "max_payload: 1000\n").unwrap();
    let mut server = serve(&["--config", file.to_str().unwrap()]);
    url(&mut server);
    std::fs::write(&file, "max_payload: 2000\n").unwrap();
    server.signal(Signal::Hup).unwrap();
    server
        .wait_for_line("the reload", PATIENCE, |line| {
            (line.text.contains("configuration reloaded") && line.text.contains("max_payload")).then_some(())
        })
        .unwrap();
}

#[test]
fn a_listener_that_cannot_be_opened_is_named() {
    let mut first = serve(&[]);
    let url = url(&mut first);
    let port = url.rsplit_once(':').unwrap().1;
    let output = run_windjet(&["serve", "--port", "0", "--monitor-port", port]);
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    assert!(
        text.contains("cannot listen for monitoring on") && text.contains("--monitor-port"),
        "{text}"
    );
}

/// The URL for monitoring that a server prints.
fn monitoring_url(server: &mut Process) -> String {
    server
        .wait_for_line("the monitoring address", PATIENCE, |line| {
            let url = line.text.trim().strip_prefix("monitoring")?.trim();
            (line.stream == Stream::Out).then(|| url.to_owned())
        })
        .unwrap()
}

#[test]
fn monitoring_is_announced_where_it_listens() {
    let mut server = serve(&["--host", "0.0.0.0", "--insecure", "--monitor-port", "0"]);
    let shown = monitoring_url(&mut server);
    assert!(shown.starts_with("http://0.0.0.0:"), "{shown}");
}

#[test]
fn monitoring_over_tls_is_announced_as_such() {
    let folder = tempfile::tempdir().unwrap();
    for (name, pem) in certificates().unwrap() {
        std::fs::write(folder.path().join(name), pem).unwrap();
    }
    let file = folder.path().join("server.conf");
    let text = format!(
        "https: 127.0.0.1:-1\ntls {{ cert_file: {0:?}, key_file: {1:?} }}\n",
        folder.path().join("server.pem"),
        folder.path().join("server-key.pem")
    );
    std::fs::write(&file, text).unwrap();
    let mut server = serve(&["--config", file.to_str().unwrap()]);
    let shown = monitoring_url(&mut server);
    assert!(shown.starts_with("https://127.0.0.1:"), "{shown}");
}

#[test]
fn a_misspelt_log_level_is_refused() {
    let output = run_windjet(&["serve", "--port", "0", "--log", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("\"nonsense\" is no level"),
        "{}",
        err(&output)
    );
    let mut server = serve(&["--log", "warn,windjet_server=debug"]);
    url(&mut server);
}

#[test]
fn a_configuration_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("named.conf");
    std::fs::write(&file, "max_payload: 1000\n").unwrap();
    let mut server = serve(&["--config", file.to_str().unwrap()]);
    url(&mut server);
    for (broken, why) in [
        ("max_payload: {", "named.conf cannot be used"),
        (
            "server_name: other\n",
            "named.conf asks for what cannot be applied",
        ),
    ] {
        std::fs::write(&file, broken).unwrap();
        server.signal(Signal::Hup).unwrap();
        server
            .wait_for_line(why, PATIENCE, |line| {
                (line.text.contains("configuration not reloaded") && line.text.contains(why)).then_some(())
            })
            .unwrap();
    }
}
