//! [`Authenticator`]: the order in which credentials are tried.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::SystemTime;

use super::credentials::{Attempt, Credentials, Evidence, Secret};
use super::identity::{AuthFailure, Identity, IdentityKind, REDACTED, Recheck};
use super::jwt::{ClaimedAccount, Trust};
use super::users::{User, Users};
use super::{checks, nkey, password};
use crate::options::{ConnectionType, GLOBAL_ACCOUNT, Options, OptionsError, SYSTEM_ACCOUNT};

/// Decides who may connect. Built from options; a reload builds a new one.
///
/// In operator mode the user's JWT decides alone. Otherwise the order is: nkey users if CONNECT has an `nkey`, then configured users (by the certificate where
/// `verify_and_map` is on, else by `user`), then the token, then the single user. `no_auth_user` stands in only when
/// no user, password or token was given and, where nkey users exist, no nkey. A JWT outside of operator mode is
/// ignored, and so is everything on a server that asks for nothing.
#[derive(Debug)]
pub struct Authenticator {
    users: Users,
    main: Door,
    websocket: Door,
    /// Whether clients without credentials enter the global account because only the system account has users.
    anonymous: bool,
    /// Operator mode.
    trust: Option<Trust>,
}

/// What one listener asks for.
#[derive(Debug, Clone, Default)]
struct Door {
    required: bool,
    user: Option<(String, Secret)>,
    token: Option<Secret>,
    no_auth_user: Option<String>,
    maps_certificates: bool,
}

/// A user found by its credentials, and the secret that was compared on the way.
struct Found<'a> {
    user: &'a User,
    kind: IdentityKind,
    verified: Option<&'a Secret>,
}

impl Authenticator {
    /// Compiles the options.
    ///
    /// # Errors
    ///
    /// All that is wrong with users, permissions and their combination, at once.
    pub fn from_options(options: &Options) -> Result<Self, OptionsError> {
        let mut problems = Vec::new();
        let users = Users::compile(options, &mut problems);
        checks::check(options, &users, &mut problems);
        let trust = Trust::compile(options, &mut problems);
        if !problems.is_empty() {
            return Err(OptionsError { problems });
        }
        let main = main_door(options, &users, trust.is_some());
        Ok(Self {
            websocket: websocket_door(options, &main),
            anonymous: trust.is_none() && only_the_system_account_has_users(options),
            main,
            users,
            trust,
        })
    }

    /// Whether a client has to authenticate on this kind of connection.
    pub fn auth_required(&self, connection_type: ConnectionType) -> bool {
        self.door(connection_type).required
    }

    /// Whether a `no_auth_user` is configured. The first INFO then leaves `auth_required` out.
    pub fn has_no_auth_user(&self, connection_type: ConnectionType) -> bool {
        self.door(connection_type).no_auth_user.is_some()
    }

    /// Whether a client without credentials is admitted where authentication is required: it is taken for the
    /// `no_auth_user`, or enters the global account because only the system account has users.
    pub fn admits_without_credentials(&self, connection_type: ConnectionType) -> bool {
        self.anonymous || self.door(connection_type).no_auth_user.is_some()
    }

    /// Whether INFO must carry a nonce.
    pub fn nonce_required(&self) -> bool {
        self.trust.is_some() || self.users.has_nkeys()
    }

    /// Whether accounts come from claims. `$G` is then not used by clients.
    pub fn is_operator_mode(&self) -> bool {
        self.trust.is_some()
    }

    /// The accounts of operator mode, with exports and imports that fit together at this time, and one line for each
    /// account or import that had to be left out. Both empty in other modes.
    pub fn claimed_accounts(&self, now: SystemTime) -> (Vec<ClaimedAccount>, Vec<String>) {
        self.trust
            .as_ref()
            .map(|trust| trust.accounts(now))
            .unwrap_or_default()
    }

    /// Public key of the system account in operator mode, if there is one.
    pub fn claimed_system_account(&self) -> Option<&str> {
        self.trust.as_ref()?.system_account()
    }

    /// Whether some password or token is configured as plain text, which is worth a warning.
    pub fn has_plain_secrets(&self) -> bool {
        let plain = |secret: &Secret| !password::is_bcrypt(secret.reveal());
        self.users.has_plain_passwords()
            || [&self.main, &self.websocket].iter().any(|door| {
                door.token.as_ref().is_some_and(plain)
                    || door.user.as_ref().is_some_and(|(_, secret)| plain(secret))
            })
    }

