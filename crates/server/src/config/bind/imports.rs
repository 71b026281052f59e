//! What an account takes from others: `imports`.

use super::Context;
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{ImportKind, ImportOptions};

/// An `imports` array.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Vec<ImportOptions> {
    let Value::Array(items) = &node.value else {
        let message = format!("Imports should be an array, got {}", node.value.type_name());
        cx.error(&node.position, message);
        return Vec::new();
    };
    let mut imports: Vec<ImportOptions> = Vec::with_capacity(items.len());
    for item in items {
        let Some(import) = import(cx, item) else { continue };
        if let Some((subject, earlier)) = duplicate_service(&imports, &import) {
            let message = format!(
                "Duplicate service import subject {}, previously used in import for account {}, subject {}",
                quote(subject),
                quote(&earlier.account),
                quote(&earlier.subject)
            );
            cx.error(&item.position, message);
        } else {
            imports.push(import);
        }
    }
    imports
}

/// An earlier import of a service from the same account under the same local subject.
fn duplicate_service<'a>(
    imports: &'a [ImportOptions],
    import: &'a ImportOptions,
) -> Option<(&'a str, &'a ImportOptions)> {
    let subject = local_service_subject(import)?;
    let earlier = imports.iter().find(|earlier| {
        earlier.account == import.account && local_service_subject(earlier) == Some(subject)
    })?;
    Some((subject, earlier))
}

fn local_service_subject(import: &ImportOptions) -> Option<&str> {
    match &import.kind {
        ImportKind::Service { to, .. } => Some(to.as_ref().unwrap_or(&import.subject)),
        ImportKind::Stream { .. } => None,
    }
}

fn import(cx: &mut Context<'_>, node: &Node) -> Option<ImportOptions> {
    let map = cx.map_or(node, "Import Items should be a map with type entry")?;
    let source = source(cx, map);
    let service = source.as_ref().is_some_and(|source| source.service);
    let (mut prefix, mut to) = (None, None);
    let (mut share, mut allow_trace) = (false, false);
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "stream" | "service" => {}
            "prefix" => prefix = cx.string(node).filter(|prefix| !prefix.is_empty()),
            "to" => {
                to = cx.string(node).filter(|to| !to.is_empty());
                if !service && prefix.is_some() && to.is_some() {
                    cx.error(
                        &node.position,
                        "Stream import can not have a 'prefix' and a 'to' property",
                    );
                }
            }
            "share" => share = cx.bool(node).unwrap_or(false),
            "allow_trace" if service => {
                cx.error(&node.position, "Detected allow_trace directive on a non-stream");
            }
            "allow_trace" => allow_trace = cx.bool(node).unwrap_or(false),
            _ => cx.unknown(key, node),
        }
    }
    let source = source?;
    let kind = if source.service {
        ImportKind::Service { to, share }
    } else {
        ImportKind::Stream { prefix, to }
    };
    Some(ImportOptions {
        kind,
        account: source.account,
        subject: source.subject,
        allow_trace,
    })
}

/// What is imported and from whom.
struct Source {
    service: bool,
    account: String,
    subject: String,
}

/// The `stream` or `service` of an entry. An entry with neither imports nothing, as in nats-server.
fn source(cx: &mut Context<'_>, map: &Map) -> Option<Source> {
    let mut found: Option<Source> = None;
    for (key, node) in map.iter() {
        let (service, title) = match key.to_ascii_lowercase().as_str() {
            "stream" => (false, "Stream"),
            "service" => (true, "Service"),
            _ => continue,
        };
        if found.is_some() {
            let (this, that) = if service {
                ("service", "stream")
            } else {
                ("stream", "service")
            };
            cx.error(
                &node.position,
                format!("Detected {this} but already saw a {that}"),
            );
            continue;
        }
        let expected = format!("{title} entry should be an account map");
        let Some(map) = cx.map_or(node, &expected) else {
            continue;
        };
        let (account, subject) = account_and_subject(cx, map);
        if account.is_empty() || subject.is_empty() {
            cx.error(&node.position, "Expect an account name and a subject");
            continue;
        }
        found = Some(Source {
            service,
            account,
            subject,
        });
    }
    found
}

fn account_and_subject(cx: &mut Context<'_>, map: &Map) -> (String, String) {
    let (mut account, mut subject) = (String::new(), String::new());
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "account" => account = cx.string(node).unwrap_or_default(),
            "subject" => subject = cx.string(node).unwrap_or_default(),
            _ => cx.unknown(key, node),
        }
    }
    (account, subject)
}
