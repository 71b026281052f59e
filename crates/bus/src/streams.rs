//! The streams of the bus: what they hold, and bringing a broker's streams in line with that.
//!
//! Called by the broker at start. Messages and consumers are kept; a change that a live stream cannot make is an error that
//! names the values, and nothing is touched.

use std::time::Duration;

use windjet_protocol::jetstream::{
    ApiError, DiscardPolicy, ErrorCode, Nanos, RetentionPolicy, StorageType, StreamConfig,
};
use windjet_server::jetstream::JetStreamContext;

use crate::broker::{BrokerConfig, StreamLimits};
use crate::error::{BusError, ErrorKind};
use crate::subjects::{
    DEAD_PREFIX, Layout, TASK_CANCEL_PREFIX, TASK_LOGS_PREFIX, TASK_STATUS_PREFIX, WORKER_DEREGISTER,
    WORKER_HEARTBEAT, WORKER_REGISTER,
};

/// Changes of state of tasks. A work queue: gone when handled.
pub const STREAM_TASK: &str = "SQI_TASK";
/// Output of tasks. Kept until it is too old.
pub const STREAM_LOGS: &str = "SQI_LOGS";
/// Registrations, heartbeats, farewells. A work queue.
pub const STREAM_WORKER: &str = "SQI_WORKER";
/// Cancels. A work queue with a short life.
pub const STREAM_CANCEL: &str = "SQI_CANCEL";
/// Messages that no handler could deal with. Not one of the four of the contract.
pub const STREAM_DEAD: &str = "SQI_DEAD";

/// How long a heartbeat is worth keeping.
pub const HEARTBEAT_LIFE: Duration = Duration::from_secs(120);

/// The four streams, in the order in which they are provisioned.
#[must_use]
pub fn definitions(layout: Layout, limits: &StreamLimits, cap: Option<u64>) -> [StreamConfig; 4] {
    let share = |percent| budget(cap, percent);
    let lifecycle = [WORKER_REGISTER, WORKER_HEARTBEAT, WORKER_DEREGISTER].map(|subject| match layout {
        Layout::Plain => subject.to_owned(),
        Layout::Identity => format!("{subject}.>"),
    });
    let task = base(
        STREAM_TASK,
        vec![format!("{TASK_STATUS_PREFIX}.>")],
        limits.task_age,
        share(limits.task_share),
    );
    let logs = base(
        STREAM_LOGS,
        vec![format!("{TASK_LOGS_PREFIX}.>")],
        limits.logs_age,
        share(limits.logs_share),
    );
    let worker = base(
        STREAM_WORKER,
        lifecycle.to_vec(),
        limits.worker_age,
        share(limits.worker_share),
    );
    let cancel = base(
        STREAM_CANCEL,
        vec![format!("{TASK_CANCEL_PREFIX}.>")],
        limits.cancel_age,
        share(limits.cancel_share),
    );
    [
        StreamConfig {
            retention: RetentionPolicy::WorkQueue,
            // Old or new makes a difference only with a budget; a full budget must not lose a status silently.
            discard: if cap.is_some() {
                DiscardPolicy::New
            } else {
                DiscardPolicy::Old
            },
            ..task
        },
        logs,
        StreamConfig {
            retention: RetentionPolicy::WorkQueue,
            allow_msg_ttl: true,
            ..worker
        },
        StreamConfig {
            retention: RetentionPolicy::WorkQueue,
            allow_direct: true,
            ..cancel
        },
    ]
}

/// The stream of dead letters.
#[must_use]
pub fn dead_letters(limits: &StreamLimits, cap: Option<u64>) -> StreamConfig {
    base(
        STREAM_DEAD,
        vec![format!("{DEAD_PREFIX}.>")],
        limits.dead_age,
        budget(cap, limits.dead_share),
    )
}

fn budget(cap: Option<u64>, percent: u8) -> i64 {
    cap.map_or(-1, |cap| {
        i64::try_from(cap / 100 * u64::from(percent)).unwrap_or(i64::MAX)
    })
}

fn base(name: &str, subjects: Vec<String>, age: Duration, max_bytes: i64) -> StreamConfig {
    StreamConfig {
        name: name.to_owned(),
        subjects,
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: 1,
        max_age: nanos(age),
        max_bytes,
        ..StreamConfig::default()
    }
}

