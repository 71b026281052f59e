//! [`Trust`]: from the operator to the user.
//!
//! A user is admitted when each link holds: the user's JWT is signed by its account or one of that account's signing
//! keys, the account's JWT by a trusted operator key, neither has ended, the user is not revoked, it signed the nonce
//! (or bears a token that its account accepts), and it comes from where, when and how it may.
//!
//! Account claims come from the preload of the options. A preloaded JWT that cannot be read is a mistake in the options;
//! one that is not trusted, or whose claims are invalid, only keeps its own users out, as in nats-server.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use nkeys::KeyPairType;

use super::account::unless_negative;
use super::claims::{Access, OperatorClaims, UserClaims};
use super::times::{Window, window};
use super::{
    ClaimedAccount, JwtError, checks, decode_account, decode_operator, decode_user, exchange, template,
};
use crate::auth::Permissions;
use crate::auth::authenticator::check_signature;
use crate::auth::credentials::{Attempt, Evidence};
use crate::auth::identity::{AuthFailure, Expires, Expiry, Identity, IdentityKind};
use crate::auth::nkey::is_public_key;
use crate::options::{ConnectionType, JwtOptions, Options};

/// Whom the server trusts and the accounts it knows.
#[derive(Debug, Default)]
pub(in crate::auth) struct Trust {
    operators: HashSet<String>,
    /// Signing keys of operators that are strict: their accounts' own keys do not sign users.
    strict: HashSet<String>,
    /// Accounts by public key, or why one is not usable.
    accounts: BTreeMap<String, Result<ClaimedAccount, String>>,
    system_account: Option<String>,
    sentinel: Option<String>,
}

impl Trust {
    /// Compiles the options; `None` when they trust nobody, which is not operator mode.
    pub(in crate::auth) fn compile(options: &Options, problems: &mut Vec<String>) -> Option<Self> {
        let jwt = options.auth.jwt.as_ref()?;
        let operators: Vec<OperatorClaims> = jwt
            .operators
            .iter()
            .filter_map(|text| {
                decode_operator(text)
                    .inspect_err(|error| problems.push(format!("error reading operator jwt: {error}")))
                    .ok()
            })
            .collect();
        if jwt.operators.is_empty() && jwt.trusted_keys.is_empty() {
            if jwt.default_sentinel.is_some() {
                problems.push("default sentinel requires operators and accounts".to_owned());
            }
            return None;
        }
        check_options(options, jwt, &operators, problems);
        let mut trust = Self {
            sentinel: jwt.default_sentinel.clone(),
            system_account: options.system_account.clone().or_else(|| {
                let mut claimed = operators.iter().map(|operator| &operator.body.system_account);
                claimed.find(|key| !key.is_empty()).cloned()
            }),
            ..Self::default()
        };
        trust.operators.extend(jwt.trusted_keys.iter().cloned());
        for operator in &operators {
            if operator.body.strict_signing_key_usage {
                trust.strict.extend(operator.body.signing_keys.iter().cloned());
            } else {
                trust.operators.insert(operator.common.subject.clone());
            }
            trust.operators.extend(operator.body.signing_keys.iter().cloned());
        }
        for operator in &operators {
            problems.extend(version_problem(operator));
        }
        for key in &trust.operators {
            if !is_public_key(key, &KeyPairType::Operator) {
                problems.push(format!(
                    "trusted Keys {key:?} are required to be a valid public operator nkey"
                ));
            }
        }
        for (id, token) in &jwt.preload {
            trust.preload(id, token, problems);
        }
        if let Some(system) = &trust.system_account
            && !trust.accounts.get(system).is_some_and(Result::is_ok)
        {
            problems.push("error resolving system account: account missing".to_owned());
        }
        Some(trust)
    }

    fn preload(&mut self, id: &str, token: &str, problems: &mut Vec<String>) {
        let claims = match decode_account(token) {
            Ok(claims) => claims,
            Err(error) => {
                problems.push(format!("preload account error for {id:?}: {error}"));
                return;
            }
        };
        let account = if claims.common.subject != id {
            Err("its claims are about another account".to_owned())
        } else if self.operators.contains(&claims.common.issuer) {
            let own_key_signs = !self.strict.contains(&claims.common.issuer);
            ClaimedAccount::compile(token, claims, own_key_signs)
        } else {
            Err("its claims are not signed by a trusted operator".to_owned())
        };
        self.accounts.insert(id.to_owned(), account);
    }

    /// Public key of the system account.
    pub(in crate::auth) fn system_account(&self) -> Option<&str> {
        self.system_account.as_deref()
    }

