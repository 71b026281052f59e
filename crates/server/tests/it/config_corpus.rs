//! Replays the fuzz corpus of the configuration parser: no panic, and every file comes as far as its name says.

#[path = "../../../../fuzz/checks/config.rs"]
mod config;

use std::path::Path;

use config::Reached;

#[test]
fn the_corpus_comes_as_far_as_its_names_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let mut seen = [0; 3];
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = match name.split('-').next().unwrap() {
            "options" => Reached::Options,
            "tree" => Reached::Tree,
            _ => Reached::Nothing,
        };
        let reached = config::check(&std::fs::read(&path).unwrap());
        assert_eq!(reached, expected, "{name}");
        seen[reached as usize] += 1;
    }
    // A corpus that went missing must not pass.
    assert!(seen.iter().all(|&count| count >= 4), "{seen:?}");
}
