//! The tables of docs/mq.md that name tests.

use std::path::Path;

use windjet_testkit::page;

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

#[test]
fn every_test_that_the_page_names_is_there() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&home.join("src"), &mut text);
    sources(&home.join("tests"), &mut text);

    let page = page::read("mq.md").unwrap();
    let pitfalls = page::rows(&page, "What must never happen").unwrap();
    let numbers = pitfalls[1..].iter().map(|row| row[0].parse::<u32>().unwrap());
    assert!(numbers.eq(1..=25));
    for row in &pitfalls[1..] {
        let tests = page::code(&row[2]);
        assert!(!tests.is_empty(), "{row:?}");
        for test in tests {
            assert!(text.contains(&format!("fn {test}(")), "no test {test}");
            assert!(test.starts_with(&format!("pitfall_{}_", row[0])), "{test}");
        }
    }
}
