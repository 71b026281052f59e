//! The server: what connections, clients and monitoring share, and the handle that the embedding program holds.
//!
//! [`Shared`] owns the accounts, the registry of connections and the options in force. Nothing in it waits: locks are
//! held for look-ups only. [`Server`] is the public handle; [`Builder`] makes one.

mod accounts;
mod builder;
mod info;
mod lame_duck;
mod limits;
mod listener;
mod memory;
mod registry;
mod reload;
mod shutdown;
mod stats;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use windjet_protocol::wire::Connect;
use windjet_store::Store;

pub use builder::{Builder, Listener, StartError};
pub use info::PROTOCOL_VERSION;
pub(crate) use info::{Peer, RUNTIME};
pub(crate) use listener::open as open_listener;
pub(crate) use memory::Memory;
pub use memory::{JetStreamReport, MemoryReport, StorageReport};
pub use reload::{Applied, ReloadError, ReloadReport};
pub use shutdown::ShutdownReport;
pub use stats::Counts;

pub(crate) use accounts::Accounts;
pub(crate) use limits::Limits;
pub(crate) use registry::{Closed, Registry};
pub(crate) use stats::Stats;

use crate::account::Account;
use crate::auth::{AuthFailure, Authenticator, Credentials, Identity};
use crate::connection::{CloseReason, Connection, Profile, Refused};
use crate::jetstream::{self, JetStream, Medium};
use crate::monitor;
use crate::options::{AccountJetStreamLimits, ConnectionType, Options, TlsOptions};
use crate::system::{System, events};
use crate::tls;

/// State shared by everything that runs for one server.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Public key that names this run of the server.
    pub(crate) id: String,
    /// Configured name, or the id.
    pub(crate) name: String,
    /// When it started.
    pub(crate) started: SystemTime,
    pub(crate) started_at: Instant,
    options: ArcSwap<Options>,
    limits: ArcSwap<Limits>,
    authenticator: ArcSwap<Authenticator>,
    tls: ArcSwapOption<tls::Setup>,
    websocket_tls: ArcSwapOption<tls::Setup>,
    monitoring_tls: ArcSwapOption<tls::Setup>,
    /// Accounts by name.
    pub(crate) accounts: Accounts,
    /// Live and closed connections.
    pub(crate) registry: Registry,
    /// Counters.
    pub(crate) stats: Stats,
    /// What waits for receivers that are behind.
    pub(crate) memory: Memory,
    /// All tasks of the server.
    pub(crate) tasks: TaskTracker,
    /// Set when the server goes down.
    pub(crate) stop: CancellationToken,
    /// Set when no new client is admitted any more.
    pub(crate) stop_accepting: CancellationToken,
    lame_duck: AtomicBool,
    reloading: Mutex<()>,
    addresses: Mutex<Addresses>,
    configured_at: Mutex<SystemTime>,
    /// What requests and events of the system account remember.
    pub(crate) system: System,
    /// What monitoring remembers.
    pub(crate) monitor: monitor::State,
    next_name: AtomicU64,
    /// A reload switches it on and off.
    jetstream: ArcSwapOption<JetStream>,
    /// For a JetStream that a reload switches on.
    medium: Medium,
    /// The runtime it was started on.
    pub(crate) runtime: Handle,
}

/// Where the listeners ended up.
#[derive(Debug, Default, Clone)]
pub(crate) struct Addresses {
    /// Clients.
    pub(crate) client: Option<SocketAddr>,
    /// WebSocket clients.
    pub(crate) websocket: Option<SocketAddr>,
    /// Monitoring.
    pub(crate) monitoring: Option<SocketAddr>,
    /// Monitoring over TLS.
    pub(crate) monitoring_tls: Option<SocketAddr>,
}

/// What binding a connection to its account came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// It is bound.
    Done,
    /// The account has as many connections as it may have.
    TooManyConnections,
    /// The client may have no subscription at all.
    NoSubscriptions,
    /// There is no such account.
    NoAccount,
}

