//! What is known about the connection, and who is told of changes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use crate::observe::Metrics;

/// Events that wait for the application's hook. When it is full, calls are lost and counted; the status is not.
pub(super) const HOOK_QUEUE: usize = 256;

/// Something that happened to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It was made for the first time.
    Connected,
    /// It was lost; with the last error seen.
    Disconnected(Option<String>),
    /// It was made again.
    Reconnected,
    /// The server is about to go.
    LameDuck,
    /// An error of the server or the client.
    Error(String),
    /// It is closed for good.
    Closed,
}

/// A snapshot of the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whether there is a connection now.
    pub connected: bool,
    /// Whether it is closed for good.
    pub closed: bool,
    /// How often it was made again.
    pub reconnects: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// When it was last lost.
    pub last_disconnect: Option<SystemTime>,
    /// Whether the server said that it is about to go.
    pub in_lame_duck: bool,
    /// Where it leads, without user info; only while connected.
    pub server_url: Option<String>,
    /// Events that the application's hook was too slow for.
    pub hook_calls_lost: u64,
}

/// Where the connection stands, for those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Down,
    Up,
    Closed,
}

/// The status, fed by the official client's events.
#[derive(Debug)]
pub(crate) struct Board {
    status: Mutex<Status>,
    phase: watch::Sender<Phase>,
    hook: Option<mpsc::Sender<Event>>,
    metrics: Metrics,
    /// A lost connection is the end: the official client has no such switch.
    once: bool,
}

impl Board {
    pub(crate) fn new(hook: Option<mpsc::Sender<Event>>, once: bool, metrics: Metrics) -> Self {
        Self {
            status: Mutex::default(),
            phase: watch::Sender::new(Phase::Down),
            hook,
            metrics,
            once,
        }
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn status(&self) -> Status {
        self.lock().clone()
    }

    /// Takes an event in. Must be quick: the official client waits for it, and drops events meanwhile.
    pub(crate) fn take(&self, event: async_nats::Event) {
        let mut told = Vec::with_capacity(2);
        {
            let mut status = self.lock();
            if status.closed {
                return;
            }
            let event = match event {
                async_nats::Event::Connected => {
                    status.connected = true;
                    status.in_lame_duck = false;
                    // The first connection has nothing that it came back from.
                    if status.last_disconnect.is_some() {
                        status.reconnects += 1;
                        tracing::info!(reconnects = status.reconnects, "reconnected");
                        Event::Reconnected
                    } else {
                        tracing::info!("connected");
                        Event::Connected
                    }
                }
                async_nats::Event::Disconnected => {
                    status.connected = false;
                    status.last_disconnect = Some(SystemTime::now());
                    let cause = status.last_error.clone();
                    tracing::warn!(cause, "disconnected");
                    Event::Disconnected(cause)
                }
                async_nats::Event::LameDuckMode => {
                    status.in_lame_duck = true;
                    tracing::warn!("the server is about to go");
                    Event::LameDuck
                }
                async_nats::Event::Closed => {
                    status.connected = false;
                    status.closed = true;
                    status.in_lame_duck = false;
                    tracing::info!("connection closed");
                    Event::Closed
                }
                async_nats::Event::Draining => return,
                async_nats::Event::SlowConsumer(subscription) => {
                    let text = format!("subscription {subscription} is too slow and loses messages");
                    tracing::error!("{text}");
                    status.last_error = Some(text.clone());
                    Event::Error(text)
                }
                async_nats::Event::ServerError(error) => {
                    let text = error.to_string();
                    tracing::error!(error = text, "server error");
                    status.last_error = Some(text.clone());
                    Event::Error(text)
                }
                async_nats::Event::ClientError(error) => {
                    let text = error.to_string();
                    tracing::error!(error = text, "client error");
                    status.last_error = Some(text.clone());
                    Event::Error(text)
                }
            };
            let last = self.once && matches!(event, Event::Disconnected(_));
            told.push(event);
            if last {
                status.closed = true;
                told.push(Event::Closed);
            }
        }
        for event in told {
            self.metrics.connection(&event);
            let phase = match event {
                Event::Connected | Event::Reconnected => Some(Phase::Up),
                Event::Disconnected(_) => Some(Phase::Down),
                Event::Closed => Some(Phase::Closed),
                Event::LameDuck | Event::Error(_) => None,
            };
            if let Some(phase) = phase {
                self.phase.send_replace(phase);
            }
            if let Some(hook) = &self.hook
                && hook.try_send(event).is_err()
            {
                self.lock().hook_calls_lost += 1;
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.phase.borrow() == Phase::Closed
    }

    /// Notes that the connection is closed, when nobody else says so.
    pub(crate) fn close(&self) {
        {
            let mut status = self.lock();
            status.connected = false;
            status.closed = true;
            status.in_lame_duck = false;
        }
        self.metrics.connection(&Event::Closed);
        self.phase.send_replace(Phase::Closed);
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::Event as Theirs;

    #[test]
    fn reconnects_are_counted_and_lame_duck_mode_is_forgotten() {
        let board = Board::new(None, false, Metrics::default());
        board.take(Theirs::Connected);
        assert_eq!((board.status().connected, board.status().reconnects), (true, 0));
        board.take(Theirs::LameDuckMode);
        assert!(board.status().in_lame_duck);
        board.take(Theirs::ClientError(async_nats::ClientError::Other(
            "reset".into(),
        )));
        board.take(Theirs::Disconnected);
        let status = board.status();
        assert!(!status.connected && status.last_disconnect.is_some());
        assert!(status.last_error.unwrap().contains("reset"));
        board.take(Theirs::Connected);
        assert_eq!(
            (board.status().reconnects, board.status().in_lame_duck),
            (1, false)
        );
        board.take(Theirs::LameDuckMode);
        board.take(Theirs::Closed);
        let status = board.status();
        assert!(status.closed && !status.in_lame_duck && !status.connected);
        assert_eq!(*board.phase().borrow(), Phase::Closed);
    }

    #[test]
    fn a_hook_that_sleeps_loses_calls_but_no_status() {
        let (sender, mut calls) = mpsc::channel(2);
        let board = Board::new(Some(sender), false, Metrics::default());
        board.take(Theirs::Connected);
        for _ in 0..5 {
            board.take(Theirs::Disconnected);
            board.take(Theirs::Connected);
        }
        assert_eq!(board.status().reconnects, 5);
        assert_eq!(board.status().hook_calls_lost, 9);
        assert_eq!(calls.try_recv().unwrap(), Event::Connected);
        assert_eq!(calls.try_recv().unwrap(), Event::Disconnected(None));
    }
}
