//! One task on a worker: told to be running, run, its output sent, its end reported.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::process::Command;
use tokio::sync::Notify;
use windjet_bus::client::{CancelHandler, Publication, To};
use windjet_bus::message::{
    AssignMsg, TaskCancelMsg, TaskStatusMsg, Timestamp, WORKER_SHUTDOWN, decode, encode,
};
use windjet_bus::{Bus as _, Token};

use super::Worker;
use super::output::Output;

/// Why a task ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It was canceled.
    Canceled,
    /// The worker stops or may not run it any more.
    Shutdown,
}

/// A task that runs; ending it may come before its process exists.
#[derive(Debug, Default)]
pub(crate) struct Running {
    end: Mutex<Option<End>>,
    told: Notify,
}

impl Running {
    /// Tells it to end. The first reason counts.
    pub(crate) fn end(&self, end: End) {
        self.end.lock().get_or_insert(end);
        self.told.notify_waiters();
    }

    /// Hears a cancel; one that cannot be read or names another task or another execution of it is ignored.
    pub(super) fn hear(&self, body: &[u8], task: &str, attempt: &str) {
        match decode::<TaskCancelMsg>(body) {
            Ok(cancel) if cancel.task_id != task => {
                tracing::warn!(%task, other = cancel.task_id, "a cancel of another task is ignored");
            }
            Ok(cancel) if !cancel.attempt_id.is_empty() && cancel.attempt_id != attempt => {
                tracing::debug!(%task, %attempt, other = cancel.attempt_id, "a cancel of another execution is ignored");
            }
            Ok(_) => self.end(End::Canceled),
            Err(error) => tracing::warn!(%task, %error, "a cancel that cannot be read is ignored"),
        }
    }

    pub(super) fn ended(&self) -> Option<End> {
        *self.end.lock()
    }

    async fn until_ended(&self) -> End {
        loop {
            let told = self.told.notified();
            if let Some(end) = self.ended() {
                return end;
            }
            told.await;
        }
    }
}

impl Worker {
    /// Runs an assignment to its end and reports it.
    pub(super) async fn carry_out(self: Arc<Self>, assignment: AssignMsg, running: Arc<Running>) {
        let mut report = TaskStatusMsg::new(self.client.layout(), "failed");
        report.task_id.clone_from(&assignment.task_id);
        report.attempt_id.clone_from(&assignment.attempt_id);
        report.job_id.clone_from(&assignment.job_id);
        report.worker_id = self.id.to_string();
        match self.run_one(&assignment, &running, &report).await {
            Ok(end) => {
                report.status = end.status;
                report.exit_code = end.exit_code;
                report.message = end.message;
                report.last_log_seq = end.last_log_seq;
            }
            Err(error) => report.message = format!("{error:#}"),
        }
        report.at = Timestamp::from(std::time::SystemTime::now());
        {
            let mut tasks = self.running.lock();
            if tasks
                .get(&assignment.task_id)
                .is_some_and(|current| Arc::ptr_eq(current, &running))
            {
                tasks.remove(&assignment.task_id);
            }
        }
        if let Err(error) = self.outbox.keep(&report) {
            tracing::error!(attempt = report.attempt_id, %error, "the report cannot be kept on disk; it is only sent");
        }
        self.send_report(&report).await;
    }

    /// Sends a report until it is stored.
    pub(super) async fn send_report(&self, report: &TaskStatusMsg) {
        let sent = async {
            let publication = self.status(report, 2)?;
            self.publish_until_stored(publication).await
        };
        match sent.await {
            Ok(_) => self.outbox.forget(&report.attempt_id),
            Err(error) => {
                tracing::error!(attempt = report.attempt_id, %error, "a report is not stored; it is sent again at the next start");
            }
        }
    }

    fn status(&self, report: &TaskStatusMsg, number: u32) -> windjet_bus::Result<Publication> {
        let id = format!("{}:{}:{number}", report.attempt_id, report.status);
        Ok(Publication::new(To::TaskStatus(Token::new(&report.job_id)?), encode(report)?).id(id))
    }

