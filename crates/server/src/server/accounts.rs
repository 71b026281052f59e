//! The accounts of a server by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::account::Account;
use crate::options::{GLOBAL_ACCOUNT, Options, SYSTEM_ACCOUNT};

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Accounts {
    global: Arc<Account>,
    system: RwLock<Option<Arc<Account>>>,
    by_name: RwLock<BTreeMap<String, Arc<Account>>>,
}

impl Accounts {
    /// The accounts that `options` name, plus the global and the system account.
    pub(crate) fn from_options(options: &Options) -> Self {
        let global = Arc::new(Account::new(GLOBAL_ACCOUNT, GLOBAL_ACCOUNT));
        let accounts = Self {
            global: global.clone(),
            system: RwLock::new(None),
            by_name: RwLock::new(BTreeMap::from([(GLOBAL_ACCOUNT.to_owned(), global)])),
        };
        accounts.apply(options);
        accounts
    }

    /// Brings the accounts in line with `options`. Accounts that are gone from them are forgotten here; their clients
    /// are told by the reload.
    pub(crate) fn apply(&self, options: &Options) {
        self.global.configure(
            options
                .accounts
                .get(GLOBAL_ACCOUNT)
                .map(|account| account.limits)
                .unwrap_or_default(),
        );
        let system_name = options.system_account.as_deref().unwrap_or(SYSTEM_ACCOUNT);
        let mut by_name = self.by_name.write();
        by_name.retain(|name, _| {
            name == GLOBAL_ACCOUNT || name == system_name || options.accounts.contains_key(name)
        });
        for (name, account) in &options.accounts {
            let entry = by_name
                .entry(name.clone())
                .or_insert_with(|| Arc::new(Account::new(name, name)));
            if name != GLOBAL_ACCOUNT {
                entry.configure(account.limits);
            }
        }
        let system = (!options.no_system_account).then(|| {
            by_name
                .entry(system_name.to_owned())
                .or_insert_with(|| Arc::new(Account::new(system_name, system_name)))
                .clone()
        });
        *self.system.write() = system;
    }

    /// The account of clients that authenticate into no other one.
    pub(crate) fn global(&self) -> Arc<Account> {
        self.global.clone()
    }

    /// The system account; `None` when there is none.
    pub(crate) fn system(&self) -> Option<Arc<Account>> {
        self.system.read().clone()
    }

    /// An account by name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Account>> {
        self.by_name.read().get(name).cloned()
    }

    /// All accounts in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Account>> {
        self.by_name.read().values().cloned().collect()
    }
}
