//! The table of invariants in the bus's page: every one has a row, and every test that a row names is there, in the bus's
//! crates or in this farm.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::path::Path;

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_invariant_has_a_row_and_every_row_tests_that_are_there() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for folder in [
        "src",
        "../../crates/bus/src",
        "../../crates/bus/tests",
        "../../crates/server/tests",
    ] {
        sources(&home.join(folder), &mut text);
    }
    let page = std::fs::read_to_string(home.join("../../docs/bus.md")).unwrap();
    let (_, table) = page.split_once("## What its tests show").unwrap();
    let (table, absent) = table.split_once("No test shows:").unwrap();
    let mut listed = Vec::new();
    for row in table
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
    {
        let cells: Vec<&str> = row.split('|').collect();
        listed.extend(cells[1].split_whitespace());
        let named: Vec<&str> = cells[3].split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for name in named {
            assert!(text.contains(&format!("fn {name}(")), "{name} is no test");
        }
    }
    let invariants = [
        ("B", 14),
        ("S", 5),
        ("T", 4),
        ("C", 6),
        ("D", 5),
        ("L", 7),
        ("K", 10),
        ("H", 7),
        ("P", 3),
    ]
    .into_iter()
    .flat_map(|(of, count)| (1..=count).map(move |number| format!("{of}-{number}")))
    .chain((1..=6).map(|number| format!("W-{number}t")));
    for invariant in invariants {
        assert!(listed.contains(&invariant.as_str()), "{invariant} has no row");
    }
    for weakness in (1..=29).map(|number| format!("W-{number:02}")) {
        let shown = listed.contains(&weakness.as_str());
        assert!(
            shown || absent.contains(&weakness),
            "{weakness} is neither shown nor named as absent"
        );
    }
}
