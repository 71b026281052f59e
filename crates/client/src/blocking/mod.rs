//! The kit for programs without an async runtime.
//!
//! A [`Client`] has a runtime of its own, with one thread, and each call waits for its result. Handlers are plain functions
//! and run on threads of the runtime, as many at a time as the consumer is told. What has no method here is reached by
//! [`Client::run`], which waits for any future: `client.run(|kit| async move { kit.streams().info("ORDERS").await })`.
//!
//! Calls may come from any thread, also from one that belongs to another runtime; it then stands still meanwhile, as with
//! any blocking call. Not from an async function that [`Client::run`] was given: that would wait for itself.
//!
//! ```no_run
//! use windjet_client::{Config, HandlerError, ProcessOptions, blocking::Client};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(Config::new("nats://127.0.0.1:4222"))?;
//! client.wait_connected()?;
//! client.publisher().publish_json("orders.new", &42)?;
//! let worker = client.pull("ORDERS", "worker")?.start(
//!     |order| {
//!         println!("{}", order.decode::<u32>()?);
//!         Ok::<_, HandlerError>(())
//!     },
//!     ProcessOptions::default(),
//! );
//! # worker.stop()?;
//! client.close();
//! # Ok(()) }
//! ```

mod consume;
mod publish;
mod rpc;

use std::future::Future;
use std::sync::{Arc, mpsc};

use tokio::runtime::Runtime;

pub use consume::{Batch, Delivery, PullConsumer, Worker};
pub use publish::{Pending, Publisher};
pub use rpc::{Call, Requester, Subscription};

use crate::client::CloseReport;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::rpc::RespondOptions;

/// A client whose calls wait. Clones share one connection and one runtime, which end with the last of them and of what it
/// made.
#[derive(Debug, Clone)]
pub struct Client {
    kit: crate::Client,
    engine: Engine,
}

/// The runtime, and the way to wait for what it runs.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    runtime: Arc<Owned>,
}

/// Ends the runtime without waiting, which is allowed anywhere.
#[derive(Debug)]
struct Owned(Option<Runtime>);

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Engine {
    fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("windjet-client")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, "starting a runtime").because(error))?;
        Ok(Self {
            runtime: Arc::new(Owned(Some(runtime))),
        })
    }

    /// Makes the runtime the one that tasks are started on, also on a thread of another one.
    pub(crate) fn enter(&self) -> Option<tokio::runtime::EnterGuard<'_>> {
        self.runtime.0.as_ref().map(Runtime::enter)
    }

    /// Runs `work` on the runtime and waits for it. Not by the runtime's own means of waiting: those panic on the threads
    /// of another one.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let ended = || Error::new(ErrorKind::Closed, "waiting for a result");
        let runtime = self.runtime.0.as_ref().ok_or_else(ended)?;
        let (sender, result) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            // Whoever waits is still there: it waits below.
            let _ = sender.send(work.await);
        });
        result.recv().map_err(|_| ended())
    }
}

impl Client {
    /// Connects as the settings say.
    ///
    /// # Errors
    /// As [`crate::Client::connect`], and when no thread can be started.
    pub fn connect(config: Config) -> Result<Self> {
        let engine = Engine::new()?;
        let kit = engine.wait(crate::Client::connect(config))??;
        Ok(Self { kit, engine })
    }

    /// The asynchronous client underneath.
    #[must_use]
    pub fn kit(&self) -> &crate::Client {
        &self.kit
    }

    /// Waits for what `work` makes of the asynchronous client.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when it panicked.
    pub fn run<T, F>(&self, work: impl FnOnce(crate::Client) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.engine.wait(work(self.kit.clone()))
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// As [`Connector::wait_connected`](crate::connector::Connector::wait_connected).
    pub fn wait_connected(&self) -> Result<()> {
        self.run(|kit| async move { kit.connector().wait_connected().await })?
    }

    /// Publishing into streams.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        Publisher::new(self.kit.publisher(), self.engine.clone())
    }

    /// Requests.
    #[must_use]
    pub fn requester(&self) -> Requester {
        Requester::new(self.kit.requester(), self.engine.clone())
    }

    /// A pull consumer that exists.
    ///
    /// # Errors
    /// As [`Consumers::pull`](crate::consumer::Consumers::pull).
    pub fn pull(&self, stream: &str, durable: &str) -> Result<PullConsumer> {
        let (stream, durable) = (stream.to_owned(), durable.to_owned());
        let bound = self.run(|kit| async move { kit.consumer().pull(&stream, &durable).await })??;
        Ok(PullConsumer::new(bound, self.engine.clone()))
    }

    /// Calls `handler` for each request to `subject`.
    ///
    /// # Errors
    /// As [`Responder::subscribe`](crate::rpc::Responder::subscribe).
    pub fn respond<E>(
        &self,
        subject: &str,
        options: RespondOptions,
        handler: impl Fn(&Call) -> std::result::Result<(), E> + Send + Sync + 'static,
    ) -> Result<Subscription>
    where
        E: Into<crate::HandlerError> + Send + 'static,
    {
        rpc::respond(self, subject, options, handler)
    }

    /// Closes the client; see [`crate::Client::close`].
    #[must_use = "it says what was flushed and what was not"]
    pub fn close(&self) -> CloseReport {
        self.run(|kit| async move { kit.close().await })
            .unwrap_or_default()
    }
}
