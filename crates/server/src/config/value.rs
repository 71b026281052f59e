//! The tree that a configuration file is parsed into.
//!
//! A [`Node`] is a value together with the place it was written at, so that every later complaint can name
//! file, line and column. Maps keep the order of the file (subject mappings depend on it) and the case of
//! their keys; looking up an option by name without regard to case is the binder's business.
//!
//! Nodes count how many bytes they stand for and how deep they reach. Variables copy whole subtrees, so both
//! numbers are what keeps a small hostile file from growing into a large tree (see `super::source`).

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// A place in a configuration file, in the numbering of nats-server.
///
/// Columns count bytes. They start at 0 on the first line and at 1 on all others, because they are distances
/// from the preceding newline and the first line has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The file as it was named by the caller or by the include; empty for text that came from no file.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: usize,
    /// Column in bytes; see the type's page.
    pub column: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A value of the configuration language.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// `{ key: value … }`, in file order.
    Map(Map),
    /// `[ value, … ]`.
    Array(Vec<Node>),
    /// Text, quoted or bare.
    String(String),
    /// A whole number, its suffix already multiplied in.
    Integer(i64),
    /// A number with a decimal point.
    Float(f64),
    /// `true`, `yes`, `on` and their opposites.
    Bool(bool),
    /// A date and time in the one accepted form, `2016-05-04T18:53:41Z`.
    DateTime(String),
}

impl Value {
    /// The name nats-server gives to the type in its error texts.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Map(_) => "map[string]interface {}",
            Self::Array(_) => "[]interface {}",
            Self::String(_) => "string",
            Self::Integer(_) => "int64",
            Self::Float(_) => "float64",
            Self::Bool(_) => "bool",
            Self::DateTime(_) => "time.Time",
        }
    }
}

/// The value as it appears inside error texts.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Map(map) => {
                f.write_str("map[")?;
                for (i, (key, node)) in map.iter().enumerate() {
                    let gap = if i == 0 { "" } else { " " };
                    write!(f, "{gap}{key}:{}", node.value)?;
                }
                f.write_str("]")
            }
            Self::Array(items) => {
                f.write_str("[")?;
                for (i, node) in items.iter().enumerate() {
                    let gap = if i == 0 { "" } else { " " };
                    write!(f, "{gap}{}", node.value)?;
                }
                f.write_str("]")
            }
            Self::String(text) | Self::DateTime(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Bool(flag) => write!(f, "{flag}"),
        }
    }
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// The value.
    pub(super) value: Value,
    /// Where it was written: the key's place for a value in a map, its own for an element of an array.
    pub(super) position: Position,
    /// Whether a variable referred to it. Such a key is no unknown field.
    pub(super) used: bool,
    /// Rough size in bytes, the node itself included.
    pub(super) weight: usize,
    /// Levels of maps and arrays in it; 0 for a scalar.
    pub(super) height: usize,
}

/// What a node costs besides its text.
const NODE_WEIGHT: usize = 32;

impl Node {
    pub(super) fn new(value: Value, position: Position) -> Self {
        let (inner, height) = match &value {
            Value::Map(map) => (map.weight, map.height + 1),
            Value::Array(items) => (
                items.iter().map(|item| item.weight).sum(),
                items.iter().map(|item| item.height).max().unwrap_or(0) + 1,
            ),
            Value::String(text) | Value::DateTime(text) => (text.len(), 0),
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) => (0, 0),
        };
        Self {
            value,
            position,
            used: false,
            weight: inner.saturating_add(NODE_WEIGHT),
            height,
        }
    }
}

/// A map in file order. A key that is written again replaces the earlier value in its place.
#[derive(Debug, Clone, Default)]
pub(super) struct Map {
    entries: Vec<(Arc<str>, Node)>,
    index: HashMap<Arc<str>, usize, RandomState>,
    weight: usize,
    height: usize,
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Map {
    /// Whether the map has no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The node under exactly this key.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.index.get(key).map(|&at| &mut self.entries[at].1)
    }

    /// All entries in file order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.entries.iter().map(|(key, node)| (&**key, node))
    }

    pub(super) fn insert(&mut self, key: &str, node: Node) {
        self.weight = self.weight.saturating_add(node.weight).saturating_add(key.len());
        self.height = self.height.max(node.height);
        if let Some(&at) = self.index.get(key) {
            self.entries[at].1 = node;
            return;
        }
        let key: Arc<str> = key.into();
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, node));
    }

    pub(super) fn into_entries(self) -> Vec<(Arc<str>, Node)> {
        self.entries
    }
}
