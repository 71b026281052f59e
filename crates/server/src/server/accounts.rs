//! The accounts of a server by name, and the imports between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use windjet_protocol::transform::{Mapping, MappingTable};

use crate::account::Account;
use crate::auth::Authenticator;
use crate::imports::{self, Link};
use crate::options::{AccountOptions, GLOBAL_ACCOUNT, MappingOptions, Options, OptionsError, SYSTEM_ACCOUNT};

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Accounts {
    global: Arc<Account>,
    system: RwLock<Option<Arc<Account>>>,
    by_name: RwLock<BTreeMap<String, Arc<Account>>>,
    links: Mutex<Vec<Link>>,
}

impl Accounts {
    /// The accounts that `options` and the claims of `authenticator` name, plus the global and the system account.
    ///
    /// # Errors
    ///
    /// All that is wrong with mappings, exports and imports.
    pub(crate) fn new(options: &Options, authenticator: &Authenticator) -> Result<Self, OptionsError> {
        let global = Arc::new(Account::new(GLOBAL_ACCOUNT, GLOBAL_ACCOUNT));
        let accounts = Self {
            global: global.clone(),
            system: RwLock::new(None),
            by_name: RwLock::new(BTreeMap::from([(GLOBAL_ACCOUNT.to_owned(), global)])),
            links: Mutex::default(),
        };
        accounts.apply(options, authenticator)?;
        Ok(accounts)
    }

    /// Brings the accounts in line with `options` and claims. Accounts that are gone from them are forgotten here; their
    /// clients are told by the reload.
    ///
    /// # Errors
    ///
    /// All that is wrong with mappings, exports and imports. Nothing has changed then.
    pub(crate) fn apply(&self, options: &Options, authenticator: &Authenticator) -> Result<(), OptionsError> {
        let definitions = definitions(options, authenticator);
        let system = system_name(options, authenticator);
        let mut problems = Vec::new();
        let mut next = BTreeMap::from([(GLOBAL_ACCOUNT.to_owned(), self.global.clone())]);
        for (name, definition) in &definitions {
            let account = self
                .get(name)
                .unwrap_or_else(|| Arc::new(Account::new(name, &definition.shown)));
            next.entry(name.clone()).or_insert(account);
        }
        if let Some(name) = &system {
            let account = self
                .get(name)
                .unwrap_or_else(|| Arc::new(Account::new(name, name)));
            next.entry(name.clone()).or_insert(account);
        }
        let settings = |name: &str| definitions.get(name).map(|definition| &definition.options);
        let tables: Vec<_> = next
            .keys()
            .map(|name| {
                let mappings = match settings(name) {
                    _ if name == GLOBAL_ACCOUNT => &options.mappings,
                    Some(account) => &account.mappings,
                    None => return None,
                };
                mapping_table(mappings, &mut problems)
            })
            .collect();
        if !problems.is_empty() {
            return Err(OptionsError { problems });
        }
        let accounts = definitions
            .iter()
            .map(|(name, definition)| (name.clone(), definition.options.clone()))
            .collect();
        let links = imports::link(&next, &accounts).map_err(|problems| OptionsError { problems })?;
        imports::unlink(std::mem::replace(&mut *self.links.lock(), links));
        for ((name, account), table) in next.iter().zip(tables) {
            let settings = settings(name);
            account.configure(
                settings.map(|account| account.limits).unwrap_or_default(),
                table,
                settings.and_then(|account| account.msg_trace.clone()),
            );
        }
        *self.system.write() = system.and_then(|name| next.get(&name).cloned());
        *self.by_name.write() = next;
        Ok(())
    }

    /// Takes all imports out, so that nothing keeps the accounts alive once the server is gone.
    pub(crate) fn unlink(&self) {
        imports::unlink(std::mem::take(&mut *self.links.lock()));
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

/// An account as it is asked for.
struct Definition {
    /// The name people gave it.
    shown: String,
    options: AccountOptions,
}

/// The accounts of the configuration or, in operator mode, of the claims. What has to be left out is logged.
fn definitions(options: &Options, authenticator: &Authenticator) -> BTreeMap<String, Definition> {
    if !authenticator.is_operator_mode() {
        let define = |(name, options): (&String, &AccountOptions)| {
            (
                name.clone(),
                Definition {
                    shown: name.clone(),
                    options: options.clone(),
                },
            )
        };
        return options.accounts.iter().map(define).collect();
    }
    let (claimed, left_out) = authenticator.claimed_accounts(SystemTime::now());
    for problem in left_out {
        tracing::warn!("{problem}");
    }
    claimed
        .into_iter()
        .map(|account| {
            (
                account.id.to_string(),
                Definition {
                    shown: account.name.to_string(),
                    options: account.options,
                },
            )
        })
        .collect()
}

/// The system account; `None` when there is to be none.
fn system_name(options: &Options, authenticator: &Authenticator) -> Option<String> {
    if options.no_system_account {
        return None;
    }
    let chosen = options
        .system_account
        .as_deref()
        .or_else(|| authenticator.claimed_system_account());
    // Claims that name no system account leave the server without one.
    if chosen.is_none()
        && options
            .auth
            .jwt
            .as_ref()
            .is_some_and(|jwt| !jwt.operators.is_empty())
    {
        tracing::warn!("Trusted Operators should utilize a System Account");
    }
    let fallback = (!authenticator.is_operator_mode()).then_some(SYSTEM_ACCOUNT);
    chosen.or(fallback).map(str::to_owned)
}

/// The mappings in the form that published subjects are looked up in; `None` when there are none.
fn mapping_table(mappings: &[MappingOptions], problems: &mut Vec<String>) -> Option<MappingTable> {
    let mut table = MappingTable::new();
    for mapping in mappings {
        let destinations = mapping
            .destinations
            .iter()
            .map(|to| (to.subject.as_str(), u32::from(to.weight)));
        match Mapping::weighted(&mapping.source, destinations) {
            Ok(mapping) => table.insert(mapping),
            Err(error) => {
                let to: Vec<&str> = mapping
                    .destinations
                    .iter()
                    .map(|to| to.subject.as_str())
                    .collect();
                problems.push(format!(
                    "Error adding mapping for {:?} to {:?} : {error}",
                    mapping.source,
                    to.join(", ")
                ));
            }
        }
    }
    (!table.is_empty()).then_some(table)
}
