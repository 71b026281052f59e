//! Events: what is published in the system account when something happens. Section 4.6 of the core protocol.
//!
//! | event | subject |
//! |---|---|
//! | a client has authenticated | `$SYS.ACCOUNT.<account>.CONNECT` |
//! | a client is gone | `$SYS.ACCOUNT.<account>.DISCONNECT` |
//! | credentials were refused | `$SYS.SERVER.<id>.CLIENT.AUTH.ERR`, and a disconnect of the global account |
//! | the connections of an account changed | `$SYS.SERVER.ACCOUNT.<account>.CONNS`, `$SYS.ACCOUNT.<account>.SERVER.CONNS` |
//! | lame duck mode, shutdown | `$SYS.SERVER.<id>.LAMEDUCK`, `.SHUTDOWN` |
//!
//! Connections of the global account are not counted in events, as on nats-server.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;

use super::envelope::{ServerInfo, unique_id};
use super::statsz::{StatszMessage, Traffic};
use crate::account::Account;
use crate::connection::{ClientInfo, CloseReason, Connection};
use crate::monitor::{AccountStat, compact, rfc3339};
use crate::options::GLOBAL_ACCOUNT;
use crate::server::Shared;

const CONNECT: &str = "io.nats.server.advisory.v1.client_connect";
const DISCONNECT: &str = "io.nats.server.advisory.v1.client_disconnect";
const CONNECTIONS: &str = "io.nats.server.advisory.v1.account_connections";

/// Fields that begin every event.
#[derive(Debug, Serialize)]
struct Head {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    timestamp: String,
    server: ServerInfo,
}

impl Head {
    fn now(shared: &Shared, kind: &'static str) -> Self {
        Self {
            kind,
            id: unique_id(),
            timestamp: rfc3339(SystemTime::now()),
            server: ServerInfo::now(shared),
        }
    }
}

#[derive(Debug, Serialize)]
struct Connected {
    #[serde(flatten)]
    head: Head,
    client: ClientInfo,
}

#[derive(Debug, Serialize)]
struct Disconnected {
    #[serde(flatten)]
    head: Head,
    client: ClientInfo,
    sent: Traffic,
    received: Traffic,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct Connections {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    account: AccountStat,
}

/// A client has authenticated.
pub(crate) fn connected(shared: &Shared, connection: &Connection) {
    let Some(profile) = connection.profile() else {
        return;
    };
    connections(shared, &profile.account);
    if shared.is_system(&profile.account) {
        shared.system.arrival.notify_one();
    }
    emit(
        shared,
        &format!("$SYS.ACCOUNT.{}.CONNECT", profile.account.name),
        || {
            let mut client = connection.client_info();
            client.rtt = None;
            compact(&Connected {
                head: Head::now(shared, CONNECT),
                client,
            })
        },
    );
}

/// A client that had authenticated is gone.
pub(crate) fn disconnected(shared: &Shared, connection: &Connection, reason: CloseReason) {
    let Some(profile) = connection.profile() else {
        return;
    };
    connections(shared, &profile.account);
    emit(
        shared,
        &format!("$SYS.ACCOUNT.{}.DISCONNECT", profile.account.name),
        || disconnect(shared, connection, reason),
    );
}

/// A client's credentials were refused.
pub(crate) fn authentication_failed(shared: &Shared, connection: &Connection) {
    for subject in [
        format!("$SYS.SERVER.{}.CLIENT.AUTH.ERR", shared.id),
        format!("$SYS.ACCOUNT.{GLOBAL_ACCOUNT}.DISCONNECT"),
    ] {
        emit(shared, &subject, || {
            disconnect(shared, connection, CloseReason::AuthenticationFailure)
        });
    }
}

fn disconnect(shared: &Shared, connection: &Connection, reason: CloseReason) -> String {
    let mut client = connection.client_info();
    client.stop = Some(rfc3339(SystemTime::now()));
    compact(&Disconnected {
        head: Head::now(shared, DISCONNECT),
        client,
        sent: connection.received.get().into(),
        received: connection.sent_counts().into(),
        reason: reason.as_str(),
    })
}

/// The number of connections of an account may have changed, or it is time to tell it.
pub(super) fn connections(shared: &Shared, account: &Arc<Account>) {
    if &*account.name == GLOBAL_ACCOUNT {
        return;
    }
    for subject in [
        format!("$SYS.SERVER.ACCOUNT.{}.CONNS", account.name),
        format!("$SYS.ACCOUNT.{}.SERVER.CONNS", account.name),
    ] {
        emit(shared, &subject, || connections_event(shared, account));
    }
}

/// The connections of an account, as an event.
pub(super) fn connections_event(shared: &Shared, account: &Account) -> String {
    compact(&Connections {
        head: Head::now(shared, CONNECTIONS),
        account: AccountStat::of(account),
    })
}

/// Clients are asked to go elsewhere.
pub(crate) fn lame_duck(shared: &Shared) {
    own(shared, "LAMEDUCK");
}

/// The server goes down.
pub(crate) fn shutdown(shared: &Shared) {
    own(shared, "SHUTDOWN");
}

fn own(shared: &Shared, what: &str) {
    emit(shared, &format!("$SYS.SERVER.{}.{what}", shared.id), || {
        compact(&ServerInfo::now(shared))
    });
}

/// The server's counters, from time to time. Whether anybody listened.
pub(super) fn statsz(shared: &Shared) -> bool {
    emit(shared, &format!("$SYS.SERVER.{}.STATSZ", shared.id), || {
        compact(&StatszMessage::now(shared))
    })
}

/// Publishes an event that is built only when somebody listens. Whether anybody did.
fn emit(shared: &Shared, subject: &str, build: impl FnOnce() -> String) -> bool {
    let Some(system) = shared.accounts.system() else {
        return false;
    };
    if system.matches(subject.as_bytes()).1.is_empty() {
        return false;
    }
    shared.publish(&system, subject.as_bytes(), None, &[], &Bytes::from(build())) > 0
}
