//! What happens to one delivery, from its arrival to its settlement.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::Vitals;
use crate::delivery::{Delivery, SettleError, SettleErrorKind};
use crate::handler::{Disposition, Handler, HandlerError, Outcome, guarded};
use crate::observe::{Delivering, Meters, Spans, failed};

/// How long a message that is handed back after a failure stays away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDelay {
    /// Not at all. A message that always fails is then delivered in a tight loop.
    None,
    /// Always as long.
    Fixed(Duration),
    /// Twice as long after each delivery.
    Exponential {
        /// After the first.
        first: Duration,
        /// At most.
        max: Duration,
    },
}

impl Default for RetryDelay {
    /// 100 ms after the first delivery, doubling, up to 30 s.
    fn default() -> Self {
        Self::Exponential {
            first: Duration::from_millis(100),
            max: Duration::from_secs(30),
        }
    }
}

impl RetryDelay {
    /// The delay after delivery number `delivered`, from 1.
    #[must_use]
    pub fn after(self, delivered: u64) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Fixed(delay) => Some(delay),
            Self::Exponential { first, max } => {
                let doublings = u32::try_from(delivered.max(1) - 1).unwrap_or(u32::MAX);
                let delay = 2_u32
                    .checked_pow(doublings)
                    .and_then(|factor| first.checked_mul(factor));
                Some(delay.map_or(max, |delay| delay.min(max)))
            }
        }
    }
}

/// What becomes of a message that cannot be decoded or expanded, or has another schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUndecodable {
    /// It is handed back like any failure: another version of the service may know it.
    #[default]
    Nak,
    /// It is given up, with the error as reason.
    Term,
}

/// Everything about settling that belongs to one consumer.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) retry: RetryDelay,
    pub(crate) undecodable: OnUndecodable,
    pub(crate) confirm: Option<Duration>,
    pub(crate) progress: Option<(Duration, u32)>,
    pub(crate) expand: bool,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) meters: Option<Arc<Meters>>,
    pub(crate) spans: Spans,
}

/// Runs one delivery through the handler and settles it.
pub(crate) async fn run<H: Handler>(mut delivery: Delivery, handler: &H, rules: &Rules) {
    let metadata = delivery.metadata();
    let (delivered, pending) = metadata
        .as_ref()
        .map_or((1, 0), |found| (found.delivered, found.pending));
    let (subject, headers) = (delivery.subject.as_str(), delivery.headers.as_ref());
    let span = rules.spans.process(subject, headers, metadata.as_ref());
    rules.vitals.note_received(delivered, pending);
    let meters = rules.meters.as_ref().map(|meters| meters.delivering(subject));
    if let Some(meters) = &meters {
        if delivered > 1 {
            meters.redelivered.increment(1);
        }
        meters.bytes.record(delivery.payload.len() as f64);
        meters.received.increment(1);
    }
    if rules.expand {
        delivery.expand();
    }
    let delivery = Arc::new(delivery);
    let work = work(&delivery, delivered, handler, rules, meters.as_deref(), &span);
    work.instrument(span.clone()).await;
}

async fn work<H: Handler>(
    delivery: &Arc<Delivery>,
    delivered: u64,
    handler: &H,
    rules: &Rules,
    meters: Option<&Delivering>,
    span: &Span,
) {
    let outcome = match delivery.fault() {
        Some(error) => Err(HandlerError::Undecodable(error)),
        None => {
            let begun = Instant::now();
            let work = guarded(|| handler.handle(Arc::clone(delivery)));
            let outcome = match rules.progress {
                None => work.await,
                Some((every, times)) => with_progress(delivery, work, every, times).await,
            };
            let elapsed = begun.elapsed();
            rules.vitals.note_handled(elapsed);
            if let Some(meters) = meters {
                meters.handling.record(elapsed.as_secs_f64());
            }
            outcome
        }
    };
    if let Err(error) = &outcome
        && !error.is_routed()
    {
        failed(span, error);
    }
    if let Some(meters) = meters {
        count(&outcome, delivery.is_settled(), rules, meters);
    }
    settle(delivery, outcome, rules, meters, delivered).await;
}

