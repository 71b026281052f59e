//! The `jetstream` block of the server and of an account.

use super::{Context, limit, positive_limit};
use crate::config::duration::SignedDuration;
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{AccountJetStreamLimits, JetStreamOptions, JetStreamServerLimits};

/// The server's block; `None` when it switches JetStream off.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Option<JetStreamOptions> {
    match &node.value {
        Value::Map(map) => server(cx, map),
        _ => switch(cx, node).then(JetStreamOptions::default),
    }
}

/// `true`, `enabled` and their opposites.
fn switch(cx: &mut Context<'_>, node: &Node) -> bool {
    let message = match &node.value {
        Value::Bool(flag) => return *flag,
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "enabled" | "enable" => return true,
            "disabled" | "disable" => return false,
            _ => format!("Expected 'enabled' or 'disabled' for string value, got '{text}'"),
        },
        other => format!(
            "Expected map, bool or string to define JetStream, got {}",
            other.type_name()
        ),
    };
    cx.error(&node.position, message);
    false
}

fn server(cx: &mut Context<'_>, map: &Map) -> Option<JetStreamOptions> {
    let mut options = JetStreamOptions::default();
    let mut enabled = true;
    for (key, node) in map.iter() {
        let name = key.to_ascii_lowercase();
        match name.as_str() {
            "strict" => match node.value {
                Value::Bool(strict) => options.strict = strict,
                ref other => {
                    let message = format!("Expected 'true' or 'false' for bool value, got '{other}'");
                    cx.error(&node.position, message);
                }
            },
            "store" | "store_dir" | "storedir" => {
                if options.store_dir.is_some() {
                    cx.error(&node.position, "Duplicate 'store_dir' configuration");
                }
                options.store_dir = cx.string(node).filter(|dir| !dir.is_empty()).map(Into::into);
            }
            "sync" | "sync_interval" => sync(cx, &mut options, key, node),
            "max_memory_store" | "max_mem_store" | "max_mem" => {
                options.max_memory_store = size(cx, "max_mem_store", node).and_then(limit);
            }
            "max_file_store" | "max_file" => {
                options.max_file_store = size(cx, "max_file_store", node).and_then(limit);
            }
            "domain" => options.domain = cx.string(node).filter(|domain| !domain.is_empty()),
            "enable" | "enabled" => enabled = cx.bool(node).unwrap_or(true),
            "key" | "ek" | "encryption_key" | "prev_key" | "prev_ek" | "prev_encryption_key" | "cipher" => {
                // An empty key, as an unset variable leaves it, asks for nothing.
                if cx.str(node).is_some_and(|text| !text.is_empty()) {
                    refuse_encryption(cx, key, node);
                }
            }
            "tpm" => refuse_encryption(cx, key, node),
            "unique_tag" => {
                options.unique_tag = cx
                    .str(node)
                    .map(|tag| tag.trim().to_lowercase())
                    .filter(|tag| !tag.is_empty());
            }
            "limits" => options.limits = limits(cx, node),
            "request_queue_limit" => {
                options.request_queue_limit = whole(cx, key, node).and_then(positive_limit);
                cx.ignored(key, node);
            }
            "info_queue_limit" => {
                options.info_queue_limit = whole(cx, key, node).and_then(positive_limit);
                cx.ignored(key, node);
            }
            "max_outstanding_catchup" | "max_buffered_size" => {
                if size(cx, &name, node).is_some() {
                    cx.ignored(key, node);
                }
            }
            "max_buffered_msgs" => {
                if whole(cx, key, node).is_some() {
                    cx.ignored(key, node);
                }
            }
            "meta_compact" | "meta_compact_size" | "max_concurrent_io" => {
                if absolute(cx, key, node) {
                    cx.ignored(key, node);
                }
            }
            "meta_compact_sync" => {
                if cx.bool(node).is_some() {
                    cx.ignored(key, node);
                }
            }
            "extension_hint" => {
                if cx.str(node).is_some() {
                    cx.ignored(key, node);
                }
            }
            _ => cx.unknown(key, node),
        }
    }
    enabled.then_some(options)
}

fn refuse_encryption(cx: &mut Context<'_>, key: &str, node: &Node) {
    let message = format!(
        "jetstream {} asks for encryption at rest, which is not available in this server",
        quote(key)
    );
    cx.error(&node.position, message);
}

/// `always` is what this server does unless told otherwise; an interval weakens it.
fn sync(cx: &mut Context<'_>, options: &mut JetStreamOptions, key: &str, node: &Node) {
    if matches!(&node.value, Value::String(text) if text.eq_ignore_ascii_case("always")) {
        options.sync_interval = None;
        options.sync_always = true;
        return;
    }
    options.sync_interval = cx.duration(key, node).and_then(SignedDuration::positive);
}

/// A size: a number, or text that ends in one of `K`, `M`, `G`, `T` (powers of 1024).
fn size(cx: &mut Context<'_>, field: &str, node: &Node) -> Option<i64> {
    let parsed = match &node.value {
        Value::Integer(size) => return Some(*size),
        Value::String(text) => parse_size(text),
        _ => Err("must be int64 or string".to_owned()),
    };
    match parsed {
        Ok(size) => Some(size),
        Err(reason) => {
            cx.error(&node.position, format!("{field} {reason}"));
            None
        }
    }
}

fn parse_size(text: &str) -> Result<i64, String> {
    let Some(unit) = text.chars().last() else {
        return Ok(0);
    };
    let digits = &text[..text.len() - unit.len_utf8()];
    let invalid = || format!("strconv.ParseInt: parsing {}: invalid syntax", quote(digits));
    let number: i64 = digits.parse().map_err(|_| invalid())?;
    let shift = match unit {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return Err("sizes defined as strings must end in K, M, G, T".to_owned()),
    };
    number.checked_mul(1 << shift).ok_or_else(invalid)
}

