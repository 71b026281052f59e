//! The server's control port: one JSON line asks, one answers. It listens on this machine only.

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::store::{Chunk, JobView, Step, WorkerView};

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Request {
    /// A new job.
    Submit {
        /// Its queue.
        queue: String,
        /// Its steps.
        steps: Vec<Step>,
        /// Cores of each task; 0 for a whole worker.
        cores: i64,
    },
    /// The end of a job or of one task.
    Cancel {
        /// The job.
        job: Option<String>,
        /// The task.
        task: Option<String>,
    },
    /// A bound of a queue.
    Limit {
        /// The queue.
        queue: String,
        /// Most tasks at the same time.
        max: i64,
    },
    /// One job or the newest.
    Status {
        /// Only this one.
        job: Option<String>,
    },
    /// The workers.
    Workers,
    /// The streams of the bus.
    Streams,
    /// What the server counted since it began.
    Counts,
    /// Output of a task after a piece of it.
    Logs {
        /// The task.
        task: String,
        /// The last piece that is known: execution and number.
        after: Option<(String, i64)>,
    },
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It was done.
    Done {
        /// Tasks that were told to end.
        tasks: usize,
    },
    /// A job was taken.
    Submitted {
        /// Its id.
        job: String,
    },
    /// Jobs.
    Jobs(Vec<JobView>),
    /// Workers.
    Workers(Vec<WorkerView>),
    /// Streams.
    Streams(Vec<StreamView>),
    /// Counters.
    Counts(CountsView),
    /// Output.
    Logs(Vec<Chunk>),
    /// It was not done.
    Failed {
        /// Why.
        reason: String,
    },
}

/// How a stream stands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StreamView {
    /// Its name.
    pub name: String,
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The oldest.
    pub first_seq: u64,
    /// The newest.
    pub last_seq: u64,
    /// Messages of its consumer that were not delivered yet.
    pub pending: u64,
    /// Messages of its consumer that were delivered and not answered.
    pub unacked: u64,
    /// Of these, those that were delivered more than once.
    pub redelivered: u64,
}

/// What the server counted since it began, and what waits now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CountsView {
    /// Messages it stored: cancels.
    pub published: u64,
    /// Messages handled.
    pub acked: u64,
    /// Messages to be delivered again.
    pub naked: u64,
    /// Deliveries that were not the first.
    pub redelivered: u64,
    /// Messages that became dead letters.
    pub dead: u64,
    /// Messages handed back at a stop.
    pub returned: u64,
    /// Requests for work that were answered.
    pub leases: u64,
    /// Requests for work that were refused unseen.
    pub leases_dropped: u64,
    /// How often it was looked for work.
    pub looks: u64,
    /// Requests for work that wait now.
    pub parked: u64,
}

/// Asks a server.
///
/// # Errors
/// When it cannot be reached or refuses.
pub(crate) async fn ask(address: &str, request: &Request) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("no farm server at {address}; start one with `farm server`"))?;
    let mut stream = BufReader::new(stream);
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    match serde_json::from_str(&answer).context("the server's answer cannot be read")? {
        Answer::Failed { reason } => bail!(reason),
        answer => Ok(answer),
    }
}
