//! The flight recorder: the last incidents, oldest first.
//!
//! A ring of bounded size that anything may write to at any time. Who listens live gets what fits into its queue; what
//! does not is dropped there, and still in the ring.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::sync::broadcast;

use super::liveness::Stall;
use crate::error::ErrorKind;

/// Incidents kept when nothing else is said.
pub const CAPACITY: usize = 128;
const LIVE: usize = 32;

/// What an incident is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum IncidentKind {
    /// A supervisor started something again, or gave up.
    Supervisor = 1,
    /// Messages pile up and none is processed.
    Stall = 2,
    /// A message went to the dead-letter queue.
    Dlq = 3,
    /// The connection was made anew.
    Reconnect = 4,
    /// A shadow failed, or came to another result.
    Shadow = 5,
}

/// One incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// When it happened.
    #[serde(with = "time::serde::rfc3339")]
    pub time: OffsetDateTime,
    /// What happened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The subject of the message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The stream.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stream: String,
    /// The consumer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub consumer: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub err: String,
    /// The message's sequence in the stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence: u64,
    /// Messages that were waiting.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub num_pending: u64,
    /// Which attempt it was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u64,
    /// What it is about.
    #[serde(with = "number")]
    pub kind: IncidentKind,
}

impl Incident {
    /// An incident of now.
    #[must_use]
    pub fn new(kind: IncidentKind, detail: impl Into<String>) -> Self {
        Self {
            time: SystemTime::now().into(),
            kind,
            detail: detail.into(),
            subject: String::new(),
            stream: String::new(),
            consumer: String::new(),
            reason: String::new(),
            err: String::new(),
            sequence: 0,
            num_pending: 0,
            attempt: 0,
        }
    }
}

/// A message that went to the dead-letter queue, as its layer tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DlqRoute {
    /// The message's own subject.
    pub subject: String,
    /// Its stream.
    pub stream: String,
    /// The consumer that gave it up.
    pub consumer: String,
    /// Why.
    pub reason: String,
    /// The error, when an autopsy was asked for.
    pub autopsy_error: Option<String>,
    /// Its sequence in the stream.
    pub sequence: u64,
}

/// Is told of messages that went to the dead-letter queue. Must be quick: the message path waits for it.
pub trait DlqRecorder: Send + Sync {
    /// A message was routed.
    fn dlq_routed(&self, route: &DlqRoute);
}

/// Is told what shadows come to. Must be quick: the message path may wait for it.
pub trait ShadowRecorder: Send + Sync {
    /// A shadow failed, or came to another result.
    fn shadow_incident(&self, incident: &Incident);
}

/// The last incidents. Clones share them.
#[derive(Debug, Clone)]
pub struct FlightRecorder {
    ring: Arc<Mutex<VecDeque<Incident>>>,
    capacity: usize,
    live: broadcast::Sender<Incident>,
}

