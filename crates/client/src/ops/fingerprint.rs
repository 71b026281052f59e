//! The behaviour fingerprint: how many messages a consumer usually handles and how long that takes, and whether it takes
//! longer now.
//!
//! The usual is learnt during a warm-up and followed slowly after. An anomaly is a throughput near the usual with a handling
//! time several times the usual, for long enough; it is told once for each episode. What is learnt and seen is written
//! into a key-value bucket, in the format that consoles read ([`Record`]), the return to normal included. The bucket must
//! exist. Of several processes of one durable the last one to write is seen.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::liveness::WatchedRef;
use super::watch::Watch;
use crate::admin::KeyValueKeys;
use crate::error::{Error, ErrorKind, Result};
use crate::observe;

/// The bucket that consoles read.
pub const DEFAULT_BUCKET: &str = "nats_consol_fingerprints";

/// Throughput and handling time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Snapshot {
    /// Messages a minute.
    pub msg_per_min: f64,
    /// Mean handling time.
    pub processing: Duration,
}

/// What a watcher knows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Learnt {
    /// The usual, once there is one.
    pub normal: Option<Snapshot>,
    /// The last window.
    pub current: Snapshot,
}

/// A running watcher, with what it has learnt.
#[derive(Debug)]
pub struct Fingerprint {
    watch: Watch<Anomaly>,
    learnt: Arc<Mutex<Learnt>>,
}

impl Fingerprint {
    /// What is usual, and what the last look saw.
    #[must_use]
    pub fn snapshot(&self) -> Learnt {
        *self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it.
    ///
    /// # Cancel safety
    /// Dropped early, it ends all the same.
    pub async fn stop(self) {
        self.watch.stop().await;
    }
}

impl Deref for Fingerprint {
    type Target = Watch<Anomaly>;

    fn deref(&self) -> &Watch<Anomaly> {
        &self.watch
    }
}

/// When to speak of an anomaly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// How often to look. 5 s.
    pub poll_interval: Duration,
    /// What counts as now. 60 s.
    pub window: Duration,
    /// How long to learn first. 5 min.
    pub warmup: Duration,
    /// Messages to learn from first. 50.
    pub min_samples: u64,
    /// How many times the usual handling time. 3.
    pub latency_factor: f64,
    /// How near the usual throughput, as a part of it. 0.3.
    pub rate_tolerance: f64,
    /// For how long. 30 s.
    pub sustain_for: Duration,
    /// End after the first anomaly. Off.
    pub circuit_stop: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            window: Duration::from_secs(60),
            warmup: Duration::from_secs(300),
            min_samples: 50,
            latency_factor: 3.0,
            rate_tolerance: 0.3,
            sustain_for: Duration::from_secs(30),
            circuit_stop: false,
        }
    }
}

/// A consumer that takes much longer for its usual work.
#[derive(Debug, Clone, PartialEq)]
pub struct Anomaly {
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub durable: String,
    /// The usual.
    pub normal: Snapshot,
    /// Now.
    pub current: Snapshot,
    /// For how long.
    pub sustained_for: Duration,
}

/// A snapshot in a [`Record`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordSnapshot {
    /// Messages a minute.
    pub msg_per_min: f64,
    /// Mean handling time in milliseconds.
    pub processing_ms: f64,
}

/// What stands in the bucket, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// When it was written, in RFC 3339.
    pub updated_at: String,
    /// The stream.
    pub stream: String,
    /// The consumer.
    pub durable: String,
    /// The usual.
    pub normal: RecordSnapshot,
    /// Now.
    pub current: RecordSnapshot,
    /// For how long, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sustained_for_ms: u64,
    /// Whether this is an anomaly.
    pub anomaly: bool,
}

impl Record {
    /// The record of an anomaly, as of now.
    #[must_use]
    pub fn of(anomaly: &Anomaly) -> Self {
        let sustained = anomaly.sustained_for.as_millis();
        Self {
            updated_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            stream: anomaly.stream.clone(),
            durable: anomaly.durable.clone(),
            normal: anomaly.normal.into(),
            current: anomaly.current.into(),
            sustained_for_ms: u64::try_from(sustained).unwrap_or(u64::MAX),
            anomaly: true,
        }
    }
}

