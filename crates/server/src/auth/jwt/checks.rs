//! What makes claims invalid as a whole, whoever signed them and whatever the time.

use ipnet::IpNet;
use nkeys::KeyPairType;
use windjet_protocol::subject::{
    has_wildcards, is_literal, is_subset, is_valid_subscription, overlaps, tokens,
};

use super::claims::{
    Access, Account, Export, Import, Kind, Mapping, PermissionClaims, SigningKey, Trace, UserClaims,
};
use super::{decode_activation, times};
use crate::auth::Permissions;
use crate::auth::nkey::is_public_key;

/// Checks a user's claims.
///
/// # Errors
///
/// The first thing that is wrong.
pub(super) fn user(claims: &UserClaims) -> Result<(), String> {
    if !claims.issuer_account.is_empty() {
        account_key(&claims.issuer_account)?;
    }
    if !is_public_key(&claims.common.subject, &KeyPairType::User) {
        return Err("subject is not a user public key".to_owned());
    }
    access(&claims.access)
}

fn access(access: &Access) -> Result<(), String> {
    permissions(&access.permissions)?;
    for network in &access.src {
        network
            .parse::<IpNet>()
            .map_err(|_| format!("invalid cidr {network:?} in user src limits"))?;
    }
    for range in &access.times {
        for time in [&range.start, &range.end] {
            times::time_of_day(time).ok_or_else(|| format!("time in time range is invalid {time:?}"))?;
        }
    }
    if !access.times_location.is_empty() {
        times::zone(&access.times_location)
            .map_err(|error| format!("could not parse iana time zone by name: {error}"))?;
    }
    Ok(())
}

