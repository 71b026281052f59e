//! What workers report about tasks, and what follows for steps and jobs.

use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{Result, Store, close_attempt, free};
use crate::profile::Profile;

/// A change of state that a worker reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report<'r> {
    /// The task.
    pub task: &'r str,
    /// The execution.
    pub attempt: &'r str,
    /// Who reports, where it says so.
    pub worker: &'r str,
    /// `running`, `succeeded`, `failed` or `canceled`.
    pub status: &'r str,
    /// Of the process.
    pub exit_code: Option<i64>,
    /// Why.
    pub message: &'r str,
    /// Whether the worker stopped, which is not the task's fault.
    pub worker_shutdown: bool,
    /// The last piece of output.
    pub last_log_seq: i64,
}

/// What a report did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It was applied; work of this queue may have become ready, or cores free.
    Applied {
        /// The queue.
        queue: String,
    },
    /// It changes nothing: the state is that already.
    Same,
    /// It is not to be believed or comes too late; another delivery would not help.
    Ignored(&'static str),
}

impl Store {
    /// Applies a report. It counts only when its execution is open and the task's newest.
    pub(crate) fn report(&mut self, report: Report<'_>, profile: &Profile, now: i64) -> Result<Reported> {
        self.write(|db| {
            let found: Option<(String, String, String, String, String, i64)> = db
                .query_row(
                    "SELECT tasks.state, tasks.attempt, attempts.worker, attempts.task, queue, failures
                     FROM attempts JOIN tasks ON tasks.id = attempts.task JOIN jobs ON jobs.id = tasks.job
                     WHERE attempts.id = ?1",
                    [report.attempt],
                    |row| {
                        Ok((
                            row.get(0)?,
                            row.get(1)?,
                            row.get(2)?,
                            row.get(3)?,
                            row.get(4)?,
                            row.get(5)?,
                        ))
                    },
                )
                .optional()?;
            let Some((state, newest, worker, task, queue, failures)) = found else {
                return Ok(Reported::Ignored("unknown execution"));
            };
            if task != report.task {
                return Ok(Reported::Ignored("the execution is of another task"));
            }
            if !report.worker.is_empty() && worker != report.worker {
                return Ok(Reported::Ignored("the execution is another worker's"));
            }
            if report.last_log_seq > 0 {
                db.execute(
                    "UPDATE attempts SET last_log_seq = ?2 WHERE id = ?1",
                    params![report.attempt, report.last_log_seq],
                )?;
            }
            if newest != report.attempt {
                return Ok(Reported::Ignored("the execution is not the newest"));
            }
            match (report.status, state.as_str()) {
                (same, now) if same == now => return Ok(Reported::Same),
                ("running" | "succeeded" | "failed" | "canceled", "assigned")
                | ("succeeded" | "failed" | "canceled", "running") => {}
                ("running" | "succeeded" | "failed" | "canceled", _) => {
                    return Ok(Reported::Ignored(
                        "the task is not in a state to change like this",
                    ));
                }
                _ => return Ok(Reported::Ignored("unknown status")),
            }
            apply(db, report, failures, profile, now)?;
            Ok(Reported::Applied { queue })
        })
    }
}

fn apply(db: &Transaction<'_>, report: Report<'_>, failures: i64, profile: &Profile, now: i64) -> Result<()> {
    if report.status == "running" {
        db.execute("UPDATE tasks SET state = 'running' WHERE id = ?1", [report.task])?;
        db.execute(
            "UPDATE attempts SET state = 'running' WHERE id = ?1",
            [report.attempt],
        )?;
        return Ok(());
    }
    if report.worker_shutdown {
        return free(db, report.task, report.message, now);
    }
    close_attempt(db, report.task, report.status, report.message, now)?;
    db.execute(
        "UPDATE attempts SET exit_code = ?2 WHERE id = ?1",
        params![report.attempt, report.exit_code],
    )?;
    let again = report.status == "failed" && failures + 1 < profile.attempts;
    let state = if again { "ready" } else { report.status };
    let delay = i64::try_from(profile.retry_delay.as_millis()).unwrap_or(i64::MAX);
    db.execute(
        "UPDATE tasks SET state = ?2, message = ?3, failures = failures + ?4, not_before_ms = ?5, worker = '' WHERE id = ?1",
        params![
            report.task,
            state,
            report.message,
            i64::from(report.status == "failed"),
            if again { now.saturating_add(delay) } else { 0 },
        ],
    )?;
    let job: String = db.query_row("SELECT job FROM tasks WHERE id = ?1", [report.task], |row| {
        row.get(0)
    })?;
    finish_job(db, &job)
}

/// Brings a job in line with its tasks: the next step becomes ready when all before it succeeded; a step that cannot succeed
/// any more ends the job.
pub(super) fn finish_job(db: &Transaction<'_>, job: &str) -> Result<()> {
    let count = |states: &str| -> Result<i64> {
        db.query_row(
            &format!("SELECT count(*) FROM tasks WHERE job = ?1 AND state IN ({states})"),
            [job],
            |row| row.get(0),
        )
    };
    let (active, pending) = (count("'ready', 'assigned', 'running'")?, count("'pending'")?);
    if active > 0 {
        return Ok(());
    }
    let (failed, canceled) = (count("'failed'")?, count("'canceled'")?);
    let state = match (failed, canceled, pending) {
        (0, 0, 0) => "succeeded",
        (0, 0, _) => {
            return db
                .execute(
                    "UPDATE tasks SET state = 'ready' WHERE job = ?1 AND state = 'pending'
                     AND step = (SELECT min(step) FROM tasks WHERE job = ?1 AND state = 'pending')",
                    [job],
                )
                .map(drop);
        }
        (0, ..) => "canceled",
        _ => "failed",
    };
    db.execute(
        "UPDATE tasks SET state = 'canceled' WHERE job = ?1 AND state = 'pending'",
        [job],
    )?;
    db.execute(
        "UPDATE jobs SET state = ?2 WHERE id = ?1 AND state = 'active'",
        params![job, state],
    )
    .map(drop)
}
