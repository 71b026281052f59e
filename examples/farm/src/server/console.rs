//! Serves the control port.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use windjet_bus::Token;
use windjet_bus::client::ConsumerKind;
use windjet_bus::streams::{STREAM_CANCEL, STREAM_DEAD, STREAM_LOGS, STREAM_TASK, STREAM_WORKER};

use super::Farm;
use crate::control::{Answer, CountsView, Request, StreamView};
use crate::store::now_ms;

/// Bytes of a request.
const REQUEST_MAX: u64 = 1024 * 1024;

pub(super) async fn listen(farm: Arc<Farm>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let farm = farm.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve(&farm, stream).await {
                        tracing::debug!(%error, "a control connection ended early");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(farm: &Arc<Farm>, stream: TcpStream) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(REQUEST_MAX))
        .read_line(&mut line)
        .await?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => farm.carry_out(request).await,
        Err(error) => Err(error.into()),
    };
    let answer = answer.unwrap_or_else(|error| Answer::Failed {
        reason: format!("{error:#}"),
    });
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    writer.write_all(text.as_bytes()).await?;
    Ok(())
}

impl Farm {
    async fn carry_out(self: &Arc<Self>, request: Request) -> anyhow::Result<Answer> {
        match request {
            Request::Submit { queue, steps, cores } => {
                Token::queue(&queue)?;
                ensure!(
                    !steps.is_empty() && steps.iter().all(|step| step.tasks > 0),
                    "a job needs steps with tasks"
                );
                ensure!((0..=4096).contains(&cores), "a task takes 0 to 4096 cores");
                let job = new_id();
                let (id, of) = (job.clone(), queue.clone());
                self.store(move |store| store.submit(&id, &of, &steps, cores, now_ms()))
                    .await?;
                self.waiters.wake(&queue);
                Ok(Answer::Submitted { job })
            }
            Request::Cancel { job, task } => {
                let held = self
                    .store(move |store| store.cancel(job.as_deref(), task.as_deref(), now_ms()))
                    .await?;
                self.tell_canceled(&held).await;
                self.waiters.wake_all();
                Ok(Answer::Done { tasks: held.len() })
            }
            Request::Limit { queue, max } => {
                self.store(move |store| store.limit_queue(&queue, max)).await?;
                self.waiters.wake_all();
                Ok(Answer::Done { tasks: 0 })
            }
            Request::Status { job } => Ok(Answer::Jobs(
                self.store(move |store| store.jobs(job.as_deref())).await?,
            )),
            Request::Workers => Ok(Answer::Workers(self.store(|store| store.workers()).await?)),
            Request::Logs { task, after } => {
                let read = self.store(move |store| {
                    let after = after.as_ref().map(|(attempt, seq)| (attempt.as_str(), *seq));
                    store.logs(&task, after)
                });
                Ok(Answer::Logs(read.await?))
            }
            Request::Counts => Ok(Answer::Counts(self.counted())),
            Request::Streams => Ok(Answer::Streams(self.streams().await?)),
        }
    }

    fn counted(&self) -> CountsView {
        let of = self.client.counts();
        CountsView {
            published: of.published,
            acked: of.acked,
            naked: of.naked,
            redelivered: of.redelivered,
            dead: of.dead,
            returned: of.returned,
            leases: of.leases,
            leases_dropped: of.leases_dropped,
            looks: self.looks(),
            parked: u64::try_from(self.waiters.parked()).unwrap_or(u64::MAX),
        }
    }

    async fn streams(&self) -> anyhow::Result<Vec<StreamView>> {
        let js = self.broker.jetstream()?;
        let mut views = Vec::new();
        for (name, consumer) in [
            (STREAM_TASK, Some(ConsumerKind::TaskStatus)),
            (STREAM_LOGS, Some(ConsumerKind::TaskLogs)),
            (STREAM_WORKER, Some(ConsumerKind::Worker)),
            (STREAM_CANCEL, None),
            (STREAM_DEAD, None),
        ] {
            let info = js.stream_info(name).await?;
            let mut view = StreamView {
                name: name.to_owned(),
                messages: info.state.messages,
                bytes: info.state.bytes,
                first_seq: info.state.first_seq,
                last_seq: info.state.last_seq,
                pending: 0,
                unacked: 0,
                redelivered: 0,
            };
            if let Some(consumer) = consumer {
                let info = js.consumer_info(name, consumer.durable()).await?;
                view.pending = info.num_pending;
                view.unacked = info.num_ack_pending;
                view.redelivered = info.num_redelivered;
            }
            views.push(view);
        }
        Ok(views)
    }
}

/// An id that sorts by time and that nobody else makes in this server's life.
fn new_id() -> String {
    static LAST: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
    let now = now_ms();
    let last = LAST.fetch_max(now, std::sync::atomic::Ordering::SeqCst);
    if last < now {
        return format!("j{now}");
    }
    format!("j{}", LAST.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1)
}