    async fn run_one(
        self: &Arc<Self>,
        assignment: &AssignMsg,
        running: &Arc<Running>,
        report: &TaskStatusMsg,
    ) -> anyhow::Result<Ended> {
        let task = Token::new(&assignment.task_id)?;
        // Heard before anything runs, so that no cancel falls between.
        // As long as the server counts on this worker; then it gives the task to somebody else.
        let until = tokio::time::Instant::now() + self.profile.assigned_timeout * 5 / 6;
        let (ear, of, attempt) = (running.clone(), task.clone(), assignment.attempt_id.clone());
        let ear: CancelHandler = Arc::new(move |body| ear.hear(&body, of.as_str(), &attempt));
        let hearing = loop {
            match self.client.subscribe_task_cancel(&task, ear.clone()).await {
                Ok(hearing) => break hearing,
                // No fault of the task's.
                Err(error) if error.is_retryable() && tokio::time::Instant::now() < until => {
                    tracing::debug!(%task, %error, "cannot listen to cancels yet; trying again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) if error.is_retryable() => return Ok(Ended::shutdown()),
                Err(error) => return Err(error).context("cannot listen to cancels"),
            }
        };
        let ended = self.run_heard(assignment, running, report, &task, until).await;
        hearing.stop().await;
        ended
    }

    async fn run_heard(
        self: &Arc<Self>,
        assignment: &AssignMsg,
        running: &Arc<Running>,
        report: &TaskStatusMsg,
        task: &Token,
        until: tokio::time::Instant,
    ) -> anyhow::Result<Ended> {
        let mut begun = report.clone();
        begun.status = "running".to_owned();
        begun.at = Timestamp::from(std::time::SystemTime::now());
        // A task that was not reported running in time is given to somebody else, so it must not begin here.
        let told = tokio::time::timeout_at(until, self.publish_until_stored(self.status(&begun, 1)?)).await;
        if told
            .context("the server could not be told in time")
            .and_then(|told| Ok(told?))
            .is_err()
        {
            return Ok(Ended::shutdown());
        }
        let Some(action) = &assignment.on_run else {
            return Ok(Ended::exited(Some(0), 0));
        };
        if let Some(end) = running.ended() {
            return Ok(Ended::early(end, 0));
        }
        let mut command = Command::new(&action.command);
        command
            .args(&action.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.env("FARM_TASK", task.as_str());
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {:?}", action.command))?;
        let (output, sending) = Output::new(self, task, &assignment.attempt_id);
        let last = output.last();
        let sending = tokio::spawn(sending);
        let mut readers = tokio::task::JoinSet::new();
        if let Some(pipe) = child.stdout.take() {
            readers.spawn(output.clone().read(self.clone(), "stdout", pipe));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.spawn(output.clone().read(self.clone(), "stderr", pipe));
        }
        drop(output);
        let group = child.id();
        let (status, end) = tokio::select! {
            status = child.wait() => (status?, None),
            end = running.until_ended() => {
                kill(group);
                child.start_kill().ok();
                (child.wait().await?, Some(end))
            }
        };
        // Whatever the command left behind holds the pipes; it ends with its task.
        kill(group);
        while readers.join_next().await.is_some() {}
        // All output is stored before the end is reported.
        sending.await.context("the sender of output failed")?;
        let last = last.load(Ordering::SeqCst);
        Ok(match end {
            Some(end) => Ended::early(end, last),
            None => Ended::exited(status.code().map(i64::from), last),
        })
    }
}

/// How a task ended.
struct Ended {
    status: String,
    exit_code: Option<i64>,
    message: String,
    last_log_seq: i64,
}

impl Ended {
    fn exited(code: Option<i64>, last_log_seq: i64) -> Self {
        let (status, message) = match code {
            Some(0) => ("succeeded", String::new()),
            Some(code) => ("failed", format!("exit code {code}")),
            None => ("failed", "ended by a signal".to_owned()),
        };
        Self {
            status: status.to_owned(),
            exit_code: Some(code.unwrap_or(-1)),
            message,
            last_log_seq,
        }
    }

    fn early(end: End, last_log_seq: i64) -> Self {
        match end {
            End::Canceled => Self {
                status: "canceled".to_owned(),
                exit_code: None,
                message: String::new(),
                last_log_seq,
            },
            End::Shutdown => Self {
                last_log_seq,
                ..Self::shutdown()
            },
        }
    }

    fn shutdown() -> Self {
        Self {
            status: "failed".to_owned(),
            exit_code: None,
            message: WORKER_SHUTDOWN.to_owned(),
            last_log_seq: 0,
        }
    }
}

/// Ends a process with all it started.
#[cfg(unix)]
fn kill(group: Option<u32>) {
    let group = group.and_then(|group| i32::try_from(group).ok());
    if let Some(group) = group {
        // A group that is gone already is what is wanted.
        let _ = nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(group),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

#[cfg(not(unix))]
fn kill(_group: Option<u32>) {}