impl Default for FlightRecorder {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl FlightRecorder {
    /// Keeps the last `capacity` incidents; 0 means 128.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: Arc::default(),
            capacity: if capacity == 0 { CAPACITY } else { capacity },
            live: broadcast::Sender::new(LIVE),
        }
    }

    /// Adds an incident; the oldest one goes when there is no room.
    pub fn record(&self, incident: Incident) {
        {
            let mut ring = self.lock();
            if ring.len() == self.capacity {
                ring.pop_front();
            }
            ring.push_back(incident.clone());
        }
        // Nobody may be listening.
        let _ = self.live.send(incident);
    }

    /// Adds a reconnect.
    pub fn record_reconnect(&self, detail: impl Into<String>) {
        self.record(Incident::new(IncidentKind::Reconnect, detail));
    }

    /// A callback for [`liveness::watch`](super::liveness::watch) that records each stall of a consumer.
    pub fn on_stall(&self, stream: &str, consumer: &str) -> impl Fn(&Stall) + Send + Sync + use<> {
        let (recorder, stream, consumer) = (self.clone(), stream.to_owned(), consumer.to_owned());
        move |stall| {
            recorder.record(Incident {
                stream: stream.clone(),
                consumer: consumer.clone(),
                num_pending: stall.num_pending,
                err: ErrorKind::ConsumerStall.to_string(),
                ..Incident::new(IncidentKind::Stall, "consumer_stall")
            });
        }
    }

    /// Incidents from now on. Who is more than 32 behind misses the oldest.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Incident> {
        self.live.subscribe()
    }

    /// What is kept, oldest first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Incident> {
        self.lock().iter().cloned().collect()
    }

    /// Writes what is kept as a JSON array, indented, with a line break at the end.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn write_json(&self, mut to: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut to, &self.snapshot())?;
        to.write_all(b"\n")
    }

    /// Writes what is kept to the log.
    pub fn log_snapshot(&self, message: &str) {
        for incident in self.snapshot() {
            tracing::info!(?incident, "{message}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Incident>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShadowRecorder for FlightRecorder {
    fn shadow_incident(&self, incident: &Incident) {
        self.record(incident.clone());
    }
}

impl DlqRecorder for FlightRecorder {
    fn dlq_routed(&self, route: &DlqRoute) {
        let detail = if route.autopsy_error.is_some() {
            "autopsy"
        } else {
            "dlq_route"
        };
        self.record(Incident {
            subject: route.subject.clone(),
            stream: route.stream.clone(),
            consumer: route.consumer.clone(),
            reason: route.reason.clone(),
            err: route.autopsy_error.clone().unwrap_or_default(),
            sequence: route.sequence,
            ..Incident::new(IncidentKind::Dlq, detail)
        });
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The kind as its number.
mod number {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::IncidentKind;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(kind: &IncidentKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*kind as u8)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IncidentKind, D::Error> {
        use IncidentKind as Kind;
        let number = u8::deserialize(from)?;
        [
            Kind::Supervisor,
            Kind::Stall,
            Kind::Dlq,
            Kind::Reconnect,
            Kind::Shadow,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
        .ok_or_else(|| serde::de::Error::custom(format!("no kind of incident has the number {number}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(recorder: &FlightRecorder) -> Vec<String> {
        recorder
            .snapshot()
            .into_iter()
            .map(|incident| incident.detail)
            .collect()
    }

    #[test]
    fn the_oldest_goes_first() {
        let recorder = FlightRecorder::new(2);
        for detail in ["a", "b", "c"] {
            recorder.record_reconnect(detail);
        }
        assert_eq!(details(&recorder), ["b", "c"]);
        assert_eq!(FlightRecorder::new(0).capacity, 128);
    }

    #[test]
    fn the_json_is_what_other_tools_read() {
        let recorder = FlightRecorder::default();
        recorder.dlq_routed(&DlqRoute {
            subject: "a".into(),
            stream: "S".into(),
            consumer: "c".into(),
            reason: "max_deliver".into(),
            autopsy_error: Some("boom".into()),
            sequence: 7,
        });
        let mut json = Vec::new();
        recorder.write_json(&mut json).unwrap();
        let text = String::from_utf8(json).unwrap();
        assert!(text.starts_with("[\n  {\n    \"time\": \"2"), "{text}");
        assert!(text.ends_with("\n"));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut first = value[0].clone();
        first.as_object_mut().unwrap().remove("time");
        let expected = serde_json::json!({
            "detail": "autopsy", "subject": "a", "stream": "S", "consumer": "c", "reason": "max_deliver",
            "err": "boom", "sequence": 7, "kind": 3,
        });
        assert_eq!(first, expected);
    }

    /// The original wrote `null`.
    #[test]
    fn an_empty_recorder_writes_an_empty_array() {
        let mut json = Vec::new();
        FlightRecorder::default().write_json(&mut json).unwrap();
        assert_eq!(json, b"[]\n");
    }

    #[test]
    fn a_stall_is_recorded_with_its_backlog() {
        let recorder = FlightRecorder::default();
        let stall = Stall {
            num_pending: 9,
            stalled_for: std::time::Duration::from_secs(60),
        };
        recorder.on_stall("S", "c")(&stall);
        let recorded = &recorder.snapshot()[0];
        assert_eq!(
            (recorded.kind, recorded.detail.as_str()),
            (IncidentKind::Stall, "consumer_stall")
        );
        assert_eq!((recorded.stream.as_str(), recorded.consumer.as_str()), ("S", "c"));
        assert_eq!((recorded.num_pending, recorded.err.is_empty()), (9, false));
    }

    #[tokio::test]
    async fn who_listens_hears_what_happens_from_then_on() {
        let recorder = FlightRecorder::default();
        recorder.record_reconnect("before");
        let mut live = recorder.events();
        recorder.record_reconnect("after");
        assert_eq!(live.recv().await.unwrap().detail, "after");
        for number in 0..100 {
            recorder.record_reconnect(number.to_string());
        }
        assert!(matches!(
            live.recv().await,
            Err(broadcast::error::RecvError::Lagged(_))
        ));
    }
}
