//! Describing and starting a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{Server, Shared, listener};
use crate::auth::{self, Authenticator};
use crate::jetstream::{self, JetStreamError, Medium};
use crate::options::{
    ListenAddress, MonitoringOptions, Options, OptionsError, TlsOptions, UserOptions, WebSocketOptions,
};
use crate::system::{self, ReloadSource, System};
use crate::tls::TlsError;

/// Describes a server. Setters replace one option each; [`Builder::options`] gives access to all.
///
/// Without any setter the server opens no port, keeps nothing on disk, and serves in-process clients only.
#[derive(Clone)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    options: Options,
    id: Option<String>,
    reload: Option<ReloadSource>,
    medium: Medium,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("options", &self.options)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The listeners of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Listener {
    /// Clients over TCP or TLS.
    Clients,
    /// Clients over WebSocket.
    WebSocket,
    /// HTTP monitoring, with or without TLS.
    Monitoring,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clients => "clients",
            Self::WebSocket => "WebSocket clients",
            Self::Monitoring => "monitoring",
        })
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The options contradict each other or cannot be honoured.
    #[error("{0}")]
    Options(#[from] OptionsError),
    /// A listener could not be opened.
    #[error("cannot listen for {listener} on {address}")]
    Listen {
        /// Which one.
        listener: Listener,
        /// The address as configured.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A `tls` block cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// JetStream could not be started.
    #[error(transparent)]
    JetStream(#[from] JetStreamError),
    /// There is no tokio runtime to run on.
    #[error("a server must be started inside a tokio runtime")]
    NoRuntime,
}

impl Builder {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            id: None,
            reload: None,
            medium: Medium::default(),
        }
    }

    /// Replaces all options.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Changes any option in place.
    pub fn configure(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Listens for clients on this address. Port 0 chooses a free one, see [`Server::client_addr`].
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.options.listen = Some(ListenAddress {
            host: address.ip().to_string(),
            port: Some(address.port()).filter(|&port| port != 0),
        });
        self
    }

    /// Listens for clients on a free port of the loopback interface.
    pub fn listen_loopback(mut self) -> Self {
        self.options.listen = Some(ListenAddress::loopback());
        self
    }

    /// Names the server. Default: its id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.server_name = Some(name.into());
        self
    }

    /// Largest headers plus payload in bytes. Default 1 MiB.
    pub fn max_payload(mut self, bytes: u32) -> Self {
        self.options.max_payload = i64::from(bytes);
        self
    }

    /// Most bytes waiting for one client before it is closed as a slow consumer. Default 64 MiB.
    pub fn max_pending(mut self, bytes: usize) -> Self {
        self.options.max_pending = bytes;
        self
    }

    /// Most bytes of memory for what waits for receivers that are behind, and, with JetStream, for the store's cache of
    /// read blocks and for what it has not moved into segments yet (a quarter of the budget each at most). Over it, the
    /// receiver that grows is closed (a connection) or loses the message (an in-process subscription), publishes into
    /// streams wait for the disk, and the cache lets go of blocks. Memory streams and indexes are not counted: they are
    /// data, see `max_memory_store`. Default: no bound but each receiver's own, and 64 MiB each of cache and tails.
    /// [`Server::memory`] tells the use.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.options.memory_budget = Some(bytes);
        self
    }

    /// Most bytes that the files of JetStream's folder take together: journal, segments, manifest and the ballast for a
    /// full disk. The journal and its ballast take about a sixth of a small budget. Over it the store behaves as on a
    /// full disk: publishes are refused with [`ErrorCode::InsufficientStorage`](crate::jetstream::ErrorCode), reads and
    /// deletions go on, and publishes are taken again when there is room. A folder that has more at the start is brought down.
    /// At least 32 MiB, or 32 times `max_payload` where that is less, and never less than 4 MiB. Default: no bound.
    /// [`Server::storage`] tells the use.
    pub fn storage_budget(mut self, bytes: u64) -> Self {
        self.options.storage_budget = Some(bytes);
        self
    }

    /// JetStream on this disk instead of a folder, for tests: `SimDisk` of `windjet-store` is one in memory that fails on
    /// demand. Without a storage budget there is no ballast for when it is full.
    #[cfg(feature = "test-util")]
    pub fn disk(mut self, disk: Arc<dyn windjet_store::Disk>) -> Self {
        self.options.jetstream.get_or_insert_default();
        self.medium.disk = Some(disk);
        self
    }

    /// JetStream by this clock instead of the system's, for tests: message ages, deadlines of consumers, schedules.
    #[cfg(feature = "test-util")]
    pub fn clock(mut self, clock: jetstream::TestClock) -> Self {
        self.medium.time = jetstream::Time::Test(clock);
        self
    }

    /// The store of JetStream has no threads: the test makes its steps.
    #[cfg(test)]
    pub(crate) fn by_hand(mut self) -> Self {
        self.medium.by_hand = true;
        self
    }

    /// JetStream, with its data in a folder `jetstream` below this one.
    pub fn jetstream(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        let options = self.options.jetstream.get_or_insert_default();
        options.store_dir = Some(folder.into());
        self
    }

    /// Time between PINGs to a silent client. Default 2 minutes.
    pub fn ping_interval(mut self, interval: Duration) -> Self {
        self.options.ping_interval = interval;
        self
    }

    /// Demands this user and password (plain or bcrypt) from every client.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.options.auth.user = Some((name.into(), password.into()));
        self
    }

    /// Demands this token (plain or bcrypt) from every client.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.options.auth.token = Some(token.into());
        self
    }

    /// Adds a user of the global account.
    pub fn add_user(mut self, user: UserOptions) -> Self {
        self.options.auth.users.push(user);
        self
    }

    /// TLS for the client listener.
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.options.tls = Some(tls);
        self
    }

    /// A listener for clients over WebSocket.
    pub fn websocket(mut self, websocket: WebSocketOptions) -> Self {
        self.options.websocket = Some(websocket);
        self
    }

    /// HTTP monitoring.
    pub fn monitoring(mut self, monitoring: MonitoringOptions) -> Self {
        self.options.monitoring = monitoring;
        self
    }

    /// Gives the server new options when a client of the system account asks for a reload
    /// (`$SYS.REQ.SERVER.<id>.RELOAD`). The function may block; its error text is what the client reads. Without one such
    /// requests are refused.
    pub fn reload_from(
        mut self,
        source: impl Fn() -> Result<Options, String> + Send + Sync + 'static,
    ) -> Self {
        self.reload = Some(Arc::new(source));
        self
    }

    /// Starts the server on the current tokio runtime. When this returns, every listener accepts connections.
    ///
    /// # Errors
    ///
    /// When the options are wrong (all problems at once), a listener cannot be opened, or there is no runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, nothing keeps running.
    pub async fn start(self) -> Result<Server, StartError> {
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        self.options.validate()?;
        let id = self.id.unwrap_or_else(auth::nkey::new_server_id);
        let (options, reload, medium) = (self.options, self.reload, self.medium);
        // Reading certificate files may block.
        let shared = tokio::task::spawn_blocking(move || {
            let authenticator = Authenticator::from_options(&options)?;
            Shared::new(id, options, authenticator, System::new(reload), medium, runtime)
        });
        let shared = Arc::new(shared.await.map_err(|_| StartError::NoRuntime)??);
        let server = Server::from_shared(shared.clone());
        system::start(&shared);
        jetstream::start(&shared);
        listener::open_all(&shared).await?;
        Ok(server)
    }

    /// The id that the server will have, for a program that has to tell it before the start. Asking fixes it, also for
    /// clones made from here on; without asking, each start makes its own.
    pub fn id(&mut self) -> &str {
        self.id.get_or_insert_with(auth::nkey::new_server_id)
    }

    /// Path of the configuration file that the options came from, if any.
    #[must_use]
    pub fn config_file(&self) -> Option<&Path> {
        self.options.config_file.as_deref()
    }
}
