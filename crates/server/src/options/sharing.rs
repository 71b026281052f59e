//! Checks of exports and imports across accounts: they must name accounts that exist, import only what is
//! exported to them, and form no cycle.

use std::collections::{BTreeMap, BTreeSet};

use windjet_protocol::subject::{has_wildcards, is_subset, is_valid_subscription, overlaps};
use windjet_protocol::transform::ImportTransform;

use super::{AccountOptions, ExportKind, ExportOptions, ImportKind, ImportOptions};

type Accounts = BTreeMap<String, AccountOptions>;

/// Everything that is wrong with exports and imports, in nats-server's words.
pub(crate) fn check_sharing(accounts: &Accounts) -> Vec<String> {
    let mut problems = Vec::new();
    for account in accounts.values() {
        for export in &account.exports {
            check_export(accounts, export, &mut problems);
        }
    }
    // Cycles are looked for among the imports accepted so far, so each cycle is reported once.
    let mut accepted = Vec::new();
    for (name, account) in accounts {
        for import in &account.imports {
            let import = Edge::new(name, import);
            match import.check(accounts, &accepted) {
                Ok(()) => accepted.push(import),
                Err(problem) => problems.push(problem),
            }
        }
    }
    problems
}

fn kind_name(kind: ExportKind) -> &'static str {
    match kind {
        ExportKind::Stream => "stream",
        ExportKind::Service => "service",
    }
}

fn check_export(accounts: &Accounts, export: &ExportOptions, problems: &mut Vec<String>) {
    let kind = kind_name(export.kind);
    for name in &export.accounts {
        if !accounts.contains_key(name) {
            problems.push(format!("{name:?} account not defined for {kind} export"));
        }
    }
    if let Some(position) = export.account_token_position {
        let token = export.subject.split('.').nth(position.saturating_sub(1));
        if token != Some("*") {
            problems.push(format!(
                "Error adding {kind} export {:?}: sublist: invalid subject",
                export.subject
            ));
        }
    }
}

/// An import as a connection from the exporting account to the importing one.
struct Edge<'a> {
    importer: &'a str,
    exporter: &'a str,
    kind: ExportKind,
    /// The subject in the exporting account.
    remote: &'a str,
    /// The subject in the importing account.
    local: String,
    prefix: Option<&'a str>,
}

impl<'a> Edge<'a> {
    fn new(importer: &'a str, import: &'a ImportOptions) -> Self {
        let remote = import.subject.as_str();
        let (kind, local, prefix) = match &import.kind {
            ImportKind::Stream {
                prefix: Some(prefix), ..
            } => {
                let local = format!("{}.{remote}", prefix.trim_end_matches('.'));
                (ExportKind::Stream, local, Some(prefix.as_str()))
            }
            ImportKind::Stream { to, .. } => (
                ExportKind::Stream,
                to.as_deref().unwrap_or(remote).to_owned(),
                None,
            ),
            ImportKind::Service { to, .. } => (
                ExportKind::Service,
                to.as_deref().unwrap_or(remote).to_owned(),
                None,
            ),
        };
        Self {
            importer,
            exporter: &import.account,
            kind,
            remote,
            local,
            prefix,
        }
    }

    fn check(&self, accounts: &Accounts, accepted: &[Edge<'_>]) -> Result<(), String> {
        let kind = kind_name(self.kind);
        let Some(exporter) = accounts.get(self.exporter) else {
            return Err(format!(
                "{:?} account not defined for {kind} import",
                self.exporter
            ));
        };
        let refuse = |reason: &str| Err(format!("Error adding {kind} import {:?}: {reason}", self.remote));
        let service = self.kind == ExportKind::Service;
        if service
            && !(is_valid_subscription(self.remote.as_bytes())
                && is_valid_subscription(self.local.as_bytes()))
        {
            return refuse("sublist: invalid subject");
        }
        if !self.is_authorized(exporter) {
            return refuse(&format!("{kind} import not authorized"));
        }
        if self.prefix.is_some_and(|prefix| has_wildcards(prefix.as_bytes())) {
            return refuse("stream import prefix can not contain wildcard tokens");
        }
        let same = |edge: &&Edge<'_>| {
            edge.kind == self.kind && edge.importer == self.importer && edge.exporter == self.exporter
        };
        if !service
            && accepted
                .iter()
                .filter(same)
                .any(|edge| edge.remote == self.remote)
        {
            return refuse("stream import already exists");
        }
        if self.closes_cycle(accounts, accepted) {
            return refuse("import forms a cycle");
        }
        if self.local != self.remote
            && has_wildcards(self.remote.as_bytes())
            && let Err(error) = ImportTransform::new(self.remote, &numbered(&self.local))
        {
            let (from, to) = match self.kind {
                ExportKind::Stream => (self.remote, self.local.as_str()),
                ExportKind::Service => (self.local.as_str(), self.remote),
            };
            return refuse(&format!(
                "failed to create mapping transform for {kind} import subject from {from:?} to {to:?}: {error}"
            ));
        }
        Ok(())
    }

