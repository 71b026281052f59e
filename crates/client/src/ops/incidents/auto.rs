//! Capsules that are made by themselves.
//!
//! The message path only queues: at most sixteen wait, and for each stream and consumer one is made in a while, whatever
//! happens in between. What finds no room is counted. One task makes them; it ends with the last clone of its
//! [`CapsuleAuto`] or layer, or when the store closes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Capsule, CapsuleMessage, CapsuleStore, Capture, Redact, Trigger, redact_credentials};
use crate::delivery::Delivery;
use crate::handler::{Handler, HandlerError, Layer, Outcome, guarded};
use crate::ops::fingerprint::{Anomaly, Record};
use crate::ops::liveness::Stall;
use crate::ops::recorder::{DlqRecorder, DlqRoute, FlightRecorder, Incident, ShadowRecorder};

/// Captures that may wait.
const QUEUE: usize = 16;
/// Most bytes of an error's text in a reason.
const ERROR_MAX: usize = 512;

/// Is given each capsule.
pub type OnReady = Arc<dyn Fn(&Capsule) + Send + Sync>;

/// When and how capsules are made.
#[derive(Clone)]
pub struct AutoConfig {
    /// Whether any are. Off.
    pub enabled: bool,
    /// The object bucket; when empty, the default one.
    pub store_bucket: String,
    /// The index bucket; when empty, the default one.
    pub index_bucket: String,
    /// Messages in a capsule, at most. 0 means 50.
    pub window: usize,
    /// Between two capsules of the same consumer. 30 s.
    pub cooldown: Duration,
    /// Its incidents go into the capsules.
    pub flight_recorder: Option<FlightRecorder>,
    /// Is given each capsule.
    pub on_ready: Option<OnReady>,
    /// Takes out what must not be kept. [`redact_credentials`].
    pub redact: Redact,
}

impl Default for AutoConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            store_bucket: String::new(),
            index_bucket: String::new(),
            window: 0,
            cooldown: Duration::from_secs(30),
            flight_recorder: None,
            on_ready: None,
            redact: Arc::new(redact_credentials),
        }
    }
}

impl std::fmt::Debug for AutoConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AutoConfig")
            .field("enabled", &self.enabled)
            .field("window", &self.window)
            .field("cooldown", &self.cooldown)
            .finish_non_exhaustive()
    }
}

/// Makes capsules for one consumer when something calls for it. As a layer, when its handler fails. Clones share the task.
#[derive(Debug, Clone)]
pub struct CapsuleAuto {
    stream: String,
    durable: String,
    /// None when it is off.
    queue: Option<mpsc::Sender<Capture>>,
    dropped: Arc<AtomicU64>,
}

impl CapsuleAuto {
    /// Starts the task, if `config` says so. `stream` and `durable` are told of events that do not name theirs.
    ///
    /// # Panics
    /// Outside of a Tokio runtime, when it is on.
    pub fn new(
        store: impl CapsuleStore,
        stream: impl Into<String>,
        durable: impl Into<String>,
        config: AutoConfig,
    ) -> Self {
        let queue = config.enabled.then(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(work(store, config, receiver));
            sender
        });
        Self {
            stream: stream.into(),
            durable: durable.into(),
            queue,
            dropped: Arc::default(),
        }
    }

    /// Captures that found no room in the queue.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A callback for [`fingerprint::watch`](crate::ops::fingerprint::watch).
    pub fn on_anomaly(&self) -> impl Fn(&Anomaly) + Send + Sync + use<> {
        let auto = self.clone();
        move |anomaly| {
            auto.queue(Capture {
                stream: anomaly.stream.clone(),
                consumer: anomaly.durable.clone(),
                trigger: Trigger::Anomaly,
                reason: "behavior_fingerprint_anomaly".to_owned(),
                fingerprint: Some(Record::of(anomaly)),
                ..Capture::default()
            });
        }
    }

    /// A callback for [`liveness::watch`](crate::ops::liveness::watch).
    pub fn on_stall(&self) -> impl Fn(&Stall) + Send + Sync + use<> {
        let auto = self.clone();
        move |stall| {
            auto.queue(Capture {
                trigger: Trigger::Stall,
                reason: format!(
                    "{} messages waiting, none processed for {:?}",
                    stall.num_pending, stall.stalled_for
                ),
                ..Capture::default()
            });
        }
    }

    fn queue(&self, mut what: Capture) {
        let Some(queue) = &self.queue else { return };
        if what.stream.is_empty() {
            what.stream.clone_from(&self.stream);
        }
        if what.consumer.is_empty() {
            what.consumer.clone_from(&self.durable);
        }
        if queue.try_send(what).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues what a failed handler calls for.
    fn failed(&self, delivery: &Delivery, error: &HandlerError) {
        let (trigger, reason) = match error {
            HandlerError::ClaimInFlight(_) => return,
            HandlerError::DlqRouted(_) | HandlerError::SendToDlq(_) => (Trigger::Dlq, error.to_string()),
            other => (
                Trigger::Manual,
                format!("handler_error: {}", cut(&other.to_string())),
            ),
        };
        let seen = CapsuleMessage::of(delivery);
        let (stream, consumer) = delivery.metadata().map_or_else(Default::default, |found| {
            (found.stream.to_owned(), found.consumer.to_owned())
        });
        self.queue(Capture {
            stream,
            consumer,
            trigger,
            reason,
            subject: delivery.subject.to_string(),
            failing_seq: seen.as_ref().map_or(0, |seen| seen.sequence),
            seen,
            ..Capture::default()
        });
    }
}

