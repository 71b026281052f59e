//! Signals of the operating system, as values to wait for.
//!
//! They are taken over when [`Signals::new`] returns: none that comes later ends the process by itself.

use std::io;

/// What the process was asked to do.
#[cfg_attr(not(unix), expect(dead_code, reason = "without signals there is only Ctrl-C"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Ctrl-C.
    Interrupt,
    /// The usual wish to end.
    Terminate,
    /// Read the configuration again.
    Reload,
    /// Open the log file again.
    Reopen,
    /// Send the clients away, then end.
    LameDuck,
}

impl Asked {
    /// Name of the signal in logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Terminate => "terminated",
            Self::Reload => "hangup",
            Self::Reopen => "user defined signal 1",
            Self::LameDuck => "user defined signal 2",
        }
    }
}

/// The signals, taken over from the system.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    user1: tokio::signal::unix::Signal,
    user2: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Takes the signals over. Needs a runtime.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, no signal is lost.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            Some(()) = self.interrupt.recv() => Asked::Interrupt,
            Some(()) = self.terminate.recv() => Asked::Terminate,
            Some(()) = self.hangup.recv() => Asked::Reload,
            Some(()) = self.user1.recv() => Asked::Reopen,
            Some(()) = self.user2.recv() => Asked::LameDuck,
            else => std::future::pending().await,
        }
    }
}

/// Ctrl-C, on a system without signals.
#[cfg(not(unix))]
#[derive(Debug)]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    /// Prepares to wait for Ctrl-C.
    ///
    /// # Errors
    ///
    /// None on this system.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for Ctrl-C.
    ///
    /// # Cancel safety
    ///
    /// Dropped early, nothing is lost.
    pub(crate) async fn next(&mut self) -> Asked {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Asked::Interrupt,
            Err(_) => std::future::pending().await,
        }
    }
}