    /// Whether an export of the account covers the subject and admits the importer.
    fn is_authorized(&self, exporter: &AccountOptions) -> bool {
        if !is_valid_subscription(self.remote.as_bytes()) {
            return false;
        }
        let of_kind = || exporter.exports.iter().filter(|export| export.kind == self.kind);
        if let Some(exact) = of_kind().find(|export| export.subject == self.remote) {
            return self.is_admitted(exact, None);
        }
        of_kind()
            .find(|export| is_subset(self.remote.as_bytes(), export.subject.as_bytes()))
            .is_some_and(|export| self.is_admitted(export, Some(self.remote)))
    }

    /// Whether the export admits the importer. `subject` is what is imported when it is narrower.
    fn is_admitted(&self, export: &ExportOptions, subject: Option<&str>) -> bool {
        if let Some(position) = export.account_token_position {
            let token = subject.and_then(|subject| subject.split('.').nth(position.saturating_sub(1)));
            return token == Some(self.importer);
        }
        export.accounts.is_empty() || export.accounts.iter().any(|name| name == self.importer)
    }

    /// Whether following accepted imports from the exporter leads back to the importer.
    fn closes_cycle(&self, accounts: &Accounts, accepted: &[Edge<'_>]) -> bool {
        let starts = match self.kind {
            ExportKind::Service => vec![wildcards_back(&self.local)],
            ExportKind::Stream => vec![self.local.clone(), self.remote.to_owned()],
        };
        let mut seen = BTreeSet::new();
        let mut open: Vec<_> = starts
            .into_iter()
            .map(|subject| (self.exporter, subject))
            .collect();
        while let Some((account, subject)) = open.pop() {
            if self.kind == ExportKind::Stream && !exports_stream(accounts, account, &subject) {
                continue;
            }
            for edge in accepted {
                if edge.kind != self.kind || edge.importer != account {
                    continue;
                }
                // A stream arrives under its local name; a request leaves under the remote one.
                let local = wildcards_back(&edge.local);
                let touched = match self.kind {
                    ExportKind::Service => edge.remote,
                    ExportKind::Stream => &local,
                };
                if !overlaps(subject.as_bytes(), touched.as_bytes()) {
                    continue;
                }
                if edge.exporter == self.importer {
                    return true;
                }
                let next = if is_subset(local.as_bytes(), subject.as_bytes()) {
                    local
                } else {
                    subject.clone()
                };
                if seen.insert((edge.exporter, next.clone())) {
                    open.push((edge.exporter, next));
                }
            }
        }
        false
    }
}

fn exports_stream(accounts: &Accounts, account: &str, subject: &str) -> bool {
    accounts.get(account).is_some_and(|account| {
        account.exports.iter().any(|export| {
            export.kind == ExportKind::Stream && is_subset(subject.as_bytes(), export.subject.as_bytes())
        })
    })
}

/// `a.*.*` with its wildcards numbered: `a.$1.$2`.
fn numbered(subject: &str) -> String {
    let mut count = 0;
    let tokens: Vec<String> = subject
        .split('.')
        .map(|token| {
            count += usize::from(token == "*");
            if token == "*" {
                format!("${count}")
            } else {
                token.to_owned()
            }
        })
        .collect();
    tokens.join(".")
}

/// `a.$1.{{wildcard(2)}}` with its wildcards put back: `a.*.*`.
fn wildcards_back(subject: &str) -> String {
    let tokens: Vec<&str> = subject
        .split('.')
        .map(|token| {
            let index = token.strip_prefix('$').filter(|rest| !rest.is_empty());
            let numbered = index.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
            let function = token.starts_with("{{") && token.ends_with("}}");
            if numbered || function { "*" } else { token }
        })
        .collect();
    tokens.join(".")
}
