//! From `tracing` events to log lines.
//!
//! An event's message comes first. A field `client` (what the log calls a client, such as `127.0.0.1:5000 - cid:7`)
//! goes before it, other fields follow as `name=value`.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::Context;

use super::{FATAL, Log, Severity};

/// Target of protocol traces of the server.
const PROTOCOL: &str = "windjet_server::protocol";

/// Writes events to a [`Log`].
#[derive(Debug)]
pub(crate) struct Layer {
    log: Arc<Log>,
}

impl Layer {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        Self { log }
    }

    fn shows(&self, metadata: &Metadata<'_>) -> bool {
        // Events and questions whether an event would be shown; spans have no place in the log.
        if metadata.is_span() {
            return false;
        }
        // Libraries below us say much that only their authors understand.
        let ours = metadata.target().starts_with("windjet");
        match *metadata.level() {
            Level::ERROR | Level::WARN => true,
            Level::INFO => ours,
            Level::DEBUG => ours && self.log.debug(),
            Level::TRACE => metadata.target() == PROTOCOL && self.log.trace(),
        }
    }
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // The answer is kept by `tracing`; whoever changes a switch has it asked again.
        if self.shows(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.shows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.log.trace() {
            LevelFilter::TRACE
        } else if self.log.debug() {
            LevelFilter::DEBUG
        } else {
            LevelFilter::INFO
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let severity = match *metadata.level() {
            Level::ERROR if metadata.target() == FATAL => Severity::Fatal,
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            Level::INFO => Severity::Info,
            Level::DEBUG => Severity::Debug,
            Level::TRACE => Severity::Trace,
        };
        let mut text = Text::default();
        event.record(&mut text);
        self.log.write(severity, &text.finish());
    }
}

#[derive(Default)]
struct Text {
    client: String,
    message: String,
    fields: String,
}

impl Text {
    fn finish(mut self) -> String {
        self.message.push_str(&self.fields);
        if self.client.is_empty() {
            self.message
        } else {
            format!("{} - {}", self.client, self.message)
        }
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => self.message.write_fmt(value),
            "client" => self.client.write_fmt(value),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }
}
