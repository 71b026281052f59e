//! The users of the configuration, compiled for look-up.

use std::collections::HashMap;
use std::sync::Arc;

use super::Permissions;
use super::credentials::Secret;
use super::dn::Dn;
use crate::options::{
    ConnectionType, GLOBAL_ACCOUNT, Options, PermissionsOptions, UserCredential, UserOptions,
};

/// One configured user or nkey.
#[derive(Debug)]
pub(super) struct User {
    /// Name or public key.
    pub(super) name: String,
    /// Plain text or bcrypt; empty for an nkey and for a user without a password.
    pub(super) password: Secret,
    pub(super) account: Arc<str>,
    pub(super) permissions: Option<Arc<Permissions>>,
    connection_types: Vec<ConnectionType>,
    /// Whether `name` is a public key.
    pub(super) is_nkey: bool,
    /// The name as a distinguished name, if it is one.
    dn: Option<Dn>,
}

impl User {
    pub(super) fn allows(&self, connection_type: ConnectionType) -> bool {
        self.connection_types.is_empty() || self.connection_types.contains(&connection_type)
    }
}

/// All configured users. Passwords and nkeys are apart, as they are in CONNECT.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_name: HashMap<String, User>,
    by_nkey: HashMap<String, User>,
}

impl Users {
    /// Compiles the users of all accounts. What cannot be compiled is left out and told in `problems`; of two users
    /// with one name the first stays.
    pub(super) fn compile(options: &Options, problems: &mut Vec<String>) -> Self {
        let mut users = Self::default();
        let defaults = options.auth.default_permissions.as_ref();
        users.add(&options.auth.users, defaults, &GLOBAL_ACCOUNT.into(), problems);
        for (name, account) in &options.accounts {
            let defaults = account.default_permissions.as_ref();
            users.add(&account.users, defaults, &name.as_str().into(), problems);
        }
        users
    }

    fn add(
        &mut self,
        list: &[UserOptions],
        defaults: Option<&PermissionsOptions>,
        account: &Arc<str>,
        problems: &mut Vec<String>,
    ) {
        // Users without their own share one compiled value.
        let mut shared = None;
        for options in list {
            let (kind, name, password) = match &options.credential {
                UserCredential::Password { name, password } => ("user", name, password.as_str()),
                UserCredential::Nkey(key) => ("nkey", key, ""),
            };
            let mut compile = |permissions: &PermissionsOptions| {
                Permissions::compile(permissions)
                    .inspect_err(|error| {
                        problems.push(format!("invalid permissions for {kind} {name:?}: {error}"));
                    })
                    .ok()
                    .map(Arc::new)
            };
            let permissions = match (&options.permissions, defaults) {
                (Some(own), _) => compile(own),
                (None, Some(defaults)) => {
                    if shared.is_none() {
                        shared = compile(defaults);
                    }
                    shared.clone()
                }
                (None, None) => None,
            };
            let table = match options.credential {
                UserCredential::Password { .. } => &mut self.by_name,
                UserCredential::Nkey(_) => &mut self.by_nkey,
            };
            if table.contains_key(name) {
                problems.push(format!("Duplicate {kind} {name:?} detected"));
                continue;
            }
            let user = User {
                name: name.clone(),
                password: password.into(),
                account: account.clone(),
                permissions,
                connection_types: options.allowed_connection_types.clone(),
                is_nkey: matches!(options.credential, UserCredential::Nkey(_)),
                dn: Dn::parse(name),
            };
            table.insert(name.clone(), user);
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<&User> {
        self.by_name.get(name)
    }

    pub(super) fn with_nkey(&self, key: &str) -> Option<&User> {
        self.by_nkey.get(key)
    }

    pub(super) fn has_names(&self) -> bool {
        !self.by_name.is_empty()
    }

    pub(super) fn has_nkeys(&self) -> bool {
        !self.by_nkey.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.by_nkey.is_empty()
    }

    /// The public keys of all nkey users.
    pub(super) fn nkeys(&self) -> impl Iterator<Item = &str> {
        self.by_nkey.keys().map(String::as_str)
    }

    /// Whether some password is kept as plain text.
    pub(super) fn has_plain_passwords(&self) -> bool {
        self.by_name
            .values()
            .any(|user| !user.password.is_empty() && !super::password::is_bcrypt(user.password.reveal()))
    }

    /// Users whose name is a distinguished name.
    pub(super) fn with_dns(&self) -> impl Iterator<Item = (&Dn, &User)> {
        self.by_name
            .values()
            .filter_map(|user| Some((user.dn.as_ref()?, user)))
    }
}
