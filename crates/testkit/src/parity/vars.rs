//! Variables in scripts: `${name}`.
//!
//! | variable | value |
//! |---|---|
//! | `${dir}` | the server's folder |
//! | `${port}`, `${http}`, `${ws}` | its ports |
//! | `${pid}` | its process id |
//! | `${id}` | its server id |
//! | `${cid:c}`, `${nonce:c}` | client id and nonce of the connection `c` |
//! | `${pub:k}`, `${seed:k}` | a key's public form and its seed |
//! | `${sig:k}`, `${sigstd:k}` | this connection's nonce signed, URL-safe or standard base64 |
//! | `${jwt:t}` | a token |
//! | `${now}`, `${now+N}`, `${now-N}` | Unix time in seconds, moved by N |
//! | `${utc}`, `${utc+N}`, `${utc-N}` | time as in RFC 3339, moved by N milliseconds |
//!
//! and whatever `set` and `capture` have put there.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use nkeys::KeyPair;

use crate::keys;

use super::script::Script;

/// The variables of one run of one script.
#[derive(Default)]
pub(super) struct Vars {
    values: BTreeMap<String, String>,
    keys: BTreeMap<String, KeyPair>,
}

impl Vars {
    /// Makes the keys and tokens that the script names.
    pub(super) fn of(script: &Script) -> Result<Self> {
        let mut vars = Self::default();
        for (name, kind) in &script.keys {
            vars.keys.insert(name.clone(), keys::key(name, kind)?);
        }
        for token in &script.tokens {
            let claims = vars.fill(&token.claims, None)?;
            let jwt = keys::jwt(vars.key(&token.issuer)?, &claims)?;
            vars.set(&format!("jwt:{}", token.name), &jwt);
        }
        Ok(vars)
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.to_owned());
    }

    /// Puts values in the places of variables; `nonce` is that of the connection the text goes to.
    pub(super) fn fill(&self, text: &str, nonce: Option<&str>) -> Result<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let (name, after) = behind.split_once('}').context("a variable without an end")?;
            out.push_str(before);
            out.push_str(&self.value(name, nonce)?);
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn value(&self, name: &str, nonce: Option<&str>) -> Result<String> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        let nonce = || nonce.context("this connection has no nonce");
        match name.split_once(':') {
            Some(("pub", key)) => Ok(self.key(key)?.public_key()),
            Some(("seed", key)) => self.key(key)?.seed().context("a seed"),
            Some(("sig", key)) => keys::signature(self.key(key)?, nonce()?, false),
            Some(("sigstd", key)) => keys::signature(self.key(key)?, nonce()?, true),
            _ if name.starts_with("utc") => {
                let shift = &name["utc".len()..];
                let shift: i64 = if shift.is_empty() {
                    0
                } else {
                    shift.parse().context("a number of milliseconds")?
                };
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
                Ok(utc(u64::try_from(i64::try_from(now)? + shift)?))
            }
            _ => {
                let shift = name
                    .strip_prefix("now")
                    .with_context(|| format!("there is no variable {name}"))?;
                let shift: i64 = if shift.is_empty() {
                    0
                } else {
                    shift.parse().context("a number of seconds")?
                };
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
                Ok((i64::try_from(now)? + shift).to_string())
            }
        }
    }

    fn key(&self, name: &str) -> Result<&KeyPair> {
        self.keys
            .get(name)
            .with_context(|| format!("there is no key {name}"))
    }
}

/// A Unix time in milliseconds as RFC 3339 writes it.
fn utc(millis: u64) -> String {
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // Years are counted from March, so that a leap day comes last; eras have 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + later;
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    let (seconds, millis) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (1_796_169_599_999, "2026-12-01T23:59:59.999Z"),
        ] {
            assert_eq!(utc(millis), text);
        }
    }

    #[test]
    fn values_take_the_places_of_variables() {
        let mut vars = Vars::default();
        vars.set("a", "1");
        vars.keys.insert("k".to_owned(), keys::key("k", "user").unwrap());
        assert_eq!(
            vars.fill("x${a}y${a}$G {{wildcard(1)}}", None).unwrap(),
            "x1y1$G {{wildcard(1)}}"
        );
        assert!(vars.fill("${pub:k}", None).unwrap().starts_with('U'));
        assert_eq!(vars.fill("${sig:k}", Some("n")).unwrap().len(), 86);
        assert!(vars.fill("${sig:k}", None).is_err());
        assert!(vars.fill("${b}", None).is_err());
        let hour = vars.fill("${now+3600}", None).unwrap().parse::<u64>().unwrap();
        assert!(hour > 1_700_000_000);
    }
}
