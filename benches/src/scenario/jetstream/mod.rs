//! JetStream: what an acknowledged publish, a delivery and a restart cost.
//!
//! Windjet runs as it does by default: an acknowledgement means that the message is on the disk. The reference runs in one
//! of two modes, which the name of a scenario tells: `always` syncs before it acknowledges (`sync_interval: always`), as
//! Windjet does; without that word it acknowledges first and syncs every two minutes, its default. `unsynced` gives both
//! sides the reference's default.
//!
//! The load comes from raw sockets. Acknowledgements are read, sequences are checked: a message that is missing or comes
//! twice ends the run.

mod hold;
mod idle;
mod inside;
mod publish;
mod queue;
mod read;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::Scenario;
use crate::{peer::Admin, server::Server};

pub(crate) use inside::Args as InsideArgs;
pub(crate) use inside::run as run_inside;

/// The stream that is measured.
const STREAM: &str = "BENCH";
/// Payload of all scenarios that do not say otherwise.
const PAYLOAD: usize = 128;

/// Configuration of a server that syncs before it acknowledges.
const ALWAYS: &str = "jetstream { store_dir: js, sync_interval: always }\n";
/// Configuration of a server that does what it does by itself.
const DEFAULT: &str = "jetstream { store_dir: js }\n";

/// The scenarios of this family.
pub(super) fn all() -> Vec<Box<dyn Scenario>> {
    let mut all = Vec::new();
    all.extend(publish::all());
    all.extend(queue::all());
    all.extend(read::all());
    all.extend(inside::all());
    all.extend(hold::all());
    all.extend(idle::all());
    all
}

/// A stream like that, without anything in it.
fn empty_stream(admin: &mut Admin, extra: &Value) -> Result<()> {
    let _may_not_exist = admin.ask(&format!("$JS.API.STREAM.DELETE.{STREAM}"), "")?;
    let mut config =
        json!({"name": STREAM, "subjects": ["bench.>"], "storage": "file", "retention": "limits"});
    if let (Some(config), Some(extra)) = (config.as_object_mut(), extra.as_object()) {
        config.extend(extra.clone());
    }
    admin.api(&format!("STREAM.CREATE.{STREAM}"), &config)?;
    Ok(())
}

/// Messages of the stream; `None` when there is no such stream.
fn messages(admin: &mut Admin) -> Result<Option<u64>> {
    let answer = admin.ask(&format!("$JS.API.STREAM.INFO.{STREAM}"), "")?;
    Ok(answer["state"]["messages"].as_u64())
}

/// Fails unless the stream holds exactly so many messages.
fn check_messages(server: &Server, wanted: u64) -> Result<()> {
    let found = messages(&mut Admin::open(server.address)?)?;
    ensure!(
        found == Some(wanted),
        "the stream holds {found:?} messages, {wanted} were acknowledged"
    );
    Ok(())
}
