//! Exports and imports between claimed accounts.
//!
//! The claims of an account are the wishes of one side. What the server builds must fit together, or it would refuse to
//! start because of one account's mistake: an import that no account exports, or that needs an activation it does not
//! have, is left out here and reported. An export that needs activations becomes one that is restricted to the
//! exporter itself and the importers that are activated.
//!
//! Activations end and are revoked like other claims; they are judged at the time given, which is that of the start or
//! of the last reload.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::SystemTime;

use windjet_protocol::subject::{is_subset, tokens};

use super::account::{ClaimedAccount, is_revoked};
use super::claims::{Export, Import};
use super::decode_activation;

/// The accounts with exports and imports that fit together, and one line for each import that was left out.
pub(super) fn settle<'a>(
    accounts: &BTreeMap<&'a str, &'a ClaimedAccount>,
    now: SystemTime,
) -> (Vec<ClaimedAccount>, Vec<String>) {
    let mut left_out = Vec::new();
    let mut settled: BTreeMap<&str, ClaimedAccount> = accounts
        .iter()
        .map(|(id, account)| (*id, ClaimedAccount::clone(account)))
        .collect();
    for (id, account) in accounts {
        for (at, export) in account.claims.body.exports.iter().enumerate() {
            if export.token_req
                && let Some(exporter) = settled.get_mut(id)
            {
                debug_assert_eq!(exporter.options.exports[at].subject, export.subject);
                exporter.options.exports[at].accounts.push((*id).to_owned());
            }
        }
    }
    for (importer_id, importer) in accounts {
        let mut kept = Vec::new();
        for (at, import) in importer.claims.body.imports.iter().enumerate() {
            let found = accounts
                .get(import.account.as_str())
                .ok_or_else(|| "no such account".to_owned())
                .and_then(|exporter| admit(importer_id, import, exporter, now));
            match found {
                Ok(export_at) => {
                    kept.push(importer.options.imports[at].clone());
                    let exporter = settled.get_mut(import.account.as_str());
                    if let Some(exporter) = exporter
                        && exporter.claims.body.exports[export_at].token_req
                    {
                        let allowed = &mut exporter.options.exports[export_at].accounts;
                        if !allowed.iter().any(|account| account == importer_id) {
                            allowed.push((*importer_id).to_owned());
                        }
                    }
                }
                Err(why) => left_out.push(format!(
                    "import of {:?} from account {} into account {importer_id} left out: {why}",
                    import.subject, import.account
                )),
            }
        }
        if let Some(account) = settled.get_mut(importer_id) {
            account.options.imports = kept;
        }
    }
    (settled.into_values().collect(), left_out)
}

/// The index of the export that serves the import.
fn admit(
    importer_id: &str,
    import: &Import,
    exporter: &ClaimedAccount,
    now: SystemTime,
) -> Result<usize, String> {
    let remote = import.remote_subject().as_bytes();
    let (at, export) = exporter
        .claims
        .body
        .exports
        .iter()
        .enumerate()
        .find(|(_, export)| export.kind == import.kind && is_subset(remote, export.subject.as_bytes()))
        .ok_or_else(|| "not exported".to_owned())?;
    if let Some(position) = export.account_token_position.checked_sub(1)
        && tokens(remote).nth(position) != Some(importer_id.as_bytes())
    {
        return Err("the subject does not name the importing account".to_owned());
    }
    if export.token_req {
        check_activation(import, export, exporter, now)?;
    }
    Ok(at)
}

/// What the importer alone could check of the token was checked with its claims.
fn check_activation(
    import: &Import,
    export: &Export,
    exporter: &ClaimedAccount,
    now: SystemTime,
) -> Result<(), String> {
    let claims = decode_activation(&import.token).map_err(|error| format!("no activation token: {error}"))?;
    let issuer = &claims.common.issuer;
    let trusted = if claims.body.issuer_account.is_empty() {
        **issuer == *exporter.id
    } else {
        *claims.body.issuer_account == *exporter.id && exporter.signers.contains_key(issuer)
    };
    if !trusted {
        Err("activation token issuer is not known to the exporting account".to_owned())
    } else if !claims.common.holds_at(now) {
        Err("activation token has expired or is not valid yet".to_owned())
    } else if is_revoked(
        &export.revocations,
        &claims.common.subject,
        claims.common.issued_at,
    ) {
        Err("activation token is revoked".to_owned())
    } else {
        Ok(())
    }
}
