//! From options to subscriptions: checks exports against imports and puts the imports in place.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::subject;
use windjet_protocol::transform::ImportTransform;

use super::service::ServiceImport;
use super::stream::StreamImport;
use crate::account::Account;
use crate::options::{AccountOptions, ExportKind, ExportOptions, ImportKind, ImportOptions};
use crate::router::{Service, Sink, Subscription};

/// One import in place: the account whose trie holds it, and the subscription.
#[derive(Debug)]
pub(crate) struct Link {
    account: Arc<Account>,
    subscription: Arc<Subscription>,
}

/// Puts the imports of all accounts in place.
///
/// # Errors
///
/// All that is wrong, one line each. Nothing is in place then.
pub(crate) fn link(
    accounts: &BTreeMap<String, Arc<Account>>,
    options: &BTreeMap<String, AccountOptions>,
) -> Result<Vec<Link>, Vec<String>> {
    let mut problems = Vec::new();
    let mut links = Vec::new();
    for (name, account_options) in options {
        let Some(importer) = accounts.get(name) else {
            continue;
        };
        for import in &account_options.imports {
            match one(importer, import, accounts, options) {
                Ok(link) => links.push(link),
                Err(problem) => problems.push(problem),
            }
        }
    }
    problems.extend(cycles(options));
    if !problems.is_empty() {
        return Err(problems);
    }
    for link in &links {
        link.account.subscribe(link.subscription.clone());
    }
    Ok(links)
}

/// Takes imports out again.
pub(crate) fn unlink(links: Vec<Link>) {
    for link in links {
        link.account.unsubscribe(&link.subscription);
    }
}

fn one(
    importer: &Arc<Account>,
    import: &ImportOptions,
    accounts: &BTreeMap<String, Arc<Account>>,
    options: &BTreeMap<String, AccountOptions>,
) -> Result<Link, String> {
    let kind = match import.kind {
        ImportKind::Stream { .. } => ExportKind::Stream,
        ImportKind::Service { .. } => ExportKind::Service,
    };
    let word = if kind == ExportKind::Stream {
        "stream"
    } else {
        "service"
    };
    let exporter = accounts
        .get(&import.account)
        .ok_or_else(|| format!("{:?} account not defined for {word} import", import.account))?;
    let refused = |why: &str| format!("Error adding {word} import {:?}: {why}", import.subject);
    let exports = options
        .get(&import.account)
        .map(|account| account.exports.as_slice())
        .unwrap_or_default();
    let export = exports
        .iter()
        .find(|export| export.kind == kind && allows(export, &importer.name, &import.subject))
        .ok_or_else(|| refused(&format!("{word} import not authorized")))?;
    let local = local_template(import);
    let rename = ImportTransform::new(&import.subject, &numbered(&local))
        .map_err(|error| refused(&error.to_string()))?;
    let (account, pattern, service): (_, _, Arc<dyn Service>) = match &import.kind {
        ImportKind::Stream { .. } => {
            let service = StreamImport {
                into: Arc::downgrade(importer),
                rename,
                allow_trace: import.allow_trace,
            };
            (
                exporter,
                Bytes::copy_from_slice(import.subject.as_bytes()),
                Arc::new(service),
            )
        }
        ImportKind::Service { share, .. } => {
            let mut pattern = Vec::new();
            if !rename.apply_filter(import.subject.as_bytes(), &mut pattern) {
                return Err(refused("invalid subject"));
            }
            let service = ServiceImport {
                from: Arc::downgrade(importer),
                into: Arc::downgrade(exporter),
                rename: rename.inverse().map_err(|error| refused(&error.to_string()))?,
                response_type: export.response_type,
                share: *share,
                allow_trace: export.allow_trace,
            };
            (importer, Bytes::from(pattern), Arc::new(service))
        }
    };
    let subscription = Arc::new(Subscription::new(
        pattern,
        None,
        Bytes::new(),
        0,
        account,
        Sink::Service(service),
    ));
    Ok(Link {
        account: account.clone(),
        subscription,
    })
}

/// Whether an export lets `importer` have `wanted`.
fn allows(export: &ExportOptions, importer: &str, wanted: &str) -> bool {
    let covered = subject::is_subset(wanted.as_bytes(), export.subject.as_bytes());
    let named = export.accounts.is_empty() || export.accounts.iter().any(|account| account == importer);
    let token_fits = export.account_token_position.is_none_or(|position| {
        position > 0 && subject::tokens(wanted.as_bytes()).nth(position - 1) == Some(importer.as_bytes())
    });
    covered && named && token_fits
}

/// The importer's name for what it imports, as a template over the wildcards of the exporter's subject.
fn local_template(import: &ImportOptions) -> String {
    match &import.kind {
        ImportKind::Stream { to: Some(to), .. } | ImportKind::Service { to: Some(to), .. } => to.clone(),
        ImportKind::Stream {
            prefix: Some(prefix), ..
        } => {
            format!("{}.{}", prefix.trim_end_matches('.'), import.subject)
        }
        ImportKind::Stream { .. } | ImportKind::Service { .. } => import.subject.clone(),
    }
}

/// A template with its `*` tokens numbered from left to right, as `$1`, `$2`.
fn numbered(template: &str) -> String {
    let mut count = 0;
    let tokens: Vec<String> = template
        .split('.')
        .map(|token| {
            if token == "*" {
                count += 1;
                format!("${count}")
            } else {
                token.to_owned()
            }
        })
        .collect();
    tokens.join(".")
}

/// Service imports that lead back to where they began.
fn cycles(options: &BTreeMap<String, AccountOptions>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, account) in options {
        for import in services(account) {
            if leads_back(name, import, options) {
                problems.push(format!(
                    "Error adding service import {:?}: import forms a cycle",
                    import.subject
                ));
            }
        }
    }
    problems
}

fn services(account: &AccountOptions) -> impl Iterator<Item = &ImportOptions> {
    account
        .imports
        .iter()
        .filter(|import| matches!(import.kind, ImportKind::Service { .. }))
}

/// Whether following an import through the accounts it reaches comes back to the import itself.
fn leads_back(owner: &str, import: &ImportOptions, options: &BTreeMap<String, AccountOptions>) -> bool {
    let mut reached = vec![(import.account.as_str(), import.subject.as_str())];
    let mut at = 0;
    while let Some(&(account, wanted)) = reached.get(at) {
        at += 1;
        let Some(account_options) = options.get(account) else {
            continue;
        };
        for next in services(account_options) {
            let local = plain(&local_template(next));
            if !subject::overlaps(local.as_bytes(), wanted.as_bytes()) {
                continue;
            }
            if account == owner && std::ptr::eq(next, import) {
                return true;
            }
            let step = (next.account.as_str(), next.subject.as_str());
            if !reached.contains(&step) {
                reached.push(step);
            }
        }
    }
    false
}

/// A template as the pattern of the subjects it makes.
fn plain(template: &str) -> String {
    let token = |token: &str| {
        if token.starts_with('$') && token[1..].bytes().all(|b| b.is_ascii_digit()) && token.len() > 1
            || token.starts_with("{{")
        {
            "*".to_owned()
        } else {
            token.to_owned()
        }
    };
    template.split('.').map(token).collect::<Vec<_>>().join(".")
}
