//! A broker of its own for each test, and waiting without sleeping blindly.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use windjet_bus::client::{Backoff, ConnectOptions, Delivery, Outcome};
use windjet_bus::{Broker, BrokerConfig, Bus, Client, Token};
use windjet_client::async_nats;
use windjet_server::jetstream::JetStreamContext;

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Runs a test on a client in the broker's process and on one over TCP.
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($setup:ident: Setup) $body:block)*) => {
        $(
            mod $name {
                use super::*;

                $(#[$doc])*
                async fn check($setup: Setup) $body

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn in_process() {
                    check(Setup::new(Kind::InProcess).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn over_tcp() {
                    check(Setup::new(Kind::OverTcp).await).await;
                }
            }
        )*
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    InProcess,
    OverTcp,
}

pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) broker: Broker,
    /// Held for as long as the broker lives.
    _folder: TempDir,
}

pub(crate) fn config(folder: &TempDir) -> BrokerConfig {
    BrokerConfig {
        addr: "127.0.0.1:0".to_owned(),
        data_dir: folder.path().join("deep/data"),
        max_store_mb: 64,
        ..BrokerConfig::default()
    }
}

impl Setup {
    pub(crate) async fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::new(config(&folder));
        broker.start().await.unwrap();
        Self {
            kind,
            broker,
            _folder: folder,
        }
    }

    /// Stops the broker and starts another on the same folder and port.
    pub(crate) async fn restart(&mut self) {
        let mut config = self.broker.config().clone();
        config.addr = self.broker.client_url().unwrap().replace("nats://", "");
        self.broker.shutdown(LIMIT).await.unwrap();
        self.broker = Broker::new(config);
        self.broker.start().await.unwrap();
    }

    pub(crate) async fn client(&self) -> Client {
        match self.kind {
            Kind::InProcess => self.broker.client().unwrap(),
            Kind::OverTcp => Client::connect(&self.broker.client_url().unwrap(), quick())
                .await
                .unwrap(),
        }
    }

    /// A client of NATS, for what no client of the bus would do.
    pub(crate) async fn raw(&self) -> async_nats::Client {
        async_nats::connect(self.broker.client_url().unwrap())
            .await
            .unwrap()
    }

    pub(crate) fn js(&self) -> JetStreamContext {
        self.broker.jetstream().unwrap()
    }

    pub(crate) async fn messages(&self, stream: &str) -> u64 {
        self.js().stream_info(stream).await.unwrap().state.messages
    }
}

/// A worker of the plain layout that reconnects soon.
pub(crate) fn quick() -> ConnectOptions {
    ConnectOptions::new().backoff(Backoff {
        base: Duration::from_millis(20),
        cap: Duration::from_millis(200),
    })
}

pub(crate) fn token(id: &str) -> Token {
    Token::new(id).unwrap()
}

/// Waits for a condition, at most [`LIMIT`].
pub(crate) async fn until<F, R>(what: &str, mut condition: F)
where
    F: FnMut() -> R,
    R: Future<Output = bool>,
{
    let end = Instant::now() + LIMIT;
    while !condition().await {
        assert!(Instant::now() < end, "{what} did not happen within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A handler that remembers what it was given and answers what it is told.
#[derive(Clone)]
pub(crate) struct Seen {
    deliveries: Arc<Mutex<Vec<Arc<Delivery>>>>,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self {
            deliveries: Arc::default(),
        }
    }

    pub(crate) fn add(&self, delivery: Arc<Delivery>) {
        self.deliveries.lock().push(delivery);
    }

    /// A handler that answers with `outcome`.
    pub(crate) fn answering(
        &self,
        outcome: Outcome,
    ) -> Arc<impl Fn(Arc<Delivery>) -> std::future::Ready<Outcome> + Send + Sync + 'static> {
        let seen = self.clone();
        Arc::new(move |delivery| {
            seen.add(delivery);
            std::future::ready(outcome.clone())
        })
    }

    pub(crate) fn all(&self) -> Vec<Arc<Delivery>> {
        self.deliveries.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.deliveries.lock().len()
    }

    pub(crate) async fn wait_for(&self, count: usize) {
        until(&format!("{count} deliveries"), || async { self.len() >= count }).await;
    }
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Everything this bus can do, for tests that take either client.
pub(crate) fn bus(client: &Client) -> &dyn Bus {
    client
}

/// A wire between a client and the broker that can be cut.
pub(crate) struct Proxy {
    broken: tokio::sync::watch::Sender<bool>,
    _listening: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Stands before a broker; its URL.
    pub(crate) async fn start(url: &str) -> (Self, String) {
        let target = url.replace("nats://", "");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (broken, state) = tokio::sync::watch::channel(false);
        let listening = tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (target, mut state) = (target.clone(), state.clone());
                tokio::spawn(async move {
                    if *state.borrow() {
                        return;
                    }
                    let mut far = tokio::net::TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = state.wait_for(|broken| *broken) => {}
                    }
                });
            }
        });
        let proxy = Self {
            broken,
            _listening: listening,
        };
        (proxy, url)
    }

    /// Ends all connections and takes no new one.
    pub(crate) fn cut(&self) {
        self.broken.send_replace(true);
    }

    /// Lets connections through again.
    pub(crate) fn mend(&self) {
        self.broken.send_replace(false);
    }
}