/// A whole number in the words used for sizes.
fn whole(cx: &mut Context<'_>, key: &str, node: &Node) -> Option<i64> {
    match &node.value {
        Value::Integer(number) => Some(*number),
        other => {
            let message = format!("Expected a parseable size for {}, got {other}", quote(key));
            cx.error(&node.position, message);
            None
        }
    }
}

/// Checks settings of clustered servers that must not be negative.
fn absolute(cx: &mut Context<'_>, key: &str, node: &Node) -> bool {
    let name = key.to_ascii_lowercase();
    let (range, between) = match name.as_str() {
        "max_concurrent_io" => (4..=8192, " between 4 and 8192"),
        _ => (0..=i64::MAX, ""),
    };
    let number = match &node.value {
        Value::Integer(number) => *number,
        Value::String(_) if name == "meta_compact_size" => match size(cx, &name, node) {
            Some(size) => size,
            None => return false,
        },
        _ => -1,
    };
    let good = range.contains(&number);
    if !good {
        let message = format!(
            "Expected an absolute size for {}{between}, got {}",
            quote(key),
            node.value
        );
        cx.error(&node.position, message);
    }
    good
}

fn limits(cx: &mut Context<'_>, node: &Node) -> JetStreamServerLimits {
    let mut limits = JetStreamServerLimits::default();
    let Some(map) = cx.map_or(node, "Expected a map to define JetStreamLimits") else {
        return limits;
    };
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "max_ack_pending" => limits.max_ack_pending = non_zero(cx, node),
            "max_request_batch" => limits.max_request_batch = non_zero(cx, node),
            "max_ha_assets" => {
                if cx.int(node).is_some() {
                    cx.ignored(key, node);
                }
            }
            "duplicate_window" => {
                limits.duplicate_window = cx
                    .strict_duration("duplicate_window", node)
                    .and_then(SignedDuration::positive);
            }
            "batch" => batch(cx, &mut limits, node),
            _ => cx.unknown(key, node),
        }
    }
    limits
}

fn batch(cx: &mut Context<'_>, limits: &mut JetStreamServerLimits, node: &Node) {
    let Some(map) = cx.map_or(node, "Expected a map to define batch limits") else {
        return;
    };
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "max_inflight_per_stream" => limits.batch_max_inflight_per_stream = non_zero(cx, node),
            "max_inflight_total" => limits.batch_max_inflight_total = non_zero(cx, node),
            "max_msgs" => limits.batch_max_msgs = non_zero(cx, node),
            "timeout" => {
                limits.batch_timeout = cx
                    .strict_duration("timeout", node)
                    .and_then(SignedDuration::positive);
            }
            _ => cx.unknown(key, node),
        }
    }
}

fn non_zero(cx: &mut Context<'_>, node: &Node) -> Option<i64> {
    cx.int(node).filter(|number| *number != 0)
}

/// An account's block; `None` when the account has no JetStream.
pub(super) fn bind_account(cx: &mut Context<'_>, node: &Node) -> Option<AccountJetStreamLimits> {
    let Value::Map(map) = &node.value else {
        return switch(cx, node).then(AccountJetStreamLimits::default);
    };
    let mut limits = AccountJetStreamLimits::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "max_memory" | "max_mem" | "mem" | "memory" => {
                limits.max_memory = whole(cx, key, node).and_then(limit);
            }
            "max_store" | "max_file" | "max_disk" | "store" | "disk" => {
                limits.max_store = whole(cx, key, node).and_then(limit);
            }
            "max_streams" | "streams" => limits.max_streams = whole(cx, key, node).and_then(positive_limit),
            "max_consumers" | "consumers" => {
                limits.max_consumers = whole(cx, key, node).and_then(positive_limit);
            }
            "max_ack_pending" => limits.max_ack_pending = whole(cx, key, node).and_then(positive_limit),
            "mem_max_stream_bytes" | "memory_max_stream_bytes" => {
                limits.memory_max_stream_bytes = whole(cx, key, node).and_then(positive_limit);
            }
            "disk_max_stream_bytes" | "store_max_stream_bytes" => {
                limits.store_max_stream_bytes = whole(cx, key, node).and_then(positive_limit);
            }
            "max_bytes_required" | "max_stream_bytes" | "max_bytes" => match node.value {
                Value::Bool(required) => limits.max_bytes_required = required,
                ref other => {
                    let message = format!("Expected a parseable bool for {}, got {other}", quote(key));
                    cx.error(&node.position, message);
                }
            },
            "cluster_traffic" => cluster_traffic(cx, key, node),
            _ => cx.unknown(key, node),
        }
    }
    Some(limits)
}

/// Which account carries the traffic among replicas; there are none here.
fn cluster_traffic(cx: &mut Context<'_>, key: &str, node: &Node) {
    let message = match &node.value {
        Value::String(text) if matches!(text.as_str(), "system" | "owner" | "") => {
            return cx.ignored(key, node);
        }
        Value::String(text) => {
            format!(
                "Expected 'system' or 'owner' string value for {}, got {text}",
                quote(key)
            )
        }
        other => format!(
            "Expected either 'system' or 'owner' string value for {}, got {other}",
            quote(key)
        ),
    };
    cx.error(&node.position, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_text_end_in_one_capital_letter() {
        assert_eq!(parse_size("1K"), Ok(1 << 10));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        assert_eq!(parse_size(""), Ok(0));
        assert_eq!(
            parse_size("64m"),
            Err("sizes defined as strings must end in K, M, G, T".to_owned())
        );
        assert_eq!(
            parse_size("64MB"),
            Err("strconv.ParseInt: parsing \"64M\": invalid syntax".to_owned())
        );
    }
}
