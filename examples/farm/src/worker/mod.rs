//! A worker: registers, lives, asks for work, runs it.
//!
//! It ends its tasks by itself before the server may give them to somebody else: when none of its heartbeats was stored for
//! most of the time after which the server counts it as gone. So no task runs twice at once.

mod outbox;
mod output;
mod task;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use windjet_bus::client::{Backoff, Publication, Published, To};
use windjet_bus::message::AssignMsg;
use windjet_bus::message::{
    DeregisterMsg, HeartbeatMsg, LeaseRequest, RawLeaseReply, RegisterMsg, Timestamp, decode, encode,
    is_current,
};
use windjet_bus::subjects::queue_tokens;
use windjet_bus::{Bus, Client, ConnectOptions, ErrorKind, LinkState, Token};

use crate::profile::Profile;
use crate::store::now_ms;
use outbox::Outbox;
use task::Running;

/// Pause after a request for work that failed.
const RETRY: Duration = Duration::from_secs(1);
/// For a registration, all tries together.
const REGISTER: Duration = Duration::from_secs(30);
/// For one acknowledgement.
const ACK: Duration = Duration::from_secs(2);

/// Settings of `farm worker`.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// The server.
    #[arg(long, default_value = "nats://127.0.0.1:4222")]
    pub url: String,
    /// Name of the worker, the same after a restart.
    #[arg(long)]
    pub id: String,
    /// A queue it serves, any number of times; none for all.
    #[arg(long = "queue")]
    pub queues: Vec<String>,
    /// Its cores.
    #[arg(long, default_value_t = 4)]
    pub cpus: i64,
    /// Folder for reports that the server does not have yet.
    #[arg(long, default_value = "farm-worker")]
    pub dir: PathBuf,
    /// Short times, as the server's.
    #[arg(long)]
    pub fast: bool,
}

/// What the parts of the worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    client: Client,
    id: Token,
    instance: String,
    boot_ms: i64,
    queues: Vec<String>,
    cpus: i64,
    profile: Profile,
    running: Mutex<HashMap<String, Arc<Running>>>,
    outbox: Outbox,
    /// When the newest heartbeat that was stored was sent.
    alive: Mutex<Instant>,
    /// When a registration was stored last.
    registered: Mutex<Option<Instant>>,
}

/// Waits for a signal to stop. Signals are taken from the call on, not from the first poll: whoever reads that the process is
/// ready may stop it at once.
pub(crate) fn until_signal() -> anyhow::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
    }
    #[cfg(windows)]
    {
        let mut interrupt = tokio::signal::windows::ctrl_c()?;
        Ok(async move {
            interrupt.recv().await;
        })
    }
}

/// Runs until a signal.
pub(crate) async fn run(settings: Settings) -> anyhow::Result<()> {
    let id = Token::new(&settings.id)?;
    let queues = queue_tokens(&settings.queues)?;
    let options = ConnectOptions::new().backoff(Backoff {
        base: Duration::from_millis(if settings.fast { 100 } else { 2000 }),
        cap: Duration::from_secs(if settings.fast { 1 } else { 120 }),
    });
    let client = Client::connect_patiently(&settings.url, options).await?;
    let worker = Arc::new(Worker::new(client.clone(), id, &settings)?);
    let old = worker
        .outbox
        .waiting()
        .context("cannot list the worker's unsent reports; see --dir")?;
    worker.register().await?;
    let stopped = until_signal()?;
    crate::say(&format!("ready {}", worker.id))?;
    let mut tasks = JoinSet::new();
    tasks.spawn(worker.clone().send_old_reports(old));
    tasks.spawn(worker.clone().stay_alive());
    tasks.spawn(worker.clone().register_again());
    let mut asking = JoinSet::new();
    let queue_of_farewell = queues.first().cloned().context("a worker asks on a queue")?;
    for queue in queues {
        asking.spawn(worker.clone().ask_for_work(queue));
    }
    stopped.await;
    tracing::info!("stopping");
    // No new work; what runs gets its time, then ends and goes back. Heartbeats go on meanwhile.
    asking.abort_all();
    worker.take_no_more(&queue_of_farewell).await;
    worker.finish().await;
    tasks.abort_all();
    let mut message = DeregisterMsg::new(client.layout(), &worker.id);
    message.instance_id.clone_from(&worker.instance);
    message.reason = "graceful shutdown".to_owned();
    let farewell = Publication::new(To::Deregister, encode(&message)?).wait(ACK);
    if let Err(error) = client.publish(farewell).await {
        tracing::warn!(%error, "the farewell was not stored; the server notices by itself");
    }
    client.drain(worker.profile.grace).await?;
    Ok(())
}

