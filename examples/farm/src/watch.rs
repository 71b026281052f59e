//! What people look at: progress bars, output that is followed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use anyhow::bail;

use crate::control::{Answer, Request, ask};
use crate::store::{JobView, TaskView, WorkerView};

const EVERY: Duration = Duration::from_millis(200);
const WIDTH: usize = 40;

async fn jobs(control: &str, job: Option<&str>) -> anyhow::Result<Vec<JobView>> {
    let request = Request::Status {
        job: job.map(str::to_owned),
    };
    match ask(control, &request).await? {
        Answer::Jobs(jobs) => Ok(jobs),
        _ => bail!("the server answered something else"),
    }
}

/// Waits for the end of a job; its state.
pub(crate) async fn until_done(control: &str, job: &str) -> anyhow::Result<String> {
    loop {
        let Some(found) = jobs(control, Some(job)).await?.pop() else {
            bail!("there is no job {job}");
        };
        if found.state != "active" {
            return Ok(found.state);
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Draws the farm again and again.
pub(crate) async fn run(control: &str, until_done: bool) -> anyhow::Result<()> {
    loop {
        let jobs = jobs(control, None).await?;
        let Answer::Workers(workers) = ask(control, &Request::Workers).await? else {
            bail!("the server answered something else");
        };
        let mut out = std::io::stdout().lock();
        // From the top left corner, over what was there.
        write!(out, "\x1b[H\x1b[2J{}", draw(&workers, &jobs))?;
        out.flush()?;
        drop(out);
        if until_done && jobs.iter().all(|job| job.state != "active") {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn draw(workers: &[WorkerView], jobs: &[JobView]) -> String {
    let mut lines = Vec::new();
    lines.push(format!("{:<16} {:<8} {:<12} tasks", "worker", "state", "queues"));
    for worker in workers {
        let queues = if worker.queues.is_empty() {
            "any".to_owned()
        } else {
            worker.queues.join(",")
        };
        let state = if worker.online { "online" } else { "offline" };
        lines.push(format!(
            "{:<16} {state:<8} {queues:<12} {}/{}",
            worker.id, worker.tasks, worker.cpus
        ));
    }
    lines.push(String::new());
    for job in jobs.iter().take(12) {
        lines.push(format!("{:<20} {:<10} {}", job.id, job.queue, job.state));
        let mut steps: BTreeMap<i64, Vec<&TaskView>> = BTreeMap::new();
        for task in &job.tasks {
            steps.entry(task.step).or_default().push(task);
        }
        for (step, tasks) in steps {
            lines.push(format!("  step {step} {}", bar(&tasks)));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// `####===...  4/8, 3 running`: done, running, to come.
fn bar(tasks: &[&TaskView]) -> String {
    let count = |states: &[&str]| {
        tasks
            .iter()
            .filter(|task| states.contains(&task.state.as_str()))
            .count()
    };
    let (done, bad) = (count(&["succeeded"]), count(&["failed", "canceled"]));
    let running = count(&["assigned", "running"]);
    let all = tasks.len().max(1);
    let part = |number: usize| number * WIDTH / all;
    let (done_part, bad_part, running_part) = (part(done), part(bad), part(running));
    let rest = WIDTH.saturating_sub(done_part + bad_part + running_part);
    let drawn = [
        "#".repeat(done_part),
        "x".repeat(bad_part),
        "=".repeat(running_part),
        ".".repeat(rest),
    ]
    .concat();
    let mut text = format!("[{drawn}] {done}/{}", tasks.len());
    if running > 0 {
        text += &format!(", {running} running");
    }
    if bad > 0 {
        text += &format!(", {bad} failed or canceled");
    }
    text
}

/// Prints what a task wrote, and goes on until it has ended when asked to follow.
pub(crate) async fn logs(control: &str, task: &str, follow: bool) -> anyhow::Result<()> {
    let job = task.split("-s").next().unwrap_or(task).to_owned();
    let mut after: Option<(String, i64)> = None;
    loop {
        // Read before the output, so that what came before the end is printed.
        let ended = jobs(control, Some(&job))
            .await?
            .iter()
            .flat_map(|job| &job.tasks)
            .any(|one| {
                one.id == task
                    && one.missing_logs == 0
                    && matches!(one.state.as_str(), "succeeded" | "failed" | "canceled")
            });
        loop {
            let request = Request::Logs {
                task: task.to_owned(),
                after: after.clone(),
            };
            let Answer::Logs(chunks) = ask(control, &request).await? else {
                bail!("the server answered something else");
            };
            let Some(last) = chunks.last() else { break };
            after = Some((last.attempt.clone(), last.seq));
            for chunk in &chunks {
                crate::say(&chunk.data)?;
            }
        }
        if ended || !follow {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_what_is_done_running_and_to_come() {
        let task = |state: &str| TaskView {
            id: String::new(),
            step: 0,
            state: state.to_owned(),
            worker: String::new(),
            attempt: String::new(),
            attempts: 0,
            succeeded: 0,
            message: String::new(),
            missing_logs: 0,
        };
        let tasks = ["succeeded", "running", "ready", "failed"].map(task);
        let drawn = bar(&tasks.each_ref()[..]);
        assert_eq!(
            drawn,
            "[##########xxxxxxxxxx==========..........] 1/4, 1 running, 1 failed or canceled"
        );
    }
}
