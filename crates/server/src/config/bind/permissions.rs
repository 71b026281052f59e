//! What a user may publish and subscribe to.

use windjet_protocol::subject::is_valid_subscription;

use super::Context;
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{PermissionList, PermissionsOptions, ResponsePermission};

/// A `permissions` map.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<PermissionsOptions> {
    let Value::Map(map) = &node.value else {
        let message = format!("Expected permissions to be a map/struct, got {}", node.value);
        cx.error(&node.position, message);
        return None;
    };
    let mut permissions = PermissionsOptions::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "pub" | "publish" | "import" => permissions.publish = list(cx, node, false),
            "sub" | "subscribe" | "export" => permissions.subscribe = list(cx, node, true),
            "publish_allow_responses" | "allow_responses" => {
                permissions.allow_responses = responses(cx, node);
            }
            _ => cx.unknown_as(node, || {
                format!("Unknown field {} parsing permissions", quote(key))
            }),
        }
    }
    Some(permissions)
}

/// A subject, an array of subjects, or `allow` and `deny`.
fn list(cx: &mut Context<'_>, node: &Node, queues: bool) -> PermissionList {
    let Value::Map(map) = &node.value else {
        return PermissionList {
            allow: subjects(cx, node, queues),
            deny: Vec::new(),
        };
    };
    let mut list = PermissionList::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "allow" => list.allow = subjects(cx, node, queues),
            "deny" => list.deny = subjects(cx, node, queues),
            _ => cx.unknown_as(node, || {
                format!(
                    "Unknown field name {} parsing subject permissions, only 'allow' or 'deny' are permitted",
                    quote(key)
                )
            }),
        }
    }
    list
}

fn subjects(cx: &mut Context<'_>, node: &Node, queues: bool) -> Vec<String> {
    let mut subjects = Vec::new();
    match &node.value {
        Value::String(subject) => subjects.push(subject.clone()),
        Value::Array(items) => {
            for item in items {
                let Value::String(subject) = &item.value else {
                    cx.error(
                        &item.position,
                        "Subject in permissions array cannot be cast to string",
                    );
                    continue;
                };
                subjects.push(subject.clone());
            }
        }
        other => {
            let message = format!(
                "Expected subject permissions to be a subject, or array of subjects, got {}",
                other.type_name()
            );
            cx.error(&node.position, message);
        }
    }
    for subject in &subjects {
        if let Err(message) = check_subject(subject, queues) {
            cx.error(&node.position, message);
        }
    }
    subjects
}

/// A subject, or `subject queue` where `queues` says so.
fn check_subject(text: &str, queues: bool) -> Result<(), String> {
    let is_valid = |text: &str| is_valid_subscription(text.as_bytes());
    if is_valid(text) {
        return Ok(());
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [subject, _] if queues && !is_valid(subject) => {
            Err(format!("subject {} is not a valid subject", quote(subject)))
        }
        [_, queue] if queues && !is_valid(queue) => {
            Err(format!("queue {} is not a valid queue", quote(queue)))
        }
        [_, _] if queues => Ok(()),
        _ => Err(format!("subject {} is not a valid subject", quote(text))),
    }
}

/// `allow_responses`: a switch, or a map with `max` and `expires`.
fn responses(cx: &mut Context<'_>, node: &Node) -> Option<ResponsePermission> {
    match &node.value {
        Value::Bool(flag) => flag.then(ResponsePermission::default),
        Value::Map(map) => Some(response_limits(cx, map)),
        _ => {
            cx.error(
                &node.position,
                "error parsing response permissions, expected a boolean or a map",
            );
            None
        }
    }
}

/// Zero keeps a default; a negative number or time means no limit.
fn response_limits(cx: &mut Context<'_>, map: &Map) -> ResponsePermission {
    let mut permission = ResponsePermission::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "max" | "max_msgs" | "max_messages" | "max_responses" => {
                if let Some(max) = cx.int(node).filter(|max| *max != 0) {
                    permission.max = max;
                }
            }
            "expires" | "expiration" | "ttl" => {
                let Value::String(text) = &node.value else {
                    cx.error(&node.position, "error parsing expires, not a duration string");
                    continue;
                };
                match cx.parsed_duration("expires", node, text) {
                    Some(ttl) if ttl.is_negative() => permission.expires = None,
                    Some(ttl) => permission.expires = ttl.positive().or(permission.expires),
                    None => {}
                }
            }
            _ => cx.unknown_as(node, || {
                format!("Unknown field {} parsing permissions", quote(key))
            }),
        }
    }
    permission
}
