//! Supervision: starts work again when it fails, with back-off, and gives up after so many tries in a row.
//!
//! [`Supervisor::run`] is for work that ends with an error, as pulling does; [`Supervisor::subscribe`] for push
//! subscriptions, which become invalid.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use super::supervise_push::SupervisedSubscription;

use super::recorder::{FlightRecorder, Incident, IncidentKind};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Counted, Metrics};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// It is started again.
    Resubscribed = 1,
    /// It is not started again.
    GiveUp = 2,
    /// It has ended by itself. Only of push subscriptions.
    Invalid = 3,
}

/// A change of what is supervised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Which try it is.
    pub attempt: u32,
    /// Why.
    pub error: String,
}

type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// How to supervise.
#[derive(Clone)]
#[must_use]
pub struct Supervisor {
    pub(super) max_retries: Option<u32>,
    pub(super) initial_backoff: Duration,
    pub(super) max_backoff: Duration,
    on_event: Option<Listener>,
    metrics: Metrics,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self {
            max_retries: Some(10),
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            on_event: None,
            metrics: Metrics::default(),
        }
    }
}

impl Supervisor {
    /// Ten tries in a row, waiting 1 s before the first and up to 30 s before the others.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tries in a row; `None` for any number.
    pub fn max_retries(mut self, tries: Option<u32>) -> Self {
        self.max_retries = tries;
        self
    }

    /// The first wait, and the longest. A run that lasts as long as the longest counts as healthy: tries begin anew.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.initial_backoff = first;
        self.max_backoff = longest.max(first);
        self
    }

    /// Calls `listener` at each event, after those given before.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        let before = self.on_event.take();
        self.on_event = Some(Arc::new(move |event| {
            if let Some(before) = &before {
                before(event);
            }
            listener(event);
        }));
        self
    }

    /// Counts events; of [`Client::metrics`](crate::Client::metrics).
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = metrics.clone();
        self
    }

    /// Also records events in a flight recorder; when it gives up, what is recorded goes to the log.
    pub fn record(self, recorder: FlightRecorder) -> Self {
        self.on_event(move |event| {
            let detail = match event.kind {
                EventKind::Resubscribed => "resubscribed",
                EventKind::GiveUp => "give_up",
                EventKind::Invalid => "invalid",
            };
            recorder.record(Incident {
                attempt: u64::from(event.attempt),
                err: event.error.clone(),
                ..Incident::new(IncidentKind::Supervisor, detail)
            });
            if event.kind == EventKind::GiveUp {
                recorder.log_snapshot("a supervisor gave up");
            }
        })
    }

    /// Runs `work` again and again until it ends well. To stop it, drop the future, or let `work` end with `Ok`: a
    /// [`PullConsumer::process`](crate::PullConsumer::process) that is closed does.
    ///
    /// # Errors
    /// [`ErrorKind::SupervisorGiveUp`], with the last error as source; [`ErrorKind::Closed`] at once, when the client is
    /// closed.
    ///
    /// # Cancel safety
    /// As `work`.
    pub async fn run<F, Fut>(&self, mut work: F) -> Result<()>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<()>>,
    {
        let (mut attempt, mut backoff) = (0, self.initial_backoff);
        loop {
            let begun = Instant::now();
            let Err(error) = work().await else { return Ok(()) };
            if error.kind() == ErrorKind::Closed {
                return Err(error);
            }
            if begun.elapsed() >= self.max_backoff {
                (attempt, backoff) = (0, self.initial_backoff);
            }
            if self.max_retries.is_some_and(|most| attempt >= most) {
                self.tell(EventKind::GiveUp, attempt, &error);
                return Err(Error::new(ErrorKind::SupervisorGiveUp, "supervising").because(error));
            }
            attempt += 1;
            tracing::warn!(%error, attempt, "starting again");
            self.tell(EventKind::Resubscribed, attempt, &error);
            Self::pause(backoff).await;
            backoff = (backoff * 2).min(self.max_backoff);
        }
    }

    fn tell(&self, kind: EventKind, attempt: u32, error: &Error) {
        self.tell_event(&Event {
            kind,
            attempt,
            error: error.to_string(),
        });
    }

    pub(super) fn tell_event(&self, event: &Event) {
        match event.kind {
            EventKind::Resubscribed => self.metrics.note(Counted::Resubscribed),
            EventKind::GiveUp => self.metrics.note(Counted::GaveUp),
            EventKind::Invalid => {}
        }
        if let Some(listener) = &self.on_event {
            listener(event);
        }
    }

    /// A wait of about `backoff`.
    pub(super) async fn pause(backoff: Duration) {
        tokio::time::sleep(backoff + backoff.mul_f64(0.1 * rand::random::<f64>())).await;
    }
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("max_retries", &self.max_retries)
            .field("initial_backoff", &self.initial_backoff)
            .field("max_backoff", &self.max_backoff)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn failure() -> Error {
        // A deadline of something inside is a failure like any other; the original ended there in silence.
        Error::new(ErrorKind::TimedOut, "working")
    }

    type Heard = Arc<Mutex<Vec<(EventKind, u32)>>>;

    fn listening() -> (Supervisor, Heard) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&heard);
        let supervisor = Supervisor::new().max_retries(Some(2));
        let supervisor =
            supervisor.on_event(move |event| note.lock().unwrap().push((event.kind, event.attempt)));
        (supervisor, heard)
    }

    #[tokio::test(start_paused = true)]
    async fn it_gives_up_after_so_many_tries_in_a_row() {
        let (supervisor, heard) = listening();
        let recorder = FlightRecorder::default();
        let supervisor = supervisor.record(recorder.clone());
        let mut runs = 0;
        let error = supervisor
            .run(|| {
                runs += 1;
                async { Err(failure()) }
            })
            .await
            .unwrap_err();
        assert_eq!((error.kind(), runs), (ErrorKind::SupervisorGiveUp, 3));
        assert!(
            std::error::Error::source(&error)
                .unwrap()
                .to_string()
                .starts_with("working")
        );
        let expected = [
            (EventKind::Resubscribed, 1),
            (EventKind::Resubscribed, 2),
            (EventKind::GiveUp, 2),
        ];
        assert_eq!(*heard.lock().unwrap(), expected);
        let details: Vec<_> = recorder
            .snapshot()
            .into_iter()
            .map(|incident| incident.detail)
            .collect();
        assert_eq!(details, ["resubscribed", "resubscribed", "give_up"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_good_end_is_the_end() {
        let (supervisor, heard) = listening();
        let mut runs = 0;
        let work = || {
            runs += 1;
            let good = runs == 2;
            async move { if good { Ok(()) } else { Err(failure()) } }
        };
        supervisor.run(work).await.unwrap();
        assert_eq!(heard.lock().unwrap().len(), 1);
    }

    /// The original counted failures for ever: a service died after ten unrelated ones in a year.
    #[tokio::test(start_paused = true)]
    async fn a_healthy_run_begins_the_count_anew() {
        let (supervisor, heard) = listening();
        let mut runs = 0;
        let work = || {
            runs += 1;
            let run = runs;
            async move {
                tokio::time::sleep(Duration::from_secs(31)).await;
                if run == 20 { Ok(()) } else { Err(failure()) }
            }
        };
        supervisor.run(work).await.unwrap();
        assert!(
            heard
                .lock()
                .unwrap()
                .iter()
                .all(|event| *event == (EventKind::Resubscribed, 1))
        );
    }
}
