//! What is known of the connection: whether it is there, what it was refused, whether the topology fits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use windjet_client::async_nats::{Event, ServerError};

use super::meters::Meters;
use crate::nats::refusals::Refusals;

/// Fed by the client's events.
#[derive(Debug)]
pub(super) struct Link {
    connected: watch::Sender<bool>,
    topology_ok: AtomicBool,
    closing: AtomicBool,
    last_error: Mutex<Option<String>>,
    /// From the begin of the broker to its close.
    meters: Mutex<Option<Meters>>,
    pub(super) refusals: Refusals,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            connected: watch::Sender::new(false),
            topology_ok: AtomicBool::new(true),
            closing: AtomicBool::new(false),
            last_error: Mutex::new(None),
            meters: Mutex::new(None),
            refusals: Refusals::default(),
        }
    }
}

impl Link {
    pub(super) fn on(&self, event: &Event) {
        match event {
            Event::Connected => {
                if !self.connected.send_replace(true) {
                    tracing::info!(component = "nats", "connected");
                }
                self.tell();
            }
            Event::Disconnected | Event::Closed => {
                if self.connected.send_replace(false) && !self.closing() {
                    tracing::warn!(
                        component = "nats",
                        "disconnected; the client reconnects by itself"
                    );
                }
                self.tell();
            }
            Event::ServerError(ServerError::Other(text)) => {
                if let Some(refused) = self.refusals.note(text) {
                    if refused.consumer_call {
                        self.topology_lost();
                    }
                    if refused.consumer_call && refused.first {
                        tracing::error!(
                            component = "nats",
                            subject = refused.subject,
                            "publish refused; generate the user's permissions anew"
                        );
                    } else {
                        tracing::warn!(component = "nats", subject = refused.subject, "publish refused");
                    }
                } else {
                    tracing::warn!(component = "nats", error = text, "the server reports an error");
                }
                *self.last_error.lock() = Some(text.clone());
            }
            Event::ServerError(error) => *self.last_error.lock() = Some(error.to_string()),
            Event::ClientError(error) => *self.last_error.lock() = Some(error.to_string()),
            Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {
                tracing::info!(component = "nats", %event, "event of the connection");
            }
        }
    }

    pub(super) fn connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Follows the connection's coming and going.
    pub(super) fn watch(&self) -> watch::Receiver<bool> {
        self.connected.subscribe()
    }

    /// Waits until connected.
    pub(super) async fn wait_connected(&self) {
        // The sender is in `self`, so waiting does not fail.
        let _ = self.watch().wait_for(|connected| *connected).await;
    }

    pub(super) fn topology_ok(&self) -> bool {
        self.topology_ok.load(Ordering::Acquire)
    }

    /// Notes the outcome of a check; what it was before.
    pub(super) fn set_topology_ok(&self, ok: bool) -> bool {
        let was_ok = self.topology_ok.swap(ok, Ordering::AcqRel);
        self.tell();
        was_ok
    }

    /// Measures from now on, under the connection's name.
    pub(super) fn begin_measuring(&self, connection: &str) {
        *self.meters.lock() = Some(Meters::new(connection));
        self.tell();
    }

    pub(super) fn end_measuring(&self) {
        if let Some(meters) = self.meters.lock().take() {
            meters.end();
        }
    }

    fn tell(&self) {
        // Under the lock, so that the last word is the newest.
        if let Some(meters) = &*self.meters.lock() {
            meters.tell(self.connected(), self.topology_ok());
        }
    }

    pub(super) fn tell_behind(&self, behind: Duration) {
        if let Some(meters) = &*self.meters.lock() {
            meters.tell_behind(behind);
        }
    }

    /// Something that must be there is not.
    pub(super) fn topology_lost(&self) {
        self.set_topology_ok(false);
    }

    pub(super) fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Marks the close as wanted; whether it was already.
    pub(super) fn begin_close(&self) -> bool {
        self.closing.swap(true, Ordering::AcqRel)
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}
