//! `accstatz`: counters by account.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Refused;
use super::format::rfc3339;
use super::params::Params;
use crate::account::{Account, Counter};
use crate::server::Shared;

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AccstatzOptions {
    /// Only these accounts; empty means all.
    pub(crate) accounts: Vec<String>,
    /// Also those without a connection.
    pub(crate) include_unused: bool,
}

impl AccstatzOptions {
    /// Reads the query part of a URL.
    pub(super) fn of(params: &Params) -> Result<Self, Refused> {
        Ok(Self {
            accounts: Vec::new(),
            include_unused: params.flag("unused")?,
        })
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct Accstatz {
    server_id: String,
    now: String,
    account_statz: Vec<AccountStat>,
}

impl Accstatz {
    /// Whether it tells about no account.
    pub(crate) fn is_empty(&self) -> bool {
        self.account_statz.is_empty()
    }
}

/// The counters of one account.
#[derive(Debug, Serialize)]
pub(crate) struct AccountStat {
    acc: String,
    name: String,
    conns: u64,
    leafnodes: u32,
    total_conns: u64,
    num_subscriptions: usize,
    sent: Traffic,
    received: Traffic,
    slow_consumers: u64,
}

#[derive(Debug, Serialize)]
struct Traffic {
    msgs: u64,
    bytes: u64,
    gateways: Nothing,
    routes: Nothing,
    leafs: Nothing,
}

#[derive(Debug, Default, Serialize)]
struct Nothing {
    msgs: u64,
    bytes: u64,
}

impl AccountStat {
    /// The counters of an account now.
    pub(crate) fn of(account: &Account) -> Self {
        let connections = account.connections.load(Ordering::Relaxed);
        Self {
            acc: account.name.to_string(),
            name: account.display_name.to_string(),
            conns: connections,
            leafnodes: 0,
            total_conns: connections,
            num_subscriptions: account.subscriptions(),
            sent: traffic(&account.sent),
            received: traffic(&account.received),
            slow_consumers: account.slow_consumers.load(Ordering::Relaxed),
        }
    }
}

fn traffic(counter: &Counter) -> Traffic {
    let (msgs, bytes) = counter.get();
    Traffic {
        msgs,
        bytes,
        gateways: Nothing::default(),
        routes: Nothing::default(),
        leafs: Nothing::default(),
    }
}

/// Counters of the accounts that are asked for, in the order of their names.
pub(crate) fn accstatz(shared: &Shared, options: &AccstatzOptions) -> Accstatz {
    let account_statz = shared
        .accounts
        .all()
        .iter()
        .filter(|account| {
            options.accounts.is_empty() || options.accounts.iter().any(|name| **name == *account.name)
        })
        .map(|account| AccountStat::of(account))
        .filter(|stat| options.include_unused || stat.conns > 0)
        .collect();
    Accstatz {
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        account_statz,
    }
}
