//! The scripts themselves: they can be read, name known sections and rows, and the coverage page tells the truth.

use std::fs;

use windjet_testkit::parity::{coverage, load, suite};

#[test]
fn scripts_can_be_read_and_name_known_rows() {
    let scripts = load(&suite::scripts_folder()).unwrap();
    let rows = suite::rows(&fs::read_to_string(suite::docs_folder().join("parity.md")).unwrap());
    for script in &scripts {
        if let Some(difference) = &script.differs {
            assert!(
                rows.contains(&difference.row),
                "{}: docs/parity.md has no row {}",
                script.id,
                difference.row
            );
        }
    }
}

#[test]
fn coverage_page_is_up_to_date() {
    let wanted = coverage::page(&load(&suite::scripts_folder()).unwrap()).unwrap();
    let found = fs::read_to_string(suite::docs_folder().join("parity-coverage.md")).unwrap();
    assert!(
        wanted == found,
        "docs/parity-coverage.md is old: run `cargo run -p windjet-testkit --bin parity -- --coverage`"
    );
}
