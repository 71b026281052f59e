//! `windjet nats`: manifests and permissions as text, and the check of a cluster that was made from them.

use std::process::Output;

use serde_json::{Value, json};
use windjet_testkit::natstest::{Deployment, USER};

use crate::{err, out, run_windjet};

const SHAPE: [&str; 4] = ["--shards", "2", "--partitions", "2"];

fn manifests() -> String {
    let output = run_windjet(&[&["nats", "manifests", "--file-store", "10Gi"], &SHAPE[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    out(&output)
}

fn permissions() -> String {
    let output = run_windjet(&["nats", "permissions", "--shards", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    out(&output)
}

fn verify(deployment: &Deployment, more: &[&str]) -> Output {
    let (url, file) = (deployment.server.url().unwrap(), deployment.password_file());
    let password = file.to_str().unwrap();
    let words = [
        "nats",
        "verify",
        "--server",
        &url,
        "--user",
        USER,
        "--password-file",
        password,
    ];
    run_windjet(&[&words, &SHAPE[..], more].concat())
}

#[test]
fn what_is_generated_names_the_command_that_made_it() {
    assert!(
        manifests().contains(
            "windjet nats manifests --partitions 2 --shards 2 --prefix wh --replicas 3 --file-store 10Gi"
        ),
        "{}",
        manifests()
    );
    assert!(
        permissions().contains("windjet nats permissions --shards 2"),
        "{}",
        permissions()
    );
}

#[test]
fn what_contradicts_itself_is_refused_with_what_to_do() {
    for words in [
        ["nats", "manifests", "--shards", "257"],
        ["nats", "manifests", "--prefix", "Not A Token"],
        ["nats", "manifests", "--file-store", "many"],
        ["nats", "permissions", "--prefix", "a.b"],
    ] {
        let output = run_windjet(&words);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
        assert!(
            !err(&output).is_empty() && out(&output).is_empty(),
            "{words:?}: {}",
            out(&output)
        );
    }
}

#[test]
fn a_cluster_made_from_the_output_passes_and_one_without_a_stream_does_not() {
    let mut deployment = Deployment::start(&manifests(), &permissions()).unwrap();
    let output = verify(&deployment, &[]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    // One server is all there is, so replicas are all that is left to wish for.
    assert!(
        out(&output)
            .lines()
            .all(|line| line.starts_with("recommended") && line.contains("num_replicas"))
    );

    deployment.operator.delete_stream("WH_DLQ").unwrap();
    let output = verify(&deployment, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
    assert!(
        out(&output).contains("no stream holds wh.dlq.x"),
        "{}",
        out(&output)
    );
    assert!(err(&output).contains("1 required finding(s)"), "{}", err(&output));

    let output = verify(&deployment, &["--output", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let required: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["severity"] == "required")
        .collect();
    assert_eq!(required.len(), 1, "{all}");
    assert_eq!(required[0]["object"], json!("dead-letter stream"));
}

#[test]
fn a_cluster_that_is_not_there_is_an_error_within_the_wait() {
    let mut deployment = Deployment::start(&manifests(), &permissions()).unwrap();
    deployment.server.kill().unwrap();
    let output = verify(&deployment, &["--wait", "500ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).starts_with("windjet: ") && out(&output).is_empty(),
        "{}",
        err(&output)
    );
}
