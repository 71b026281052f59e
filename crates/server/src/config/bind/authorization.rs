//! The `authorization` block: a single user, a token, users, and what they may do by default.

use std::time::Duration;

use super::{Context, permissions, users};
use crate::config::duration::parse_duration;
use crate::config::value::{Node, Value};
use crate::options::{PermissionsOptions, UserOptions};

/// The block as it was written.
#[derive(Debug, Default)]
pub(super) struct Authorization {
    pub(super) user: String,
    pub(super) password: String,
    pub(super) token: String,
    pub(super) timeout: Option<Duration>,
    /// `None` when the block has no `users` at all.
    pub(super) users: Option<Vec<UserOptions>>,
    pub(super) default_permissions: Option<PermissionsOptions>,
}

/// Longest time-out without a warning, in seconds.
const TIMEOUT_COMFORTABLE: f64 = 60.0;

/// The top-level block.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<Authorization> {
    let map = cx.map(node)?;
    let mut out = Authorization::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "user" | "username" => out.user = cx.string(node).unwrap_or_default(),
            "pass" | "password" => out.password = cx.string(node).unwrap_or_default(),
            "token" => out.token = cx.string(node).unwrap_or_default(),
            "timeout" => out.timeout = timeout(cx, key, node),
            "users" => out.users = users::bind(cx, node),
            "default_permission" | "default_permissions" | "permissions" => {
                out.default_permissions = permissions::bind(cx, node);
            }
            "auth_callout" | "auth_hook" => {
                cx.error(&node.position, "auth_callout is not available in this server");
            }
            "proxy_required" => refuse_proxy(cx, node),
            _ => cx.unknown(key, node),
        }
    }
    if out.user.is_empty() && !out.password.is_empty() {
        cx.notice(
            node,
            "a password without a user has no effect: nobody is asked for it",
        );
    }
    Some(out)
}

/// `proxy_required: true` cannot be kept, because no connection counts as one of a trusted proxy.
pub(super) fn refuse_proxy(cx: &mut Context<'_>, node: &Node) {
    if cx.bool(node) == Some(true) {
        cx.error(&node.position, "proxy_required is not available in this server");
    }
}

fn timeout(cx: &mut Context<'_>, key: &str, node: &Node) -> Option<Duration> {
    let seconds = match &node.value {
        Value::String(text) => match parse_duration(text) {
            Ok(duration) => duration.as_secs_f64(),
            Err(reason) => {
                let message = format!("error parsing authorization config, 'timeout' {reason}");
                cx.error(&node.position, message);
                return None;
            }
        },
        value => match seconds(value) {
            Some(seconds) => seconds,
            None => {
                cx.error(
                    &node.position,
                    "error parsing authorization config, 'timeout' wrong type",
                );
                return None;
            }
        },
    };
    if seconds > TIMEOUT_COMFORTABLE {
        let reason = format!(
            "timeout of {} ({seconds:.6} seconds) is high, consider keeping it under 60 seconds. \
             possibly caused by unquoted duration; use '1m' instead of 1m, for example",
            node.value
        );
        cx.warn(key, node, &reason);
    }
    to_duration(seconds)
}

/// A number of seconds, whole or not.
pub(super) fn seconds(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(seconds) => Some(*seconds as f64),
        Value::Float(seconds) => Some(*seconds),
        _ => None,
    }
}

/// Seconds as a duration; `None` keeps the default, which is what nothing and less mean.
pub(super) fn to_duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
}

/// The user, password and token of a block that has nothing else: the WebSocket listener's.
pub(super) fn bind_simple(cx: &mut Context<'_>, node: &Node) -> Option<Authorization> {
    let map = cx.map(node)?;
    let mut out = Authorization::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "user" | "username" => out.user = cx.string(node).unwrap_or_default(),
            "pass" | "password" => out.password = cx.string(node).unwrap_or_default(),
            "token" => out.token = cx.string(node).unwrap_or_default(),
            // Anything but a number means one second here.
            "timeout" => out.timeout = to_duration(seconds(&node.value).unwrap_or(1.0)),
            _ => cx.unknown(key, node),
        }
    }
    Some(out)
}
