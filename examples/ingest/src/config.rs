//! Tenants with their budgets, and what tables ask of rows: a JSON file that is read again on request.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windjet_mq::TenantId;
use windjet_mq::nats::parse_store_size;

/// What is written when there is no file.
const FIRST: &str = r#"{
  "tenants": {
    "acme": { "max_bytes": "64Mi" },
    "globex": { "max_bytes": "64Mi" }
  },
  "tables": {
    "orders": { "required": ["order_id"] }
  },
  "replay_seconds": 600
}
"#;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    tenants: BTreeMap<String, Budget>,
    #[serde(default)]
    tables: BTreeMap<String, Table>,
    /// How far back the gaps of listeners are filled; what is written and older makes room.
    #[serde(default = "ten_minutes")]
    replay_seconds: u64,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    max_bytes: String,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Fields without which a row is not written.
    #[serde(default)]
    required: Vec<String>,
}

fn ten_minutes() -> u64 {
    600
}

/// A configuration that was checked.
#[derive(Debug)]
pub(crate) struct Config {
    /// Budgets in bytes.
    pub tenants: BTreeMap<TenantId, u64>,
    /// See the file.
    pub replay_seconds: u64,
    tables: BTreeMap<String, Table>,
}

impl Config {
    /// Reads a file, or writes one to begin with where `first` allows it.
    pub(crate) fn read(path: &Path, first: bool) -> anyhow::Result<Self> {
        let read = std::fs::read_to_string(path);
        let missing = matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        if missing && first {
            // Whole or not there, for another process that starts at the same time.
            let whole = path.with_extension(format!("{}.tmp", std::process::id()));
            std::fs::write(&whole, FIRST)
                .and_then(|()| std::fs::rename(&whole, path))
                .with_context(|| format!("{} cannot be written", path.display()))?;
            tracing::info!(file = %path.display(), "wrote a configuration to begin with");
            return Self::parse(FIRST);
        }
        let text = read.with_context(|| format!("{} cannot be read", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a configuration", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let file: File = serde_json::from_str(text)?;
        let mut tenants = BTreeMap::new();
        for (id, budget) in &file.tenants {
            let bytes = parse_store_size(&budget.max_bytes).with_context(|| format!("tenant {id}"))?;
            anyhow::ensure!(bytes > 0, "tenant {id}: max_bytes must be more than 0");
            tenants.insert(TenantId::parse(id)?, bytes);
        }
        Ok(Self {
            tenants,
            replay_seconds: file.replay_seconds,
            tables: file.tables,
        })
    }

    /// Why a row cannot be in a table, if so.
    pub(crate) fn objection(&self, table: &str, row: &str) -> Option<String> {
        let required = self.tables.get(table).map_or(&[][..], |table| &table.required);
        if required.is_empty() {
            return None;
        }
        let row: Value = serde_json::from_str(row).unwrap_or_default();
        let missing = required.iter().find(|field| row.get(field).is_none())?;
        Some(format!(
            "field {missing:?} is missing; redrive a corrected row, or change `required` of table {table:?}, reload and redrive"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_configuration_is_one() {
        let config = Config::parse(FIRST).unwrap();
        assert_eq!(config.tenants[&TenantId::parse("acme").unwrap()], 64 << 20);
        assert!(config.objection("orders", r#"{"order_id":1}"#).is_none());
        assert!(config.objection("orders", "{}").unwrap().contains("order_id"));
        assert!(config.objection("clicks", "{}").is_none());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            (r#"{"tenants":{"a b":{"max_bytes":"1Mi"}}}"#, "tenant id"),
            (r#"{"tenants":{"a":{"max_bytes":"lots"}}}"#, "tenant a"),
            (r#"{"tenants":{"a":{"max_bytes":"0"}}}"#, "more than 0"),
            (r#"{"tenants":{},"tabels":{}}"#, "tabels"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(named), "{error}");
        }
    }
}