    /// The usable accounts, and one line for all that is not.
    pub(in crate::auth) fn accounts(&self, now: SystemTime) -> (Vec<ClaimedAccount>, Vec<String>) {
        let usable = self
            .accounts
            .iter()
            .filter_map(|(id, account)| Some((id.as_str(), account.as_ref().ok()?)))
            .collect();
        let (settled, mut left_out) = exchange::settle(&usable, now);
        left_out.extend(
            self.accounts.iter().filter_map(|(id, account)| {
                Some(format!("account {id} left out: {}", account.as_ref().err()?))
            }),
        );
        (settled, left_out)
    }

    /// Finds out who the client is by its user JWT.
    pub(in crate::auth) fn authenticate(
        &self,
        attempt: &Attempt<'_>,
        evidence: Evidence,
    ) -> Result<Identity, AuthFailure> {
        let (token, claims) = self.presented(attempt)?;
        checks::user(&claims).map_err(AuthFailure::InvalidJwt)?;
        if !claims.common.holds_at(attempt.now) {
            return Err(AuthFailure::UserExpired);
        }
        let account = self.account(claims.account())?;
        let access = access_of(&claims, account)?;
        if !account.claims.common.holds_at(attempt.now) {
            return Err(AuthFailure::AccountExpired);
        }
        if access.bearer_token && account.claims.body.limits.disallow_bearer {
            return Err(AuthFailure::BearerNotAllowed);
        }
        if !allows_connection(&access.allowed_connection_types, attempt.connection_type) {
            return Err(AuthFailure::ConnectionType);
        }
        if !access.bearer_token {
            check_signature(attempt, &claims.common.subject)?;
        }
        if account.has_revoked(&claims.common.subject, claims.common.issued_at) {
            return Err(AuthFailure::Revoked);
        }
        if !allows_source(&access.src, attempt.remote) {
            return Err(AuthFailure::SourceAddress);
        }
        let window_end = match window(&access.times, &access.times_location, attempt.now) {
            Window::Always => None,
            Window::Until(end) => Some(end),
            Window::Closed => return Err(AuthFailure::TimeOfDay),
        };
        let user_end = earlier(claims.common.expires_at(), window_end);
        identity(&claims, token, account, &access, user_end, evidence)
    }

    /// The user JWT of the client, or the one that stands in when it has none that can be read.
    fn presented<'a>(&'a self, attempt: &Attempt<'a>) -> Result<(&'a str, UserClaims), AuthFailure> {
        let invalid = |error: JwtError| AuthFailure::InvalidJwt(error.to_string());
        let given = attempt.credentials.jwt.reveal();
        match (decode_user(given), self.sentinel.as_deref()) {
            (Ok(claims), _) => Ok((given, claims)),
            (Err(_), Some(sentinel)) => Ok((sentinel, decode_user(sentinel).map_err(invalid)?)),
            (Err(_), None) if given.is_empty() => Err(AuthFailure::NoCredentials),
            (Err(error), None) => Err(invalid(error)),
        }
    }

    fn account(&self, id: &str) -> Result<&ClaimedAccount, AuthFailure> {
        match self.accounts.get(id) {
            Some(Ok(account)) => Ok(account),
            Some(Err(why)) => Err(AuthFailure::Account(why.clone())),
            None => Err(AuthFailure::Account("no such account".to_owned())),
        }
    }
}

/// What the user may do: its own claims, or the template of the scoped key that signed them.
fn access_of(claims: &UserClaims, account: &ClaimedAccount) -> Result<Access, AuthFailure> {
    let scope = account
        .signers
        .get(&claims.common.issuer)
        .ok_or(AuthFailure::Issuer)?;
    let mut access = match scope {
        None => claims.access.clone(),
        Some(_) if !claims.access.is_empty() => {
            let text = "scoped users require no permissions or limits set";
            return Err(AuthFailure::InvalidJwt(text.to_owned()));
        }
        Some(scope) => {
            let names = template::Names {
                user_name: &claims.common.name,
                user_key: &claims.common.subject,
                user_tags: &claims.common.tags,
                account_name: &account.claims.common.name,
                account_key: claims.account(),
                account_tags: &account.tags,
            };
            template::fill(scope, &names).map_err(AuthFailure::InvalidJwt)?
        }
    };
    if access.proxy_required {
        return Err(AuthFailure::InvalidJwt("a trusted proxy is required".to_owned()));
    }
    // Version 1 and templates leave a limit out when there is none, version 2 when it is zero.
    let absent = if scope.is_none() && claims.common.version == 2 {
        0
    } else {
        -1
    };
    access.subs.get_or_insert(absent);
    access.payload.get_or_insert(absent);
    Ok(access)
}

