//! The `accounts` block.

use std::collections::BTreeMap;

use windjet_protocol::subject::is_literal;

use super::users::Names;
use super::{
    Context, KeyKind, exports, imports, is_public_key, jetstream, limit, mappings, permissions, users,
};
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{AccountLimits, AccountOptions, GLOBAL_ACCOUNT};

/// The accounts and what the checks across blocks need to know of them.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) accounts: BTreeMap<String, AccountOptions>,
    /// The `users` of each account that has some.
    pub(super) users: Vec<Node>,
}

/// A list of names, or a map from name to account.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node, names: &mut Names) -> Accounts {
    let mut out = Accounts::default();
    match &node.value {
        Value::Array(items) => {
            for item in items {
                let Some(name) = cx.str(item) else { continue };
                if name == GLOBAL_ACCOUNT {
                    reserved(cx, item);
                } else if out.accounts.contains_key(name) {
                    cx.error(&item.position, format!("Duplicate Account Entry: {name}"));
                } else {
                    out.accounts.insert(name.to_owned(), AccountOptions::default());
                }
            }
        }
        Value::Map(map) => {
            // A name that a variable refers to is a definition and no account.
            for (name, node) in map.iter().filter(|(_, node)| !node.used) {
                let Value::Map(map) = &node.value else {
                    cx.error(&node.position, "Expected map entries for accounts");
                    continue;
                };
                if name == GLOBAL_ACCOUNT {
                    reserved(cx, node);
                    continue;
                }
                let account = account(cx, map, names, &mut out.users);
                out.accounts.insert(name.to_owned(), account);
            }
        }
        other => {
            let message = format!(
                "Expected accounts to be a map or an array, got {}",
                other.type_name()
            );
            cx.error(&node.position, message);
        }
    }
    out
}

fn reserved(cx: &mut Context<'_>, node: &Node) {
    let message = format!("{} is a Reserved Account", quote(GLOBAL_ACCOUNT));
    cx.error(&node.position, message);
}

fn account(cx: &mut Context<'_>, map: &Map, names: &mut Names, with_users: &mut Vec<Node>) -> AccountOptions {
    let mut account = AccountOptions::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "nkey" => match &node.value {
                Value::String(nkey) if is_public_key(nkey, KeyKind::Account) => {
                    account.nkey = Some(nkey.clone());
                }
                other => {
                    let message = format!(
                        "Not a valid public nkey for an account: {}",
                        quote(&other.to_string())
                    );
                    cx.error(&node.position, message);
                }
            },
            "users" => {
                account.users = users::bind(cx, node).unwrap_or_default();
                if !account.users.is_empty() {
                    names.enter(cx, node, &account.users);
                    with_users.push(node.clone());
                }
            }
            "default_permissions" => account.default_permissions = permissions::bind(cx, node),
            "mappings" | "maps" => account.mappings = mappings::bind(cx, node),
            "jetstream" => account.jetstream = jetstream::bind_account(cx, node),
            "exports" => account.exports = exports::bind(cx, node),
            "imports" => account.imports = imports::bind(cx, node),
            "limits" => account.limits = limits(cx, node),
            "msg_trace" | "trace_dest" => account.msg_trace = msg_trace(cx, key, node),
            _ => cx.unknown(key, node),
        }
    }
    account
}

fn limits(cx: &mut Context<'_>, node: &Node) -> AccountLimits {
    let mut limits = AccountLimits::default();
    let Value::Map(map) = &node.value else {
        let message = format!("Expected account limits to be a map/struct, got {}", node.value);
        cx.error(&node.position, message);
        return limits;
    };
    for (key, node) in map.iter() {
        let field = match key.to_ascii_lowercase().as_str() {
            "max_connections" | "max_conn" => &mut limits.max_connections,
            "max_subscriptions" | "max_subs" => &mut limits.max_subscriptions,
            "max_payload" | "max_pay" => &mut limits.max_payload,
            "max_leafnodes" | "max_leafs" => &mut limits.max_leafnodes,
            _ => {
                cx.unknown_as(node, || {
                    format!("Unknown field {} parsing account limits", quote(key))
                });
                continue;
            }
        };
        *field = cx.int(node).and_then(limit);
    }
    limits
}

/// A subject that receives traces, alone or in a map with the percentage sampled.
fn msg_trace(cx: &mut Context<'_>, field: &str, node: &Node) -> Option<(String, u8)> {
    let map = match &node.value {
        Value::Map(map) => map,
        Value::String(_) => return trace_subject(cx, field, node).map(|subject| (subject, 100)),
        other => {
            let message = format!(
                "Expected account message trace {} to be a string or a map/struct, got {}",
                quote(field),
                other.type_name()
            );
            cx.error(&node.position, message);
            return None;
        }
    };
    let (mut subject, mut sampling) = (None, None);
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "dest" => subject = trace_subject(cx, key, node),
            "sampling" => sampling = trace_sampling(cx, key, node),
            _ => cx.unknown_as(node, || {
                format!(
                    "Unknown field {} parsing account message trace map/struct {}",
                    quote(key),
                    quote(field)
                )
            }),
        }
    }
    if subject.is_none() && sampling.is_some() {
        cx.warnings.push(super::problem(
            &node.position,
            "Trace destination sampling ignored since no destination was set",
        ));
    }
    subject.map(|subject| (subject, sampling.unwrap_or(100)))
}

fn trace_subject(cx: &mut Context<'_>, field: &str, node: &Node) -> Option<String> {
    let message = match &node.value {
        Value::String(subject) if is_literal(subject.as_bytes()) => {
            return Some(subject.clone());
        }
        Value::String(subject) => format!("Trace destination {} is not valid", quote(subject)),
        other => format!(
            "Field {} should be a string, got {}",
            quote(field),
            other.type_name()
        ),
    };
    cx.error(&node.position, message);
    None
}

fn trace_sampling(cx: &mut Context<'_>, field: &str, node: &Node) -> Option<u8> {
    let percent = match &node.value {
        Value::Integer(percent) => Ok(*percent),
        Value::String(text) => text
            .strip_suffix('%')
            .unwrap_or(text)
            .parse()
            .map_err(|_| format!("Invalid trace destination sampling value {}", quote(text))),
        other => Err(format!(
            "Trace destination sampling field {} should be an integer or a percentage, got {}",
            quote(field),
            other.type_name()
        )),
    };
    let checked = percent.and_then(|percent| {
        u8::try_from(percent)
            .ok()
            .filter(|percent| (1..=100).contains(percent))
            .ok_or_else(|| {
                // The misspelling is nats-server's.
                format!("Ttrace destination sampling value {percent} is invalid, needs to be [1..100]")
            })
    });
    match checked {
        Ok(percent) => Some(percent),
        Err(message) => {
            cx.error(&node.position, message);
            None
        }
    }
}