impl Shared {
    fn new(
        id: String,
        options: Options,
        authenticator: Authenticator,
        system: System,
        medium: Medium,
        runtime: Handle,
    ) -> Result<Self, StartError> {
        let limits = Limits::of(&options);
        let tls = options.tls.as_ref().map(tls::Setup::build).transpose()?;
        let websocket_tls = tls::of_websocket(&options)?;
        let monitoring_tls = tls::of_monitoring(&options)?;
        let accounts = Accounts::new(&options, &authenticator)?;
        let jetstream = jetstream::open(&options, medium.clone())?.map(Arc::new);
        Ok(Self {
            name: options.server_name.clone().unwrap_or_else(|| id.clone()),
            id,
            started: SystemTime::now(),
            started_at: Instant::now(),
            memory: Memory::new(options.memory_budget, options.jetstream.is_some()),
            limits: ArcSwap::from_pointee(limits),
            options: ArcSwap::from_pointee(options),
            authenticator: ArcSwap::from_pointee(authenticator),
            tls: ArcSwapOption::from_pointee(tls),
            websocket_tls: ArcSwapOption::from_pointee(websocket_tls),
            monitoring_tls: ArcSwapOption::from_pointee(monitoring_tls),
            accounts,
            registry: Registry::default(),
            stats: Stats::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            stop_accepting: CancellationToken::new(),
            lame_duck: AtomicBool::new(false),
            reloading: Mutex::new(()),
            addresses: Mutex::default(),
            configured_at: Mutex::new(SystemTime::now()),
            system,
            monitor: monitor::State::default(),
            next_name: AtomicU64::new(0),
            jetstream: ArcSwapOption::new(jetstream),
            medium,
            runtime,
        })
    }

    /// JetStream, if the server has it.
    pub(crate) fn jetstream(&self) -> Option<Arc<JetStream>> {
        self.jetstream.load_full()
    }

    /// Switches it on or off; gives back what there was.
    pub(crate) fn set_jetstream(&self, jetstream: Option<Arc<JetStream>>) -> Option<Arc<JetStream>> {
        self.memory.share(jetstream.is_some());
        self.jetstream.swap(jetstream)
    }

    /// Disk and clock of JetStream.
    pub(crate) fn medium(&self) -> &Medium {
        &self.medium
    }

    /// JetStream limits of an account in operator mode; `None` where its claims give it no JetStream.
    pub(crate) fn claimed_jetstream(&self, account: &str) -> Option<AccountJetStreamLimits> {
        let (claimed, _) = self.authenticator().claimed_accounts(SystemTime::now());
        let of = claimed.into_iter().find(|claimed| *claimed.id == *account)?;
        of.options.jetstream
    }

    /// A short name that is unique on this server.
    pub(crate) fn next_short_name(&self) -> String {
        let n = self.next_name.fetch_add(1, Ordering::Relaxed);
        format!("{}{n}", &self.id[1..7])
    }

    /// The options in force.
    pub(crate) fn options(&self) -> Guard<Arc<Options>> {
        self.options.load()
    }

    /// Limits of connections, taken from the options.
    pub(crate) fn limits(&self) -> Guard<Arc<Limits>> {
        self.limits.load()
    }

    /// The authenticator in force.
    pub(crate) fn authenticator(&self) -> Arc<Authenticator> {
        self.authenticator.load_full()
    }

    /// TLS of the client listener, if it has any.
    pub(crate) fn tls(&self) -> Option<Arc<tls::Setup>> {
        self.tls.load_full()
    }

    /// TLS of the WebSocket listener, if it has any.
    pub(crate) fn websocket_tls(&self) -> Option<Arc<tls::Setup>> {
        self.websocket_tls.load_full()
    }

    /// TLS of HTTPS monitoring, if there is such a listener.
    pub(crate) fn monitoring_tls(&self) -> Option<Arc<tls::Setup>> {
        self.monitoring_tls.load_full()
    }

    /// Where the listeners ended up.
    pub(crate) fn addresses(&self) -> Addresses {
        self.addresses.lock().clone()
    }

    /// Notes where a monitoring listener ended up.
    pub(crate) fn set_monitoring_addr(&self, address: Option<SocketAddr>, tls: bool) {
        let mut addresses = self.addresses.lock();
        if tls {
            addresses.monitoring_tls = address;
        } else {
            addresses.monitoring = address;
        }
    }

    /// When the options in force took effect.
    pub(crate) fn configured_at(&self) -> SystemTime {
        *self.configured_at.lock()
    }

    /// Subscriptions of all accounts, the server's own included.
    pub(crate) fn subscriptions(&self) -> usize {
        self.accounts
            .all()
            .iter()
            .map(|account| account.subscriptions())
            .sum()
    }

    /// Whether a client of this kind must authenticate.
    pub(crate) fn auth_required(&self, kind: ConnectionType) -> bool {
        self.authenticator.load().auth_required(kind)
    }

