//! Users of the `authorization` block and of accounts.

use std::collections::BTreeSet;

use super::{Context, KeyKind, is_public_key, permissions};
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{ConnectionType, UserCredential, UserOptions};

/// Names and keys of all users seen so far; they share one space over all accounts.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// Enters the users, complaining at `node` about those that are already there.
    pub(super) fn enter(&mut self, cx: &mut Context<'_>, node: &Node, users: &[UserOptions]) {
        for user in users {
            let (kind, name) = match &user.credential {
                UserCredential::Password { name, .. } => ("user", name),
                UserCredential::Nkey(key) => ("nkey", key),
            };
            if !self.0.insert(name.clone()) {
                let message = format!("Duplicate {kind} {} detected", quote(name));
                cx.error(&node.position, message);
            }
        }
    }
}

/// A `users` array.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<Vec<UserOptions>> {
    let Value::Array(items) = &node.value else {
        let message = format!("Expected users field to be an array, got {}", node.value);
        cx.error(&node.position, message);
        return None;
    };
    let mut users = Vec::with_capacity(items.len());
    for item in items {
        match &item.value {
            Value::Map(map) => users.extend(user(cx, item, map)),
            other => {
                let message = format!("Expected user entry to be a map/struct, got {other}");
                cx.error(&item.position, message);
            }
        }
    }
    Some(users)
}

fn user(cx: &mut Context<'_>, entry: &Node, map: &Map) -> Option<UserOptions> {
    let (mut nkey, mut name, mut password) = (String::new(), String::new(), String::new());
    let mut own_permissions = None;
    let mut allowed_connection_types = Vec::new();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "nkey" => nkey = cx.string(node)?,
            "user" | "username" => name = cx.string(node)?,
            "pass" | "password" => password = cx.string(node)?,
            "permission" | "permissions" | "authorization" => own_permissions = permissions::bind(cx, node),
            "allowed_connection_types" | "connection_types" | "clients" => {
                allowed_connection_types = connection_types(cx, node);
            }
            "proxy_required" => super::authorization::refuse_proxy(cx, node),
            _ => cx.unknown(key, node),
        }
    }
    // The place of the last field, which is where nats-server points too.
    let position = map
        .iter()
        .last()
        .map_or(&entry.position, |(_, node)| &node.position);
    let credential = if nkey.is_empty() {
        if name.is_empty() {
            cx.error(position, "User entry requires a user");
            return None;
        }
        UserCredential::Password { name, password }
    } else {
        if !is_public_key(&nkey, KeyKind::User) {
            cx.error(position, "Not a valid public nkey for a user");
            return None;
        }
        if !name.is_empty() || !password.is_empty() {
            cx.error(position, "Nkey users do not take usernames or passwords");
            return None;
        }
        UserCredential::Nkey(nkey)
    };
    Some(UserOptions {
        credential,
        permissions: own_permissions,
        allowed_connection_types,
    })
}

fn connection_types(cx: &mut Context<'_>, node: &Node) -> Vec<ConnectionType> {
    let names = cx.strings("allowed connection types", node).unwrap_or_default();
    let mut types = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        match connection_type(&name.to_ascii_uppercase()) {
            Some(kind) if types.contains(&kind) => {}
            Some(kind) => types.push(kind),
            None => unknown.push(quote(&name.to_ascii_uppercase())),
        }
    }
    if !unknown.is_empty() {
        let message = format!("invalid connection types [{}]", unknown.join(" "));
        cx.error(&node.position, message);
    }
    types
}

fn connection_type(name: &str) -> Option<ConnectionType> {
    Some(match name {
        "STANDARD" => ConnectionType::Standard,
        "WEBSOCKET" => ConnectionType::WebSocket,
        "LEAFNODE" => ConnectionType::Leafnode,
        "LEAFNODE_WS" => ConnectionType::LeafnodeWs,
        "MQTT" => ConnectionType::Mqtt,
        "MQTT_WS" => ConnectionType::MqttWs,
        "IN_PROCESS" => ConnectionType::InProcess,
        _ => return None,
    })
}
