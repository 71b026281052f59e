//! The log of the drop-in: nats-server's line format, on standard error or in a file.
//!
//! Everything that the server and this program report are `tracing` events; [`Layer`] turns each into one line of
//! [`Log`]. Switches (debug, trace, time stamps) and the destination can change while the program runs, as a
//! reload or a reopen signal asks.
//!
//! Lines are written by the thread that reports, one `write` a line and unbuffered: after a crash the file ends
//! with the last thing that happened. A destination that blocks therefore blocks the reporting thread, as it does in
//! nats-server.

mod layer;
mod line;
mod sink;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use windjet_server::options::LogOptions;

pub(crate) use layer::Layer;
pub(crate) use line::Severity;

use line::Style;
use sink::Sink;

/// Target of events that end the program; they appear as `[FTL]`.
pub(crate) const FATAL: &str = "windjet::fatal";

/// Reports why the program ends.
macro_rules! fatal {
    ($($arg:tt)*) => {
        tracing::error!(target: $crate::logging::FATAL, $($arg)*)
    };
}
pub(crate) use fatal;

/// Where lines go, and what they look like.
#[derive(Debug)]
pub(crate) struct Log {
    debug: AtomicBool,
    trace: AtomicBool,
    target: Mutex<Target>,
}

#[derive(Debug)]
struct Target {
    sink: Sink,
    style: Style,
}

impl Log {
    /// Opens the destination that the options name.
    ///
    /// # Errors
    ///
    /// The log file cannot be opened.
    pub(crate) fn open(options: &LogOptions) -> io::Result<Self> {
        let sink = Sink::open(options)?;
        let style = Style::of(options, sink.is_terminal());
        Ok(Self {
            debug: AtomicBool::new(options.debug),
            trace: AtomicBool::new(options.trace),
            target: Mutex::new(Target { sink, style }),
        })
    }

    /// Whether debug events are shown.
    pub(crate) fn debug(&self) -> bool {
        self.debug.load(Ordering::Relaxed)
    }

    /// Whether protocol traces are shown.
    pub(crate) fn trace(&self) -> bool {
        self.trace.load(Ordering::Relaxed)
    }

    /// Writes one line. A destination that fails loses it; there is nowhere to report that.
    pub(crate) fn write(&self, severity: Severity, text: &str) {
        let mut target = self.target.lock();
        let line = target.style.line(severity, text);
        if let Some(backup) = target.sink.write(line.as_bytes()) {
            let note = format!("Rotated log, backup saved as {:?}", backup.display().to_string());
            let line = target.style.line(Severity::Info, &note);
            target.sink.write(line.as_bytes());
        }
    }

    /// Takes over what a reload has changed: switches, time stamps, destination.
    ///
    /// # Errors
    ///
    /// The log file cannot be opened; the old destination stays in use, everything else is taken over.
    pub(crate) fn reconfigure(&self, options: &LogOptions) -> io::Result<()> {
        self.debug.store(options.debug, Ordering::Relaxed);
        self.trace.store(options.trace, Ordering::Relaxed);
        let opened = {
            let mut target = self.target.lock();
            let opened = Sink::open(options).map(|sink| target.sink = sink);
            target.style = Style::of(options, target.sink.is_terminal());
            opened
        };
        // `tracing` keeps, for every place that reports, whether anybody wants to know.
        tracing::callsite::rebuild_interest_cache();
        opened
    }

    /// Opens the log file anew, for a program that has moved it away. False when there is no file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened; the old one stays in use.
    pub(crate) fn reopen(&self) -> io::Result<bool> {
        self.target.lock().sink.reopen()
    }
}
