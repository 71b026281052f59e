//! Blocks of clustered servers: `cluster`, `gateway`, `leafnodes`, `mqtt`.
//!
//! Windjet is one server. A block that only opens a listener is accepted and the listener left out, because
//! launchers of client suites write such blocks into every configuration. A block that says whom to connect to
//! is refused: a server that silently stays alone makes its users wait for peers that never appear.
//!
//! Names and types are checked, so that a mistyped block fails as it would elsewhere; what the values say is not.

use super::{Context, listen};
use crate::config::value::{Node, Value};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Address,
    Text,
    Int,
    Bool,
    Map,
    Duration,
    /// Whom to connect to: an array that must be empty.
    Peers,
    /// Not looked at.
    Any,
}

use Form::{Address, Any, Bool, Duration, Int, Map, Peers, Text};

/// Fields of a listener, in every block.
const LISTENER: [(&str, Form); 5] = [
    ("listen", Address),
    ("port", Int),
    ("host", Text),
    ("net", Text),
    ("tls", Map),
];

/// Fields of all blocks that connect servers.
const SERVERS: [(&str, Form); 4] = [
    ("authorization", Map),
    ("advertise", Text),
    ("write_deadline", Duration),
    ("write_timeout", Text),
];

const CLUSTER: [(&str, Form); 12] = [
    ("name", Text),
    ("routes", Peers),
    ("cluster_advertise", Text),
    ("no_advertise", Bool),
    ("connect_retries", Int),
    ("connect_backoff", Bool),
    ("permissions", Map),
    ("pool_size", Int),
    ("accounts", Any),
    ("compression", Any),
    ("ping_interval", Duration),
    ("ping_max", Int),
];

const GATEWAY: [(&str, Form); 6] = [
    ("name", Text),
    ("gateways", Peers),
    ("connect_retries", Int),
    ("connect_backoff", Bool),
    ("reject_unknown", Bool),
    ("reject_unknown_cluster", Bool),
];

const LEAFNODES: [(&str, Form); 12] = [
    ("remotes", Peers),
    ("reconnect", Duration),
    ("reconnect_delay", Duration),
    ("reconnect_interval", Duration),
    ("dial_timeout", Duration),
    ("leafnode_advertise", Text),
    ("no_advertise", Bool),
    ("min_version", Text),
    ("minimum_version", Text),
    ("compression", Any),
    ("isolate_leafnode_interest", Bool),
    ("isolate", Bool),
];

const MQTT: [(&str, Form); 18] = [
    ("authorization", Map),
    ("authentication", Map),
    ("no_auth_user", Text),
    ("ack_wait", Duration),
    ("ackwait", Duration),
    ("js_api_timeout", Duration),
    ("api_timeout", Duration),
    ("max_ack_pending", Int),
    ("max_pending", Int),
    ("max_inflight", Int),
    ("js_domain", Text),
    ("stream_replicas", Int),
    ("consumer_replicas", Any),
    ("consumer_memory_storage", Bool),
    ("consumer_inactive_threshold", Duration),
    ("consumer_auto_cleanup", Duration),
    ("reject_qos2_publish", Bool),
    ("downgrade_qos2_subscribe", Bool),
];

/// The block named `block`, in lower case.
pub(super) fn bind(cx: &mut Context<'_>, block: &str, node: &Node) {
    let (own, title, effect): (&[_], _, _) = match block {
        "cluster" => (
            &CLUSTER,
            "Expected map to define cluster",
            "the server stays alone",
        ),
        "gateway" => (
            &GATEWAY,
            "Expected gateway to be a map",
            "there is no listener for gateways",
        ),
        "mqtt" => (
            &MQTT,
            "Expected mqtt to be a map",
            "there is no listener for MQTT",
        ),
        _ => (
            &LEAFNODES,
            "Expected map to define a leafnode",
            "there is no listener for leaf nodes",
        ),
    };
    let common: &[_] = if block == "mqtt" { &[] } else { &SERVERS };
    let Some(map) = cx.map_or(node, title) else { return };
    for (key, field) in map.iter() {
        let name = key.to_ascii_lowercase();
        let mut known = LISTENER.iter().chain(common).chain(own);
        match known.find(|(field, _)| *field == name) {
            Some((_, form)) => check(cx, block, &name, *form, field),
            None => cx.unknown(key, field),
        }
    }
    cx.notice(node, format!("{block} has no effect: {effect}"));
}

fn check(cx: &mut Context<'_>, block: &str, name: &str, form: Form, node: &Node) {
    match form {
        Address => {
            listen::bind(cx, node);
        }
        Text => {
            cx.str(node);
        }
        Int => {
            cx.int(node);
        }
        Bool => {
            cx.bool(node);
        }
        Map => {
            cx.map(node);
        }
        Duration => {
            cx.duration(name, node);
        }
        Peers if matches!(&node.value, Value::Array(items) if items.is_empty()) => {}
        Peers => cx.error(
            &node.position,
            format!("{block} \"{name}\" asks for connections to other servers, which is not available here"),
        ),
        Any => {}
    }
}
