//! The SQLite file: rows, each once, and the list of dead letters.
//!
//! A row and its key are written in one transaction under a unique index. Handing the same row in again is therefore
//! harmless, which is what lets the worker acknowledge after the commit and never before. Commits are synced. Several
//! processes of one machine may have the file open.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use parking_lot::Mutex;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::envelope::{Envelope, digest, micros};

const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS rows (
    seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL, tbl TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL,
    body TEXT NOT NULL, UNIQUE (tenant, tbl, id));
CREATE INDEX IF NOT EXISTS rows_in_order ON rows(tenant, tbl, seq);
CREATE TABLE IF NOT EXISTS parked (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, tbl TEXT NOT NULL, id TEXT NOT NULL,
    digest TEXT NOT NULL, body TEXT NOT NULL, reason TEXT NOT NULL, failures INTEGER NOT NULL, at INTEGER NOT NULL,
    UNIQUE (tenant, tbl, id, digest));
";

/// How long a process waits for another one's transaction.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// What the worker has for the store.
#[derive(Debug)]
pub(crate) struct Item {
    pub tenant: String,
    pub table: String,
    pub envelope: Envelope,
    /// Why it is not to be written but parked.
    pub objection: Option<String>,
}

/// What became of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is a row, since now or from before.
    Written,
    /// It is in the list of dead letters.
    Parked(String),
}

/// A row as it is read.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub seq: i64,
    pub id: String,
    pub row: Box<RawValue>,
}

/// A dead letter as it is read.
#[derive(Debug, Serialize)]
pub(crate) struct Parked {
    pub number: i64,
    pub table: String,
    pub id: String,
    /// Why it is not a row, and what to do.
    pub reason: String,
    /// How often it was refused.
    pub failures: i64,
    /// What came; a text if it was no JSON.
    pub row: Box<RawValue>,
}

/// The open file: one connection writes, one reads. Calls wait for the disk: make them where waiting is allowed.
#[derive(Debug)]
pub(crate) struct Store {
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
}

impl Store {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let open = || -> rusqlite::Result<Connection> {
            let db = Connection::open(path)?;
            db.busy_timeout(BUSY_WAIT)?;
            db.execute_batch(SCHEMA)?;
            Ok(db)
        };
        let open = || open().with_context(|| format!("{} cannot be opened", path.display()));
        Ok(Self {
            writer: Mutex::new(open()?),
            reader: Mutex::new(open()?),
        })
    }

    /// Writes a batch, all of it or nothing.
    pub(crate) fn write(&self, items: &[Item]) -> rusqlite::Result<Vec<Outcome>> {
        let mut db = self.writer.lock();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let outcomes = items
            .iter()
            .map(|item| write(&tx, item))
            .collect::<Result<_, _>>()?;
        tx.commit()?;
        Ok(outcomes)
    }

    /// The row of a key.
    pub(crate) fn row(&self, tenant: &str, table: &str, id: &str) -> rusqlite::Result<Option<String>> {
        row(&self.reader.lock(), tenant, table, id)
    }

    /// Rows of a table behind a number, in the order in which they were written.
    pub(crate) fn rows(
        &self,
        tenant: &str,
        table: &str,
        after: i64,
        limit: u32,
    ) -> rusqlite::Result<Vec<Row>> {
        let db = self.reader.lock();
        let sql = "SELECT seq, id, body FROM rows WHERE tenant = ?1 AND tbl = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4";
        let mut statement = db.prepare(sql)?;
        let rows = statement.query_map(params![tenant, table, after, limit], |row| {
            Ok(Row {
                seq: row.get(0)?,
                id: row.get(1)?,
                row: json(row.get(2)?)?,
            })
        })?;
        rows.collect()
    }

    /// How many rows and dead letters a tenant has.
    pub(crate) fn counts(&self, tenant: &str) -> rusqlite::Result<(i64, i64)> {
        let sql = "SELECT (SELECT count(*) FROM rows WHERE tenant = ?1), (SELECT count(*) FROM parked WHERE tenant = ?1)";
        let db = self.reader.lock();
        db.query_row(sql, [tenant], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Dead letters of a tenant behind a number.
    pub(crate) fn parked(&self, tenant: &str, after: i64, limit: u32) -> rusqlite::Result<Vec<Parked>> {
        let db = self.reader.lock();
        let sql = "SELECT number, tbl, id, reason, failures, body FROM parked
            WHERE tenant = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
        let mut statement = db.prepare(sql)?;
        let parked = statement.query_map(params![tenant, after, limit], |row| {
            Ok(Parked {
                number: row.get(0)?,
                table: row.get(1)?,
                id: row.get(2)?,
                reason: row.get(3)?,
                failures: row.get(4)?,
                row: json(row.get(5)?)?,
            })
        })?;
        parked.collect()
    }

    /// Takes a dead letter from the list for good; whether it was there.
    pub(crate) fn discard(&self, tenant: &str, number: i64) -> rusqlite::Result<bool> {
        let db = self.writer.lock();
        let gone = db.execute(
            "DELETE FROM parked WHERE tenant = ?1 AND number = ?2",
            params![tenant, number],
        )?;
        Ok(gone > 0)
    }
}

fn write(tx: &Transaction<'_>, item: &Item) -> rusqlite::Result<Outcome> {
    if let Some(reason) = &item.objection {
        return park(tx, item, reason.clone());
    }
    let Item {
        tenant,
        table,
        envelope,
        ..
    } = item;
    let body = envelope.row.get();
    let sql =
        "INSERT INTO rows (tenant, tbl, id, at, body) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    let written = tx.execute(
        sql,
        params![tenant, table, envelope.id, envelope.at.cast_signed(), body],
    )?;
    if written == 0 && row(tx, tenant, table, &envelope.id)?.is_none_or(|known| known != body) {
        let reason = "its key is that of another row; redrive it under a new Idempotency-Key, or discard it";
        return park(tx, item, reason.to_owned());
    }
    let sql =
        "DELETE FROM parked WHERE number = ?1 OR (tenant = ?2 AND tbl = ?3 AND id = ?4 AND digest = ?5)";
    tx.execute(
        sql,
        params![envelope.parked, tenant, table, envelope.id, digest(body)],
    )?;
    Ok(Outcome::Written)
}

fn park(tx: &Transaction<'_>, item: &Item, reason: String) -> rusqlite::Result<Outcome> {
    let Envelope { id, parked, row, .. } = &item.envelope;
    let now = micros(SystemTime::now()).cast_signed();
    if let Some(number) = parked {
        let sql = "UPDATE parked SET failures = failures + 1, reason = ?2, at = ?3 WHERE number = ?1";
        if tx.execute(sql, params![number, reason, now])? > 0 {
            return Ok(Outcome::Parked(reason));
        }
    }
    let sql = "INSERT INTO parked (tenant, tbl, id, digest, body, reason, failures, at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7) ON CONFLICT DO UPDATE SET reason = excluded.reason, at = excluded.at";
    let (body, digest) = (row.get(), digest(row.get()));
    tx.execute(
        sql,
        params![item.tenant, item.table, id, digest, body, reason, now],
    )?;
    Ok(Outcome::Parked(reason))
}

fn row(db: &Connection, tenant: &str, table: &str, id: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT body FROM rows WHERE tenant = ?1 AND tbl = ?2 AND id = ?3";
    db.query_row(sql, params![tenant, table, id], |row| row.get(0))
        .optional()
}

fn json(body: String) -> rusqlite::Result<Box<RawValue>> {
    RawValue::from_string(body)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
}
