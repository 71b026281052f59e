//! Giving work out: the decision who gets which task, in one transaction.

use rusqlite::{OptionalExtension as _, params};
use windjet_bus::Layout;
use windjet_bus::message::{Action, AssignMsg, Timestamp, encode};

use super::{Result, Store, WHOLE_MACHINE, split};

/// Candidates that are looked at for one request.
const CANDIDATES: i64 = 50;
/// Encoded bytes of a batch; a message takes 1 MiB.
const BATCH_BYTES: usize = 768 * 1024;

/// How much one reply may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    tasks: usize,
    bytes: usize,
}

impl Bounds {
    /// What the asker said; 0 for no bound of its own.
    pub(crate) fn of(tasks: i64, bytes: i64) -> Self {
        let own = |bound: i64| usize::try_from(bound).ok().filter(|bound| *bound > 0);
        Self {
            tasks: own(tasks).unwrap_or(usize::MAX),
            bytes: own(bytes).unwrap_or(BATCH_BYTES).min(BATCH_BYTES),
        }
    }
}

/// What a request got.
#[derive(Debug, Default)]
pub(crate) struct Leased {
    /// The tasks, recorded as the worker's.
    pub batch: Vec<AssignMsg>,
    /// Whether ready tasks are left that another worker might take.
    pub more: bool,
    /// Whether the worker has to register first: unknown, offline, or another process of it is newer.
    pub register: bool,
}

struct Candidate {
    id: String,
    job: String,
    step: i64,
    command: String,
    cores: i64,
    queue: String,
}

impl Store {
    /// Gives as much work as a reply takes.
    #[cfg(test)]
    pub(crate) fn lease(
        &mut self,
        worker: &str,
        instance: &str,
        queue: Option<&str>,
        layout: Layout,
        now: i64,
    ) -> Result<Leased> {
        self.lease_within(worker, instance, queue, Bounds::of(0, 0), layout, now)
    }

    /// Gives work to a worker: of `queue`, or of all its queues for `None`. First fit in the order of jobs, steps, tasks, as
    /// long as cores are free and the queue's limit allows.
    pub(crate) fn lease_within(
        &mut self,
        worker: &str,
        instance: &str,
        queue: Option<&str>,
        bounds: Bounds,
        layout: Layout,
        now: i64,
    ) -> Result<Leased> {
        self.write(|db| {
            let known: Option<(String, bool, String, i64)> = db
                .query_row("SELECT instance, online, queues, cpus FROM workers WHERE id = ?1", [worker], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                })
                .optional()?;
            let mut leased = Leased::default();
            let Some((current, true, queues, cpus)) = known else {
                leased.register = true;
                return Ok(leased);
            };
            if !instance.is_empty() && instance != current {
                leased.register = true;
                return Ok(leased);
            }
            let queues = split(&queues);
            let cpus = cpus.max(1);
            let used: i64 = db.query_row(
                "SELECT coalesce(sum(CASE cores WHEN ?3 THEN ?2 ELSE cores END), 0) FROM tasks
                 WHERE worker = ?1 AND state IN ('assigned', 'running')",
                params![worker, cpus, WHOLE_MACHINE],
                |row| row.get(0),
            )?;
            let mut free = cpus - used;
            let mut bytes = 0;
            let candidates: Vec<Candidate> = {
                let mut query = db.prepare(
                    "SELECT tasks.id, job, step, command, cores, queue FROM tasks JOIN jobs ON jobs.id = job
                     WHERE tasks.state = 'ready' AND jobs.state = 'active' AND not_before_ms <= ?1
                       AND (?2 IS NULL OR queue = ?2)
                     ORDER BY created_ms, jobs.rowid, step, place LIMIT ?3",
                )?;
                let rows = query.query_map(params![now, queue, CANDIDATES], |row| {
                    Ok(Candidate {
                        id: row.get(0)?,
                        job: row.get(1)?,
                        step: row.get(2)?,
                        command: row.get(3)?,
                        cores: row.get(4)?,
                        queue: row.get(5)?,
                    })
                })?;
                rows.collect::<Result<_>>()?
            };
            for task in candidates {
                let cost = if task.cores == WHOLE_MACHINE { cpus } else { task.cores };
                let served = queues.is_empty() || queues.contains(&task.queue);
                if !served || cost > free || at_limit(db, &task.queue)? {
                    leased.more = true;
                    continue;
                }
                let number: i64 = db.query_row(
                    "SELECT coalesce(max(number), 0) + 1 FROM attempts WHERE task = ?1",
                    [&task.id],
                    |row| row.get(0),
                )?;
                let attempt = format!("{}-a{number}", task.id);
                let assignment = assignment(&task, worker, &attempt, layout, now);
                // Built before it is recorded, so that nothing is recorded that cannot be sent.
                let size = encode(&assignment).map_or(usize::MAX, |encoded| encoded.len());
                if size > BATCH_BYTES {
                    db.execute(
                        "UPDATE tasks SET state = 'failed', message = 'the assignment is too large to be sent' WHERE id = ?1",
                        [&task.id],
                    )?;
                    super::report::finish_job(db, &task.job)?;
                    continue;
                }
                // The first always fits, or an asker with a small bound would wait for ever.
                if !leased.batch.is_empty() && (bytes + size > bounds.bytes || leased.batch.len() >= bounds.tasks) {
                    leased.more = true;
                    break;
                }
                bytes += size;
                db.execute(
                    "INSERT INTO attempts (id, task, number, worker, state, started_ms) VALUES (?1, ?2, ?3, ?4, 'assigned', ?5)",
                    params![attempt, task.id, number, worker, now],
                )?;
                db.execute(
                    "UPDATE tasks SET state = 'assigned', worker = ?2, attempt = ?3, assigned_ms = ?4 WHERE id = ?1",
                    params![task.id, worker, attempt, now],
                )?;
                free -= cost;
                leased.batch.push(assignment);
            }
            Ok(leased)
        })
    }
}

fn at_limit(db: &rusqlite::Transaction<'_>, queue: &str) -> Result<bool> {
    let limit: Option<i64> = db
        .query_row("SELECT max_running FROM queues WHERE name = ?1", [queue], |row| {
            row.get(0)
        })
        .optional()?;
    let Some(limit) = limit else { return Ok(false) };
    let running: i64 = db.query_row(
        "SELECT count(*) FROM tasks JOIN jobs ON jobs.id = job WHERE queue = ?1 AND tasks.state IN ('assigned', 'running')",
        [queue],
        |row| row.get(0),
    )?;
    Ok(running >= limit)
}

fn assignment(task: &Candidate, worker: &str, attempt: &str, layout: Layout, now: i64) -> AssignMsg {
    AssignMsg {
        task_id: task.id.clone(),
        job_id: task.job.clone(),
        step_id: format!("{}-s{}", task.job, task.step),
        attempt_id: attempt.to_owned(),
        task_name: task.id.clone(),
        worker_id: worker.to_owned(),
        assigned_at: Timestamp::from_unix_nanos(now.saturating_mul(1_000_000)),
        on_run: Some(Action {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), task.command.clone()],
            ..Action::default()
        }),
        ..AssignMsg::new(layout)
    }
}
