//! Replays the fuzz corpus of the wire decoders: no panic, and the same operations however the bytes are cut.

#[path = "../../../fuzz/checks/wire.rs"]
mod wire;

use std::fs;
use std::path::Path;

#[test]
fn the_corpus_decodes_the_same_however_it_is_cut() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wire");
    let (mut files, mut client_ops, mut server_ops) = (0, 0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let (client, server) = wire::check(&bytes);
        files += 1;
        client_ops += client;
        server_ops += server;
    }
    // A corpus that went missing, or that nothing is read from any more, must not pass.
    assert!(
        files >= 12 && client_ops >= 40 && server_ops >= 20,
        "{files} {client_ops} {server_ops}"
    );
}
