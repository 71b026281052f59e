//! Checks across options, all problems reported at once.
//!
//! A configuration file is checked for what it says when it is read; here is checked what holds for every set
//! of options, wherever they came from. nats-server makes these checks when it starts, not with `-t`.

use windjet_protocol::subject::is_valid_subscription;
use windjet_protocol::transform::{Mapping, MappingError};
use windjet_protocol::wire::errors;

use super::{
    GLOBAL_ACCOUNT, MappingOptions, Options, SYSTEM_ACCOUNT, TlsOptions, WebSocketOptions, check_sharing,
};
use crate::auth::Authenticator;
use crate::config::format_duration;

/// Below it the journal could not take a message of the usual largest size and its headers.
const STORAGE_BUDGET_MIN: u64 = 32 << 20;
/// For messages that may not be so large.
const STORAGE_BUDGET_LEAST: u64 = 4 << 20;

/// What is wrong with a set of options: one line a problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.join("; "))]
pub struct OptionsError {
    /// The problems, in the words of nats-server where it has the same check.
    pub problems: Vec<String>,
}

impl Options {
    /// Checks the options against each other.
    ///
    /// # Errors
    ///
    /// All problems at once, in the words of nats-server where it has the same check.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let mut problems = Vec::new();
        self.check_numbers(&mut problems);
        if let Err(error) = Authenticator::from_options(self) {
            problems.extend(error.problems);
        }
        self.check_accounts(&mut problems);
        self.check_listeners(&mut problems);
        self.check_jetstream(&mut problems);
        if problems.is_empty() {
            Ok(())
        } else {
            Err(OptionsError { problems })
        }
    }

    fn check_numbers(&self, problems: &mut Vec<String>) {
        if self.lame_duck_grace_period >= self.lame_duck_duration {
            problems.push(format!(
                "lame duck grace period ({}) should be strictly lower than lame duck duration ({})",
                format_duration(self.lame_duck_grace_period),
                format_duration(self.lame_duck_duration)
            ));
        }
        if self.max_payload > i64::try_from(self.max_pending).unwrap_or(i64::MAX) {
            problems.push(format!(
                "max_payload ({}) cannot be higher than max_pending ({})",
                self.max_payload, self.max_pending
            ));
        }
        if self.server_name.as_deref().is_some_and(|name| name.contains(' ')) {
            problems.push("server name cannot contain spaces".to_owned());
        }
    }

    fn check_accounts(&self, problems: &mut Vec<String>) {
        if let Some(name) = &self.system_account
            && self.auth.jwt.is_none()
            && !self.no_system_account
            && name != SYSTEM_ACCOUNT
            && !self.accounts.contains_key(name)
        {
            problems.push("error resolving system account: account missing".to_owned());
        }
        for name in self.default_js_domain.keys() {
            let known =
                [GLOBAL_ACCOUNT, SYSTEM_ACCOUNT].contains(&name.as_str()) || self.accounts.contains_key(name);
            if !known && self.auth.jwt.is_none() {
                problems.push(format!(
                    "in non operator mode, `default_js_domain` references non existing account {name:?}"
                ));
            }
        }
        let mappings = self.accounts.values().flat_map(|account| &account.mappings);
        for mapping in self.mappings.iter().chain(mappings) {
            if let Err(reason) = check_mapping(mapping) {
                let to = match mapping.destinations.as_slice() {
                    [only] if only.weight == 100 => format!(" to {:?}", only.subject),
                    _ => String::new(),
                };
                problems.push(format!(
                    "Error adding mapping for {:?}{to} : {reason}",
                    mapping.source
                ));
            }
        }
        problems.extend(check_sharing(&self.accounts));
    }

    fn check_listeners(&self, problems: &mut Vec<String>) {
        if let (Some(http), Some(https)) = (&self.monitoring.http, &self.monitoring.https) {
            let shown = |port: Option<u16>| port.map_or(-1, i32::from);
            problems.push(format!(
                "can't specify both HTTP ({}) and HTTPs ({}) ports",
                shown(http.port),
                shown(https.port)
            ));
        }
        if self.monitoring.https.is_some() && self.tls.is_none() {
            problems.push("TLS cert and key required for HTTPS".to_owned());
        }
        if let Some(problem) = self.client_advertise.as_deref().and_then(check_advertise) {
            problems.push(problem);
        }
        if let Some(tls) = &self.tls {
            check_pins(tls, "", problems);
        }
        if let Some(websocket) = &self.websocket {
            check_websocket(websocket, problems);
        }
    }

    fn check_jetstream(&self, problems: &mut Vec<String>) {
        let least = u64::try_from(self.max_payload)
            .unwrap_or(0)
            .saturating_mul(32)
            .clamp(STORAGE_BUDGET_LEAST, STORAGE_BUDGET_MIN);
        if let Some(budget) = self.storage_budget.filter(|budget| *budget < least) {
            problems.push(format!(
                "storage_budget ({budget}) must be at least {least} bytes"
            ));
        }
        let Some(jetstream) = &self.jetstream else {
            return;
        };
        let system = self.system_account.as_deref().unwrap_or(SYSTEM_ACCOUNT);
        if self
            .accounts
            .get(system)
            .is_some_and(|account| account.jetstream.is_some())
        {
            problems.push("Not allowed to enable JetStream on the system account".to_owned());
        }
        if let Some(domain) = &jetstream.domain {
            let derived = format!("$JS.{domain}.API.>");
            if !is_valid_subscription(derived.as_bytes()) {
                problems.push(format!(
                    "invalid domain name: derived {derived:?} is not a valid subject"
                ));
            } else if domain.contains(['.', '*', '>']) {
                problems.push("invalid domain name: may not contain ., * or >".to_owned());
            }
        }
    }
}

