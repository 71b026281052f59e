//! The connection: made, watched, waited for, closed.
//!
//! [`Connector`] shows the state of the client's connection. The official client tells of its events through a short
//! queue and drops what does not fit; the kit's own handling is quick, and the application's hook runs in a task of its
//! own, so that a slow hook never costs a status.
//!
//! With the defaults the connection is made in the background and building a client does not fail because no server is
//! there; [`Connector::wait_connected`] waits for one.
//!
//! Called by: [`Client`](crate::Client), and applications through [`Client::connector`](crate::Client::connector).

pub(crate) mod delay;
pub(crate) mod status;
pub(crate) mod tls;

use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::account::Account;
use tokio::sync::mpsc;

use status::{Board, HOOK_QUEUE, Phase};
pub use status::{Event, Status};

use crate::client::{Inner, Reach};
use crate::config::{Connection, redact};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Metrics;

/// The connection of a [`Client`](crate::Client).
#[derive(Debug, Clone)]
pub struct Connector {
    inner: Arc<Inner>,
}

impl Connector {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Whether there is a connection now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }

    /// What is known about the connection.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = self.inner.board.status();
        status.connected = self.is_connected();
        status.server_url = status.connected.then(|| {
            let info = self.inner.nats.server_info();
            format!("nats://{}:{}", info.host, info.port)
        });
        status
    }

    /// Waits until there is a connection. To wait no longer than some time, put a timeout around it.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the connection is closed for good.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn wait_connected(&self) -> Result<()> {
        // Subscribed first, looked at second: no change is lost in between.
        let mut phase = self.inner.board.phase();
        loop {
            let now = *phase.borrow_and_update();
            if now == Phase::Closed {
                return Err(Error::new(ErrorKind::Closed, "waiting for a connection"));
            }
            if self.inner.is_connected() {
                return Ok(());
            }
            // A client that was made elsewhere tells nobody of its events.
            let look_again = tokio::time::timeout(Duration::from_millis(100), phase.changed());
            if let Ok(Err(_)) = look_again.await {
                return Err(Error::new(ErrorKind::Closed, "waiting for a connection"));
            }
        }
    }

    /// Whether JetStream answers.
    ///
    /// # Errors
    /// [`ErrorKind::NotConnected`] without a connection, else what the request for the account's state failed with.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn health_check(&self) -> Result<()> {
        self.account_info().await.map(|_| ())
    }

    /// The state of the account's JetStream.
    ///
    /// # Errors
    /// As [`Connector::health_check`].
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn account_info(&self) -> Result<Account> {
        if !self.is_connected() {
            return Err(Error::new(ErrorKind::NotConnected, "asking for the account"));
        }
        self.inner
            .js
            .query_account()
            .await
            .map_err(|error| Error::reached("asking for the account", error))
    }
}

/// Makes the connection that the settings ask for.
pub(crate) async fn dial(
    connection: &Connection,
    hook: Option<mpsc::Sender<Event>>,
    metrics: &Metrics,
) -> Result<Reach> {
    let board = Arc::new(Board::new(hook, !connection.reconnects(), metrics.clone()));
    let addresses = connection.addresses();
    let what = || format!("connecting to {}", redact(&connection.address));
    let in_background = connection.reconnects() && connection.retry_on_failed_connect;
    let tries = if in_background {
        1
    } else {
        connection.initial_retry_attempts.max(1)
    };
    let mut wait = connection.initial_retry_wait;
    if wait.is_zero() {
        wait = Duration::from_secs(1);
    }
    let backoff = if connection.initial_retry_backoff > 0.0 {
        connection.initial_retry_backoff
    } else {
        2.0
    };
    let mut tried = 0;
    loop {
        tried += 1;
        let options = options(connection, &board, in_background).await?;
        match options.connect(&addresses[..]).await {
            Ok(nats) => return Ok(Reach { nats, board }),
            Err(error) if tried >= tries => {
                return Err(
                    Error::new(ErrorKind::ConnectFailed, format!("{} ({tried} tries)", what()))
                        .because(error),
                );
            }
            Err(error) => {
                tracing::warn!(%error, tried, address = redact(&connection.address), "no connection yet");
                tokio::time::sleep(wait).await;
                wait = wait.mul_f64(backoff).min(Duration::from_secs(3600));
            }
        }
    }
}

/// The settings in the official client's words.
async fn options(connection: &Connection, board: &Arc<Board>, in_background: bool) -> Result<ConnectOptions> {
    let what = || format!("connecting to {}", redact(&connection.address));
    let mut options = ConnectOptions::new().ping_interval(connection.ping_interval);
    if !connection.user.is_empty() {
        options = options.user_and_password(connection.user.clone(), connection.password.expose().to_owned());
    }
    if !connection.secret.is_empty() {
        options = options.token(connection.secret.expose().to_owned());
    }
    if !connection.seed.is_empty() {
        options = options.nkey(connection.seed.expose().to_owned());
    }
    if !connection.credentials_file.is_empty() {
        options = options
            .credentials_file(&connection.credentials_file)
            .await
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, what()).because(error))?;
    }
    if !connection.client_name.is_empty() {
        options = options.name(&connection.client_name);
    }
    if !connection.inbox_prefix.is_empty() {
        options = options.custom_inbox_prefix(&connection.inbox_prefix);
    }
    if !connection.connect_timeout.is_zero() {
        options = options.connection_timeout(connection.connect_timeout);
    }
    if connection.dont_randomize {
        options = options.retain_servers_order();
    }
    if let Some(config) = tls::client_config(&connection.tls)? {
        options = options.require_tls(true).tls_client_config(config);
    }
    if in_background {
        options = options.retry_on_initial_connect();
    }
    // For the official client, 0 and none both mean any number.
    let most = if connection.reconnects() {
        connection.max_reconnect
    } else {
        Some(1)
    };
    options = options.max_reconnects(most);
    let servers = connection.addresses().len();
    let shape = connection.clone();
    options =
        options.reconnect_delay_callback(move |attempt| delay::before_attempt(&shape, servers, attempt));
    let board = Arc::clone(board);
    Ok(options.event_callback(move |event| {
        board.take(event);
        std::future::ready(())
    }))
}

/// The queue to the application's hook and the task that empties it.
pub(crate) fn hook(
    connection: &Connection,
) -> (
    Option<mpsc::Sender<Event>>,
    Option<impl Future<Output = ()> + use<>>,
) {
    let Some(hook) = connection.on_event.clone() else {
        return (None, None);
    };
    let (sender, mut events) = mpsc::channel(HOOK_QUEUE);
    let calls = async move {
        while let Some(event) = events.recv().await {
            hook(&event);
        }
    };
    (Some(sender), Some(calls))
}