impl DlqRecorder for CapsuleAuto {
    fn dlq_routed(&self, route: &DlqRoute) {
        self.queue(Capture {
            stream: route.stream.clone(),
            consumer: route.consumer.clone(),
            trigger: Trigger::Dlq,
            subject: route.subject.clone(),
            reason: route.reason.clone(),
            failing_seq: route.sequence,
            ..Capture::default()
        });
    }
}

impl ShadowRecorder for CapsuleAuto {
    fn shadow_incident(&self, incident: &Incident) {
        self.queue(Capture {
            trigger: Trigger::ShadowMismatch,
            subject: incident.subject.clone(),
            reason: format!("{}: {}", incident.detail, incident.err),
            ..Capture::default()
        });
    }
}

async fn work(store: impl CapsuleStore, config: AutoConfig, mut queue: mpsc::Receiver<Capture>) {
    let mut made: HashMap<(String, String), Instant> = HashMap::new();
    let makes = async {
        while let Some(what) = queue.recv().await {
            let now = Instant::now();
            made.retain(|_, at| now.duration_since(*at) < config.cooldown);
            let key = (what.stream.clone(), what.consumer.clone());
            if made.contains_key(&key) {
                continue;
            }
            made.insert(key, now);
            let what = Capture {
                window: config.window,
                redact: Some(Arc::clone(&config.redact)),
                flight_recorder: config.flight_recorder.clone(),
                store_bucket: config.store_bucket.clone(),
                index_bucket: config.index_bucket.clone(),
                ..what
            };
            match (store.capture(what).await, &config.on_ready) {
                (Ok(capsule), Some(on_ready)) => on_ready(&capsule),
                (Ok(_), None) => {}
                (Err(error), _) => tracing::debug!(%error, "an incident was not captured"),
            }
        }
    };
    tokio::select! {
        () = store.closed() => {}
        () = makes => {}
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(ERROR_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A handler whose failures become capsules. Its result is what it was.
#[derive(Debug, Clone)]
pub struct CapsuleHandler<H> {
    auto: CapsuleAuto,
    inner: H,
}

impl<H: Handler> Layer<H> for CapsuleAuto {
    type Handler = CapsuleHandler<H>;

    fn layer(self, inner: H) -> CapsuleHandler<H> {
        CapsuleHandler { auto: self, inner }
    }
}

impl<H: Handler> Handler for CapsuleHandler<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let outcome = guarded(|| self.inner.handle(Arc::clone(&delivery))).await;
        if let Err(error) = &outcome {
            self.auto.failed(&delivery, error);
        }
        outcome
    }
}

/// Wraps a handler so that its failures become capsules, in any store.
///
/// # Panics
/// As [`CapsuleAuto::new`].
pub fn attach<H: Handler>(
    store: impl CapsuleStore,
    stream: impl Into<String>,
    durable: impl Into<String>,
    config: AutoConfig,
    handler: H,
) -> CapsuleHandler<H> {
    CapsuleAuto::new(store, stream, durable, config).layer(handler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind, Result};
    use std::sync::Mutex;
    use tokio::sync::Semaphore;

    /// A store whose captures wait for a permit.
    #[derive(Clone)]
    struct Slow {
        gate: Arc<Semaphore>,
        taken: Arc<Mutex<Vec<Capture>>>,
    }

    impl CapsuleStore for Slow {
        fn capture(&self, what: Capture) -> super::super::Capturing<'_> {
            Box::pin(async move {
                self.gate
                    .acquire()
                    .await
                    .map(tokio::sync::SemaphorePermit::forget)
                    .ok();
                self.taken.lock().unwrap().push(what);
                let result: Result<Capsule> = Err(Error::new(ErrorKind::NotFound, "not kept"));
                result
            })
        }
    }

    fn slow() -> Slow {
        Slow {
            gate: Arc::new(Semaphore::new(0)),
            taken: Arc::default(),
        }
    }

    fn on() -> AutoConfig {
        AutoConfig {
            enabled: true,
            ..AutoConfig::default()
        }
    }

    fn route(stream: &str) -> DlqRoute {
        DlqRoute {
            stream: stream.to_owned(),
            consumer: "c".to_owned(),
            reason: "max_deliver".to_owned(),
            sequence: 7,
            ..DlqRoute::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_failures_makes_one_capsule_and_waits_for_nothing() {
        let store = slow();
        let auto = CapsuleAuto::new(store.clone(), "S", "c", on());
        let begun = Instant::now();
        for _ in 0..100 {
            auto.dlq_routed(&route("S"));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(auto.dropped(), 84);
        store.gate.add_permits(100);
        // Time stands until every task waits.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(store.taken.lock().unwrap().len(), 1);
        // Another consumer has a while of its own, and after the while there is one again.
        auto.dlq_routed(&route("T"));
        tokio::time::sleep(Duration::from_secs(30)).await;
        auto.dlq_routed(&route("S"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taken = store.taken.lock().unwrap();
        let streams: Vec<_> = taken
            .iter()
            .map(|what| (what.stream.as_str(), what.failing_seq))
            .collect();
        assert_eq!(streams, [("S", 7), ("T", 7), ("S", 7)]);
        assert!(
            taken
                .iter()
                .all(|what| what.trigger == Trigger::Dlq && what.reason == "max_deliver")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn each_watcher_has_its_trigger() {
        let store = slow();
        store.gate.add_permits(10);
        let config = AutoConfig {
            cooldown: Duration::ZERO,
            ..on()
        };
        let auto = CapsuleAuto::new(store.clone(), "S", "c", config);
        auto.shadow_incident(&Incident {
            err: "primary=nil shadow=x".into(),
            ..Incident::new(crate::ops::recorder::IncidentKind::Shadow, "shadow_mismatch")
        });
        auto.on_stall()(&Stall {
            num_pending: 3,
            stalled_for: Duration::from_secs(10),
        });
        auto.on_anomaly()(&Anomaly {
            stream: "T".into(),
            durable: "d".into(),
            normal: crate::ops::fingerprint::Snapshot::default(),
            current: crate::ops::fingerprint::Snapshot::default(),
            sustained_for: Duration::from_secs(1),
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taken = store.taken.lock().unwrap();
        let seen: Vec<_> = taken
            .iter()
            .map(|what| (what.trigger, what.stream.as_str(), what.consumer.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (Trigger::ShadowMismatch, "S", "c"),
                (Trigger::Stall, "S", "c"),
                (Trigger::Anomaly, "T", "d")
            ]
        );
        assert_eq!(taken[0].reason, "shadow_mismatch: primary=nil shadow=x");
        assert_eq!(taken[2].reason, "behavior_fingerprint_anomaly");
        assert!(taken[2].fingerprint.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn off_it_makes_none() {
        let store = slow();
        store.gate.add_permits(1);
        let auto = CapsuleAuto::new(store.clone(), "S", "c", AutoConfig::default());
        auto.dlq_routed(&route("S"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(store.taken.lock().unwrap().is_empty() && auto.dropped() == 0);
    }
}