    /// Whether there are users at all that a client of this kind could be.
    pub(crate) fn knows_users(&self, kind: ConnectionType) -> bool {
        let authenticator = self.authenticator.load();
        authenticator.auth_required(kind) || authenticator.admits_without_credentials(kind)
    }

    /// Whether a client of this kind may go without credentials.
    pub(crate) fn has_no_auth_user(&self, kind: ConnectionType) -> bool {
        self.authenticator.load().admits_without_credentials(kind)
    }

    /// Time for a successful CONNECT.
    pub(crate) fn auth_timeout(&self, kind: ConnectionType) -> Duration {
        let options = self.options();
        let websocket = options
            .websocket
            .as_ref()
            .filter(|_| kind == ConnectionType::WebSocket);
        let tls = match websocket {
            Some(websocket) => websocket.tls.as_ref(),
            None => options.tls.as_ref(),
        };
        websocket
            .and_then(|websocket| websocket.auth_timeout)
            .or(options.auth.timeout)
            .unwrap_or_else(|| default_auth_timeout(tls))
    }

    /// Time between PINGs to a client of this kind.
    pub(crate) fn ping_interval(&self, kind: ConnectionType) -> Duration {
        let options = self.options();
        let websocket = options
            .websocket
            .as_ref()
            .filter(|_| kind == ConnectionType::WebSocket);
        websocket
            .and_then(|websocket| websocket.ping_interval)
            .unwrap_or(options.ping_interval)
    }

    /// Whether an account is the system account.
    pub(crate) fn is_system(&self, account: &Arc<Account>) -> bool {
        self.accounts
            .system()
            .is_some_and(|system| Arc::ptr_eq(&system, account))
    }

    /// The account that an identity belongs to; the global one for nobody in particular.
    pub(crate) fn account_of(&self, identity: Option<&Identity>) -> Option<Arc<Account>> {
        match identity {
            None => Some(self.accounts.global()),
            Some(identity) => self.accounts.get(&identity.account),
        }
    }

    /// Binds a connection to the account of `profile`, or moves it there.
    pub(crate) fn bind(&self, connection: &Connection, profile: Profile) -> Bound {
        let before = connection.profile().map(|profile| profile.account.clone());
        let account = profile.account.clone();
        if !before
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, &account))
        {
            if !account.admit() {
                return Bound::TooManyConnections;
            }
            if let Some(before) = before {
                before.release();
            }
        }
        connection.bind(profile);
        Bound::Done
    }

    /// Takes a new connection into the registry; false when the server is full or going down.
    pub(crate) fn admit(&self, connection: &Arc<Connection>) -> bool {
        let max = u64::try_from(self.options().max_connections).unwrap_or(0);
        let full = self.registry.len() as u64 >= max;
        self.stats.connected();
        self.registry.add(connection.clone());
        tracing::debug!(client = %connection.log_name(), "Client connection created");
        if self.stop.is_cancelled() {
            connection.close(CloseReason::ServerShutdown);
        }
        !full
    }

    /// A client has authenticated.
    pub(crate) fn client_connected(&self, connection: &Arc<Connection>) {
        events::connected(self, connection);
        tracing::debug!(client = %connection.log_name(), "Client authenticated");
    }

    /// A client's credentials were refused.
    pub(crate) fn authentication_failed(
        &self,
        connection: &Arc<Connection>,
        connect: &Connect,
        failure: &AuthFailure,
    ) {
        let credentials = Credentials::from(connect);
        connection.refuse(Refused {
            user: credentials.shown_user().to_owned(),
            name: connect.name.clone(),
            lang: connect.lang.clone(),
            version: connect.version.clone(),
        });
        events::authentication_failed(self, connection);
        let client = connection.log_name();
        tracing::error!(%client, "authentication error - {}", credentials.log_name());
        tracing::debug!(%client, "not admitted: {failure}");
    }

    fn report_slow_consumer(&self, connection: &Connection, reason: CloseReason) {
        let client = connection.log_name();
        let limits = self.limits();
        if reason == CloseReason::SlowConsumerPendingBytes {
            tracing::info!(%client, "Slow Consumer Detected: MaxPending of {} Exceeded", limits.max_pending);
        } else {
            let pending = connection.outbound.pending();
            tracing::info!(
                %client,
                "Slow Consumer Detected: WriteDeadline of {:?} exceeded with 1 chunks of {pending} total bytes.",
                limits.write_deadline
            );
        }
    }

    /// A connection's task has ended. `subscriptions` is how many it had until then.
    pub(crate) fn client_gone(&self, connection: &Arc<Connection>, subscriptions: usize) {
        let Some(reason) = connection.closing.reason() else {
            return;
        };
        let profile = connection.profile();
        let closed = Closed {
            connection: connection.clone(),
            stopped: SystemTime::now(),
            uptime: connection.uptime(),
            reason,
            subscriptions,
            profile: profile.clone(),
        };
        if !self.registry.retire(closed, self.options().max_closed_clients) {
            return;
        }
        if reason.is_slow_consumer() {
            self.stats.slow_consumer();
            self.report_slow_consumer(connection, reason);
            if let Some(profile) = &profile {
                profile.account.slow_consumers.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(profile) = &profile {
            profile.account.release();
            let account = self.jetstream().and_then(|js| js.account(&profile.account.name));
            for stream in account.iter().flat_map(|account| account.streams()) {
                stream.client_gone(connection.id);
            }
        }
        events::disconnected(self, connection, reason);
        tracing::debug!(
            client = %connection.log_name(),
            "Client connection closed: {}",
            reason.as_str()
        );
    }
}

/// Time for a successful CONNECT where none is configured.
fn default_auth_timeout(tls: Option<&TlsOptions>) -> Duration {
    tls.map_or(Duration::from_secs(2), |tls| tls.timeout + Duration::from_secs(1))
}

/// A running server.
///
/// A cheap handle: clones refer to the same server. When the last one is dropped without [`Server::shutdown`], the
/// server's tasks are told to stop and end on their own.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Running>,
}

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop_now();
    }
}

