//! From the tree of a configuration file to [`Options`], one file a subject.
//!
//! Every binder takes the [`Context`], reports what it does not like and goes on, so that one run shows all
//! problems. Names of options are compared without regard to case. A name that no binder knows is an error
//! unless a variable referred to it. Values are never converted: `port: "4222"` is a type error, as in
//! nats-server, whose words the errors use.
//!
//! Three kinds of remarks are kept apart. *Errors* refuse the configuration. *Warnings* are those of
//! nats-server, which its `-t` counts as errors. *Notices* tell which accepted settings have no effect in
//! Windjet; they must not make a check fail that nats-server would pass.

mod accounts;
mod authorization;
mod clustering;
mod exports;
mod imports;
mod jetstream;
mod listen;
mod mappings;
mod operator;
mod permissions;
mod tls;
mod top;
mod users;
mod websocket;

use super::duration::{SignedDuration, parse_duration};
use super::environment::Environment;
use super::error::Problem;
use super::text::quote;
use super::value::{Map, Node, Position, Value};

pub(super) use top::bind;

/// Remarks gathered while binding, and the outside world.
pub(super) struct Context<'e> {
    pub(super) environment: &'e Environment<'e>,
    pub(super) errors: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    pub(super) notices: Vec<Problem>,
}

impl<'e> Context<'e> {
    pub(super) fn new(environment: &'e Environment<'e>) -> Self {
        Self {
            environment,
            errors: Vec::new(),
            warnings: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Refuses what stands at `position`.
    fn error(&mut self, position: &Position, message: impl Into<String>) {
        self.errors.push(problem(position, message));
    }

    /// nats-server's warning about the use of `field`.
    fn warn(&mut self, field: &str, node: &Node, reason: &str) {
        let message = format!("invalid use of field {}: {reason}", quote(field));
        self.warnings.push(problem(&node.position, message));
    }

    /// Says that an accepted setting has no effect.
    fn notice(&mut self, node: &Node, message: impl Into<String>) {
        self.notices.push(problem(&node.position, message));
    }

    /// Says that `field` is accepted and ignored.
    fn ignored(&mut self, field: &str, node: &Node) {
        self.notice(node, format!("{} has no effect", quote(field)));
    }

    /// Refuses a name that no binder knows, unless a variable referred to it.
    fn unknown(&mut self, field: &str, node: &Node) {
        self.unknown_as(node, || format!("unknown field {}", quote(field)));
    }

    /// The same in other words.
    fn unknown_as(&mut self, node: &Node, message: impl FnOnce() -> String) {
        if !node.used {
            self.error(&node.position, message());
        }
    }

    fn mismatch(&mut self, node: &Node, wanted: &str) {
        let found = node.value.type_name();
        self.error(
            &node.position,
            format!("interface conversion: interface {{}} is {found}, not {wanted}"),
        );
    }

    fn str<'n>(&mut self, node: &'n Node) -> Option<&'n str> {
        match &node.value {
            Value::String(text) => Some(text),
            _ => {
                self.mismatch(node, "string");
                None
            }
        }
    }

    fn string(&mut self, node: &Node) -> Option<String> {
        self.str(node).map(str::to_owned)
    }

    fn int(&mut self, node: &Node) -> Option<i64> {
        match node.value {
            Value::Integer(number) => Some(number),
            _ => {
                self.mismatch(node, "int64");
                None
            }
        }
    }

    fn bool(&mut self, node: &Node) -> Option<bool> {
        match node.value {
            Value::Bool(flag) => Some(flag),
            _ => {
                self.mismatch(node, "bool");
                None
            }
        }
    }

    fn map<'n>(&mut self, node: &'n Node) -> Option<&'n Map> {
        match &node.value {
            Value::Map(map) => Some(map),
            _ => {
                self.mismatch(node, "map[string]interface {}");
                None
            }
        }
    }

    fn array<'n>(&mut self, node: &'n Node) -> Option<&'n [Node]> {
        match &node.value {
            Value::Array(items) => Some(items),
            _ => {
                self.mismatch(node, "[]interface {}");
                None
            }
        }
    }

    /// The map in `node`, or an error that begins with `expected` and names the type found.
    fn map_or<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n Map> {
        self.map_or_else(node, |found| format!("{expected}, got {found}"))
    }

    /// The map in `node`, or the error made from the name of the type found.
    fn map_or_else<'n>(&mut self, node: &'n Node, message: impl FnOnce(&str) -> String) -> Option<&'n Map> {
        match &node.value {
            Value::Map(map) => Some(map),
            other => {
                self.error(&node.position, message(other.type_name()));
                None
            }
        }
    }

    /// The map in `node`, or nats-server's complaint about `what`.
    fn map_for<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n Map> {
        self.map_or_else(node, |found| format!("{what}: unsupported type {found}"))
    }

    /// A duration as text. A whole number is taken as seconds, with a warning.
    fn duration(&mut self, field: &str, node: &Node) -> Option<SignedDuration> {
        match &node.value {
            Value::String(text) => self.parsed_duration(field, node, text),
            Value::Integer(seconds) => {
                self.warn(field, node, &format!("{field} should be converted to a duration"));
                Some(SignedDuration::from_secs(*seconds))
            }
            _ => {
                self.mismatch(node, "int64");
                None
            }
        }
    }

    /// A duration that must be text.
    fn strict_duration(&mut self, field: &str, node: &Node) -> Option<SignedDuration> {
        let text = self.str(node)?;
        self.parsed_duration(field, node, text)
    }

    fn parsed_duration(&mut self, field: &str, node: &Node, text: &str) -> Option<SignedDuration> {
        match parse_duration(text) {
            Ok(duration) => Some(duration),
            Err(reason) => {
                self.error(&node.position, format!("error parsing {field}: {reason}"));
                None
            }
        }
    }

    /// One string or an array of strings; `field` names it in errors.
    fn strings(&mut self, field: &str, node: &Node) -> Option<Vec<String>> {
        match &node.value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(items) => {
                let mut out = Vec::with_capacity(items.len());
                for item in items {
                    match &item.value {
                        Value::String(text) => out.push(text.clone()),
                        other => self.error(
                            &item.position,
                            format!(
                                "error parsing {field}: unsupported type in array {}",
                                other.type_name()
                            ),
                        ),
                    }
                }
                Some(out)
            }
            other => {
                let message = format!("error parsing {field}: unsupported type {}", other.type_name());
                self.error(&node.position, message);
                None
            }
        }
    }
}

fn problem(position: &Position, message: impl Into<String>) -> Problem {
    Problem {
        position: Some(position.clone()),
        message: message.into(),
    }
}

/// Kinds of public keys that a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Account,
    Operator,
    User,
}

/// Whether `key` is a public nkey of the kind.
fn is_public_key(key: &str, kind: KeyKind) -> bool {
    let wanted: u8 = match kind {
        KeyKind::Account => 0,
        KeyKind::Operator => 14 << 3,
        KeyKind::User => 20 << 3,
    };
    nkeys::from_public_key(key).is_ok_and(|(prefix, _)| prefix == wanted)
}

/// A number that must not be negative in `u64`; negative ones mean "no limit".
fn limit(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}

/// The same where 0 means "no limit" as well.
fn positive_limit(number: i64) -> Option<u64> {
    limit(number).filter(|number| *number > 0)
}
