//! The broker: a server in this process with the streams of the bus, and a listener for workers.
//!
//! A [`Broker`] is started once. It takes the folder's lock, opens the store, listens, provisions the streams, and from then
//! on answers [`Broker::check`]. A failed start leaves nothing behind: no listener, no lock. It installs no signal handler.

mod config;
mod start;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windjet_server::Server;
use windjet_server::jetstream::JetStreamContext;

pub use config::{Auth, BrokerConfig, StreamLimits, Tls};

use crate::auth::Credential;
use crate::client::Client;
use crate::error::{BusError, ErrorKind};
use crate::streams::{STREAM_CANCEL, STREAM_LOGS, STREAM_TASK, STREAM_WORKER};

/// A broker in this process. Safe to share; every method may be called in every state.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    New,
    Starting,
    Running(Arc<Running>),
    Stopped,
}

/// What exists while the broker runs.
#[derive(Debug)]
struct Running {
    server: Server,
    js: JetStreamContext,
    url: String,
    /// The enrolled workers in force.
    workers: Mutex<Vec<Credential>>,
    /// Held for as long as the folder is in use.
    _lock: File,
}

/// What [`Broker::check`] saw.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Messages in each of the four streams.
    pub messages: Vec<(String, u64)>,
    /// Bytes in all of them.
    pub bytes: u64,
    /// The cap, if there is one.
    pub cap: Option<u64>,
}

