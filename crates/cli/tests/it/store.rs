//! `windjet store verify`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use windjet_store::{Append, Op, RealDisk, Store, StoreOptions, StreamOptions, SystemClock};

use crate::{err, run_windjet};

const NEEDLE: &[u8] = b"a payload that is easy to find";

/// A store with one stream of three messages, closed.
fn make(folder: &Path) {
    let options = StoreOptions {
        ballast: false,
        ..StoreOptions::default()
    };
    let disk = Arc::new(RealDisk::new(folder).unwrap());
    let (store, _) = Store::open(options, disk, Arc::new(SystemClock::new())).unwrap();
    let mut stream = store
        .create_stream(StreamOptions {
            name: "S".into(),
            ..Default::default()
        })
        .unwrap();
    for _ in 0..3 {
        stream
            .stage(Op::Append(Append {
                subject: b"s.x",
                payload: NEEDLE,
                ..Default::default()
            }))
            .unwrap();
    }
    stream.submit();
    store.write_step().unwrap();
    store.sync_step().unwrap();
    stream.commit().unwrap();
    store.close().unwrap();
}

#[test]
fn an_intact_store_is_confirmed_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let output = run_windjet(&["store", "verify", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("1 streams, "),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn a_damaged_record_is_named_with_its_sequence() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let mut damaged = 0;
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let found: Vec<usize> = (0..bytes.len().saturating_sub(NEEDLE.len()))
            .filter(|&at| bytes[at..].starts_with(NEEDLE))
            .collect();
        if let Some(&second) = found.get(1) {
            bytes[second] ^= 1;
            fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "the payloads are on disk");
    let output = run_windjet(&["store", "verify", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("stream S, sequence 2: "), "{text}");
    assert!(
        !text.contains("sequence 1") && !text.contains("sequence 3"),
        "{text}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_an_error_and_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nothing");
    let output = run_windjet(&["store", "verify", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("is no folder that can be read"),
        "{}",
        err(&output)
    );
    assert!(!missing.exists());
}

#[test]
fn a_folder_without_a_store_is_not_called_an_intact_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("letter.txt"), "dear store").unwrap();
    let output = run_windjet(&["store", "verify", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("there is no store"), "{}", err(&output));
    assert!(output.stdout.is_empty());
}