impl Server {
    /// Starts to describe a server.
    pub fn builder() -> Builder {
        Builder::new(Options::default())
    }

    fn from_shared(shared: Arc<Shared>) -> Self {
        Self {
            inner: Arc::new(Running { shared }),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// The server's id: a public key made new at each start.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared().id
    }

    /// The server's name: as configured, else its id.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Address of the client listener; `None` when there is none.
    #[must_use]
    pub fn client_addr(&self) -> Option<SocketAddr> {
        self.shared().addresses().client
    }

    /// Address of the WebSocket listener; `None` when there is none.
    #[must_use]
    pub fn websocket_addr(&self) -> Option<SocketAddr> {
        self.shared().addresses().websocket
    }

    /// Address of HTTP monitoring, with or without TLS; `None` when there is none.
    #[must_use]
    pub fn monitoring_addr(&self) -> Option<SocketAddr> {
        let addresses = self.shared().addresses();
        addresses.monitoring.or(addresses.monitoring_tls)
    }

    /// `nats://…` or `tls://…` of the client listener; `None` when there is none.
    #[must_use]
    pub fn client_url(&self) -> Option<String> {
        let options = self.shared().options();
        let scheme = if options.tls.is_some() && !options.allow_non_tls {
            "tls"
        } else {
            "nats"
        };
        self.client_addr().map(|address| format!("{scheme}://{address}"))
    }

    /// Counters of the whole server.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared().stats.counts()
    }

    /// Memory that the budget covers.
    #[must_use]
    pub fn memory(&self) -> MemoryReport {
        let store = self
            .shared()
            .jetstream()
            .and_then(|js| js.with_store(Store::metrics));
        self.shared().memory.report(store)
    }

    /// What the files of JetStream's folder take; `None` without JetStream.
    #[must_use]
    pub fn storage(&self) -> Option<StorageReport> {
        let js = self.shared().jetstream()?;
        Some(StorageReport {
            used: js.disk().used(),
            budget: js.disk().budget(),
        })
    }

    /// The users of the connections now, once for each connection that authenticated: names, nkeys or JWT subjects.
    #[must_use]
    pub fn connected_users(&self) -> Vec<String> {
        let live = self.shared().registry.live();
        let profiles = live.iter().filter_map(|connection| connection.profile());
        profiles
            .filter_map(|profile| profile.identity.as_ref().map(|identity| identity.user.clone()))
            .collect()
    }

    /// What JetStream runs with; `None` without JetStream.
    #[must_use]
    pub fn jetstream_report(&self) -> Option<JetStreamReport> {
        let js = self.shared().jetstream()?;
        let size = js.size();
        Some(JetStreamReport {
            folder: js.folder.clone(),
            max_memory: size.memory,
            max_storage: size.storage,
            api_level: info::API_LEVEL,
            took: js.took(),
        })
    }

    /// Client connections now, in-process clients included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared().registry.len()
    }
}