/// Checks one mapping. The error completes `Error adding mapping for "source" : `.
pub(crate) fn check_mapping(mapping: &MappingOptions) -> Result<(), MappingError> {
    let destinations = mapping
        .destinations
        .iter()
        .map(|to| (to.subject.as_str(), u32::from(to.weight)));
    Mapping::weighted(&mapping.source, destinations).map(drop)
}

/// Why clients cannot be told this address, in nats-server's words.
fn check_advertise(advertise: &str) -> Option<String> {
    let error = if !advertise.contains('[') && advertise.matches(':').count() > 1 {
        format!("address {advertise}: too many colons in address")
    } else {
        let (_, port) = advertise
            .rsplit_once(':')
            .filter(|(_, port)| !port.ends_with(']'))?;
        if port.parse::<u16>().is_ok() {
            return None;
        }
        format!(
            "strconv.Atoi: parsing {}: invalid syntax",
            errors::quote(port.as_bytes())
        )
    };
    Some(format!(
        "Error setting server INFO with ClientAdvertise value of {advertise}, err={error}"
    ))
}

fn check_pins(tls: &TlsOptions, prefix: &str, problems: &mut Vec<String>) {
    for pin in &tls.pinned_certs {
        if pin.len() != 64 || !pin.bytes().all(|b| b.is_ascii_hexdigit()) {
            problems.push(format!(
                "{prefix}error parsing 'pinned_certs' key {} does not look like lower case hex-encoded \
                 sha256 of DER encoded SubjectPublicKeyInfo",
                pin.to_lowercase()
            ));
        }
    }
}

fn check_websocket(websocket: &WebSocketOptions, problems: &mut Vec<String>) {
    match &websocket.tls {
        Some(tls) => check_pins(tls, "websocket: ", problems),
        None if websocket.no_tls => {}
        None => problems.push("websocket requires TLS configuration".to_owned()),
    }
    for origin in &websocket.allowed_origins {
        if let Err(reason) = check_origin(origin) {
            problems.push(format!("unable to parse allowed origin{reason}"));
        }
    }
    for name in websocket.headers.keys() {
        let lower = name.to_ascii_lowercase();
        let reserved = [
            "host",
            "content-length",
            "connection",
            "upgrade",
            "nats-no-masking",
        ];
        if reserved.contains(&lower.as_str()) {
            problems.push(format!("websocket: invalid header {name:?} not allowed"));
        } else if lower.starts_with("sec-websocket-") {
            problems.push(format!(
                "websocket: invalid header {name:?}, \"Sec-WebSocket-\" prefix not allowed"
            ));
        }
    }
}

/// An origin is `http://host[:port]` or `https://host[:port]`.
fn check_origin(origin: &str) -> Result<(), String> {
    let invalid = || format!(": parse {origin:?}: invalid URI for request");
    let (scheme, host) = match origin.split_once(':') {
        _ if origin.starts_with('/') => ("", ""),
        Some((scheme, rest)) => {
            let host = rest.strip_prefix("//").ok_or_else(invalid)?;
            (scheme, host.split(['/', '?']).next().unwrap_or_default())
        }
        None => return Err(invalid()),
    };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(format!(
            " {origin:?}: allowed origins must be absolute URLs with http or https scheme"
        ));
    }
    if host.is_empty() {
        return Err(format!(" {origin:?}: host is required"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_clients_cannot_be_told_is_refused() {
        for good in [
            "example.test",
            "example.test:4222",
            "10.0.0.1:1",
            "[::1]:4222",
            "[::1]",
        ] {
            assert_eq!(check_advertise(good), None, "{good}");
        }
        for (bad, why) in [
            ("x:y", "strconv.Atoi: parsing \"y\": invalid syntax"),
            ("a:b:1", "address a:b:1: too many colons in address"),
        ] {
            assert!(check_advertise(bad).unwrap().ends_with(why), "{bad}");
        }
    }
}
