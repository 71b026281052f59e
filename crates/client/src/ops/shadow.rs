//! Shadows: a second handler runs on copies, and its results are compared.
//!
//! The primary handler alone decides what becomes of a message. A sample of messages is handed to the shadow afterwards,
//! in the background: without a reply subject, so that it can settle nothing, and never more than so many at a time; what
//! finds no room is not sampled. A shadow that fails or panics harms nobody. Runs under way end with the handler that has
//! the shadow.
//!
//! A [`Graduation`] ramps the sample up while the results agree, and says when the shadow may become the primary.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::recorder::{Incident, IncidentKind, ShadowRecorder};
use crate::delivery::Delivery;
use crate::handler::{BoxHandler, Handler, Layer, Outcome, guarded};
use crate::observe::{Counted, Metrics};

type Compare = Arc<dyn Fn(&Outcome, &Outcome) -> bool + Send + Sync>;

/// The layer.
#[derive(Clone)]
pub struct Shadow {
    handler: BoxHandler,
    sample_rate: f64,
    compare: Compare,
    recorder: Option<Arc<dyn ShadowRecorder>>,
    graduation: Option<Graduation>,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Ends the runs when the last layer or handler goes; the runs themselves do not hold it.
    alive: Option<Arc<DropGuard>>,
    counts: Arc<Counts>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    mismatches: AtomicU64,
    compared: AtomicU64,
}

impl Shadow {
    /// Runs `handler` on a tenth of the messages, at most 32 at a time.
    pub fn new(handler: impl Handler) -> Self {
        let stop = CancellationToken::new();
        Self {
            alive: Some(Arc::new(stop.clone().drop_guard())),
            stop,
            handler: BoxHandler::new(handler),
            sample_rate: 0.1,
            compare: Arc::new(|primary, shadow| primary.is_ok() == shadow.is_ok()),
            recorder: None,
            graduation: None,
            room: Arc::new(Semaphore::new(32)),
            tasks: TaskTracker::new(),
            counts: Arc::default(),
            metrics: Metrics::default(),
        }
    }

    /// The part of the messages to run it on: 0 means a tenth, 1 all.
    #[must_use]
    pub fn sample_rate(mut self, rate: f64) -> Self {
        self.sample_rate = if rate > 0.0 { rate.min(1.0) } else { 0.1 };
        self
    }

    /// Most runs at a time; 0 means 32.
    #[must_use]
    pub fn max_in_flight(mut self, runs: usize) -> Self {
        self.room = Arc::new(Semaphore::new(if runs == 0 {
            32
        } else {
            runs.min(Semaphore::MAX_PERMITS)
        }));
        self
    }

    /// When two results agree. Both good, or both bad.
    #[must_use]
    pub fn compare(mut self, agree: impl Fn(&Outcome, &Outcome) -> bool + Send + Sync + 'static) -> Self {
        self.compare = Arc::new(agree);
        self
    }

    /// Records errors of the shadow and results that do not agree.
    #[must_use]
    pub fn recorder(mut self, recorder: impl ShadowRecorder + 'static) -> Self {
        self.recorder = Some(Arc::new(recorder));
        self
    }