pub(crate) fn nanos(time: Duration) -> Nanos {
    Nanos(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// Brings the streams in line with the configuration.
pub(crate) async fn ensure(js: &JetStreamContext, config: &BrokerConfig) -> Result<(), BusError> {
    let cap = config.store_cap();
    let dead = dead_letters(&config.streams, cap);
    for wanted in definitions(config.layout, &config.streams, cap)
        .into_iter()
        .chain([dead])
    {
        ensure_one(js, wanted).await?;
    }
    Ok(())
}

async fn ensure_one(js: &JetStreamContext, wanted: StreamConfig) -> Result<(), BusError> {
    let name = wanted.name.clone();
    match js.stream_info(&name).await {
        Ok(info) => {
            check_compatible(&info.config, &wanted)?;
            // What the server filled in stays; only what the bus decides is compared.
            let merged = StreamConfig {
                subjects: wanted.subjects,
                max_age: wanted.max_age,
                max_bytes: wanted.max_bytes,
                discard: wanted.discard,
                allow_msg_ttl: info.config.allow_msg_ttl || wanted.allow_msg_ttl,
                allow_direct: wanted.allow_direct || info.config.allow_direct,
                ..info.config.clone()
            };
            let changes = differences(&info.config, &merged);
            if changes.is_empty() {
                return Ok(());
            }
            js.update_stream(merged)
                .await
                .map_err(|error| failed(&name, "update", error))?;
            tracing::info!(
                stream = name,
                changes = changes.join("; "),
                "the stream was brought in line"
            );
            Ok(())
        }
        Err(error) if error.is(ErrorCode::StreamNotFound) => {
            js.create_stream(wanted)
                .await
                .map_err(|error| failed(&name, "create", error))?;
            Ok(())
        }
        Err(error) => Err(failed(&name, "look up", error)),
    }
}

fn failed(stream: &str, operation: &str, error: ApiError) -> BusError {
    let kind = if error.is(ErrorCode::InsufficientResources) {
        ErrorKind::StoreFull {
            stream: stream.to_owned(),
        }
    } else {
        ErrorKind::Refused
    };
    BusError::new(kind, format!("{operation} stream {stream}")).with(error)
}

/// What cannot be changed on a live stream.
fn check_compatible(current: &StreamConfig, wanted: &StreamConfig) -> Result<(), BusError> {
    let mut field = None;
    if current.retention != wanted.retention {
        field = Some(format!(
            "retention is {:?}, wanted {:?}",
            current.retention, wanted.retention
        ));
    } else if current.storage != wanted.storage {
        field = Some(format!(
            "storage is {:?}, wanted {:?}",
            current.storage, wanted.storage
        ));
    }
    let Some(field) = field else { return Ok(()) };
    Err(BusError::new(
        ErrorKind::Incompatible {
            stream: wanted.name.clone(),
            field: field.clone(),
        },
        format!(
            "stream {} cannot be changed in place: {field}; copy what it holds and delete it, or use another folder",
            wanted.name
        ),
    ))
}

fn differences(current: &StreamConfig, wanted: &StreamConfig) -> Vec<String> {
    let mut changes = Vec::new();
    let mut note = |what: &str, old: String, new: String| {
        if old != new {
            changes.push(format!("{what}: {old} -> {new}"));
        }
    };
    note("subjects", current.subjects.join(" "), wanted.subjects.join(" "));
    note("max_age", current.max_age.to_string(), wanted.max_age.to_string());
    note(
        "max_bytes",
        current.max_bytes.to_string(),
        wanted.max_bytes.to_string(),
    );
    note(
        "discard",
        format!("{:?}", current.discard),
        format!("{:?}", wanted.discard),
    );
    note(
        "message lives",
        current.allow_msg_ttl.to_string(),
        wanted.allow_msg_ttl.to_string(),
    );
    note(
        "direct gets",
        current.allow_direct.to_string(),
        wanted.allow_direct.to_string(),
    );
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_four_definitions_with_their_names_subjects_and_policies() {
        let limits = StreamLimits::default();
        let plain = definitions(Layout::Plain, &limits, None);
        let names: Vec<&str> = plain.iter().map(|stream| stream.name.as_str()).collect();
        assert_eq!(names, ["SQI_TASK", "SQI_LOGS", "SQI_WORKER", "SQI_CANCEL"]);
        assert_eq!(plain[0].subjects, ["task.status.>"]);
        assert_eq!(plain[1].subjects, ["task.logs.>"]);
        assert_eq!(
            plain[2].subjects,
            ["worker.register", "worker.heartbeat", "worker.deregister"]
        );
        assert_eq!(plain[3].subjects, ["task.cancel.>"]);
        let retentions = plain.each_ref().map(|stream| stream.retention);
        let (queue, limit) = (RetentionPolicy::WorkQueue, RetentionPolicy::Limits);
        assert_eq!(retentions, [queue, limit, queue, queue]);
        for stream in &plain {
            assert_eq!(
                (stream.storage, stream.num_replicas, stream.max_bytes),
                (StorageType::File, 1, -1)
            );
            assert_eq!(stream.discard, DiscardPolicy::Old);
        }
        assert_eq!(plain[0].max_age, nanos(Duration::from_secs(24 * 3600)));
        assert_eq!(plain[1].max_age, nanos(Duration::from_secs(96 * 3600)));
        assert_eq!(plain[3].max_age, nanos(Duration::from_secs(300)));
        let identity = definitions(Layout::Identity, &limits, None);
        assert_eq!(
            identity[2].subjects,
            ["worker.register.>", "worker.heartbeat.>", "worker.deregister.>"]
        );
    }

    #[test]
    fn w17_budgets_of_all_streams_together_stay_within_the_cap() {
        let limits = StreamLimits::default();
        let cap = 8 * 1024 * 1024;
        let four = definitions(Layout::Plain, &limits, Some(cap));
        let dead = dead_letters(&limits, Some(cap));
        let total: i64 = four.iter().chain([&dead]).map(|stream| stream.max_bytes).sum();
        assert!(total > 0 && total.unsigned_abs() <= cap / 4 * 3);
        assert_eq!(four[0].discard, DiscardPolicy::New);
        assert_eq!(four[1].discard, DiscardPolicy::Old);
    }
}
