//! Orders to one server: send a client away, ask it to go, reload the configuration.

use std::sync::Arc;

use serde::Deserialize;

use super::reply::{Answer, Asker};
use super::requests::read;
use crate::connection::{CloseReason, Control};
use crate::server::Shared;

/// What can be ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Close a client.
    Kick,
    /// Tell a client to go elsewhere.
    LameDuck,
    /// Read the configuration again.
    Reload,
}

impl Order {
    /// The order with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "KICK" => Self::Kick,
            "LDM" => Self::LameDuck,
            "RELOAD" => Self::Reload,
            _ => return None,
        })
    }

    /// Carries the order out and answers it.
    pub(super) fn obey(self, shared: &Arc<Shared>, payload: &[u8], asker: Option<Asker>) {
        let respond = move |shared: &Shared, answer: Answer| {
            if let Some(asker) = &asker {
                asker.answer(shared, answer);
            }
        };
        if self != Self::Reload {
            respond(shared, self.to_client(shared, payload));
            return;
        }
        // Reading files blocks, so it is done elsewhere; without a runtime there is nowhere else.
        let server = shared.clone();
        let work = move || respond(&server, reload(&server));
        if tokio::runtime::Handle::try_current().is_ok() {
            shared.tasks.spawn_blocking(work);
        } else {
            work();
        }
    }

    fn to_client(self, shared: &Shared, payload: &[u8]) -> Answer {
        let client: Client = match read(payload) {
            Ok(client) => client,
            Err(answer) => return answer,
        };
        match (self, shared.registry.get(client.cid)) {
            (Self::Kick, Some(connection)) => connection.close(CloseReason::Kicked),
            (_, Some(connection)) => connection.control(Control::LameDuck),
            (Self::Kick, None) => return Answer::Failed("no such client or leafnode id".to_owned()),
            (_, None) => return Answer::Failed("no such client id".to_owned()),
        }
        Answer::Done
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Client {
    cid: u64,
}

fn reload(shared: &Arc<Shared>) -> Answer {
    let Some(source) = &shared.system.reload else {
        let why = "can only reload config when a file is provided using -c or --config";
        return Answer::Failed(why.to_owned());
    };
    match source().and_then(|options| shared.reload(options).map_err(|error| error.to_string())) {
        Ok(_) => Answer::Done,
        Err(why) => Answer::Failed(why),
    }
}
