//! The scripts themselves: they can be read, name known sections and rows, and the coverage pages tell the truth.

use std::fs;

use windjet_testkit::parity::collection::docs_folder;
use windjet_testkit::parity::{Collection, coverage, load, suite};

#[test]
fn scripts_can_be_read_and_name_known_rows() {
    let rows = suite::rows(&fs::read_to_string(docs_folder().join("parity.md")).unwrap());
    for collection in Collection::ALL {
        for script in &load(&collection.folder()).unwrap() {
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
}

#[test]
fn coverage_pages_are_up_to_date() {
    for collection in Collection::ALL {
        let wanted = coverage::page(&collection, &load(&collection.folder()).unwrap()).unwrap();
        let found = fs::read_to_string(docs_folder().join(collection.page)).unwrap();
        assert!(
            wanted == found,
            "docs/{} is old: run `cargo run -p windjet-testkit --bin parity -- --coverage`",
            collection.page
        );
    }
}