impl Broker {
    /// A broker that is not started.
    #[must_use]
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            config,
            state: Mutex::new(State::New),
        }
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Starts it: when this returns, workers can connect and the streams exist.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyStarted`] for a second start. [`ErrorKind::BadAddr`], [`ErrorKind::Exposed`],
    /// [`ErrorKind::AddrInUse`], [`ErrorKind::InUse`], [`ErrorKind::Storage`], [`ErrorKind::Config`],
    /// [`ErrorKind::Incompatible`] for what stands in the way.
    ///
    /// # Cancel safety
    /// Dropped early, what was started is stopped, and the broker counts as stopped.
    pub async fn start(&self) -> crate::Result<()> {
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::New) {
                return Err(BusError::new(
                    ErrorKind::AlreadyStarted,
                    "start: a broker is started once; make another one",
                ));
            }
            *state = State::Starting;
        }
        let mut guard = Unfinished {
            broker: self,
            done: false,
        };
        let running = start::start(&self.config).await?;
        let late = {
            let mut state = self.state.lock();
            guard.done = true;
            if matches!(*state, State::Starting) {
                *state = State::Running(Arc::new(running));
                None
            } else {
                Some(running)
            }
        };
        if let Some(running) = late {
            running.server.shutdown(Duration::from_secs(5)).await;
            return Err(BusError::new(
                ErrorKind::Cancelled,
                "start: the broker was shut down meanwhile",
            ));
        }
        Ok(())
    }

    fn running(&self, operation: &str) -> crate::Result<Arc<Running>> {
        match &*self.state.lock() {
            State::Running(running) => Ok(running.clone()),
            State::New | State::Starting | State::Stopped => Err(BusError::new(
                ErrorKind::NotStarted,
                format!("{operation}: the broker is not running"),
            )),
        }
    }

    /// Whether it can do its work: it runs, its streams exist, their store takes writes.
    ///
    /// # Errors
    /// [`ErrorKind::NotStarted`], [`ErrorKind::NoStream`], [`ErrorKind::Storage`], or [`ErrorKind::StoreFull`] when the
    /// statuses have used up their share.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn check(&self) -> crate::Result<Health> {
        let running = self.running("check")?;
        if running.server.is_stopping() {
            return Err(BusError::new(
                ErrorKind::NotStarted,
                "check: the broker is stopping",
            ));
        }
        let folder = &self.config.data_dir;
        let metadata = std::fs::metadata(folder).map_err(|error| {
            BusError::new(
                ErrorKind::Storage,
                format!("check: the folder {}", folder.display()),
            )
            .with(error)
        })?;
        if metadata.permissions().readonly() {
            return Err(BusError::new(
                ErrorKind::Storage,
                format!("check: the folder {} cannot be written", folder.display()),
            ));
        }
        let mut health = Health {
            messages: Vec::new(),
            bytes: 0,
            cap: self.config.store_cap(),
        };
        for stream in [STREAM_TASK, STREAM_LOGS, STREAM_WORKER, STREAM_CANCEL] {
            let info = running.js.stream_info(stream).await.map_err(|error| {
                BusError::new(ErrorKind::NoStream, format!("check: stream {stream}")).with(error)
            })?;
            let full = u64::try_from(info.config.max_bytes).is_ok_and(|max| info.state.bytes >= max);
            if stream == STREAM_TASK && full {
                return Err(BusError::new(
                    ErrorKind::StoreFull {
                        stream: stream.to_owned(),
                    },
                    format!("check: stream {stream} has used up its share of the disk"),
                ));
            }
            health.bytes += info.state.bytes;
            health.messages.push((stream.to_owned(), info.state.messages));
        }
        Ok(health)
    }

    /// Where workers connect: an address that can be dialled, with the real port. `None` unless it runs.
    #[must_use]
    pub fn client_url(&self) -> Option<String> {
        self.running("url").ok().map(|running| running.url.clone())
    }

    /// A client in this process, without a socket, that may do everything.
    ///
    /// # Errors
    /// [`ErrorKind::NotStarted`].
    pub fn client(&self) -> crate::Result<Client> {
        let running = self.running("client")?;
        Ok(Client::in_process(running.server.client(), self.config.layout))
    }

    /// JetStream underneath, for what the bus has no call for.
    ///
    /// # Errors
    /// [`ErrorKind::NotStarted`].
    pub fn jetstream(&self) -> crate::Result<JetStreamContext> {
        Ok(self.running("jetstream")?.js.clone())
    }

    /// Puts another set of enrolled workers in force. Workers that are not in it any more are disconnected when this returns;
    /// the others notice nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NotStarted`]; [`ErrorKind::Config`] when authentication is off or a key is none;
    /// [`ErrorKind::Timeout`] when a removed worker is still there after 5 s.
    ///
    /// # Cancel safety
    /// Dropped early, the new set is in force and a removed worker may be connected a moment longer.
    pub async fn reload_credentials(&self, workers: Vec<Credential>) -> crate::Result<()> {
        let running = self.running("reload credentials")?;
        if self.config.auth.is_none() {
            return Err(BusError::new(
                ErrorKind::Config,
                "reload credentials: authentication is off; start the broker with `auth`",
            ));
        }
        let users = start::users(&workers)?;
        let removed: Vec<String> = {
            let mut known = running.workers.lock();
            let removed = known
                .iter()
                .filter(|old| !workers.iter().any(|new| new.public_key == old.public_key))
                .map(|old| old.public_key.clone())
                .collect();
            *known = workers;
            removed
        };
        let server = &running.server;
        let mut options = (*server.options()).clone();
        options.auth.users = users;
        start::reload(server.clone(), options).await?;
        start::until_gone(server, &removed, Instant::now() + Duration::from_secs(5)).await
    }

    /// Stops it and waits until everything has ended. Harmless in every state and any number of times.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when connections had to be cut at the deadline. The streams are closed in order all the same.
    ///
    /// # Cancel safety
    /// Dropped early, the shutdown goes on without anybody waiting for it.
    pub async fn shutdown(&self, deadline: Duration) -> crate::Result<()> {
        let running = match std::mem::replace(&mut *self.state.lock(), State::Stopped) {
            State::Running(running) => running,
            State::New | State::Starting | State::Stopped => return Ok(()),
        };
        let report = running.server.shutdown(deadline).await;
        tracing::info!(connections = report.connections, took = ?report.took, "the broker has stopped");
        if report.complete {
            return Ok(());
        }
        Err(BusError::new(
            ErrorKind::Timeout { limit: deadline },
            format!(
                "shutdown: {} connections were cut at the deadline of {deadline:?}",
                report.connections
            ),
        ))
    }
}

/// Marks the broker as stopped when its start did not come to an end.
struct Unfinished<'b> {
    broker: &'b Broker,
    done: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.done {
            *self.broker.state.lock() = State::Stopped;
        }
    }
}
