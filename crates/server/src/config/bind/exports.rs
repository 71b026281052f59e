//! What an account offers to others: `exports`.

use super::Context;
use crate::config::duration::parse_duration;
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{ExportKind, ExportOptions, ResponseType};

/// An `exports` array.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Vec<ExportOptions> {
    let Value::Array(items) = &node.value else {
        let message = format!("Exports should be an array, got {}", node.value.type_name());
        cx.error(&node.position, message);
        return Vec::new();
    };
    items.iter().filter_map(|item| export(cx, item)).collect()
}

fn export(cx: &mut Context<'_>, node: &Node) -> Option<ExportOptions> {
    let map = cx.map_or(node, "Export Items should be a map with type entry")?;
    let found = kind_and_subject(cx, map);
    let service = !matches!(found, Some((ExportKind::Stream, _)));
    let (kind, subject) = found.clone().unwrap_or((ExportKind::Service, String::new()));
    let mut out = ExportOptions {
        kind,
        subject,
        accounts: Vec::new(),
        response_type: ResponseType::default(),
        response_threshold: None,
        account_token_position: None,
        allow_trace: false,
    };
    let (mut response_seen, mut threshold_seen) = (false, false);
    for (key, node) in map.iter() {
        let name = key.to_ascii_lowercase();
        match name.as_str() {
            "stream" | "service" => {}
            "response" | "response_type" => {
                if std::mem::replace(&mut response_seen, true) {
                    cx.error(&node.position, "Duplicate response type definition");
                } else if !service {
                    cx.error(&node.position, "Detected response directive on non-service");
                } else {
                    out.response_type = response_type(cx, node).unwrap_or_default();
                }
            }
            "threshold" | "response_threshold" | "response_max_time" | "response_time" => {
                if std::mem::replace(&mut threshold_seen, true) {
                    cx.error(&node.position, "Duplicate response threshold detected");
                } else if !service {
                    cx.error(&node.position, "Detected response directive on non-service");
                } else {
                    out.response_threshold = threshold(cx, node);
                }
            }
            "accounts" => {
                for item in cx.array(node).unwrap_or_default() {
                    out.accounts.extend(cx.string(item));
                }
            }
            "latency" => {
                if !service {
                    cx.error(&node.position, "Detected latency directive on non-service");
                } else if latency(cx, node) {
                    cx.ignored(key, node);
                }
            }
            "account_token_position" => {
                out.account_token_position = cx
                    .int(node)
                    .and_then(|position| usize::try_from(position).ok())
                    .filter(|position| *position > 0);
            }
            "allow_trace" => {
                if service {
                    out.allow_trace = cx.bool(node).unwrap_or(false);
                } else {
                    cx.error(&node.position, "Detected allow_trace directive on non-service");
                }
            }
            _ => cx.unknown(key, node),
        }
    }
    found.map(|_| out)
}

/// Which of `stream` and `service` it is. An entry with neither exports nothing, as in nats-server.
fn kind_and_subject(cx: &mut Context<'_>, map: &Map) -> Option<(ExportKind, String)> {
    let mut found = None;
    for (key, node) in map.iter() {
        let (kind, name, other) = match key.to_ascii_lowercase().as_str() {
            "stream" => (ExportKind::Stream, "stream", "service"),
            "service" => (ExportKind::Service, "service", "stream"),
            _ => continue,
        };
        if found.is_some() {
            let text = quote(&node.value.to_string());
            let message = format!("Detected {name} {text} but already saw a {other}");
            cx.error(&node.position, message);
            continue;
        }
        match &node.value {
            Value::String(subject) => found = Some((kind, subject.clone())),
            value => {
                let message = format!("Expected {name} name to be string, got {}", value.type_name());
                cx.error(&node.position, message);
            }
        }
    }
    found
}

fn response_type(cx: &mut Context<'_>, node: &Node) -> Option<ResponseType> {
    let message = match &node.value {
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "single" | "singleton" => return Some(ResponseType::Singleton),
            "stream" => return Some(ResponseType::Stream),
            "chunk" | "chunked" => return Some(ResponseType::Chunked),
            _ => format!("Unknown response type: {}", quote(text)),
        },
        other => format!("Expected response type to be string, got {}", other.type_name()),
    };
    cx.error(&node.position, message);
    None
}

fn threshold(cx: &mut Context<'_>, node: &Node) -> Option<std::time::Duration> {
    let found = match &node.value {
        Value::String(text) => match parse_duration(text) {
            Ok(duration) => return duration.positive(),
            Err(_) => quote(text),
        },
        other => other.type_name().to_owned(),
    };
    let message = format!("Expected response threshold to be a parseable time duration, got {found}");
    cx.error(&node.position, message);
    None
}

/// Checks a `latency` entry, which nothing measures. False when it is not well formed.
fn latency(cx: &mut Context<'_>, node: &Node) -> bool {
    let map = match &node.value {
        Value::String(_) => return true,
        Value::Map(map) => map,
        other => {
            let message = format!(
                "Expected latency entry to be a map/struct or string, got {}",
                other.type_name()
            );
            cx.error(&node.position, message);
            return false;
        }
    };
    if let Some(sampling) = map.get("sampling")
        && let Err(message) = latency_sampling(&sampling.value)
    {
        cx.error(&sampling.position, message);
        return false;
    }
    match map.get("subject") {
        None => cx.error(&node.position, "Latency subject required, but missing"),
        Some(Node {
            value: Value::String(_),
            ..
        }) => return true,
        Some(subject) => {
            let message = format!(
                "Expected latency subject to be a string, got {}",
                subject.value.type_name()
            );
            cx.error(&subject.position, message);
        }
    }
    false
}

fn latency_sampling(value: &Value) -> Result<(), String> {
    let percent = match value {
        Value::Integer(percent) => *percent,
        Value::String(text) if text.trim().eq_ignore_ascii_case("headers") => return Ok(()),
        Value::String(text) => {
            let digits = text.strip_suffix('%').unwrap_or(text);
            digits.parse().map_err(|_| {
                format!(
                    "Failed to parse latency sample: strconv.Atoi: parsing {}: invalid syntax",
                    quote(digits)
                )
            })?
        }
        other => {
            return Err(format!(
                "Expected latency sample to be a string or map/struct, got {}",
                other.type_name()
            ));
        }
    };
    if (1..=100).contains(&percent) {
        Ok(())
    } else {
        Err("bad sampling percentage, should be 1-100".to_owned())
    }
}
