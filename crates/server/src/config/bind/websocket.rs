//! The `websocket` block.

use std::collections::BTreeMap;
use std::time::Duration;

use super::authorization::bind_simple;
use super::listen::{self, Address};
use super::{Context, tls};
use crate::config::duration::{SignedDuration, parse_duration};
use crate::config::value::{Node, Value};
use crate::options::{ListenAddress, WebSocketOptions};

/// Host of a WebSocket listener that names none.
const DEFAULT_HOST: &str = "0.0.0.0";

/// The block; `None` when it names no port, which leaves the listener off.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<WebSocketOptions> {
    let map = cx.map_or(node, "Expected websocket to be a map")?;
    let mut options = WebSocketOptions::new(ListenAddress::loopback());
    let mut address = Address::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "listen" => {
                if let Some(found) = listen::bind(cx, node) {
                    address = found;
                }
            }
            "host" | "net" => address.host = cx.string(node).unwrap_or_default(),
            "port" => address.port = cx.int(node).unwrap_or_default(),
            "advertise" => options.advertise = text(cx, node),
            "no_tls" => options.no_tls = cx.bool(node).unwrap_or(false),
            "tls" => options.tls = tls::bind(cx, node),
            "same_origin" => options.same_origin = cx.bool(node).unwrap_or(false),
            "allowed_origins" | "allowed_origin" | "allow_origins" | "allow_origin" | "origins"
            | "origin" => {
                options.allowed_origins = cx.strings("allowed origins", node).unwrap_or_default();
            }
            "handshake_timeout" => {
                if let Some(timeout) = handshake_timeout(cx, node) {
                    options.handshake_timeout = timeout;
                }
            }
            "compress" | "compression" => options.compression = cx.bool(node).unwrap_or(false),
            "authorization" | "authentication" => {
                if let Some(auth) = bind_simple(cx, node) {
                    options.user = Some((auth.user, auth.password)).filter(|(user, _)| !user.is_empty());
                    options.token = Some(auth.token).filter(|token| !token.is_empty());
                    options.auth_timeout = auth.timeout;
                }
            }
            "no_auth_user" => options.no_auth_user = text(cx, node),
            "jwt_cookie" => options.jwt_cookie = text(cx, node),
            "user_cookie" => options.user_cookie = text(cx, node),
            "pass_cookie" => options.pass_cookie = text(cx, node),
            "token_cookie" => options.token_cookie = text(cx, node),
            "headers" => options.headers = headers(cx, node),
            "ping_interval" => {
                options.ping_interval = cx
                    .duration("ping_interval", node)
                    .and_then(SignedDuration::positive);
            }
            _ => cx.unknown(key, node),
        }
    }
    options.listen = address.listen(cx, node, DEFAULT_HOST)?;
    Some(options)
}

/// Text that counts as absent when it is empty.
fn text(cx: &mut Context<'_>, node: &Node) -> Option<String> {
    cx.string(node).filter(|text| !text.is_empty())
}

/// Whole seconds or a duration, both without a warning.
fn handshake_timeout(cx: &mut Context<'_>, node: &Node) -> Option<Duration> {
    let timeout = match &node.value {
        Value::Integer(seconds) => Duration::from_secs(u64::try_from(*seconds).unwrap_or(0)),
        Value::String(text) => match parse_duration(text) {
            Ok(timeout) => timeout.clamped(),
            Err(reason) => {
                cx.error(&node.position, reason);
                return None;
            }
        },
        other => {
            let message = format!(
                "error parsing handshake timeout: unsupported type {}",
                other.type_name()
            );
            cx.error(&node.position, message);
            return None;
        }
    };
    Some(timeout).filter(|timeout| !timeout.is_zero())
}

fn headers(cx: &mut Context<'_>, node: &Node) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    let Some(map) = cx.map_for(node, "error parsing headers") else {
        return headers;
    };
    for (name, node) in map.iter() {
        match &node.value {
            Value::String(value) => {
                headers.insert(name.to_owned(), value.clone());
            }
            other => {
                let message = format!(
                    "error parsing header key {name}: unsupported type {}",
                    other.type_name()
                );
                cx.error(&node.position, message);
            }
        }
    }
    headers
}