    /// Whether [`Self::authenticate`] would compute a bcrypt hash for these credentials, which takes about 100 ms:
    /// an async task then moves the call to a thread that may block.
    pub fn needs_blocking(&self, credentials: &Credentials, connection_type: ConnectionType) -> bool {
        let door = self.door(connection_type);
        let hashed = |secret: &Secret| password::is_bcrypt(secret.reveal());
        door.required
            && (door.maps_certificates
                || self
                    .users
                    .named(&credentials.user)
                    .is_some_and(|user| hashed(&user.password))
                || door.token.as_ref().is_some_and(hashed)
                || door.user.as_ref().is_some_and(|(_, secret)| hashed(secret)))
    }

    /// Finds out who the client is.
    ///
    /// # Errors
    ///
    /// Why it is not admitted. The client is told [`AuthFailure::connect_text`] and closed, whatever the reason.
    pub fn authenticate(&self, attempt: &Attempt<'_>) -> Result<Identity, AuthFailure> {
        self.judge(attempt, Evidence::of(attempt))
    }

    /// What becomes of a live client that was found to be `identity` under other options.
    ///
    /// Everything is checked again with what the client presented, except that a password is not compared when the
    /// configured one is still the same. Where it changed, this may take as long as [`Self::authenticate`].
    pub fn recheck(&self, identity: &Identity, now: SystemTime) -> Recheck {
        let evidence = &identity.evidence;
        if self.has_lost(identity) {
            return Recheck::UserGone;
        }
        match self.judge(&evidence.at(now), Evidence::clone(evidence)) {
            Ok(new) if new.account == identity.account => Recheck::Keep(Box::new(new)),
            Ok(_) => Recheck::AccountChanged,
            Err(failure) => Recheck::Refused(failure),
        }
    }

    /// Whether [`Self::recheck`] would compute a bcrypt hash: the configured password is one and not the one that the
    /// client's was compared with before.
    pub fn recheck_needs_blocking(&self, identity: &Identity) -> bool {
        let evidence = &identity.evidence;
        let verified = evidence.verified.as_ref();
        self.needs_blocking(&evidence.credentials, evidence.connection_type)
            && !verified.is_some_and(|secret| self.configures(secret, evidence))
    }

    /// Whether a client was known by a user or key that is not configured any more, or named one that is not now that
    /// the server asks.
    fn has_lost(&self, identity: &Identity) -> bool {
        let evidence = &identity.evidence;
        let credentials = &evidence.credentials;
        let door = self.door(evidence.connection_type);
        let by_name = match identity.kind {
            IdentityKind::User | IdentityKind::SingleUser | IdentityKind::Nkey => true,
            IdentityKind::Open => door.required,
            _ => false,
        };
        if !by_name || self.trust.is_some() {
            false
        } else if !credentials.nkey.is_empty() {
            self.users.with_nkey(&credentials.nkey).is_none()
        } else if !credentials.user.is_empty() {
            let single = door.user.as_ref();
            self.users.named(&credentials.user).is_none()
                && single.is_none_or(|(name, _)| *name != credentials.user)
        } else {
            false
        }
    }

    fn configures(&self, secret: &Secret, evidence: &Evidence) -> bool {
        let door = self.door(evidence.connection_type);
        let by_name = self
            .users
            .named(&evidence.credentials.user)
            .map(|user| &user.password);
        let single = door.user.as_ref().map(|(_, secret)| secret);
        [by_name, door.token.as_ref(), single].contains(&Some(secret))
    }

    fn door(&self, connection_type: ConnectionType) -> &Door {
        match connection_type {
            ConnectionType::WebSocket => &self.websocket,
            _ => &self.main,
        }
    }

    fn judge(&self, attempt: &Attempt<'_>, evidence: Evidence) -> Result<Identity, AuthFailure> {
        let door = self.door(attempt.connection_type);
        let identity = if let Some(trust) = &self.trust {
            trust.authenticate(attempt, evidence)?
        } else if door.required {
            self.configured(door, attempt, evidence)?
        } else {
            let shown = attempt.credentials.shown_user().to_owned();
            in_global_account(IdentityKind::Open, shown, evidence)
        };
        if attempt.credentials.account.is_empty() {
            Ok(identity)
        } else {
            Err(AuthFailure::AccountChosen)
        }
    }

