//! What the server knows: jobs, tasks, attempts, workers, output, in one SQLite file.
//!
//! Every method is one transaction, so a crash between two of them leaves a state that the sweep understands. Exclusivity is
//! decided here and nowhere else: a task is given out by the transaction that moves it from ready to assigned.

mod lease;
mod report;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::{Deserialize, Serialize};

pub(crate) use lease::{Bounds, Leased};
pub(crate) use report::{Report, Reported};

/// Cost of a task that says nothing: the whole machine.
pub(crate) const WHOLE_MACHINE: i64 = 0;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS workers (
    id TEXT PRIMARY KEY, instance TEXT NOT NULL, boot_ms INTEGER NOT NULL, queues TEXT NOT NULL, cpus INTEGER NOT NULL,
    online INTEGER NOT NULL, seen_ms INTEGER NOT NULL, skew_ms INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS locations (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS queues (name TEXT PRIMARY KEY, max_running INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, queue TEXT NOT NULL, state TEXT NOT NULL, created_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY, job TEXT NOT NULL REFERENCES jobs(id), step INTEGER NOT NULL, place INTEGER NOT NULL,
    command TEXT NOT NULL, cores INTEGER NOT NULL, state TEXT NOT NULL, worker TEXT NOT NULL DEFAULT '',
    attempt TEXT NOT NULL DEFAULT '', failures INTEGER NOT NULL DEFAULT 0, not_before_ms INTEGER NOT NULL DEFAULT 0,
    assigned_ms INTEGER NOT NULL DEFAULT 0, message TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS tasks_by_state ON tasks(state, job);
CREATE INDEX IF NOT EXISTS tasks_by_job ON tasks(job, step);
CREATE TABLE IF NOT EXISTS attempts (
    id TEXT PRIMARY KEY, task TEXT NOT NULL REFERENCES tasks(id), number INTEGER NOT NULL, worker TEXT NOT NULL,
    state TEXT NOT NULL, exit_code INTEGER, message TEXT NOT NULL DEFAULT '', last_log_seq INTEGER NOT NULL DEFAULT 0,
    started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS attempts_by_task ON attempts(task, number);
CREATE TABLE IF NOT EXISTS logs (
    attempt TEXT NOT NULL, seq INTEGER NOT NULL, stream TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (attempt, seq));
";

/// A result of the store: only errors of the disk or of SQL, never of what a message said.
pub(crate) type Result<T> = rusqlite::Result<T>;

/// The open file.
#[derive(Debug)]
pub(crate) struct Store {
    db: Connection,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A worker as it registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Its id.
    pub id: String,
    /// Its process.
    pub instance: String,
    /// When the process began: an older registration is ignored.
    pub boot_ms: i64,
    /// Its queues; none for any.
    pub queues: Vec<String>,
    /// Its cores.
    pub cpus: i64,
}

/// One step of a new job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The command, for `sh -c`. `{n}` becomes the number of the task.
    pub command: String,
    /// How many tasks.
    pub tasks: u32,
}

/// How a job stands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobView {
    /// Its id.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// `active`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// Its tasks.
    pub tasks: Vec<TaskView>,
}

/// How a task stands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TaskView {
    /// Its id.
    pub id: String,
    /// Its step.
    pub step: i64,
    /// `pending`, `ready`, `assigned`, `running`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// Who has it.
    pub worker: String,
    /// Its newest execution.
    pub attempt: String,
    /// Executions so far.
    pub attempts: i64,
    /// Executions that succeeded; more than one would be a mistake of the farm.
    pub succeeded: i64,
    /// Why it failed.
    pub message: String,
    /// Pieces of output that the newest execution sent and that are not here.
    pub missing_logs: i64,
}

/// A worker as others see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerView {
    /// Its id.
    pub id: String,
    /// Whether it lives.
    pub online: bool,
    /// Its queues.
    pub queues: Vec<String>,
    /// Its cores.
    pub cpus: i64,
    /// How far its clock is ahead, by its newest heartbeat.
    pub skew_ms: i64,
    /// Tasks it has.
    pub tasks: i64,
}

