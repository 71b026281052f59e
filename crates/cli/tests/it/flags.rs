//! The flags of nats-server: outputs and exit codes.

use crate::{err, out, run_dropin, text_of};

#[test]
fn the_version_goes_to_standard_output() {
    for word in ["-v", "--version", "version", "-v=true"] {
        let output = run_dropin(&[word]);
        assert_eq!(out(&output), "nats-server: v2.15.1\n", "{word}");
        assert!(output.status.success());
    }
}

#[test]
fn help_goes_to_standard_output() {
    for word in ["-h", "--help", "help"] {
        let output = run_dropin(&[word]);
        assert!(out(&output).starts_with("Usage: nats-server"), "{word}");
        assert!(err(&output).is_empty());
        assert!(output.status.success());
    }
    let output = run_dropin(&["--help_tls"]);
    assert!(out(&output).contains("cert_file"));
    assert!(output.status.success());
}

#[test]
fn an_unknown_flag_is_named_before_the_usage_and_counts_as_success() {
    let output = run_dropin(&["-zzz"]);
    assert_eq!(err(&output), "flag provided but not defined: -zzz\n");
    assert!(out(&output).starts_with("Usage: nats-server"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_unknown_word_is_refused() {
    let output = run_dropin(&["foo"]);
    assert_eq!(err(&output), "nats-server: unrecognized command: \"foo\"\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn checking_the_configuration_needs_one() {
    let output = run_dropin(&["-t"]);
    assert_eq!(
        err(&output),
        "nats-server: must specify [-c, --config] option to check configuration file syntax\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    let output = run_dropin(&["-c", "/nope"]);
    assert_eq!(
        err(&output),
        "nats-server: open /nope: no such file or directory\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn tls_flags_need_certificate_and_key() {
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "-1", "--tls"]);
    assert_eq!(
        err(&output),
        "nats-server: TLS Server certificate must be present and valid\n"
    );
    assert_eq!(output.status.code(), Some(1));
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "-1", "--tlscert", "c.pem"]);
    assert_eq!(
        err(&output),
        "nats-server: TLS Server private key must be present and valid\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn routes_are_refused_in_clear_words() {
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "-1", "--routes", "nats://127.0.0.1:1"]);
    assert!(
        err(&output).contains("routes are not supported"),
        "{}",
        err(&output)
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_log_file_that_cannot_be_opened_is_named() {
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "-1", "-l", "/nope/x.log"]);
    assert_eq!(
        err(&output),
        "nats-server: error opening file: open /nope/x.log: no such file or directory\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_name_with_spaces_is_refused_before_there_is_a_log() {
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "-1", "-n", "a b"]);
    assert_eq!(err(&output), "nats-server: server name cannot contain spaces\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_port_out_of_range_is_refused() {
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "-1", "-m", "99999"]);
    let log = err(&output);
    assert_eq!(
        log.lines().last().and_then(text_of),
        Some(
            "[FTL] Can't start monitoring: can't listen to the monitor port: \
             listen tcp: address 99999: invalid port"
        )
    );
    let output = run_dropin(&["-a", "127.0.0.1", "-p", "99999"]);
    assert!(
        err(&output).contains("[INF] Starting nats-server"),
        "{}",
        err(&output)
    );
    assert!(
        err(&output).contains(
            r#"Error listening on port: 127.0.0.1:99999, "listen tcp: address 99999: invalid port""#
        ),
        "{}",
        err(&output)
    );
    assert_eq!(output.status.code(), Some(1));
}