fn identity(
    claims: &UserClaims,
    token: &str,
    account: &ClaimedAccount,
    access: &Access,
    user_end: Option<SystemTime>,
    evidence: Evidence,
) -> Result<Identity, AuthFailure> {
    let permissions = match access.permissions.to_options() {
        Some(options) => {
            let compiled = Permissions::compile(&options);
            Some(Arc::new(
                compiled.map_err(|error| AuthFailure::InvalidJwt(error.to_string()))?,
            ))
        }
        None => account.default_permissions.clone(),
    };
    let kind = if access.bearer_token {
        IdentityKind::BearerJwt
    } else {
        IdentityKind::Jwt
    };
    let end = |at: Option<SystemTime>, of| at.map(|at| Expiry { at, of });
    let ends = [
        end(user_end, Expires::User),
        end(account.expires_at, Expires::Account),
    ];
    Ok(Identity {
        account_name: account.name.clone(),
        permissions,
        max_payload: access.payload.and_then(unless_negative),
        max_subscriptions: access.subs.and_then(unless_negative),
        expiry: ends.into_iter().flatten().min_by_key(|expiry| expiry.at),
        user_expires_at: user_end,
        issuer_key: Some(claims.common.issuer.clone()),
        user_name: Some(claims.common.name.clone()).filter(|name| !name.is_empty()),
        tags: claims.common.tags.clone(),
        jwt: Some(token.into()),
        ..Identity::new(kind, claims.common.subject.clone(), account.id.clone(), evidence)
    })
}

fn earlier(a: Option<SystemTime>, b: Option<SystemTime>) -> Option<SystemTime> {
    a.into_iter().chain(b).min()
}

/// Kinds this server does not know are ignored, unless nothing else is listed: then the user is meant for other servers.
fn allows_connection(allowed: &[String], connection_type: ConnectionType) -> bool {
    let name = match connection_type {
        ConnectionType::Standard => "STANDARD",
        ConnectionType::WebSocket => "WEBSOCKET",
        ConnectionType::Leafnode => "LEAFNODE",
        ConnectionType::LeafnodeWs => "LEAFNODE_WS",
        ConnectionType::Mqtt => "MQTT",
        ConnectionType::MqttWs => "MQTT_WS",
        ConnectionType::InProcess => "IN_PROCESS",
    };
    allowed.is_empty() || allowed.iter().any(|kind| kind.eq_ignore_ascii_case(name))
}

fn allows_source(networks: &[String], remote: Option<IpAddr>) -> bool {
    if networks.is_empty() {
        return true;
    }
    let Some(remote) = remote.map(|remote| remote.to_canonical()) else {
        return false;
    };
    networks.iter().any(|network| {
        network
            .parse::<IpNet>()
            .is_ok_and(|network| network.contains(&remote))
    })
}

/// An operator may ask for a lowest version of the server.
fn version_problem(operator: &OperatorClaims) -> Option<String> {
    let asked = &operator.body.assert_server_version;
    if asked.is_empty() {
        return None;
    }
    let parse = |text: &str| -> Option<Vec<u32>> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() == 3)
    };
    let (subject, own) = (&operator.common.subject, crate::PROTOCOL_VERSION);
    match parse(asked) {
        None => Some(format!(
            "operator {subject} expects version {asked}, which is not of the form major.minor.update"
        )),
        numbers if numbers > parse(own) => Some(format!(
            "operator {subject} expected version {asked} > server version {own}"
        )),
        _ => None,
    }
}

fn check_options(
    options: &Options,
    jwt: &JwtOptions,
    operators: &[OperatorClaims],
    problems: &mut Vec<String>,
) {
    let mut refuse = |when: bool, text: &str| {
        if when {
            problems.push(text.to_owned());
        }
    };
    refuse(
        !options.accounts.is_empty(),
        "operators do not allow Accounts to be configured directly",
    );
    refuse(
        !options.auth.users.is_empty(),
        "operators do not allow users to be configured directly",
    );
    refuse(
        !jwt.operators.is_empty() && !jwt.trusted_keys.is_empty(),
        "conflicting options for 'TrustedKeys' and 'TrustedOperators'",
    );
    if let Some(system) = &options.system_account {
        let claimed: Vec<&String> = operators
            .iter()
            .map(|operator| &operator.body.system_account)
            .filter(|key| !key.is_empty())
            .collect();
        refuse(
            !claimed.is_empty() && !claimed.contains(&system),
            "system_account in config and operator JWT must be identical",
        );
    }
    if let Some(sentinel) = &jwt.default_sentinel {
        match decode_user(sentinel) {
            Err(_) => refuse(true, "default sentinel JWT not valid"),
            // One of a scoped key may get the right from its template; that shows when it is used.
            Ok(claims) => {
                let may_be_scoped = claims.access.is_empty() && !claims.issuer_account.is_empty();
                refuse(
                    !claims.access.bearer_token && !may_be_scoped,
                    "default sentinel must be a bearer token",
                );
            }
        }
    }
}
