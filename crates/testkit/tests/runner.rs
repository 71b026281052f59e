//! The parity runner proves itself on the real server: equal to itself, and different where a difference is planted.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests themselves"
)]

use std::fs;

use windjet_testkit::nats_server_path;
use windjet_testkit::parity::suite::{Suite, Verdict};
use windjet_testkit::parity::{PATIENCE, load, run};

fn scripts(text: &str) -> Vec<windjet_testkit::parity::Script> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("1.1-planted.txt"), text).unwrap();
    load(folder.path()).unwrap()
}

const HONEST: &str = r#"
=== honest
@config
  server_name: here
a connect full
a > SUB foo 1
a hpub foo rep | A: b | {"cid":1}
a sync
"#;

#[test]
fn the_real_server_equals_itself() {
    let real = nats_server_path().unwrap();
    let suite = Suite {
        reference: real.clone(),
        server: real,
        jobs: 1,
        rows: [].into(),
        hopeless: [].into(),
    };
    let results = suite.compare(&scripts(HONEST));
    assert_eq!(results[0].verdict, Verdict::Equal, "{:?}", results[0]);
    assert!(
        results[0]
            .reference
            .transcript
            .iter()
            .any(|line| line.contains("HMSG foo 1 rep"))
    );
}

#[test]
fn a_planted_difference_shows_in_the_transcript() {
    let real = nats_server_path().unwrap();
    let honest = run(&scripts(HONEST)[0], &real, PATIENCE);
    for (from, to) in [
        ("here", "there"),
        ("SUB foo 1", "SUB foo 2"),
        ("A: b", "A: c"),
        ("foo rep", "foo"),
    ] {
        let planted = run(&scripts(&HONEST.replace(from, to))[0], &real, PATIENCE);
        assert_eq!(planted.fault, None);
        assert_ne!(planted.transcript, honest.transcript, "{from} -> {to}");
    }
}

#[test]
fn a_step_that_waits_in_vain_is_a_fault() {
    let real = nats_server_path().unwrap();
    let outcome = run(
        &scripts("=== vain\na connect\na capture x (nothing)\n")[0],
        &real,
        PATIENCE,
    );
    assert!(outcome.fault.unwrap().starts_with("line 3:"));
}

#[test]
fn a_server_that_dies_is_a_fault() {
    let real = nats_server_path().unwrap();
    let outcome = run(
        &scripts("=== dead\na connect\nsignal KILL\nrefused\n")[0],
        &real,
        PATIENCE,
    );
    assert!(
        outcome.fault.unwrap().contains("has ended"),
        "{:?}",
        outcome.transcript
    );
}

#[test]
fn what_comes_during_a_question_is_kept_for_later() {
    let real = nats_server_path().unwrap();
    let text = "=== kept\na > SUB x 1\na pub x | kept\na req nobody | x\na mute x | nobody\na sync\n";
    let text = text.replace("=== kept\n", "=== kept\na connect\n");
    let outcome = run(&scripts(&text)[0], &real, PATIENCE);
    assert_eq!(outcome.fault, None);
    assert_eq!(
        outcome.transcript,
        [
            "a nobody: : NATS/1.0 503",
            "    : Nats-Subject: nobody",
            "    | ",
            "a x: no answer",
            "a < MSG x 1 4 | kept",
            "a < MSG x 1 <inbox> 6 | nobody",
        ]
    );
}