/// A piece of output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// The execution.
    pub attempt: String,
    /// Its number there.
    pub seq: i64,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The lines.
    pub data: String,
}

/// A task that a worker must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Canceled {
    /// The task.
    pub task: String,
    /// The one execution that must end; empty for every one.
    pub attempt: String,
    /// Its job.
    pub job: String,
}

impl Store {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn open(file: &Path) -> anyhow::Result<Self> {
        let db = Connection::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        Self::prepare(db).with_context(|| format!("cannot use {}", file.display()))
    }

    /// One in memory.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        Self::prepare(Connection::open_in_memory().unwrap()).unwrap()
    }

    fn prepare(db: Connection) -> Result<Self> {
        db.pragma_update(None, "journal_mode", "WAL")?;
        // A message is acknowledged after its effect is on the disk.
        db.pragma_update(None, "synchronous", "FULL")?;
        db.execute_batch(SCHEMA)?;
        Ok(Self { db })
    }

    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let transaction = self
            .db
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Takes a registration. What another process of the same worker had is taken back; the answer says whether there was any.
    pub(crate) fn register(&mut self, worker: &Registration, now: i64) -> Result<bool> {
        self.write(|db| {
            let known: Option<(String, i64)> = db
                .query_row("SELECT instance, boot_ms FROM workers WHERE id = ?1", [&worker.id], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            let mut taken = false;
            if let Some((instance, boot_ms)) = known {
                if boot_ms > worker.boot_ms {
                    return Ok(false);
                }
                if instance != worker.instance {
                    taken = take_back(db, &worker.id, "the worker was restarted", now)? > 0;
                }
            }
            db.execute(
                "INSERT INTO workers (id, instance, boot_ms, queues, cpus, online, seen_ms) VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6)
                 ON CONFLICT(id) DO UPDATE SET instance = ?2, boot_ms = ?3, queues = ?4, cpus = ?5, online = 1, seen_ms = ?6",
                params![worker.id, worker.instance, worker.boot_ms, worker.queues.join("\n"), worker.cpus, now],
            )?;
            Ok(taken)
        })
    }

    /// Takes a heartbeat; false when the worker is unknown. Liveness is by this clock, not the worker's. The tasks it says it
    /// runs and should not are named.
    pub(crate) fn heartbeat(
        &mut self,
        worker: &str,
        running: &[String],
        now: i64,
    ) -> Result<Option<Vec<Canceled>>> {
        self.write(|db| {
            let known = db.execute(
                "UPDATE workers SET seen_ms = ?2, online = 1 WHERE id = ?1",
                params![worker, now],
            )?;
            if known == 0 {
                return Ok(None);
            }
            let mut stray = Vec::new();
            for task in running {
                let of: Option<(String, String, String)> = db
                    .query_row(
                        "SELECT job, worker, state FROM tasks WHERE id = ?1",
                        [task],
                        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                    )
                    .optional()?;
                let (job, owner, state) = of.unwrap_or_default();
                if owner != worker || !matches!(state.as_str(), "assigned" | "running") {
                    // Only what this worker was given: the task may run elsewhere, or here again, by the time it hears this.
                    let attempt: Option<String> = db
                        .query_row(
                            "SELECT id FROM attempts WHERE task = ?1 AND worker = ?2 ORDER BY number DESC LIMIT 1",
                            [task.as_str(), worker],
                            |row| row.get(0),
                        )
                        .optional()?;
                    stray.push(Canceled {
                        task: task.clone(),
                        attempt: attempt.unwrap_or_default(),
                        job,
                    });
                }
            }
            Ok(Some(stray))
        })
    }

    /// How far a worker's clock is ahead of this one.
    pub(crate) fn note_skew(&mut self, worker: &str, ahead_ms: i64) -> Result<()> {
        self.write(|db| {
            db.execute(
                "UPDATE workers SET skew_ms = ?2 WHERE id = ?1",
                params![worker, ahead_ms],
            )
            .map(drop)
        })
    }

    /// Adds a place where workers stand to the list, once.
    pub(crate) fn note_location(&mut self, name: &str) -> Result<()> {
        self.write(|db| {
            db.execute("INSERT OR IGNORE INTO locations VALUES (?1)", [name])
                .map(drop)
        })
    }

    /// Whether an execution is this worker's.
    pub(crate) fn is_of(&self, attempt: &str, worker: &str) -> Result<bool> {
        let of: Option<String> = self
            .db
            .query_row("SELECT worker FROM attempts WHERE id = ?1", [attempt], |row| {
                row.get(0)
            })
            .optional()?;
        Ok(of.is_some_and(|of| of == worker))
    }

    /// A worker left: it is offline and its tasks are ready again. Ignored for a process that is not the newest.
    pub(crate) fn deregister(&mut self, worker: &str, instance: &str, now: i64) -> Result<usize> {
        self.write(|db| {
            let current: Option<String> = db
                .query_row("SELECT instance FROM workers WHERE id = ?1", [worker], |row| {
                    row.get(0)
                })
                .optional()?;
            if current.is_none_or(|current| !instance.is_empty() && current != instance) {
                return Ok(0);
            }
            offline(db, worker, now)
        })
    }

    /// The server was away and cannot say who was silent: all workers that were online have their whole time again.
    pub(crate) fn restarted(&mut self, now: i64) -> Result<()> {
        self.write(|db| {
            db.execute("UPDATE workers SET seen_ms = ?1 WHERE online = 1", [now])?;
            db.execute(
                "UPDATE tasks SET assigned_ms = ?1 WHERE state = 'assigned'",
                [now],
            )
            .map(drop)
        })
    }

    /// Workers that were silent since `before` are offline and their tasks ready again. Their names.
    pub(crate) fn sweep(&mut self, before: i64, now: i64) -> Result<Vec<String>> {
        self.write(|db| {
            let silent = names(
                db,
                "SELECT id FROM workers WHERE online = 1 AND seen_ms < ?1",
                before,
            )?;
            for worker in &silent {
                offline(db, worker, now)?;
            }
            Ok(silent)
        })
    }

    /// Tasks that were given out before `before` and not reported running are ready again. How many.
    pub(crate) fn reap(&mut self, before: i64, now: i64) -> Result<usize> {
        self.write(|db| {
            let lost = names(
                db,
                "SELECT id FROM tasks WHERE state = 'assigned' AND assigned_ms < ?1",
                before,
            )?;
            for task in &lost {
                free(db, task, "was not reported running", now)?;
            }
            Ok(lost.len())
        })
    }

    /// Stores a job. Tasks of the first step are ready.
    pub(crate) fn submit(
        &mut self,
        id: &str,
        queue: &str,
        steps: &[Step],
        cores: i64,
        now: i64,
    ) -> Result<()> {
        self.write(|db| {
            db.execute("INSERT INTO jobs VALUES (?1, ?2, 'active', ?3)", params![id, queue, now])?;
            for (step, Step { command, tasks }) in steps.iter().enumerate() {
                for place in 0..*tasks {
                    db.execute(
                        "INSERT INTO tasks (id, job, step, place, command, cores, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                        params![
                            format!("{id}-s{step}-t{place}"),
                            id,
                            i64::try_from(step).unwrap_or(i64::MAX),
                            place,
                            command.replace("{n}", &place.to_string()),
                            cores,
                            if step == 0 { "ready" } else { "pending" },
                        ],
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Bounds how many tasks of a queue run at the same time.
    pub(crate) fn limit_queue(&mut self, queue: &str, max_running: i64) -> Result<()> {
        self.write(|db| {
            db.execute(
                "INSERT INTO queues VALUES (?1, ?2) ON CONFLICT(name) DO UPDATE SET max_running = ?2",
                params![queue, max_running],
            )
            .map(drop)
        })
    }

    /// Cancels a job, or one of its tasks. The tasks that a worker has.
    pub(crate) fn cancel(
        &mut self,
        job: Option<&str>,
        task: Option<&str>,
        now: i64,
    ) -> Result<Vec<Canceled>> {
        self.write(|db| {
            let open = "state IN ('pending', 'ready', 'assigned', 'running')";
            let ids = match (job, task) {
                (Some(job), _) => names(
                    db,
                    &format!("SELECT id FROM tasks WHERE job = ?1 AND {open}"),
                    job,
                )?,
                (_, Some(task)) => names(
                    db,
                    &format!("SELECT id FROM tasks WHERE id = ?1 AND {open}"),
                    task,
                )?,
                _ => Vec::new(),
            };
            let mut held = Vec::new();
            for id in &ids {
                let (job, state): (String, String) =
                    db.query_row("SELECT job, state FROM tasks WHERE id = ?1", [id], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })?;
                close_attempt(db, id, "canceled", "canceled", now)?;
                db.execute(
                    "UPDATE tasks SET state = 'canceled', worker = '' WHERE id = ?1",
                    [id],
                )?;
                if matches!(state.as_str(), "assigned" | "running") {
                    held.push(Canceled {
                        task: id.clone(),
                        attempt: String::new(),
                        job: job.clone(),
                    });
                }
                report::finish_job(db, &job)?;
            }
            Ok(held)
        })
    }

    /// Stores a piece of output, once.
    pub(crate) fn log(&mut self, chunk: &Chunk) -> Result<()> {
        let stream = if chunk.stream == "stderr" {
            "stderr"
        } else {
            "stdout"
        };
        self.write(|db| {
            db.execute(
                "INSERT OR IGNORE INTO logs VALUES (?1, ?2, ?3, ?4)",
                params![chunk.attempt, chunk.seq, stream, chunk.data],
            )
            .map(drop)
        })
    }

    /// Output of a task, of all its executions, after a piece of one.
    pub(crate) fn logs(&self, task: &str, after: Option<(&str, i64)>) -> Result<Vec<Chunk>> {
        let mut query = self.db.prepare(
            "SELECT logs.attempt, seq, stream, data, number FROM logs JOIN attempts ON attempts.id = logs.attempt
             WHERE task = ?1 AND (?2 IS NULL OR (number, seq) > ((SELECT number FROM attempts WHERE id = ?2), ?3))
             ORDER BY number, seq LIMIT 1000",
        )?;
        let (attempt, seq) = after.map_or((None, 0), |(attempt, seq)| (Some(attempt), seq));
        let rows = query.query_map(params![task, attempt, seq], |row| {
            Ok(Chunk {
                attempt: row.get(0)?,
                seq: row.get(1)?,
                stream: row.get(2)?,
                data: row.get(3)?,
            })
        })?;
        rows.collect()
    }

    /// One job, or all that are newest first.
    pub(crate) fn jobs(&self, only: Option<&str>) -> Result<Vec<JobView>> {
        let mut query = self.db.prepare(
            "SELECT id, queue, state FROM jobs WHERE ?1 IS NULL OR id = ?1 ORDER BY created_ms DESC, rowid DESC LIMIT 50",
        )?;
        let rows = query.query_map([only], |row| {
            Ok(JobView {
                id: row.get(0)?,
                queue: row.get(1)?,
                state: row.get(2)?,
                tasks: Vec::new(),
            })
        })?;
        let mut jobs: Vec<JobView> = rows.collect::<Result<_>>()?;
        for job in &mut jobs {
            job.tasks = self.tasks(&job.id)?;
        }
        Ok(jobs)
    }

    fn tasks(&self, job: &str) -> Result<Vec<TaskView>> {
        let mut query = self.db.prepare(
            "SELECT id, step, state, worker, attempt, message,
                    (SELECT count(*) FROM attempts WHERE task = tasks.id),
                    (SELECT count(*) FROM attempts WHERE task = tasks.id AND state = 'succeeded'),
                    (SELECT last_log_seq - (SELECT count(*) FROM logs WHERE attempt = attempts.id)
                     FROM attempts WHERE id = tasks.attempt)
             FROM tasks WHERE job = ?1 ORDER BY step, place",
        )?;
        let rows = query.query_map([job], |row| {
            Ok(TaskView {
                id: row.get(0)?,
                step: row.get(1)?,
                state: row.get(2)?,
                worker: row.get(3)?,
                attempt: row.get(4)?,
                message: row.get(5)?,
                attempts: row.get(6)?,
                succeeded: row.get(7)?,
                missing_logs: row.get::<_, Option<i64>>(8)?.unwrap_or_default().max(0),
            })
        })?;
        rows.collect()
    }

    /// All workers.
    pub(crate) fn workers(&self) -> Result<Vec<WorkerView>> {
        let mut query = self.db.prepare(
            "SELECT id, online, queues, cpus, skew_ms,
                    (SELECT count(*) FROM tasks WHERE worker = workers.id AND state IN ('assigned', 'running'))
             FROM workers ORDER BY id",
        )?;
        let rows = query.query_map([], |row| {
            Ok(WorkerView {
                id: row.get(0)?,
                online: row.get(1)?,
                queues: split(&row.get::<_, String>(2)?),
                cpus: row.get(3)?,
                skew_ms: row.get(4)?,
                tasks: row.get(5)?,
            })
        })?;
        rows.collect()
    }

    /// Breaks or mends what a test wants to see broken.
    #[cfg(test)]
    pub(crate) fn run(&self, sql: &str) {
        self.db.execute_batch(sql).unwrap();
    }

    /// One number of the state, for tests.
    #[cfg(test)]
    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.db.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn split(lines: &str) -> Vec<String> {
    lines.lines().map(str::to_owned).collect()
}

fn names(db: &Transaction<'_>, sql: &str, with: impl rusqlite::ToSql) -> Result<Vec<String>> {
    let mut query = db.prepare(sql)?;
    let rows = query.query_map([with], |row| row.get(0))?;
    rows.collect()
}

fn offline(db: &Transaction<'_>, worker: &str, now: i64) -> Result<usize> {
    db.execute("UPDATE workers SET online = 0 WHERE id = ?1", [worker])?;
    take_back(db, worker, "worker went offline", now)
}

/// Makes a worker's tasks ready again. No retry is used up: it was not their fault.
fn take_back(db: &Transaction<'_>, worker: &str, why: &str, now: i64) -> Result<usize> {
    let held = names(
        db,
        "SELECT id FROM tasks WHERE worker = ?1 AND state IN ('assigned', 'running')",
        worker,
    )?;
    for task in &held {
        free(db, task, why, now)?;
    }
    Ok(held.len())
}

fn free(db: &Transaction<'_>, task: &str, why: &str, now: i64) -> Result<()> {
    close_attempt(db, task, "failed", why, now)?;
    db.execute(
        "UPDATE tasks SET state = 'ready', worker = '' WHERE id = ?1",
        [task],
    )
    .map(drop)
}

fn close_attempt(db: &Transaction<'_>, task: &str, state: &str, message: &str, now: i64) -> Result<()> {
    db.execute(
        "UPDATE attempts SET state = ?2, message = ?3, ended_ms = ?4
         WHERE id = (SELECT attempt FROM tasks WHERE id = ?1) AND ended_ms = 0",
        params![task, state, message, now],
    )
    .map(drop)
}
