//! All parity scripts on the real nats-server and on ours.
//!
//! Needs both programs and fails without them: `scripts/fetch-nats-server` fetches the real one, `cargo build -p
//! windjet-cli` builds ours (or `NATS_SERVER` and `WINDJET_BIN` name them).
//!
//! `parity/open.txt` and `parity/open-jetstream.txt` name the scripts that do not agree yet, each with what is missing.
//! Every other script must agree, and one that agrees must not be on its list, so the lists can only shrink.

use std::sync::{Mutex, PoisonError};

use windjet_testkit::parity::{Collection, open};

/// The collections take turns: each uses the whole machine.
static TURN: Mutex<()> = Mutex::new(());

fn hold(collection: Collection) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = open::hold(&collection) {
        panic!("{error:#}");
    }
}

#[test]
fn both_servers_answer_all_core_scripts_alike() {
    hold(Collection::CORE);
}

#[test]
fn both_servers_answer_all_jetstream_scripts_alike() {
    hold(Collection::JETSTREAM);
}