impl Worker {
    fn new(client: Client, id: Token, settings: &Settings) -> anyhow::Result<Self> {
        let boot_ms = now_ms();
        let outbox = Outbox::open(&settings.dir.join(id.as_str()))
            .context("cannot use the worker's folder; see --dir")?;
        Ok(Self {
            client,
            instance: format!("{}-{boot_ms}", std::process::id()),
            id,
            boot_ms,
            queues: settings.queues.clone(),
            cpus: settings.cpus,
            profile: Profile::named(settings.fast),
            running: Mutex::default(),
            outbox,
            alive: Mutex::new(Instant::now()),
            registered: Mutex::new(None),
        })
    }

    /// Registers: stored when this returns. While no stream is there it is tried again, for [`REGISTER`].
    async fn register(&self) -> anyhow::Result<()> {
        self.register_within(REGISTER).await
    }

    async fn register_within(&self, limit: Duration) -> anyhow::Result<()> {
        let mut message = RegisterMsg::new(self.client.layout(), &self.id);
        message.instance_id.clone_from(&self.instance);
        message.cpu_count = self.cpus;
        message.os = std::env::consts::OS.to_owned();
        message.arch = std::env::consts::ARCH.to_owned();
        message.tags.insert("queues".to_owned(), self.queues.join(","));
        message
            .tags
            .insert("boot_ms".to_owned(), self.boot_ms.to_string());
        let sent = Instant::now();
        let number = now_ms();
        let publication = Publication::new(To::Register, encode(&message)?)
            .id(format!("{}:{}:{number}", self.id, self.instance));
        tokio::time::timeout(limit, self.publish_until_stored(publication))
            .await
            .with_context(|| {
                format!("the registration was not stored within {limit:?}; is the server running?")
            })??;
        *self.alive.lock() = sent;
        *self.registered.lock() = Some(Instant::now());
        Ok(())
    }

    /// Publishes again and again until it is stored. With an id it is stored once.
    async fn publish_until_stored(&self, publication: Publication) -> windjet_bus::Result<Published> {
        loop {
            match self.client.publish(publication.clone().wait(ACK)).await {
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, "not stored yet; trying again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                done => return done,
            }
        }
    }

    async fn send_old_reports(self: Arc<Self>, waiting: outbox::Waiting) {
        for outbox::Unreadable { file, reason } in waiting.unreadable {
            let file = file.display();
            tracing::error!(%file, reason, "a report of an earlier run cannot be sent; its task will be run again");
        }
        for report in waiting.reports {
            tracing::info!(attempt = report.attempt_id, "a report of an earlier run is sent");
            self.send_report(&report).await;
        }
    }

    async fn stay_alive(self: Arc<Self>) {
        let begun = Instant::now();
        let mut tick = tokio::time::interval(self.profile.heartbeat);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The server gives tasks away after the whole time; this leaves some for ending them.
        let fence = self.profile.worker_timeout * 5 / 6;
        loop {
            let due = *self.alive.lock() + fence;
            tokio::select! {
                _ = tick.tick() => {}
                () = tokio::time::sleep_until(due), if !self.running.lock().is_empty() => {
                    tracing::error!("no heartbeat was stored for too long; ending the tasks before somebody else gets them");
                    self.end_all();
                    tokio::time::sleep(self.profile.heartbeat).await;
                    continue;
                }
            }
            let active: Vec<String> = self.running.lock().keys().cloned().collect();
            let mut message = HeartbeatMsg::new(self.client.layout(), &self.id);
            message.instance_id.clone_from(&self.instance);
            message.at = Timestamp::from(std::time::SystemTime::now());
            message.active_task_count = i64::try_from(active.len()).unwrap_or(i64::MAX);
            message.active_task_ids = active;
            message.uptime_seconds = begun.elapsed().as_secs_f64();
            let Ok(body) = encode(&message) else { continue };
            let sent = Instant::now();
            let publication = Publication::new(To::Heartbeat, body).wait(self.profile.heartbeat / 2);
            match self.client.publish(publication).await {
                Ok(_) => *self.alive.lock() = sent,
                Err(error) => tracing::warn!(%error, "a heartbeat was not stored"),
            }
        }
    }

