//! The tables of docs/mq.md that name tests.

use std::path::Path;

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The rows of the tables below a heading, as their cells.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, below) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = below.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).map(|line| {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
    });
    rows.map(Iterator::collect).collect()
}

/// The tests that a cell names.
fn named(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(home.join("../../docs/mq.md")).unwrap();
    let mut text = String::new();
    sources(&home.join("src"), &mut text);
    sources(&home.join("tests"), &mut text);

    let pitfalls = rows(&page, "What must never happen");
    let numbers = pitfalls.iter().filter_map(|row| row[0].parse::<u32>().ok());
    assert!(numbers.eq(1..=25));
    for row in pitfalls.iter().filter(|row| row[0].parse::<u32>().is_ok()) {
        let tests = named(&row[2]);
        assert!(!tests.is_empty(), "{row:?}");
        for test in tests {
            assert!(text.contains(&format!("fn {test}(")), "no test {test}");
            assert!(test.starts_with(&format!("pitfall_{}_", row[0])), "{test}");
        }
    }
}
