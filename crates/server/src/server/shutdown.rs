//! Going down: stop accepting, close the clients, wait for every task, by a deadline, with a report.

use std::time::{Duration, Instant};

use super::{Server, Shared};
use crate::connection::CloseReason;
use crate::system::events;

/// What a shutdown came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Client connections that were open when the shutdown began.
    pub connections: usize,
    /// Whether every task had ended by the deadline. If not, the rest end on their own soon after.
    pub complete: bool,
    /// How long it took.
    pub took: Duration,
}

impl Shared {
    /// Tells everything to stop, without waiting.
    pub(crate) fn stop_now(&self) {
        self.stop_accepting.cancel();
        // Writing needs the runtime, which is gone when the last handle is dropped outside of it.
        if !self.stop.is_cancelled() && tokio::runtime::Handle::try_current().is_ok() {
            events::shutdown(self);
        }
        self.stop.cancel();
        for connection in self.registry.live() {
            connection.close(CloseReason::ServerShutdown);
        }
        self.tasks.close();
    }
}

impl Server {
    /// Stops the server: no client is accepted any more, all are closed after what waits for them was written, and every
    /// task has ended when this returns, or the deadline has passed. Calling it again, also at the same time, is harmless.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, the shutdown goes on without anybody waiting for it.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let shared = self.shared();
        let begun = Instant::now();
        let connections = shared.registry.len();
        shared.stop_accepting.cancel();
        // Those who wait for messages are told while they can still be written to.
        if let Some(js) = shared.jetstream() {
            let _ = tokio::time::timeout(deadline, js.shutdown()).await;
        }
        shared.stop_now();
        let complete = tokio::time::timeout(deadline, shared.tasks.wait()).await.is_ok();
        if complete {
            shared.registry.clear();
            shared.accounts.unlink();
        }
        if let Some(js) = shared.jetstream() {
            let closed = tokio::task::spawn_blocking(move || js.close()).await;
            if let Ok(Err(error)) = closed {
                tracing::error!("the JetStream store did not close cleanly: {error}");
            }
        }
        ShutdownReport {
            connections,
            complete,
            took: begun.elapsed(),
        }
    }

    /// Whether the server has been told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared().stop.is_cancelled()
    }
}