    /// Counts errors and results that do not agree; of [`Client::metrics`](crate::Client::metrics).
    #[must_use]
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = metrics.clone();
        self
    }

    /// Lets a graduation say how many messages to run it on.
    #[must_use]
    pub fn graduation(mut self, graduation: Graduation) -> Self {
        self.graduation = Some(graduation);
        self
    }

    /// Runs of the shadow that failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.counts.errors.load(Ordering::Acquire)
    }

    /// Results that did not agree.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.counts.mismatches.load(Ordering::Acquire)
    }

    /// Results that were compared.
    #[must_use]
    pub fn compared(&self) -> u64 {
        self.counts.compared.load(Ordering::Acquire)
    }

    /// Waits for the runs under way.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    fn sampled(&self) -> bool {
        let rate = self
            .graduation
            .as_ref()
            .map_or(self.sample_rate, Graduation::rate);
        rate >= 1.0 || rand::random::<f64>() < rate
    }

    fn run(&self, delivery: &Arc<Delivery>, primary: &Outcome) {
        if !self.sampled() {
            return;
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return;
        };
        let copy = Arc::new(delivery.detached());
        // The results of the primary are the consumer's; a copy of what they say is compared.
        let primary: Outcome = match primary {
            Ok(disposition) => Ok(disposition.clone()),
            Err(error) => Err(crate::handler::HandlerError::failed(error.to_string())),
        };
        let mut shadow = self.clone();
        shadow.alive = None;
        self.tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                () = shadow.stop.cancelled() => return,
                outcome = guarded(|| shadow.handler.handle(Arc::clone(&copy))) => outcome,
            };
            shadow.judge(&copy, &primary, &outcome);
            drop(room);
        });
    }

    fn judge(&self, copy: &Delivery, primary: &Outcome, outcome: &Outcome) {
        let text = |outcome: &Outcome| {
            outcome
                .as_ref()
                .err()
                .map_or_else(|| "nil".to_owned(), ToString::to_string)
        };
        let record = |detail: &str, err: String| {
            if let Some(recorder) = &self.recorder {
                recorder.shadow_incident(&Incident {
                    subject: copy.subject.to_string(),
                    err,
                    ..Incident::new(IncidentKind::Shadow, detail)
                });
            }
        };
        if outcome.is_err() {
            self.counts.errors.fetch_add(1, Ordering::AcqRel);
            self.metrics.note(Counted::ShadowError);
            record("shadow_error", text(outcome));
        }
        let agree = (self.compare)(primary, outcome);
        if !agree {
            self.counts.mismatches.fetch_add(1, Ordering::AcqRel);
            self.metrics.note(Counted::ShadowMismatch);
            record(
                "shadow_mismatch",
                format!("primary={} shadow={}", text(primary), text(outcome)),
            );
        }
        self.counts.compared.fetch_add(1, Ordering::AcqRel);
        if let Some(graduation) = &self.graduation {
            graduation.sample(agree);
        }
    }
}

/// A handler with a shadow.
#[derive(Debug, Clone)]
pub struct Shadowed<H> {
    shadow: Shadow,
    primary: H,
}

impl<H: Handler> Layer<H> for Shadow {
    type Handler = Shadowed<H>;

    fn layer(self, inner: H) -> Shadowed<H> {
        Shadowed {
            shadow: self,
            primary: inner,
        }
    }
}

impl<H: Handler> Handler for Shadowed<H> {
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let outcome = self.primary.handle(Arc::clone(&delivery)).await;
        self.shadow.run(&delivery, &outcome);
        outcome
    }
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shadow")
            .field("sample_rate", &self.sample_rate)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// How far a shadow is on its way to become the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// The sample grows while results agree.
    Ramping = 1,
    /// It was promoted, and goes on being compared.
    Holding = 2,
    /// It agrees on the largest sample: it may be promoted.
    PromoteReady = 3,
    /// It did not agree, or was called off: only the primary runs.
    Aborted = 4,
}

/// How to ramp.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ramp {
    /// The first sample. 0.05; lowered to [`Ramp::max`] when above it.
    pub start: f64,
    /// The largest. 1.
    pub max: f64,
    /// How much it grows. 0.2.
    pub step: f64,
    /// After how many results it is judged. 500.
    pub window: u64,
    /// The part of results that may differ, in a window and in all. 0.01.
    pub max_mismatch_rate: f64,
}

impl Default for Ramp {
    fn default() -> Self {
        Self {
            start: 0.05,
            max: 1.0,
            step: 0.2,
            window: 500,
            max_mismatch_rate: 0.01,
        }
    }
}

/// Where a graduation stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The phase.
    pub phase: Phase,
    /// The part of messages that are sampled.
    pub rate: f64,
    /// Results that agreed.
    pub matches: u64,
    /// Results that did not.
    pub mismatches: u64,
    /// Both.
    pub samples: u64,
    /// Why it was called off.
    pub reason: String,
}

/// Ramps a shadow up. Clones share it.
#[derive(Debug, Clone)]
pub struct Graduation {
    ramp: Ramp,
    state: Arc<Mutex<State>>,
    /// The rate, times a million, readable without the lock.
    rate: Arc<AtomicU64>,
}

#[derive(Debug)]
struct State {
    status: Status,
    window: u64,
    window_mismatches: u64,
}

const MILLION: f64 = 1e6;

impl Graduation {
    /// Begins at [`Ramp::start`].
    #[must_use]
    pub fn new(ramp: Ramp) -> Self {
        let max = ramp.max.clamp(0.0, 1.0);
        let ramp = Ramp {
            max,
            start: ramp.start.min(max),
            window: ramp.window.max(1),
            ..ramp
        };
        let status = Status {
            phase: Phase::Ramping,
            rate: ramp.start,
            matches: 0,
            mismatches: 0,
            samples: 0,
            reason: String::new(),
        };
        let graduation = Self {
            ramp,
            state: Arc::new(Mutex::new(State {
                status,
                window: 0,
                window_mismatches: 0,
            })),
            rate: Arc::default(),
        };
        graduation.publish(ramp.start);
        graduation
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.lock().status.clone()
    }

