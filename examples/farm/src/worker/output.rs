//! A task's output: lines in chunks, each stored before the next, none lost.
//!
//! When the broker is away, chunks wait in a bounded queue; when that is full, the task's pipe fills and the task waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::mpsc;
use windjet_bus::client::{Publication, To};
use windjet_bus::message::{LogChunkMsg, Timestamp, encode};
use windjet_bus::{Bus as _, Token};

use super::Worker;

const LINES: usize = 50;
const BYTES: usize = 16_384;
const INTERVAL: Duration = Duration::from_millis(500);
/// Chunks that wait.
const WAITING: usize = 256;

/// Where the chunks of one execution go.
#[derive(Debug, Clone)]
pub(super) struct Output {
    chunks: mpsc::Sender<LogChunkMsg>,
    task: String,
    attempt: String,
    last: Arc<AtomicI64>,
}

impl Output {
    /// An output and what sends it. The sender ends when all clones of the output are gone and everything is stored.
    pub(super) fn new(
        worker: &Arc<Worker>,
        task: &Token,
        attempt: &str,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (chunks, mut queue) = mpsc::channel::<LogChunkMsg>(WAITING);
        let output = Self {
            chunks,
            task: task.to_string(),
            attempt: attempt.to_owned(),
            last: Arc::new(AtomicI64::new(0)),
        };
        let (worker, task) = (worker.clone(), task.clone());
        let sending = async move {
            while let Some(chunk) = queue.recv().await {
                let Ok(body) = encode(&chunk) else { continue };
                let id = format!("{}:{}", chunk.attempt_id, chunk.seq_num);
                let publication = Publication::new(To::TaskLogs(task.clone()), body).id(id);
                if let Err(error) = worker.publish_until_stored(publication).await {
                    tracing::error!(attempt = chunk.attempt_id, seq = chunk.seq_num, %error, "output is lost");
                }
            }
        };
        (output, sending)
    }

    /// The number of the last chunk.
    pub(super) fn last(&self) -> Arc<AtomicI64> {
        self.last.clone()
    }

    /// Reads a pipe to its end.
    pub(super) async fn read(self, worker: Arc<Worker>, stream: &str, pipe: impl AsyncRead + Unpin) {
        let mut lines = BufReader::new(pipe).split(b'\n');
        let mut held: Vec<String> = Vec::new();
        let mut bytes = 0;
        let mut tick = tokio::time::interval(INTERVAL);
        loop {
            tokio::select! {
                line = lines.next_segment() => match line {
                    Ok(Some(line)) => {
                        bytes += line.len() + 1;
                        held.push(String::from_utf8_lossy(&line).into_owned());
                        if held.len() >= LINES || bytes >= BYTES {
                            self.send(&worker, stream, &mut held).await;
                            bytes = 0;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(attempt = self.attempt, %error, "the task's output cannot be read any more");
                        break;
                    }
                },
                _ = tick.tick(), if !held.is_empty() => {
                    self.send(&worker, stream, &mut held).await;
                    bytes = 0;
                }
            }
        }
        self.send(&worker, stream, &mut held).await;
    }

    async fn send(&self, worker: &Worker, stream: &str, held: &mut Vec<String>) {
        if held.is_empty() {
            return;
        }
        let lines = std::mem::take(held).join("\n");
        // A single line may be longer than a message may be.
        let mut rest = lines.as_str();
        while !rest.is_empty() || lines.is_empty() {
            let mut end = rest.len().min(BYTES * 16);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (part, later) = rest.split_at(end);
            rest = later;
            let mut chunk = LogChunkMsg::new(worker.client.layout());
            chunk.task_id.clone_from(&self.task);
            chunk.attempt_id.clone_from(&self.attempt);
            chunk.seq_num = self.last.fetch_add(1, Ordering::SeqCst) + 1;
            chunk.at = Timestamp::from(std::time::SystemTime::now());
            chunk.stream = stream.to_owned();
            chunk.data = part.to_owned();
            if self.chunks.send(chunk).await.is_err() || lines.is_empty() {
                return;
            }
        }
    }
}