impl From<Snapshot> for RecordSnapshot {
    fn from(snapshot: Snapshot) -> Self {
        Self {
            msg_per_min: snapshot.msg_per_min,
            processing_ms: snapshot.processing.as_secs_f64() * 1000.0,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The key of a consumer's record.
#[must_use]
pub fn key(stream: &str, durable: &str) -> String {
    format!("{}/{}", stream.trim(), durable.trim())
}

/// Whether `current` is much slower than `baseline` at about the same throughput. Both bounds count.
#[must_use]
pub fn evaluate(config: &Config, current: Snapshot, baseline: Snapshot) -> bool {
    known(current)
        && known(baseline)
        && near(config, current, baseline)
        && current.processing >= baseline.processing.mul_f64(config.latency_factor)
}

/// Writes a record.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is no such bucket; [`ErrorKind::InvalidKvKey`] when the names make no key.
///
/// # Cancel safety
/// Dropped early, it may have happened or not.
pub async fn report(keys: &KeyValueKeys, bucket: &str, record: &Record) -> Result<()> {
    let json = serde_json::to_vec(record)
        .map_err(|error| Error::new(ErrorKind::Encode, "writing a fingerprint").because(error))?;
    keys.put(bucket, &key(&record.stream, &record.durable), json)
        .await
        .map(|_| ())
}

fn known(snapshot: Snapshot) -> bool {
    snapshot.msg_per_min > 0.0 && !snapshot.processing.is_zero()
}

fn near(config: &Config, current: Snapshot, baseline: Snapshot) -> bool {
    let (low, high) = (1.0 - config.rate_tolerance, 1.0 + config.rate_tolerance);
    (baseline.msg_per_min * low..=baseline.msg_per_min * high).contains(&current.msg_per_min)
}

/// What one look comes to.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    /// Report this, with the usual as it was before.
    report: Option<bool>,
    /// Tell of an anomaly that has lasted this long.
    anomaly: Option<Duration>,
}

/// What was learnt, and where the episode stands.
#[derive(Debug)]
struct Judge {
    begun: Instant,
    baseline: Option<Snapshot>,
    since: Option<Instant>,
    told: bool,
    reported: Option<(Instant, bool)>,
}

impl Judge {
    fn new(now: Instant) -> Self {
        Self {
            begun: now,
            baseline: None,
            since: None,
            told: false,
            reported: None,
        }
    }

    fn look(&mut self, config: &Config, now: Instant, total: u64, current: Snapshot) -> Verdict {
        let elapsed = now - self.begun;
        let ready = elapsed >= config.warmup && elapsed >= config.window && total >= config.min_samples;
        let Some(baseline) = self.baseline.filter(|_| ready) else {
            self.forget();
            if known(current) {
                self.learn(0.05, current);
            }
            return Verdict::default();
        };
        if !evaluate(config, current, baseline) {
            let recovered = self.told;
            self.forget();
            if near(config, current, baseline) && current.processing <= baseline.processing.mul_f64(1.25) {
                self.learn(0.02, current);
            }
            let due = self.reported.is_none_or(|(at, _)| now - at >= config.window);
            return Verdict {
                report: (due || recovered).then(|| self.reports(now, false)),
                anomaly: None,
            };
        }
        let lasted = now - *self.since.get_or_insert(now);
        if lasted < config.sustain_for || self.told {
            return Verdict::default();
        }
        self.told = true;
        Verdict {
            report: Some(self.reports(now, true)),
            anomaly: Some(lasted),
        }
    }

    fn reports(&mut self, now: Instant, anomaly: bool) -> bool {
        self.reported = Some((now, anomaly));
        anomaly
    }

    fn forget(&mut self) {
        (self.since, self.told) = (None, false);
    }

    fn learn(&mut self, weight: f64, sample: Snapshot) {
        let mixed = |old: f64, new: f64| weight * new + (1.0 - weight) * old;
        self.baseline = Some(match self.baseline {
            None => sample,
            Some(old) => Snapshot {
                msg_per_min: mixed(old.msg_per_min, sample.msg_per_min),
                processing: Duration::from_secs_f64(mixed(
                    old.processing.as_secs_f64(),
                    sample.processing.as_secs_f64(),
                )),
            },
        });
    }
}

/// Handled messages and their time, one entry for each look.
#[derive(Debug, Default)]
struct Window {
    looks: VecDeque<(Instant, u64, Duration)>,
}

impl Window {
    fn look(&mut self, now: Instant, handled: u64, busy: Duration, window: Duration) -> Snapshot {
        self.looks.push_back((now, handled, busy));
        // The last look at or before the window's beginning is what the window is counted from.
        while self.looks.get(1).is_some_and(|(at, ..)| now - *at >= window) {
            self.looks.pop_front();
        }
        let Some(&(_, before, busy_before)) = self.looks.front() else {
            return Snapshot::default();
        };
        let count = handled - before;
        if count == 0 {
            return Snapshot::default();
        }
        Snapshot {
            msg_per_min: count as f64 / (window.as_secs_f64() / 60.0),
            processing: (busy - busy_before).div_f64(count as f64),
        }
    }
}

/// Watches a consumer. Records go to `bucket`, when one is given. The callback is called at each anomaly, before anyone else
/// hears of it.
pub fn watch(
    consumer: &impl WatchedRef,
    bucket: Option<(KeyValueKeys, String)>,
    config: Config,
    on_anomaly: impl Fn(&Anomaly) + Send + Sync + 'static,
) -> Fingerprint {
    let consumer = consumer.watched();
    let learnt: Arc<Mutex<Learnt>> = Arc::default();
    let note = Arc::clone(&learnt);
    let watch = Watch::start(move |shared| async move {
        let ((stream, durable), vitals) = (consumer.names(), consumer.vitals());
        let (mut judge, mut window) = (Judge::new(Instant::now()), Window::default());
        window.look(Instant::now(), vitals.handled(), vitals.busy(), config.window);
        loop {
            tokio::time::sleep(config.poll_interval).await;
            let now = Instant::now();
            let current = window.look(now, vitals.handled(), vitals.busy(), config.window);
            let normal = judge.baseline.unwrap_or_default();
            let verdict = judge.look(&config, now, vitals.handled(), current);
            *note.lock().unwrap_or_else(PoisonError::into_inner) = Learnt {
                normal: judge.baseline,
                current,
            };
            if let Some(sustained_for) = verdict.anomaly {
                let anomaly = Anomaly {
                    stream: stream.clone(),
                    durable: durable.clone(),
                    normal,
                    current,
                    sustained_for,
                };
                tracing::warn!(?anomaly, "handling takes much longer than usual");
                shared.raise();
                consumer.metrics().note(observe::Counted::Anomaly);
                on_anomaly(&anomaly);
                shared.tell(anomaly);
            } else if !judge.told {
                shared.lower();
            }
            if let (Some(anomaly), Some((keys, bucket))) = (verdict.report, &bucket) {
                let record = Record {
                    anomaly,
                    ..Record::of(&Anomaly {
                        stream: stream.clone(),
                        durable: durable.clone(),
                        normal,
                        current,
                        sustained_for: verdict.anomaly.unwrap_or_default(),
                    })
                };
                if let Err(error) = report(keys, bucket, &record).await {
                    tracing::warn!(%error, "the fingerprint could not be written");
                }
            }
            if verdict.anomaly.is_some() && config.circuit_stop {
                return;
            }
        }
    });
    Fingerprint { watch, learnt }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(msg_per_min: f64, ms: u64) -> Snapshot {
        Snapshot {
            msg_per_min,
            processing: Duration::from_millis(ms),
        }
    }

    #[test]
    fn an_anomaly_is_slow_at_the_usual_rate() {
        let (config, usual) = (Config::default(), at(1000.0, 200));
        let table = [
            (1000.0, 2400, true),
            (1100.0, 700, true),
            (100.0, 2400, false),
            (1000.0, 400, false),
            (1300.0, 600, true),
            (1301.0, 600, false),
        ];
        for (rate, ms, expected) in table {
            assert_eq!(evaluate(&config, at(rate, ms), usual), expected, "{rate} {ms}");
        }
        assert!(!evaluate(&config, at(0.0, 600), usual));
        assert!(!evaluate(&config, at(1000.0, 600), Snapshot::default()));
    }

    #[test]
    fn the_record_is_what_consoles_read() {
        let record = Record {
            updated_at: "2026-12-02T07:00:00Z".into(),
            stream: "S".into(),
            durable: "c".into(),
            normal: at(1000.0, 200).into(),
            current: at(1100.5, 2).into(),
            sustained_for_ms: 0,
            anomaly: false,
        };
        let json = serde_json::to_string(&record).unwrap();
        let expected = concat!(
            r#"{"updatedAt":"2026-12-02T07:00:00Z","stream":"S","durable":"c","#,
            r#""normal":{"msgPerMin":1000.0,"processingMs":200.0},"current":{"msgPerMin":1100.5,"processingMs":2.0},"anomaly":false}"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
        assert_eq!(key(" S ", "c"), "S/c");
    }

    /// Looks every five seconds; gives what each came to that came to anything.
    fn looks(judge: &mut Judge, now: &mut Instant, times: u32, current: Snapshot) -> Vec<Verdict> {
        let one = |_| {
            *now += Duration::from_secs(5);
            judge.look(&Config::default(), *now, 1000, current)
        };
        (0..times)
            .map(one)
            .filter(|verdict| *verdict != Verdict::default())
            .collect()
    }

    #[test]
    fn it_learns_first_tells_once_and_tells_of_the_recovery() {
        let mut now = Instant::now();
        let mut judge = Judge::new(now);
        let (usual, slow) = (at(600.0, 10), at(600.0, 50));
        // Nothing in the warm-up of five minutes.
        assert_eq!(looks(&mut judge, &mut now, 59, usual), []);
        let normal = Verdict {
            report: Some(false),
            anomaly: None,
        };
        assert_eq!(looks(&mut judge, &mut now, 1, usual), [normal]);
        // Once a minute after that.
        assert_eq!(looks(&mut judge, &mut now, 24, usual).len(), 2);
        // A breach that clears in time is none.
        assert_eq!(looks(&mut judge, &mut now, 6, slow), []);
        assert!(
            looks(&mut judge, &mut now, 1, usual)
                .iter()
                .all(|verdict| verdict.anomaly.is_none())
        );
        let told = looks(&mut judge, &mut now, 60, slow);
        let anomaly = Verdict {
            report: Some(true),
            anomaly: Some(Duration::from_secs(30)),
        };
        assert_eq!(told, [anomaly]);
        // The original stayed silent once it had spoken.
        assert_eq!(
            looks(&mut judge, &mut now, 1, usual),
            [Verdict {
                report: Some(false),
                anomaly: None
            }]
        );
        assert_eq!(looks(&mut judge, &mut now, 7, slow).len(), 1);
        // Throughput that collapses is another matter.
        assert!(
            looks(&mut judge, &mut now, 30, at(50.0, 500))
                .iter()
                .all(|verdict| verdict.anomaly.is_none())
        );
    }

    #[test]
    fn the_window_counts_what_is_in_it() {
        let (begun, mut window, minute) = (Instant::now(), Window::default(), Duration::from_secs(60));
        let second = Duration::from_secs(1);
        assert_eq!(window.look(begun, 0, Duration::ZERO, minute), Snapshot::default());
        assert_eq!(
            window.look(begun + 30 * second, 100, second, minute),
            at(100.0, 10)
        );
        assert_eq!(
            window.look(begun + 60 * second, 200, 3 * second, minute),
            at(200.0, 15)
        );
        assert_eq!(
            window.look(begun + 90 * second, 200, 3 * second, minute),
            at(100.0, 20)
        );
        assert_eq!(
            window.look(begun + 120 * second, 200, 3 * second, minute),
            Snapshot::default()
        );
        for number in 0..1000 {
            window.look(begun + (120 + 5 * number) * second, 200, 3 * second, minute);
        }
        assert!(window.looks.len() < 20);
    }
}
