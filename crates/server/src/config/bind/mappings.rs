//! Subject mappings: `source: destination`, or weighted destinations.
//!
//! Only the form is checked here and, per source, the sum of the weights. Whether a destination is a
//! transform of its source is checked with all other options by [`crate::Options::validate`]'s rules, which
//! this module asks so that the error carries a place in the file.

use windjet_protocol::subject::is_valid_subscription;

use super::Context;
use crate::config::text::quote;
use crate::config::value::{Map, Node, Value};
use crate::options::{MappingDestination, MappingOptions};

/// A destination with the cluster it is for, if any.
struct Weighted {
    destination: MappingDestination,
    cluster: bool,
}

/// A `mappings` map.
pub(super) fn bind(cx: &mut Context<'_>, node: &Node) -> Vec<MappingOptions> {
    let mut mappings = Vec::new();
    let Some(map) = cx.map(node) else {
        return mappings;
    };
    for (source, node) in map.iter() {
        if !is_valid_subscription(source.as_bytes()) {
            let message = format!("Subject {} is not a valid subject", quote(source));
            cx.error(&node.position, message);
            continue;
        }
        let (destinations, target) = match &node.value {
            Value::String(subject) => {
                let all = Weighted {
                    destination: MappingDestination {
                        subject: subject.clone(),
                        weight: 100,
                    },
                    cluster: false,
                };
                (vec![all], format!(" to {}", quote(subject)))
            }
            Value::Array(items) => {
                let all = items.iter().filter_map(|item| destination(cx, item)).collect();
                (all, String::new())
            }
            _ => match destination(cx, node) {
                Some(only) => (vec![only], String::new()),
                None => continue,
            },
        };
        let mapping = own_mapping(cx, source, node, destinations);
        match crate::options::check_mapping(&mapping) {
            Ok(()) => mappings.push(mapping),
            Err(reason) => {
                let message = format!("Error adding mapping for {}{target} : {reason}", quote(source));
                cx.error(&node.position, message);
            }
        }
    }
    mappings
}

/// The mapping without the destinations that are for clusters: this server is in none.
fn own_mapping(cx: &mut Context<'_>, source: &str, node: &Node, all: Vec<Weighted>) -> MappingOptions {
    let before = all.len();
    let destinations: Vec<_> = all
        .into_iter()
        .filter(|weighted| !weighted.cluster)
        .map(|weighted| weighted.destination)
        .collect();
    if destinations.len() < before {
        cx.notice(node, "destinations for a cluster have no effect");
    }
    MappingOptions {
        source: source.to_owned(),
        destinations,
    }
}

fn destination(cx: &mut Context<'_>, node: &Node) -> Option<Weighted> {
    let Value::Map(map) = &node.value else {
        cx.error(&node.position, "Expected an entry for the mapping destination");
        return None;
    };
    let Parts {
        subject,
        weight,
        cluster,
    } = parts(cx, map)?;
    let Some(weight) = weight else {
        let message = format!("Missing weight for mapping destination {}", quote(&subject));
        cx.error(&node.position, message);
        return None;
    };
    Some(Weighted {
        destination: MappingDestination { subject, weight },
        cluster,
    })
}

#[derive(Default)]
struct Parts {
    subject: String,
    weight: Option<u8>,
    cluster: bool,
}

fn parts(cx: &mut Context<'_>, map: &Map) -> Option<Parts> {
    let mut parts = Parts::default();
    for (key, node) in map.iter() {
        match key.to_ascii_lowercase().as_str() {
            "dest" | "destination" => parts.subject = cx.string(node)?,
            "weight" => match weight(&node.value) {
                Ok(weight) => parts.weight = Some(weight),
                Err(message) => {
                    cx.error(&node.position, message);
                    return None;
                }
            },
            "cluster" => parts.cluster = !cx.str(node)?.is_empty(),
            _ => {
                let message = format!("Unknown field {} for mapping destination", quote(key));
                cx.error(&node.position, message);
                return None;
            }
        }
    }
    Some(parts)
}

/// A percentage as a number or as text, with or without `%`.
fn weight(value: &Value) -> Result<u8, String> {
    let weight = match value {
        Value::Integer(weight) => *weight,
        Value::String(text) => {
            let digits = text.strip_suffix('%').unwrap_or(text);
            digits
                .parse::<i64>()
                .map_err(|_| format!("Invalid weight {} for mapping destination", quote(digits)))?
        }
        other => return Err(format!("Unknown entry type for weight of {other}")),
    };
    u8::try_from(weight)
        .ok()
        .filter(|weight| *weight <= 100)
        .ok_or_else(|| format!("Invalid weight {weight} for mapping destination"))
}
