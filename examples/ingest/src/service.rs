//! Starts the parts in order and stops them in the opposite one.

use std::future::IntoFuture as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use parking_lot::RwLock;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use windjet_mq::{Broker, Ctx, Error};

use crate::config::Config;
use crate::live::Live;
use crate::store::Store;
use crate::worker::units::Sharing;
use crate::{Args, Role, api, worker};

/// How often what is written and old makes room.
const PURGE_EVERY: Duration = Duration::from_secs(10);
/// How often at most, when a budget is used up.
const PURGE_PAUSE: Duration = Duration::from_secs(1);
const OPEN_TRIES: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(200);

/// What every part of the service may use.
pub(crate) struct Shared {
    pub broker: Arc<dyn Broker>,
    pub store: Store,
    pub live: Arc<Live>,
    pub stop: CancellationToken,
    /// Told when a tenant's budget is used up.
    pub full: Notify,
    file: PathBuf,
    config: RwLock<Arc<Config>>,
}

impl Shared {
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Reads the configuration again and applies the budgets that changed. What each tenant has then, or why not.
    pub(crate) async fn reload(&self) -> anyhow::Result<Value> {
        let file = self.file.clone();
        let config = Arc::new(blocking(move || Config::read(&file, false)).await?);
        let (applied, failed) = apply(&*self.broker, &config).await;
        *self.config.write() = config;
        Ok(json!({ "applied": applied, "failed": failed }))
    }
}

/// Gives tenants their budgets. One that fails is no other's failure: its publishes are refused until it works.
async fn apply(broker: &dyn Broker, config: &Config) -> (Map<String, Value>, Map<String, Value>) {
    let (mut applied, mut failed) = (Map::new(), Map::new());
    for (tenant, &bytes) in &config.tenants {
        if broker.max_bytes(tenant) != bytes
            && let Err(error) = broker.set_max_bytes(&Ctx::new(), tenant, bytes).await
        {
            tracing::error!(%tenant, error = format!("{error:#}"), "the budget is not applied; the last one is kept");
            failed.insert(tenant.to_string(), format!("{error:#}").into());
        }
        applied.insert(tenant.to_string(), broker.max_bytes(tenant).into());
    }
    (applied, failed)
}

/// Runs the service until a signal or a failure that needs an operator.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let data = args.data.clone();
    std::fs::create_dir_all(&data).with_context(|| format!("{} cannot be made", data.display()))?;
    let file = args.config.clone().unwrap_or_else(|| data.join("ingest.json"));
    let config = Config::read(&file, args.config.is_none())?;
    let store = open_store(&data.join("rows.db")).await?;
    let holder = format!("{}-{:08x}", std::process::id(), rand::random::<u32>());
    let opened = args.broker.open(&data, &holder).await?;
    let broker = opened.broker;
    apply(&*broker, &config).await;

    let stop = CancellationToken::new();
    let live = Live::start(&*broker, &Ctx::new().with_cancel(stop.child_token())).await?;
    let shared = Arc::new(Shared {
        broker: Arc::clone(&broker),
        store,
        live,
        stop: stop.clone(),
        full: Notify::new(),
        file,
        config: RwLock::new(Arc::new(config)),
    });

    let (sender, messages) = worker::channel();
    let writer = tokio::spawn(worker::write(Arc::clone(&shared), messages, stop.clone()));
    let handler = worker::handler(sender);
    let mut consuming = tokio::spawn(consume(Arc::clone(&shared), opened.leases, args.role, handler));
    let purging = tokio::spawn(purge(Arc::clone(&shared), args.role));
    let reloading = tokio::spawn(reload_on_signal(Arc::clone(&shared)));

    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("{} cannot be listened on", args.listen))?;
    let signal = stop_signal()?;
    ready(&format!("http://{}", listener.local_addr()?))?;
    let router = api::router(Arc::clone(&shared), opened.ready, &args);
    let serve = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let serving = tokio::spawn(serve.into_future());

    let early = tokio::select! {
        () = signal => None,
        ended = &mut consuming => Some(ended),
    };
    stop.cancel();
    let consumed = match early {
        Some(ended) => ended,
        None => consuming.await,
    };
    // The senders are gone with the consumers, so the writer ends once it has written what it was given.
    writer.await?;
    serving.await??;
    purging.await?;
    reloading.abort();
    broker.close().await?;
    Ok(consumed??)
}

/// Opens the file. Processes that make it at the same time get in each other's way for a moment.
async fn open_store(path: &Path) -> anyhow::Result<Store> {
    let mut tries = 0;
    loop {
        match Store::open(path) {
            Err(error) if tries < OPEN_TRIES => tracing::debug!("{error:#}"),
            opened => return opened,
        }
        tries += 1;
        tokio::time::sleep(OPEN_PAUSE).await;
    }
}

/// Consumes what this process is to write, until stopped.
async fn consume(
    shared: Arc<Shared>,
    leases: Option<Arc<dyn windjet_mq::coord::Coordinator>>,
    role: Role,
    handler: windjet_mq::Handler,
) -> Result<(), Error> {
    let stop = shared.stop.clone();
    if role == Role::Api {
        stop.cancelled().await;
        return Ok(());
    }
    if let Some(leases) = leases {
        let broker = Arc::clone(&shared.broker);
        let stop = stop.child_token();
        return Sharing {
            broker,
            leases,
            handler,
            stop,
        }
        .run()
        .await;
    }
    let (_consumer, mut consuming) = worker::consume(&*shared.broker, None, handler).await?;
    tokio::select! {
        error = consuming.failed() => Err(error),
        () = stop.cancelled() => Ok(()),
    }
}

/// Makes room of what is written and too old for any listener's gap.
async fn purge(shared: Arc<Shared>, role: Role) {
    if role == Role::Api {
        // Whoever writes makes room.
        return;
    }
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(PURGE_EVERY) => {}
            () = async {
                tokio::time::sleep(PURGE_PAUSE).await;
                shared.full.notified().await;
            } => {}
        }
        let config = shared.config();
        let kept = Duration::from_secs(config.replay_seconds);
        let cutoff = SystemTime::now()
            .checked_sub(kept)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let cutoffs = config
            .tenants
            .keys()
            .map(|tenant| (tenant.clone(), cutoff))
            .collect();
        let purged = shared
            .broker
            .purge_acked(&Ctx::new(), worker::DURABLE, &cutoffs)
            .await;
        if let Some(error) = purged.error {
            tracing::warn!(error = format!("{error:#}"), "not everything old made room");
        }
    }
}

async fn reload_on_signal(shared: Arc<Shared>) {
    #[cfg(unix)]
    if let Ok(mut hangup) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()) {
        while hangup.recv().await.is_some() {
            match shared.reload().await {
                Ok(outcome) => tracing::info!(%outcome, "reloaded"),
                Err(error) => tracing::error!("not reloaded, the last configuration stays: {error:#}"),
            }
        }
    }
    #[cfg(not(unix))]
    shared.stop.cancelled().await;
}

/// Waits for the signal to stop, from now on: nothing that comes after this call is missed.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    Ok(async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "no signal to stop can be received");
        }
    })
}

/// Runs what waits for the disk where waiting is allowed.
pub(crate) async fn blocking<T, E>(
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, anyhow::Error>
where
    T: Send + 'static,
    E: Into<anyhow::Error> + Send + 'static,
{
    tokio::task::spawn_blocking(call).await?.map_err(Into::into)
}

/// Tells whoever started the process where it listens.
fn ready(url: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {url}")?;
    out.flush()?;
    Ok(())
}
