//! Replays the fuzz corpus of the JWT reader: no panic, and every file comes as far as its name says.

#[path = "../../../../fuzz/checks/jwt.rs"]
mod jwt;

use std::path::Path;

use jwt::Reached;

#[test]
fn the_corpus_comes_as_far_as_its_names_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/jwt");
    let mut seen = [0; 3];
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = match name.split('-').next().unwrap() {
            "admitted" => Reached::Admitted,
            "decoded" => Reached::Decoded,
            _ => Reached::Nothing,
        };
        let reached = jwt::check(&std::fs::read(&path).unwrap());
        assert_eq!(reached, expected, "{name}");
        seen[reached as usize] += 1;
    }
    // A corpus that went missing must not pass.
    assert!(seen.iter().all(|&count| count >= 4), "{seen:?}");
}
