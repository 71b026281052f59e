//! `accountz`: the accounts, and one of them in detail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Refused;
use super::format::rfc3339;
use super::params::Params;
use super::subsz::SublistStats;
use crate::account::Account;
use crate::options::{
    AccountOptions, ExportKind, ExportOptions, GLOBAL_ACCOUNT, ImportKind, ImportOptions, MappingOptions,
    ResponseType,
};
use crate::server::Shared;
use crate::system::AUTOMATIC_IMPORTS;

/// The API of JetStream.
const ALL_CALLS: &str = "$JS.API.>";

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AccountzOptions {
    /// The account to tell about; empty for a list of names.
    pub(crate) account: String,
}

impl AccountzOptions {
    /// Reads the query part of a URL.
    pub(super) fn of(params: &Params) -> Self {
        Self {
            account: params.text("acc").to_owned(),
        }
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct Accountz {
    server_id: String,
    now: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    system_account: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accounts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account_detail: Option<AccountDetail>,
}

/// One account.
#[derive(Debug, Serialize)]
pub(crate) struct AccountDetail {
    account_name: String,
    update_time: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_system: bool,
    expired: bool,
    complete: bool,
    jetstream_enabled: bool,
    leafnode_connections: u32,
    client_connections: u64,
    subscriptions: usize,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    mappings: BTreeMap<String, Vec<Destination>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exports: Vec<Export>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    imports: Vec<Import>,
    name_tag: String,
    sublist_stats: SublistStats,
}

#[derive(Debug, Serialize)]
struct Destination {
    subject: String,
    weight: u8,
}

#[derive(Debug, Serialize)]
struct Export {
    subject: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_type: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Import {
    subject: String,
    account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    local_subject: String,
    #[serde(rename = "type")]
    kind: &'static str,
    invalid: bool,
    share: bool,
    tracking: bool,
}

/// The accounts, or one in detail.
///
/// # Errors
///
/// When the account is not known.
pub(crate) fn accountz(shared: &Shared, options: &AccountzOptions) -> Result<Accountz, Refused> {
    let mut answer = Accountz {
        server_id: shared.id.clone(),
        now: rfc3339(SystemTime::now()),
        system_account: shared
            .accounts
            .system()
            .map(|account| account.name.to_string())
            .unwrap_or_default(),
        accounts: Vec::new(),
        account_detail: None,
    };
    if options.account.is_empty() {
        answer.accounts = shared
            .accounts
            .all()
            .iter()
            .map(|account| account.name.to_string())
            .collect();
    } else {
        answer.account_detail = Some(account_detail(shared, &options.account)?);
    }
    Ok(answer)
}

/// One account in detail.
///
/// # Errors
///
/// When it is not known.
pub(crate) fn account_detail(shared: &Shared, name: &str) -> Result<AccountDetail, Refused> {
    let account = shared
        .accounts
        .get(name)
        .ok_or_else(|| Refused(format!("Account {name} does not exist")))?;
    let options = shared.options().clone();
    let configured = options.accounts.get(name);
    let mappings = match configured {
        Some(configured) if name != GLOBAL_ACCOUNT => configured.mappings.as_slice(),
        _ if name == GLOBAL_ACCOUNT => options.mappings.as_slice(),
        _ => &[],
    };
    let mut mappings: BTreeMap<_, _> = mappings.iter().map(mapping).collect();
    let domain = shared.jetstream().and_then(|js| js.options().domain.clone());
    if let Some(domain) = &domain {
        mappings.extend(domain_mappings(domain, shared.is_system(&account)));
    }
    Ok(AccountDetail {
        account_name: account.name.to_string(),
        update_time: rfc3339(shared.configured_at()),
        is_system: shared.is_system(&account),
        expired: false,
        complete: true,
        jetstream_enabled: shared
            .jetstream()
            .is_some_and(|js| js.account(&account.name).is_some()),
        leafnode_connections: 0,
        client_connections: account.connections.load(Ordering::Relaxed),
        subscriptions: account.subscriptions(),
        mappings,
        exports: configured
            .map(|configured| configured.exports.iter().map(export).collect())
            .unwrap_or_default(),
        imports: imports(shared, &account, configured),
        name_tag: account.display_name.to_string(),
        sublist_stats: SublistStats::of(&account),
    })
}

/// The API under the domain's name: not mappings here, but to the same effect, and shown as nats-server shows its own.
fn domain_mappings(domain: &str, system: bool) -> Vec<(String, Vec<Destination>)> {
    let own = [
        ("INFO", "$JS.API.INFO"),
        ("STREAM.>", "$JS.API.STREAM.>"),
        ("CONSUMER.>", "$JS.API.CONSUMER.>"),
        ("DIRECT.>", "$JS.API.DIRECT.>"),
        ("META.>", "$JS.API.META.>"),
        ("SERVER.>", "$JS.API.SERVER.>"),
        ("ACCOUNT.>", "$JS.API.ACCOUNT.>"),
        ("$KV.>", "$KV.>"),
        ("$OBJ.>", "$OBJ.>"),
    ];
    let all: &[(&str, &str)] = if system { &[(">", ALL_CALLS)] } else { &own };
    all.iter()
        .map(|(tail, subject)| {
            let to = Destination {
                subject: (*subject).to_owned(),
                weight: 100,
            };
            (format!("$JS.{domain}.API.{tail}"), vec![to])
        })
        .collect()
}

fn mapping(mapping: &MappingOptions) -> (String, Vec<Destination>) {
    let destinations = mapping
        .destinations
        .iter()
        .map(|to| Destination {
            subject: to.subject.clone(),
            weight: to.weight,
        })
        .collect();
    (mapping.source.clone(), destinations)
}

fn export(export: &ExportOptions) -> Export {
    let (kind, response_type) = match (export.kind, export.response_type) {
        (ExportKind::Stream, _) => ("stream", None),
        (ExportKind::Service, ResponseType::Singleton) => ("service", Some("Singleton")),
        (ExportKind::Service, ResponseType::Stream) => ("service", Some("Streamed")),
        (ExportKind::Service, ResponseType::Chunked) => ("service", Some("Chunked")),
    };
    Export {
        subject: export.subject.clone(),
        kind,
        response_type,
    }
}

/// Configured imports, and those that every account has from the system account.
fn imports(shared: &Shared, account: &Arc<Account>, configured: Option<&AccountOptions>) -> Vec<Import> {
    let mut imports: Vec<Import> = configured
        .map(|configured| configured.imports.iter().map(import).collect())
        .unwrap_or_default();
    let Some(system) = shared.accounts.system() else {
        return imports;
    };
    let own = Arc::ptr_eq(&system, account);
    imports.extend(
        AUTOMATIC_IMPORTS
            .iter()
            .filter(|automatic| !own || automatic.in_system)
            .map(|automatic| Import {
                subject: automatic.remote.replace("{account}", &account.name),
                account: system.name.to_string(),
                to: Some(automatic.local.to_owned()),
                local_subject: automatic.local.to_owned(),
                kind: "service",
                invalid: false,
                share: automatic.share,
                tracking: false,
            }),
    );
    if shared.jetstream().is_some() && !own {
        imports.push(Import {
            subject: ALL_CALLS.to_owned(),
            account: system.name.to_string(),
            to: Some(ALL_CALLS.to_owned()),
            local_subject: ALL_CALLS.to_owned(),
            kind: "service",
            invalid: false,
            share: true,
            tracking: false,
        });
    }
    imports
}

fn import(import: &ImportOptions) -> Import {
    let (kind, to, local_subject, share) = match &import.kind {
        ImportKind::Stream { prefix, to } => {
            let local = match (prefix, to) {
                (_, Some(to)) => to.clone(),
                (Some(prefix), None) => format!("{}.{}", prefix.trim_end_matches('.'), import.subject),
                (None, None) => import.subject.clone(),
            };
            ("stream", to.clone(), local, false)
        }
        ImportKind::Service { to, share } => {
            let local = to.clone().unwrap_or_else(|| import.subject.clone());
            ("service", Some(local.clone()), local, *share)
        }
    };
    Import {
        subject: import.subject.clone(),
        account: import.account.clone(),
        to,
        local_subject,
        kind,
        invalid: false,
        share,
        tracking: false,
    }
}