    /// The part of messages to sample now.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate.load(Ordering::Acquire) as f64 / MILLION
    }

    /// Calls it off.
    pub fn abort(&self, reason: impl Into<String>) {
        self.end(&mut self.lock(), reason.into());
    }

    /// Takes a shadow that is ready for promoted; `false` when it is not ready.
    pub fn promote(&self) -> bool {
        let mut state = self.lock();
        if state.status.phase != Phase::PromoteReady {
            return false;
        }
        state.status.phase = Phase::Holding;
        true
    }

    /// Counts a result, and judges when a window is full.
    pub(crate) fn sample(&self, agreed: bool) {
        let mut state = self.lock();
        if state.status.phase == Phase::Aborted {
            return;
        }
        state.status.samples += 1;
        state.window += 1;
        if agreed {
            state.status.matches += 1;
        } else {
            state.status.mismatches += 1;
            state.window_mismatches += 1;
        }
        if state.window < self.ramp.window {
            return;
        }
        let part = |some: u64, all: u64| some as f64 / all as f64;
        let worst = part(state.window_mismatches, state.window)
            .max(part(state.status.mismatches, state.status.samples));
        (state.window, state.window_mismatches) = (0, 0);
        if worst > self.ramp.max_mismatch_rate {
            self.end(&mut state, "mismatch_rate".to_owned());
            return;
        }
        // Promoted or ready, it stays so until it is called off.
        if state.status.phase != Phase::Ramping {
            return;
        }
        if state.status.rate + 1e-9 >= self.ramp.max {
            state.status.phase = Phase::PromoteReady;
            tracing::info!("a shadow is ready to be promoted");
        } else {
            state.status.rate = (state.status.rate + self.ramp.step).min(self.ramp.max);
            self.publish(state.status.rate);
        }
    }

    fn end(&self, state: &mut State, reason: String) {
        if state.status.phase == Phase::Aborted {
            return;
        }
        tracing::warn!(reason, "a shadow was called off");
        state.status.phase = Phase::Aborted;
        state.status.reason = reason;
        state.status.rate = 0.0;
        self.publish(0.0);
    }

    fn publish(&self, rate: f64) {
        self.rate
            .store((rate * MILLION).round() as u64, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Ramp {
        Ramp {
            window: 10,
            step: 0.5,
            ..Ramp::default()
        }
    }

    fn agree(graduation: &Graduation, times: u32) {
        for _ in 0..times {
            graduation.sample(true);
        }
    }

    #[test]
    fn it_ramps_up_is_ready_once_and_holds() {
        let graduation = Graduation::new(ramp());
        assert!((graduation.rate() - 0.05).abs() < 1e-9);
        agree(&graduation, 9);
        assert!((graduation.rate() - 0.05).abs() < 1e-9);
        agree(&graduation, 1);
        assert!((graduation.rate() - 0.55).abs() < 1e-9);
        agree(&graduation, 10);
        assert!((graduation.rate() - 1.0).abs() < 1e-9);
        assert!(!graduation.promote());
        agree(&graduation, 10);
        assert_eq!(graduation.status().phase, Phase::PromoteReady);
        assert!(graduation.promote());
        // The original became ready again at the next window.
        agree(&graduation, 50);
        assert_eq!(graduation.status().phase, Phase::Holding);
        assert_eq!(
            (graduation.status().samples, graduation.status().matches),
            (80, 80)
        );
    }

    #[test]
    fn results_that_differ_call_it_off_however_late() {
        let graduation = Graduation::new(Ramp {
            max_mismatch_rate: 0.1,
            ..ramp()
        });
        agree(&graduation, 1000);
        // Two of ten, though of all it is two in a thousand.
        agree(&graduation, 8);
        graduation.sample(false);
        graduation.sample(false);
        let status = graduation.status();
        assert_eq!(
            (status.phase, status.reason.as_str()),
            (Phase::Aborted, "mismatch_rate")
        );
        assert!(graduation.rate() == 0.0);
        agree(&graduation, 100);
        assert_eq!(graduation.status().samples, 1010);
        let other = Graduation::new(Ramp {
            start: 0.9,
            max: 0.5,
            ..ramp()
        });
        assert!((other.rate() - 0.5).abs() < 1e-9);
        other.abort("enough");
        assert_eq!(other.status().reason, "enough");
    }
}