/// Tells the server that work goes on, so often and no oftener.
async fn with_progress(
    delivery: &Delivery,
    work: impl Future<Output = Outcome>,
    every: Duration,
    times: u32,
) -> Outcome {
    tokio::pin!(work);
    let mut left = times;
    loop {
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = tokio::time::sleep(every), if left > 0 => {
                left -= 1;
                if let Err(error) = delivery.progress().await {
                    if error.kind() == SettleErrorKind::AlreadySettled {
                        left = 0;
                    } else {
                        tracing::warn!(%error, "the ack wait could not be extended");
                    }
                }
            }
        }
    }
}

/// Counts what will be done with a message. An acknowledgement is counted when it is sent.
fn count(outcome: &Outcome, settled: bool, rules: &Rules, meters: &Delivering) {
    match outcome {
        Ok(Disposition::Ack | Disposition::InHand) => {}
        // The handler has settled it already, and what it says here changes nothing.
        Ok(Disposition::Nak(_) | Disposition::Term(_)) if settled => {}
        Ok(Disposition::Nak(_)) | Err(HandlerError::ClaimInFlight(_)) => meters.naks.increment(1),
        Ok(Disposition::Term(_)) | Err(HandlerError::DlqRouted(_)) => meters.terms.increment(1),
        Err(error) => {
            meters.errors.increment(1);
            match error {
                HandlerError::Undecodable(_) if rules.undecodable == OnUndecodable::Term => {
                    meters.terms.increment(1);
                }
                _ => meters.naks.increment(1),
            }
        }
    }
}

async fn settle(
    delivery: &Delivery,
    outcome: Outcome,
    rules: &Rules,
    meters: Option<&Delivering>,
    delivered: u64,
) {
    let vitals = &rules.vitals;
    let back = |delay: Option<Duration>| async move {
        match delay.filter(|delay| !delay.is_zero()) {
            None => delivery.nak().await,
            Some(delay) => delivery.nak_after(delay).await,
        }
    };
    let sent = match outcome {
        Ok(Disposition::Ack) => match acknowledge(delivery, rules, meters).await {
            Ok(()) => {
                vitals.note_success();
                Ok(())
            }
            failed => failed,
        },
        Ok(Disposition::Nak(delay)) => back(delay).await,
        Ok(Disposition::Term(reason)) => {
            delivery
                .term_with_reason(reason.as_deref().unwrap_or_default())
                .await
        }
        Ok(Disposition::InHand) => Ok(()),
        Err(HandlerError::DlqRouted(cause)) => {
            vitals.note_routed();
            vitals.note_success();
            if let Some(cause) = cause {
                tracing::error!(
                    error = cause,
                    "a message is in the dead-letter queue and its original not given up"
                );
            }
            // What could not be given up must not be handed back either: it would be routed again.
            return leave(delivery);
        }
        Err(HandlerError::ClaimInFlight(after)) => back(Some(after)).await,
        Err(error) => {
            vitals.note_failed();
            tracing::error!(%error, subject = delivery.subject.as_str(), delivered, "handling a message failed");
            match error {
                HandlerError::Undecodable(_) if rules.undecodable == OnUndecodable::Term => {
                    delivery.term_with_reason(&error.to_string()).await
                }
                _ => back(rules.retry.after(delivered)).await,
            }
        }
    };
    if let Err(error) = sent
        && error.kind() != SettleErrorKind::AlreadySettled
    {
        tracing::error!(%error, subject = delivery.subject.as_str(), "a message could not be settled");
    }
}

async fn acknowledge(
    delivery: &Delivery,
    rules: &Rules,
    meters: Option<&Delivering>,
) -> Result<(), SettleError> {
    if delivery.is_settled() {
        return Ok(());
    }
    let sent = match rules.confirm {
        None => delivery.ack().await,
        Some(wait) => delivery.ack_confirmed(wait).await,
    };
    match (&sent, meters) {
        (Ok(()), Some(meters)) => meters.acks.increment(1),
        (Ok(()), None) => {}
        (Err(_), _) => leave(delivery),
    }
    sent
}

/// Leaves a delivery to its ack wait.
fn leave(delivery: &Delivery) {
    delivery.forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_its_bound() {
        let delay = RetryDelay::default();
        let ms: Vec<u128> = (0..12).map(|n| delay.after(n).unwrap().as_millis()).collect();
        assert_eq!(
            ms,
            [
                100, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000
            ]
        );
        assert_eq!(delay.after(u64::MAX), Some(Duration::from_secs(30)));
        assert_eq!(RetryDelay::None.after(3), None);
        assert_eq!(
            RetryDelay::Fixed(Duration::from_secs(2)).after(9),
            Some(Duration::from_secs(2))
        );
    }
}
