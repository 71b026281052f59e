//! The server: broker, scheduler, control port, in an order in which no work is given out before the state is repaired.

mod console;
mod desk;
mod handlers;
#[cfg(test)]
mod tests;
mod waiters;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use windjet_bus::client::{ConsumeOptions, ConsumerKind};
use windjet_bus::{Broker, BrokerConfig, Bus, Client};

use crate::profile::Profile;
use crate::store::{self, Canceled, Store, now_ms};
use waiters::Waiters;

/// Time for everything at a stop.
const STOP: Duration = Duration::from_secs(30);

/// Settings of `farm server`.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Where workers connect.
    #[arg(long, default_value = "127.0.0.1:4222")]
    pub addr: String,
    /// Where the other commands ask; this machine only.
    #[arg(long, default_value = "127.0.0.1:4223", env = "FARM_CONTROL")]
    pub control: String,
    /// Folder of streams and state.
    #[arg(long, default_value = "farm-data")]
    pub data_dir: PathBuf,
    /// Most disk for the streams, in MiB.
    #[arg(long, default_value_t = 1024)]
    pub max_store_mb: u64,
    /// Lets workers of other machines in without authentication.
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Short times, to watch the farm at work.
    #[arg(long)]
    pub fast: bool,
}

/// What the parts of the server share.
#[derive(Debug)]
pub(crate) struct Farm {
    store: Mutex<Store>,
    waiters: Waiters,
    /// Processes of workers that stop and take no more work, until they said farewell.
    leaving: Mutex<HashSet<String>>,
    /// How often the store was looked through for work.
    looks: AtomicU64,
    client: Client,
    broker: Arc<Broker>,
    profile: Profile,
}

impl Farm {
    /// Begins to serve: handlers first, then a sweep, and work is given out last.
    async fn open(
        broker: Arc<Broker>,
        client: Client,
        mut store: Store,
        profile: Profile,
    ) -> anyhow::Result<Arc<Self>> {
        store.restarted(now_ms())?;
        let farm = Arc::new(Self {
            store: Mutex::new(store),
            waiters: Waiters::default(),
            leaving: Mutex::default(),
            looks: AtomicU64::new(0),
            client: client.clone(),
            broker,
            profile,
        });
        // What a killed server had in hand comes again after this time. It must come well before the task it reports on counts
        // as lost, or that would be given out a second time.
        let ack_wait = Some(farm.profile.assigned_timeout / 3);
        let backoff = ConsumeOptions::default().backoff.into_iter();
        let backoff: Vec<Duration> = backoff.map(|pause| pause.min(profile.pause_max)).collect();
        let lanes = |lanes| ConsumeOptions {
            lanes,
            ack_wait,
            backoff: backoff.clone(),
            ..ConsumeOptions::default()
        };
        client
            .consume(ConsumerKind::Worker, lanes(2), handlers::of_workers(&farm))
            .await?;
        client
            .consume(ConsumerKind::TaskStatus, lanes(8), handlers::of_statuses(&farm))
            .await?;
        client
            .consume(ConsumerKind::TaskLogs, lanes(4), handlers::of_logs(&farm))
            .await?;
        sweep(&farm).await?;
        client.subscribe_lease(desk::handler(&farm)).await?;
        Ok(farm)
    }

    fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Runs a transaction where it may block.
    async fn store<T, F>(self: &Arc<Self>, work: F) -> anyhow::Result<T>
    where
        F: FnOnce(&mut Store) -> store::Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let farm = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut farm.store.lock())).await;
        Ok(done.context("the store's thread failed")??)
    }

    /// Tells workers to end tasks. The state says so already; one that hears nothing is told again after its heartbeat.
    async fn tell_canceled(&self, canceled: &[Canceled]) {
        for one in canceled {
            if let Err(error) = self.tell_one(one).await {
                tracing::warn!(one.task, %error, "the cancel was not stored; the next heartbeat repeats it");
            }
        }
    }

    async fn tell_one(&self, canceled: &Canceled) -> anyhow::Result<()> {
        let message = windjet_bus::message::TaskCancelMsg {
            task_id: canceled.task.clone(),
            attempt_id: canceled.attempt.clone(),
            job_id: canceled.job.clone(),
            canceled_at: windjet_bus::message::Timestamp::from(std::time::SystemTime::now()),
        };
        let body = windjet_bus::message::encode(&message)?;
        self.client
            .publish_task_cancel(&windjet_bus::Token::new(&canceled.task)?, body)
            .await?;
        Ok(())
    }
}

/// Runs until a signal.
pub(crate) async fn run(settings: Settings) -> anyhow::Result<()> {
    let control = TcpListener::bind(&settings.control).await.with_context(|| {
        format!(
            "cannot listen on {}; choose another port with --control",
            settings.control
        )
    })?;
    anyhow::ensure!(
        control.local_addr()?.ip().is_loopback(),
        "the control port has no authentication; keep it on this machine, 127.0.0.1"
    );
    let broker = Arc::new(Broker::new(BrokerConfig {
        addr: settings.addr.clone(),
        data_dir: settings.data_dir.join("bus"),
        max_store_mb: settings.max_store_mb,
        allow_unauthenticated: settings.allow_unauthenticated,
        ..BrokerConfig::default()
    }));
    broker.start().await?;
    let client = broker.client()?;
    let store = Store::open(&crate::in_folder(&settings.data_dir, "farm.db")?)?;
    let profile = Profile::named(settings.fast);
    let farm = Farm::open(broker.clone(), client.clone(), store, profile).await?;
    let sweeping = tokio::spawn(sweep_for_ever(farm.clone()));
    let address = control.local_addr()?;
    let listening = tokio::spawn(console::listen(farm.clone(), control));
    let url = broker.client_url().unwrap_or_default();
    tracing::info!(url, control = %address, "the farm is open");
    let stopped = crate::worker::until_signal()?;
    crate::say(&format!("ready {url} control {address}"))?;

    stopped.await;
    tracing::info!("stopping");
    listening.abort();
    sweeping.abort();
    let drained = client.drain(STOP).await;
    let stopped = broker.shutdown(STOP).await;
    drained.and(stopped)?;
    Ok(())
}

async fn sweep(farm: &Arc<Farm>) -> anyhow::Result<()> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let (silence, assigned) = (
        millis(farm.profile.worker_timeout),
        millis(farm.profile.assigned_timeout),
    );
    let (gone, reaped) = farm
        .store(move |store| {
            let now = now_ms();
            Ok((store.sweep(now - silence, now)?, store.reap(now - assigned, now)?))
        })
        .await?;
    for worker in &gone {
        tracing::warn!(worker, "the worker is silent and counts as gone");
    }
    if reaped > 0 {
        tracing::warn!(
            tasks = reaped,
            "tasks were not reported running and are given out again"
        );
    }
    // Also what became ready by the clock, and what was ready before a restart.
    farm.waiters.wake_all();
    Ok(())
}

async fn sweep_for_ever(farm: Arc<Farm>) {
    let mut tick = tokio::time::interval(farm.profile.sweep);
    loop {
        tick.tick().await;
        if let Err(error) = sweep(&farm).await {
            tracing::error!(%error, "the sweep failed; trying again at the next");
        }
    }
}
