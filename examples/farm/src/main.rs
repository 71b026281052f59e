//! A small job farm on the worker bus: `farm server`, `farm worker`, `farm submit`, `farm watch`.
//!
//! Jobs have steps, steps have tasks, tasks run real commands on workers. The server keeps its state in SQLite; everything
//! between server and workers goes over the bus. See `README.md`.

mod control;
mod profile;
mod server;
mod store;
mod watch;
mod worker;

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use control::{Answer, Request};
use store::Step;

#[derive(Parser)]
#[command(name = "farm", about = "A small job farm on the worker bus")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the server: broker, scheduler, control port.
    Server(server::Settings),
    /// Runs a worker.
    Worker(worker::Settings),
    /// Submits a job.
    Submit(Submit),
    /// Cancels a job or a task.
    Cancel(Cancel),
    /// Bounds how many tasks of a queue run at the same time.
    Limit(Limit),
    /// Shows jobs and tasks as JSON.
    Status(Job),
    /// Shows workers as JSON.
    Workers(At),
    /// Shows the streams of the bus as JSON.
    Streams(At),
    /// Shows what the server counted as JSON.
    Counts(At),
    /// Prints the output of a task.
    Logs(Logs),
    /// Shows the farm with progress bars.
    Watch(Watch),
}

/// Where the server's control port is.
#[derive(Args, Clone)]
struct At {
    /// The server's control port.
    #[arg(long, default_value = "127.0.0.1:4223", env = "FARM_CONTROL")]
    control: String,
}

#[derive(Args)]
struct Submit {
    #[command(flatten)]
    at: At,
    /// The queue.
    #[arg(long, default_value = "default")]
    queue: String,
    /// Tasks of the first step.
    #[arg(long, default_value_t = 1)]
    tasks: u32,
    /// Command of the first step, for `sh -c`; `{n}` is the number of the task.
    #[arg(long)]
    cmd: String,
    /// A further step, `TASKS:COMMAND`; begins when the one before succeeded.
    #[arg(long = "then", value_parser = parse_step)]
    then: Vec<Step>,
    /// Cores of each task; 0 takes a whole worker.
    #[arg(long, default_value_t = 1)]
    cores: i64,
    /// Waits for the end; the exit code is 1 unless the job succeeded.
    #[arg(long)]
    wait: bool,
}

#[derive(Args)]
struct Cancel {
    #[command(flatten)]
    at: At,
    /// The job.
    #[arg(long, required_unless_present = "task")]
    job: Option<String>,
    /// The task.
    #[arg(long)]
    task: Option<String>,
}

#[derive(Args)]
struct Limit {
    #[command(flatten)]
    at: At,
    /// The queue.
    #[arg(long)]
    queue: String,
    /// Most tasks at the same time.
    #[arg(long)]
    max: i64,
}

#[derive(Args)]
struct Job {
    #[command(flatten)]
    at: At,
    /// Only this one.
    #[arg(long)]
    job: Option<String>,
}

#[derive(Args)]
struct Logs {
    #[command(flatten)]
    at: At,
    /// The task.
    #[arg(long)]
    task: String,
    /// Goes on until the task has ended.
    #[arg(long)]
    follow: bool,
}

#[derive(Args)]
struct Watch {
    #[command(flatten)]
    at: At,
    /// Ends when no job is active.
    #[arg(long)]
    until_done: bool,
}

fn parse_step(text: &str) -> Result<Step, String> {
    let (tasks, command) = text.split_once(':').ok_or("write TASKS:COMMAND")?;
    let tasks = tasks
        .trim()
        .parse()
        .map_err(|_| format!("{tasks:?} is no number of tasks"))?;
    Ok(Step {
        command: command.to_owned(),
        tasks,
    })
}

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_env("FARM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(Cli::parse().command))
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Server(settings) => server::run(settings).await,
        Command::Worker(settings) => worker::run(settings).await,
        Command::Submit(submit) => {
            let mut steps = vec![Step {
                command: submit.cmd,
                tasks: submit.tasks,
            }];
            steps.extend(submit.then);
            let request = Request::Submit {
                queue: submit.queue,
                steps,
                cores: submit.cores,
            };
            let Answer::Submitted { job } = control::ask(&submit.at.control, &request).await? else {
                bail!("the server answered something else");
            };
            say(&job)?;
            if submit.wait && watch::until_done(&submit.at.control, &job).await? != "succeeded" {
                bail!("the job {job} did not succeed; see `farm status --job {job}`");
            }
            Ok(())
        }
        Command::Cancel(Cancel { at, job, task }) => show(&at, &Request::Cancel { job, task }).await,
        Command::Limit(Limit { at, queue, max }) => show(&at, &Request::Limit { queue, max }).await,
        Command::Status(Job { at, job }) => show(&at, &Request::Status { job }).await,
        Command::Workers(at) => show(&at, &Request::Workers).await,
        Command::Streams(at) => show(&at, &Request::Streams).await,
        Command::Counts(at) => show(&at, &Request::Counts).await,
        Command::Logs(Logs { at, task, follow }) => watch::logs(&at.control, &task, follow).await,
        Command::Watch(Watch { at, until_done }) => watch::run(&at.control, until_done).await,
    }
}

async fn show(at: &At, request: &Request) -> anyhow::Result<()> {
    let answer = control::ask(&at.control, request).await?;
    say(&serde_json::to_string_pretty(&answer)?)
}

/// A path below a folder, with its parents made.
fn in_folder(folder: &std::path::Path, name: &str) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    Ok(folder.join(name))
}

/// Prints a line; a reader that went away is an error and no panic.
fn say(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}