fn permissions(claims: &PermissionClaims) -> Result<(), String> {
    match claims.to_options() {
        Some(options) => Permissions::compile(&options)
            .map(drop)
            .map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// Checks an account's claims; `id` is its public key.
///
/// # Errors
///
/// The first thing that is wrong.
pub(super) fn account(id: &str, account: &Account) -> Result<(), String> {
    account_key(id)?;
    if !account.authorization.auth_users.is_empty() {
        return Err("authorization by a callout service is not supported".to_owned());
    }
    for key in &account.signing_keys {
        account_key(key.key())?;
        if let SigningKey::Scoped(scope) = key
            && scope.kind != "user_scope"
        {
            return Err(format!("unknown signing key scope {:?}", scope.kind));
        }
    }
    permissions(&account.default_permissions)?;
    for (source, destinations) in &account.mappings {
        mapping(source, destinations)?;
    }
    if let Some(Trace { dest, sampling }) = &account.trace {
        if !is_literal(dest.as_bytes()) {
            return Err(format!(
                "trace destination {dest:?} is not a valid publish subject"
            ));
        }
        if !(0..=100).contains(sampling) {
            return Err(format!("trace sampling {sampling} is not in the range [1..100]"));
        }
    }
    exports(account)?;
    imports(id, account)
}

fn account_key(key: &str) -> Result<(), String> {
    if is_public_key(key, &KeyPairType::Account) {
        Ok(())
    } else {
        Err(format!("{key:?} is not an account public key"))
    }
}

fn mapping(source: &str, destinations: &[Mapping]) -> Result<(), String> {
    subject(source)?;
    let weight = |mapping: &Mapping| match mapping.weight {
        0 => 100,
        weight => u32::from(weight),
    };
    let general = destinations.iter().filter(|mapping| mapping.cluster.is_empty());
    if general.map(weight).sum::<u32>() > 100 {
        return Err(format!(
            "mapping {source:?} exceeds 100% among all of its weighted destinations"
        ));
    }
    Ok(())
}

fn exports(account: &Account) -> Result<(), String> {
    let limits = &account.limits;
    over_limit("exports", account.exports.len(), limits.exports)?;
    for export in &account.exports {
        subject(&export.subject)?;
        if export.kind == Kind::Unknown {
            return Err(format!("export {:?} has no type", export.subject));
        }
        if limits.exports != -1 && !limits.wildcards && has_wildcards(export.subject.as_bytes()) {
            return Err(
                "the account contains wildcard exports that are not allowed by the operator".to_owned(),
            );
        }
        response(export)?;
        account_token(export)?;
    }
    for (at, export) in account.exports.iter().enumerate() {
        let contained = account.exports.iter().enumerate().any(|(other_at, other)| {
            other_at != at
                && other.kind == export.kind
                && is_subset(export.subject.as_bytes(), other.subject.as_bytes())
        });
        if contained {
            return Err(format!("export subject {:?} is already exported", export.subject));
        }
    }
    Ok(())
}

fn response(export: &Export) -> Result<(), String> {
    let service = export.kind == Kind::Service;
    let known = match export.response_type.as_str() {
        "" => true,
        "Singleton" | "Stream" | "Chunked" => service,
        _ => false,
    };
    if !known {
        return Err(format!("invalid response type {:?}", export.response_type));
    }
    if export.response_threshold < 0 || (export.response_threshold > 0 && !service) {
        return Err("invalid response threshold".to_owned());
    }
    Ok(())
}

fn account_token(export: &Export) -> Result<(), String> {
    let Some(position) = export.account_token_position.checked_sub(1) else {
        return Ok(());
    };
    if tokens(export.subject.as_bytes()).nth(position) == Some(b"*") {
        Ok(())
    } else {
        Err(format!(
            "account token position does not match a * in {:?}",
            export.subject
        ))
    }
}

fn imports(id: &str, account: &Account) -> Result<(), String> {
    over_limit("imports", account.imports.len(), account.limits.imports)?;
    let mut services: Vec<(&str, String)> = Vec::new();
    for import in &account.imports {
        one_import(id, import)?;
        if import.kind != Kind::Service {
            continue;
        }
        let named = if !import.to.is_empty() {
            import.to.clone()
        } else if !import.local_subject.is_empty() {
            references_as_wildcards(&import.local_subject)
        } else {
            import.subject.clone()
        };
        let taken = services
            .iter()
            .any(|(from, other)| *from == import.account && overlaps(other.as_bytes(), named.as_bytes()));
        if taken {
            return Err(format!(
                "overlapping subject namespace for {named:?} in account {:?}",
                import.account
            ));
        }
        services.push((&import.account, named));
    }
    Ok(())
}

fn one_import(id: &str, import: &Import) -> Result<(), String> {
    subject(&import.subject)?;
    if import.kind == Kind::Unknown {
        return Err(format!("import {:?} has no type", import.subject));
    }
    if import.account.is_empty() {
        return Err("account to import from is not specified".to_owned());
    }
    if import.share && import.kind == Kind::Stream {
        return Err("sharing information is only valid for services".to_owned());
    }
    for local in [&import.to, &import.local_subject] {
        if !local.is_empty() {
            subject(&references_as_wildcards(local))?;
        }
    }
    if !import.local_subject.is_empty() {
        if !import.to.is_empty() {
            return Err("local subject replaces to".to_owned());
        }
        same_wildcards(&import.subject, &references_as_wildcards(&import.local_subject))?;
    }
    if !import.token.is_empty() {
        activation(id, import)?;
    }
    Ok(())
}

/// The part of the check of an activation that needs only the importer. Trust and time come with the exporter.
fn activation(id: &str, import: &Import) -> Result<(), String> {
    let claims = decode_activation(&import.token).map_err(|error| {
        format!(
            "import {:?} contains an invalid activation token: {error}",
            import.subject
        )
    })?;
    let by_exporter = [&claims.common.issuer, &claims.body.issuer_account].contains(&&import.account);
    let fits = by_exporter
        && claims.common.subject == id
        && claims.body.kind == import.kind
        && is_valid_subscription(claims.body.subject.as_bytes())
        && is_subset(import.remote_subject().as_bytes(), claims.body.subject.as_bytes());
    if fits {
        Ok(())
    } else {
        Err(format!(
            "activation token doesn't match import {:?}",
            import.subject
        ))
    }
}

fn over_limit(what: &str, count: usize, limit: i64) -> Result<(), String> {
    if limit == -1 || i64::try_from(count).is_ok_and(|count| count <= limit) {
        Ok(())
    } else {
        Err(format!(
            "the account contains more {what} than allowed by the operator"
        ))
    }
}

fn subject(text: &str) -> Result<(), String> {
    if is_valid_subscription(text.as_bytes()) {
        Ok(())
    } else {
        Err(format!("subject {text:?} is not valid"))
    }
}

/// A local subject may name the wildcards of the remote one as `$1`, `$2`; as a pattern each is a `*`.
fn references_as_wildcards(subject: &str) -> String {
    let is_reference = |token: &str| {
        token
            .strip_prefix('$')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let replaced: Vec<&str> = subject
        .split('.')
        .map(|token| if is_reference(token) { "*" } else { token })
        .collect();
    replaced.join(".")
}

/// Both subjects end in `>` or neither does, and both have as many `*`.
fn same_wildcards(remote: &str, local: &str) -> Result<(), String> {
    let count = |subject: &str, token: &[u8]| tokens(subject.as_bytes()).filter(|t| *t == token).count();
    if [&b"*"[..], b">"]
        .iter()
        .all(|token| count(remote, token) == count(local, token))
    {
        Ok(())
    } else {
        Err(format!(
            "local subject {local:?} does not have the wildcards of {remote:?}"
        ))
    }
}