    fn configured(
        &self,
        door: &Door,
        attempt: &Attempt<'_>,
        evidence: Evidence,
    ) -> Result<Identity, AuthFailure> {
        let known = evidence.verified.clone();
        let agrees = |configured: &Secret, given: &Secret| {
            if known.as_ref() == Some(configured) || password::agrees(configured, given) {
                Ok(())
            } else {
                Err(AuthFailure::WrongSecret)
            }
        };
        if let Some(found) = self.by_nkey(door, attempt)? {
            return Ok(identity_of(&found, evidence));
        }
        if let Some(found) = self.by_name(door, attempt)? {
            if let Some(configured) = found.verified {
                agrees(configured, &attempt.credentials.password)?;
            }
            return Ok(identity_of(&found, evidence));
        }
        if self.anonymous && attempt.credentials.names_nobody() {
            return Ok(in_global_account(
                IdentityKind::NoAuthUser,
                String::new(),
                evidence,
            ));
        }
        let (kind, shown, verified) = if let Some(token) = &door.token {
            agrees(token, &attempt.credentials.token)?;
            (IdentityKind::Token, REDACTED, token)
        } else if let Some((name, secret)) = &door.user {
            if *name != attempt.credentials.user {
                return Err(AuthFailure::UnknownUser);
            }
            agrees(secret, &attempt.credentials.password)?;
            (IdentityKind::SingleUser, name.as_str(), secret)
        } else {
            return Err(AuthFailure::NoCredentials);
        };
        let evidence = Evidence {
            verified: Some(verified.clone()),
            ..evidence
        };
        Ok(in_global_account(kind, shown.to_owned(), evidence))
    }

    fn by_nkey<'a>(&'a self, door: &Door, attempt: &Attempt<'_>) -> Result<Option<Found<'a>>, AuthFailure> {
        let credentials = attempt.credentials;
        let stand_in = door.no_auth_user.as_deref();
        let key = if !credentials.nkey.is_empty() && self.users.has_nkeys() {
            credentials.nkey.as_str()
        } else if let Some(key) = stand_in
            && credentials.names_nobody()
            && self.users.with_nkey(key).is_some()
        {
            key
        } else {
            return Ok(None);
        };
        let user = self.users.with_nkey(key).ok_or(AuthFailure::UnknownUser)?;
        if !user.allows(attempt.connection_type) {
            return Err(AuthFailure::ConnectionType);
        }
        let kind = if stand_in == Some(key) {
            IdentityKind::NoAuthUser
        } else {
            check_signature(attempt, key)?;
            IdentityKind::Nkey
        };
        Ok(Some(Found {
            user,
            kind,
            verified: None,
        }))
    }

    fn by_name<'a>(&'a self, door: &Door, attempt: &Attempt<'_>) -> Result<Option<Found<'a>>, AuthFailure> {
        if !self.users.has_names() {
            return Ok(None);
        }
        // In-process clients have no certificate to map.
        if door.maps_certificates && attempt.connection_type != ConnectionType::InProcess {
            let user = self
                .by_certificate(attempt)
                .ok_or(AuthFailure::NoCertificateUser)?;
            return Ok(Some(Found {
                user,
                kind: IdentityKind::Certificate,
                verified: Some(&user.password),
            }));
        }
        let credentials = attempt.credentials;
        let (user, stands_in) = if credentials.names_nobody() {
            let Some(user) = door
                .no_auth_user
                .as_deref()
                .and_then(|name| self.users.named(name))
            else {
                return Ok(None);
            };
            (user, true)
        } else if credentials.user.is_empty() {
            return Ok(None);
        } else {
            let user = self.users.named(&credentials.user);
            (user.ok_or(AuthFailure::UnknownUser)?, false)
        };
        if !user.allows(attempt.connection_type) {
            return Err(AuthFailure::ConnectionType);
        }
        if stands_in {
            return Ok(Some(Found {
                user,
                kind: IdentityKind::NoAuthUser,
                verified: None,
            }));
        }
        if user.password.is_empty()
            && self.certificate_can_name(user)
            && door.no_auth_user.as_ref() != Some(&user.name)
        {
            return Err(AuthFailure::CertificateRequired);
        }
        Ok(Some(Found {
            user,
            kind: IdentityKind::User,
            verified: Some(&user.password),
        }))
    }

