//! The system account: requests that the server answers, and events that it publishes.
//!
//! Every account may ask a little about itself ([`AUTOMATIC_IMPORTS`]); clients of the system account may ask about
//! everything and give orders ([`requests`]). What happens on the server is told to whoever subscribes there ([`events`]).
//! Nothing is built for an event that nobody listens to. Without a system account nothing of this exists.
//!
//! Everything here is subscriptions and publishes of the server itself; the message path knows nothing of it.

mod documents;
mod envelope;
pub(crate) mod events;
mod orders;
mod periodic;
mod reply;
mod requests;
mod statsz;
mod user_info;

pub(crate) use envelope::ServerInfo;
pub(crate) use reply::Encoding;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::account::Account;
use crate::options::Options;
use crate::router::{Message, Turn, route};
use crate::server::Shared;

/// Gives new options when somebody asks for a reload over the system account.
pub(crate) type ReloadSource = Arc<dyn Fn() -> Result<Options, String> + Send + Sync>;

/// What the system side remembers.
#[derive(Default)]
pub(crate) struct System {
    sequence: AtomicU64,
    /// Accounts that have their services.
    attached: Mutex<BTreeSet<usize>>,
    /// Where new options come from.
    pub(crate) reload: Option<ReloadSource>,
    /// Told when a client of the system account arrives.
    arrival: Notify,
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl System {
    /// A system side that reloads from `reload`.
    pub(crate) fn new(reload: Option<ReloadSource>) -> Self {
        Self {
            reload,
            ..Self::default()
        }
    }

    fn next(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Puts the services in place and starts what is published from time to time. Nothing without a system account.
pub(crate) fn start(shared: &Arc<Shared>) {
    attach(shared);
    if shared.accounts.system().is_some() {
        shared.tasks.spawn(periodic::run(shared.clone()));
    }
}

/// Gives their services to accounts that have none yet.
pub(crate) fn attach(shared: &Arc<Shared>) {
    let Some(system) = shared.accounts.system() else {
        return;
    };
    let accounts = shared.accounts.all();
    let mut attached = shared.system.attached.lock();
    let identity = |account: &Arc<Account>| Arc::as_ptr(account) as usize;
    attached.retain(|known| accounts.iter().any(|account| identity(account) == *known));
    for account in &accounts {
        if attached.insert(identity(account)) {
            requests::attach(shared, account, Arc::ptr_eq(account, &system));
        }
    }
}

impl Shared {
    /// Publishes a message of the server itself in `account`. Counts as sent, not as received.
    pub(crate) fn publish(
        &self,
        account: &Account,
        subject: &[u8],
        reply: Option<&[u8]>,
        headers: &[u8],
        payload: &Bytes,
    ) -> usize {
        let (_, matches) = account.matches(subject);
        let mut turn = Turn::new(self, None);
        let message = Message::with_shared(subject, reply, headers, payload);
        let taken = route(&matches, &message, &mut turn);
        account.sent.add(turn.out_msgs, turn.out_bytes);
        turn.finish();
        taken
    }
}

/// A service that every account has without configuring it: an import from the system account.
#[derive(Debug)]
pub(crate) struct AutomaticImport {
    /// What clients of the account publish to.
    pub(crate) local: &'static str,
    /// Where it stands in the system account; `{account}` stands for the account's name.
    pub(crate) remote: &'static str,
    /// Whether the service sees all about the requesting client.
    pub(crate) share: bool,
    /// Whether the system account has it too.
    pub(crate) in_system: bool,
}

/// The services that every account has.
pub(crate) const AUTOMATIC_IMPORTS: [AutomaticImport; 4] = [
    AutomaticImport {
        local: "$SYS.REQ.ACCOUNT.PING.CONNZ",
        remote: "$SYS.REQ.ACCOUNT.{account}.CONNZ",
        share: false,
        in_system: false,
    },
    AutomaticImport {
        local: "$SYS.REQ.SERVER.PING.CONNZ",
        remote: "$SYS.REQ.ACCOUNT.{account}.CONNZ",
        share: false,
        in_system: false,
    },
    AutomaticImport {
        local: "$SYS.REQ.ACCOUNT.PING.STATZ",
        remote: "$SYS.REQ.ACCOUNT.{account}.STATZ",
        share: false,
        in_system: false,
    },
    AutomaticImport {
        local: "$SYS.REQ.USER.INFO",
        remote: "$SYS.REQ.USER.{account}.INFO",
        share: true,
        in_system: true,
    },
];
