//! The table of everything that is measured.

use metrics::Unit;

/// What kind of instrument it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Grows.
    Counter,
    /// Has a value.
    Gauge,
    /// Has a distribution.
    Histogram,
}

/// One instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Instrument {
    /// Its name, after the prefix.
    pub name: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// What it is measured in.
    pub unit: Unit,
    /// What it says.
    pub help: &'static str,
    /// Whether it is there with [`MetricsConfig::lite`](crate::config::MetricsConfig::lite) too.
    pub lite: bool,
}

const fn counter(name: &'static str, help: &'static str) -> Instrument {
    Instrument {
        name,
        kind: Kind::Counter,
        unit: Unit::Count,
        help,
        lite: true,
    }
}

const fn bytes(name: &'static str, help: &'static str) -> Instrument {
    Instrument {
        unit: Unit::Bytes,
        ..counter(name, help)
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Instrument {
    Instrument {
        kind: Kind::Gauge,
        ..counter(name, help)
    }
}

/// A gauge that needs a question to the server.
const fn asked(name: &'static str, unit: Unit, help: &'static str) -> Instrument {
    Instrument {
        unit,
        lite: false,
        ..gauge(name, help)
    }
}

const fn histogram(name: &'static str, unit: Unit, help: &'static str) -> Instrument {
    Instrument {
        kind: Kind::Histogram,
        unit,
        ..counter(name, help)
    }
}

/// Everything that is measured.
pub const INSTRUMENTS: &[Instrument] = &[
    counter("reconnect_count", "Connections that were made again"),
    bytes("connection_in_bytes", "Bytes received"),
    bytes("connection_out_bytes", "Bytes sent"),
    counter("connection_errors", "Errors of the server or of the connection"),
    counter("lame_duck_events", "Times that a server said it is about to go"),
    counter(
        "idle_heartbeat_misses",
        "Pulls and subscriptions whose heartbeats stayed out",
    ),
    counter("resubscribe_total", "Supervised work that was started again"),
    counter("supervisor_give_up", "Supervised work that was given up"),
    counter(
        "consumer_stall",
        "Backlogs that grew or stood while nothing was processed",
    ),
    counter("slow_consumer_detected", "Consumers that were behind for long"),
    counter(
        "behavior_fingerprint_anomaly",
        "Consumers that were much slower than usual",
    ),
    counter("publish_total", "Messages published"),
    counter("publish_errors", "Publishes that failed"),
    counter("request_total", "Requests answered"),
    counter("request_errors", "Requests that failed"),
    counter("reply_handled", "Requests that were handled"),
    counter("reply_errors", "Requests whose handler failed"),
    counter("messages_received", "Messages delivered to handlers"),
    counter("messages_errors", "Messages whose handler failed"),
    counter("redelivery_total", "Messages that had been delivered before"),
    counter("ack_total", "Messages acknowledged"),
    counter("nak_total", "Messages handed back"),
    counter(
        "term_total",
        "Messages given up, or routed to the dead-letter queue",
    ),
    counter("slow_consumer_events", "Messages for which there was no room"),
    counter("shadow_error_total", "Shadow runs that failed"),
    counter(
        "shadow_mismatch_total",
        "Shadow runs with another result than the primary",
    ),
    counter("circuit_open", "Times that a circuit breaker opened"),
    histogram(
        "publish_latency_seconds",
        Unit::Seconds,
        "From a publish to its acknowledgement",
    ),
    histogram(
        "request_latency_seconds",
        Unit::Seconds,
        "From a request to its reply",
    ),
    histogram("message_handling_seconds", Unit::Seconds, "Time in the handler"),
    histogram("publish_bytes", Unit::Bytes, "Payloads published, as sent"),
    histogram("request_bytes", Unit::Bytes, "Payloads requested, as sent"),
    histogram("message_bytes", Unit::Bytes, "Payloads delivered, as received"),
    histogram(
        "fetch_batch_size",
        Unit::Count,
        "Messages that one pull request brought",
    ),
    histogram(
        "fetch_wait_seconds",
        Unit::Seconds,
        "Time that one pull request was waited for",
    ),
    histogram(
        "pull_batch_process_seconds",
        Unit::Seconds,
        "Time in handlers between two pull requests",
    ),
    Instrument {
        lite: false,
        ..histogram(
            "connection_rtt_seconds",
            Unit::Seconds,
            "From here to the server and back",
        )
    },
    gauge("connection_state", "1 while connected"),
    gauge("worker_queue_depth", "Messages that wait for the worker pool"),
    gauge(
        "pull_batch_inflight",
        "Handlers of a pull consumer that run at the same time",
    ),
    asked(
        "jetstream_memory_bytes",
        Unit::Bytes,
        "The account's use of memory",
    ),
    asked(
        "jetstream_storage_bytes",
        Unit::Bytes,
        "The account's use of storage",
    ),
    asked("stream_messages", Unit::Count, "Messages in a stream"),
    asked("stream_bytes", Unit::Bytes, "Bytes in a stream"),
    asked("stream_first_seq", Unit::Count, "The first sequence of a stream"),
    asked("stream_last_seq", Unit::Count, "The last sequence of a stream"),
    asked("stream_consumer_count", Unit::Count, "Consumers of a stream"),
    asked(
        "stream_replica_count",
        Unit::Count,
        "Copies of a stream, where it has several",
    ),
    asked(
        "consumer_num_pending",
        Unit::Count,
        "Messages that wait for a consumer",
    ),
    asked(
        "consumer_num_ack_pending",
        Unit::Count,
        "Messages of a consumer that are not settled",
    ),
    asked(
        "consumer_num_redelivered",
        Unit::Count,
        "Messages of a consumer that were delivered again",
    ),
    asked(
        "consumer_ack_floor",
        Unit::Count,
        "The stream sequence up to which all is settled",
    ),
    asked(
        "consumer_lag_messages",
        Unit::Count,
        "How far a consumer is behind the end of its stream",
    ),
];

const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
const BYTES: &[f64] = &[
    64.0,
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    32_768.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
const MESSAGES: &[f64] = &[0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0];

/// The upper bounds of a histogram's buckets; the defaults of most libraries put every latency into the first one.
#[must_use]
pub fn bounds(unit: Unit) -> &'static [f64] {
    match unit {
        Unit::Seconds => SECONDS,
        Unit::Bytes => BYTES,
        _ => MESSAGES,
    }
}

pub(super) fn instrument(name: &str) -> Option<&'static Instrument> {
    INSTRUMENTS.iter().find(|instrument| instrument.name == name)
}