    fn end_all(&self) {
        for running in self.running.lock().values() {
            running.end(task::End::Shutdown);
        }
    }

    async fn register_again(self: Arc<Self>) {
        let mut state = self.client.state();
        state.mark_unchanged();
        while state.changed().await.is_ok() {
            let now = *state.borrow_and_update();
            match now {
                LinkState::Connected(_) => {
                    tracing::info!("connected again");
                    if let Err(error) = self.register().await {
                        tracing::error!(%error, "the registration failed");
                    }
                }
                LinkState::Rejected => tracing::error!("the broker refuses this worker; enrol it again"),
                _ => {}
            }
        }
    }

    async fn ask_for_work(self: Arc<Self>, queue: Token) {
        loop {
            let request = LeaseRequest {
                worker_id: self.id.to_string(),
                instance_id: self.instance.clone(),
                version: self.client.layout().version().to_owned(),
                timeout_ms: i64::try_from(self.profile.request.as_millis()).unwrap_or_default(),
                ..LeaseRequest::default()
            };
            let Ok(body) = encode(&request) else { return };
            let answer = self
                .client
                .request_lease(queue.as_str(), body, self.profile.request)
                .await;
            let reply = answer.and_then(|answer| decode::<RawLeaseReply>(&answer));
            match reply {
                Ok(reply) => {
                    for raw in &reply.assignments {
                        if let Err(skipped) = self.accept(raw.get()) {
                            tracing::warn!("{skipped:#}; it is skipped");
                        }
                    }
                    if reply.reason.contains("register")
                        && let Err(error) = self.register().await
                    {
                        tracing::warn!(%error, "the registration failed");
                    }
                    let pause = u64::try_from(reply.retry_after_ms).unwrap_or_default();
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                Err(error) if *error.kind() == ErrorKind::Closed => return,
                Err(error) => {
                    tracing::debug!(%error, "no work; asking again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Tells the server that requests which still wait there must not be given work.
    async fn take_no_more(&self, queue: &Token) {
        let request = LeaseRequest {
            worker_id: self.id.to_string(),
            instance_id: self.instance.clone(),
            max_tasks: -1,
            ..LeaseRequest::default()
        };
        let told = async {
            let body = encode(&request)?;
            self.client.request_lease(queue.as_str(), body, RETRY).await
        };
        if let Err(error) = told.await {
            tracing::warn!(%error, "the server was not told; work it gives now comes back with the farewell");
        }
    }

    /// Takes one assignment; a broken one is skipped alone.
    fn accept(self: &Arc<Self>, raw: &str) -> anyhow::Result<()> {
        let layout = self.client.layout();
        let assignment: AssignMsg = decode(raw.as_bytes()).context("an assignment cannot be read")?;
        anyhow::ensure!(
            is_current(&assignment.version, layout),
            "the assignment of {} has version {:?}, and this worker speaks {:?}",
            assignment.task_id,
            assignment.version,
            layout.version()
        );
        let running = Arc::new(Running::default());
        let known = self
            .running
            .lock()
            .insert(assignment.task_id.clone(), running.clone());
        if let Some(older) = known {
            // The server gave the task out again, so it does not count on the older one.
            older.end(task::End::Shutdown);
        }
        let worker = self.clone();
        tokio::spawn(async move {
            worker.carry_out(assignment, running).await;
        });
        Ok(())
    }

    /// Waits for what runs, then ends it.
    async fn finish(&self) {
        let until = Instant::now() + self.profile.grace;
        let mut ended = false;
        while !self.running.lock().is_empty() {
            if Instant::now() > until {
                if ended {
                    tracing::warn!("tasks did not end in time; their reports are sent at the next start");
                    return;
                }
                ended = true;
                self.end_all();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            if ended && Instant::now() > until + ACK * 2 {
                return;
            }
        }
    }
}
