//! A server in this process, for an example to run by itself.

#![allow(dead_code, reason = "no example needs everything")]

use std::time::Duration;

use windjet::Server;
use windjet::kit::{Client, Config, async_nats::jetstream::stream};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A server with JetStream on a free port of this machine, its data in a folder that goes with it.
pub(crate) struct Embedded {
    server: Server,
    _folder: tempfile::TempDir,
}

impl Embedded {
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Server::builder()
            .listen_loopback()
            .jetstream(folder.path())
            .start()
            .await?;
        Ok(Self {
            server,
            _folder: folder,
        })
    }

    /// The settings of a client of it.
    pub(crate) fn config(&self) -> Result<Config> {
        let address = self.server.client_addr().ok_or("the server has no port")?;
        Ok(Config::new(format!("nats://{address}")))
    }

    /// A client of it.
    pub(crate) async fn client(&self) -> Result<Client> {
        let client = Client::connect(self.config()?).await?;
        client.connector().wait_connected().await?;
        Ok(client)
    }

    /// Closes the client, and stops the server.
    pub(crate) async fn stop(self, client: &Client) -> Result {
        let closed = client.close().await;
        if !closed.is_clean() {
            return Err(format!("not everything was flushed: {closed:?}").into());
        }
        self.server.shutdown(Duration::from_secs(10)).await;
        Ok(())
    }
}

/// A stream on `subjects`; in production, operations make it.
pub(crate) async fn stream(client: &Client, name: &str, subjects: &str) -> Result {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![subjects.to_owned()],
        ..stream::Config::default()
    };
    client.streams().create_or_update(config).await?;
    Ok(())
}

/// Waits until `condition` holds, a while at most.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) -> Result {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        if tokio::time::Instant::now() >= deadline {
            return Err(format!("waited in vain for {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
