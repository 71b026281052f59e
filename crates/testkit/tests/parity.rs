//! All parity scripts on the real nats-server and on ours.
//!
//! Needs both programs and fails without them: `scripts/fetch-nats-server` fetches the real one, `cargo build -p
//! windjet-cli` builds ours (or `NATS_SERVER` and `WINDJET_BIN` name them).
//!
//! `parity/open.txt` names the scripts that do not agree yet, each with what is missing. Every other script must agree, and
//! one that agrees must not be on the list, so the list can only shrink. A script that differs is run once more by itself
//! before it counts, because some show times that a busy machine stretches.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::collections::BTreeMap;
use std::fs;

use windjet_testkit::parity::{Script, load, suite};
use windjet_testkit::{nats_server_path, windjet_path};

/// The scripts that do not agree yet, with what is missing.
fn open_scripts() -> BTreeMap<String, String> {
    let file = suite::scripts_folder().parent().unwrap().join("open.txt");
    fs::read_to_string(file)
        .unwrap()
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (id, missing) = line.split_once(' ').unwrap_or((line, ""));
            assert!(
                !missing.trim().is_empty(),
                "open.txt does not say what {id} is missing"
            );
            (id.to_owned(), missing.trim().to_owned())
        })
        .collect()
}

#[test]
fn both_servers_answer_all_scripts_alike() {
    let scripts = load(&suite::scripts_folder()).unwrap();
    let open = open_scripts();
    for id in open.keys() {
        assert!(
            scripts.iter().any(|script| script.id == *id),
            "open.txt names {id}, which is no script"
        );
    }
    let mut suite = suite::Suite {
        reference: nats_server_path().unwrap(),
        server: windjet_path().unwrap(),
        jobs: 4,
        rows: suite::rows(&fs::read_to_string(suite::docs_folder().join("parity.md")).unwrap()),
    };
    let results = suite.compare(&scripts);
    let agree = results.iter().filter(|result| result.verdict.is_good()).count();
    println!(
        "{agree} of {} parity scripts agree, {} are open",
        results.len(),
        open.len()
    );
    let settled: Vec<&str> = results
        .iter()
        .filter(|result| result.verdict.is_good() && open.contains_key(&result.id))
        .map(|result| result.id.as_str())
        .collect();
    assert!(
        settled.is_empty(),
        "these agree now and must leave open.txt: {settled:?}"
    );
    let again: Vec<Script> = results
        .iter()
        .zip(scripts)
        .filter(|(result, _)| !result.verdict.is_good() && !open.contains_key(&result.id))
        .map(|(_, script)| script)
        .collect();
    suite.jobs = 1;
    let failures = suite::failures(&suite.compare(&again));
    assert!(
        failures.is_empty(),
        "scripts that should agree do not:\n{failures}"
    );
}