    fn by_certificate(&self, attempt: &Attempt<'_>) -> Option<&User> {
        let allowed = |user: &&User| user.allows(attempt.connection_type);
        attempt.certificate?.find_user(
            |name| self.users.named(name).filter(allowed),
            || self.users.with_dns().filter(|(_, user)| allowed(user)),
        )
    }

    /// Whether a certificate could be this user on some listener. Without a password it is then known by its
    /// certificate only, and an empty password on another listener must not be enough.
    fn certificate_can_name(&self, user: &User) -> bool {
        (self.main.maps_certificates && user.allows(ConnectionType::Standard))
            || (self.websocket.maps_certificates && user.allows(ConnectionType::WebSocket))
    }
}

/// Checks the signature of the attempt over its nonce by the given public key.
pub(super) fn check_signature(attempt: &Attempt<'_>, public_key: &str) -> Result<(), AuthFailure> {
    let signature = attempt.credentials.signature.as_str();
    let nonce = attempt.nonce.unwrap_or_default();
    if signature.is_empty() {
        Err(AuthFailure::NoSignature)
    } else if !nonce.is_empty() && nkey::verify(public_key, nonce, signature) {
        Ok(())
    } else {
        Err(AuthFailure::WrongSignature)
    }
}

fn identity_of(found: &Found<'_>, evidence: Evidence) -> Identity {
    let user = found.user;
    let evidence = Evidence {
        verified: found.verified.cloned(),
        ..evidence
    };
    Identity {
        permissions: user.permissions.clone(),
        issuer_key: user.is_nkey.then(|| user.account.to_string()),
        ..Identity::new(found.kind, user.name.clone(), user.account.clone(), evidence)
    }
}

fn in_global_account(kind: IdentityKind, user: String, evidence: Evidence) -> Identity {
    Identity::new(kind, user, Arc::from(GLOBAL_ACCOUNT), evidence)
}

fn main_door(options: &Options, users: &Users, operator_mode: bool) -> Door {
    let auth = &options.auth;
    let tls = options.tls.as_ref();
    Door {
        required: operator_mode || !users.is_empty() || auth.user.is_some() || auth.token.is_some(),
        user: auth
            .user
            .as_ref()
            .map(|(name, secret)| (name.clone(), secret.as_str().into())),
        token: auth.token.as_deref().map(Secret::from),
        no_auth_user: auth.no_auth_user.clone(),
        maps_certificates: tls.is_some_and(|tls| tls.verify_and_map),
    }
}

/// The WebSocket listener asks for what the main one asks for, unless it names a user, a token or a `no_auth_user`:
/// then these replace the main ones together. Whether certificates name users is its own matter always.
fn websocket_door(options: &Options, main: &Door) -> Door {
    let Some(websocket) = &options.websocket else {
        return Door {
            maps_certificates: false,
            ..main.clone()
        };
    };
    let maps_certificates = websocket.tls.as_ref().is_some_and(|tls| tls.verify_and_map);
    let overrides = websocket.user.is_some() || websocket.token.is_some() || websocket.no_auth_user.is_some();
    if !overrides {
        return Door {
            maps_certificates,
            ..main.clone()
        };
    }
    Door {
        required: true,
        user: websocket
            .user
            .as_ref()
            .map(|(name, secret)| (name.clone(), secret.as_str().into())),
        token: websocket.token.as_deref().map(Secret::from),
        no_auth_user: websocket.no_auth_user.clone(),
        maps_certificates,
    }
}

/// A configuration that only gives the system account users is meant to protect that account, not to close the
/// server: everybody else goes on entering the global account.
fn only_the_system_account_has_users(options: &Options) -> bool {
    let auth = &options.auth;
    let system = options.system_account.as_deref().unwrap_or(SYSTEM_ACCOUNT);
    let block = auth.block_defined
        || auth.user.is_some()
        || auth.token.is_some()
        || !auth.users.is_empty()
        || auth.timeout.is_some()
        || auth.default_permissions.is_some();
    options.accounts.len() == 1
        && options.accounts.contains_key(system)
        && !options.no_system_account
        && !block
        && auth.no_auth_user.is_none()
}
