//! The task of one push subscription.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Message, Subject, Subscriber};
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::subscription::{EndReason, Shared, Stop};
use crate::consumer::dispatch::Dispatcher;
use crate::delivery::{Delivery, Settler};
use crate::error::{ErrorKind, Result};
use crate::observe::Counted;

const STALLED: &str = "Nats-Consumer-Stalled";

/// What waits for its turn, in the order it came.
enum Item {
    Delivery(Delivery),
    /// The server waits for this answer before it sends more; everything before it has been begun by then.
    FlowControl(Subject),
}

/// What a message on the deliver subject is.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Data,
    Heartbeat { stalled: Option<Subject> },
    FlowControl(Subject),
    End(EndReason),
}

fn frame(message: &Message) -> Frame {
    let Some(code) = message.status else {
        return Frame::Data;
    };
    let text = message.description.clone().unwrap_or_default();
    match (code.as_u16(), &message.reply) {
        (100, Some(reply)) => Frame::FlowControl(reply.clone()),
        (100, None) => Frame::Heartbeat {
            stalled: message
                .headers
                .as_ref()
                .and_then(|headers| headers.get(STALLED))
                .map(|subject| subject.as_str().into()),
        },
        (409, _) if text.to_ascii_lowercase().contains("consumer deleted") => {
            Frame::End(EndReason::ConsumerDeleted)
        }
        (code, _) => Frame::End(EndReason::Status { code, text }),
    }
}

/// The task's own.
pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) subscriber: Subscriber,
    pub(super) settler: Arc<Settler>,
    pub(super) work: Dispatcher,
    /// Zero when there are none.
    pub(super) heartbeat: Duration,
    pub(super) probe: Duration,
    pub(super) queue: Waiting,
    /// How long what is over the limits stays away.
    pub(super) over_limit: Option<Duration>,
}

/// What has arrived and not begun.
#[derive(Default)]
pub(super) struct Waiting {
    items: VecDeque<Item>,
    messages: usize,
    bytes: usize,
}

impl Waiting {
    fn push(&mut self, delivery: Delivery) {
        self.messages += 1;
        self.bytes += delivery.payload.len();
        self.items.push_back(Item::Delivery(delivery));
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Item::Delivery(delivery) = &item {
            self.messages -= 1;
            self.bytes -= delivery.payload.len();
        }
        Some(item)
    }
}

impl Run {
    /// Runs until the end, and says so.
    pub(super) async fn run(mut self) {
        let reason = match self.until_over().await {
            Ok(reason) => reason,
            Err(error) => {
                tracing::debug!(%error, "a push subscription ends");
                EndReason::ClientClosed
            }
        };
        if reason.is_trouble() {
            tracing::warn!(subscription = %self.shared, ?reason, "a push subscription is not valid any more");
        }
        // From here on nobody counts on it.
        self.shared.end(reason);
        self.wind_up().await;
        self.shared.gone.cancel();
    }

    async fn until_over(&mut self) -> Result<EndReason> {
        let shared = Arc::clone(&self.shared);
        let mut stopped = pin!(shared.stopped());
        let (mut heard, mut probed) = (Instant::now(), Instant::now());
        // Set anew only when it rings: most of the time it does not.
        let mut alarm = pin!(tokio::time::sleep_until(self.wake(heard, probed)));
        loop {
            while self.work.has_room()
                && let Some(item) = self.queue.pop()
            {
                match item {
                    Item::Delivery(delivery) => self.work.begin(delivery)?,
                    Item::FlowControl(reply) => self.answer(reply).await,
                }
            }
            // What is in hand goes before what has arrived. Whatever else is waited for, a handler runs on.
            tokio::select! {
                biased;
                stop = &mut stopped => return Ok(stop),
                ended = self.work.join_next(), if self.work.is_busy() => ended?,
                message = self.subscriber.next() => {
                    let Some(message) = message else { return Ok(EndReason::ClientClosed) };
                    heard = Instant::now();
                    if let Some(reason) = self.accept(message).await {
                        return Ok(reason);
                    }
                }
                () = &mut alarm => {
                    // Nothing is heard over a connection that is down; what counts is the time since it came back.
                    if self.shared.inner.nats.connection_state() != State::Connected {
                        heard = Instant::now();
                        probed = heard;
                    } else if Instant::now() < self.wake(heard, probed) {
                        // It was set before the last message.
                    } else if self.heartbeat.is_zero() {
                        if let Some(reason) = self.work.during(self.shared.probe()).await {
                            return Ok(reason);
                        }
                        probed = Instant::now();
                    } else {
                        if let Some(meters) = &self.shared.inner.observed.consumer.0 {
                            meters.note(Counted::HeartbeatMissed);
                        }
                        return Ok(EndReason::HeartbeatsMissed);
                    }
                    alarm.as_mut().reset(self.wake(heard, probed));
                }
            }
        }
    }

    /// When to look whether the consumer is still there, if nothing is heard until then.
    fn wake(&self, heard: Instant, probed: Instant) -> Instant {
        if self.heartbeat.is_zero() {
            probed + self.probe
        } else {
            heard + 2 * self.heartbeat
        }
    }

    async fn accept(&mut self, message: Message) -> Option<EndReason> {
        match frame(&message) {
            Frame::Data => self.take(Delivery::new(message, Arc::clone(&self.settler))).await,
            Frame::Heartbeat { stalled: None } => {}
            Frame::Heartbeat { stalled: Some(reply) } => self.flow_control(reply).await,
            Frame::FlowControl(reply) => self.flow_control(reply).await,
            Frame::End(reason) => return Some(reason),
        }
        None
    }

    async fn take(&mut self, delivery: Delivery) {
        let limits = self.shared.limits();
        let over = |limit: usize, now: usize| limit > 0 && now > limit;
        if over(limits.messages, self.queue.messages + 1)
            || over(limits.bytes, self.queue.bytes + delivery.payload.len())
        {
            self.shared.vitals.note_backpressure();
            if let Some(meters) = &self.shared.inner.observed.consumer.0 {
                meters.no_room.increment(1);
            }
            let delay = self.over_limit;
            let back = async {
                match delay {
                    Some(delay) => delivery.nak_after(delay).await,
                    None => delivery.nak().await,
                }
            };
            if let Err(error) = self.work.during(back).await {
                tracing::debug!(%error, "a message over the limit could not be handed back");
            }
            return;
        }
        self.queue.push(delivery);
    }

    async fn flow_control(&mut self, reply: Subject) {
        if self.queue.items.is_empty() {
            self.answer(reply).await;
        } else {
            self.queue.items.push_back(Item::FlowControl(reply));
        }
    }

    async fn answer(&mut self, reply: Subject) {
        let answer = self.shared.inner.nats.publish(reply, bytes::Bytes::new());
        if let Err(error) = self.work.during(answer).await {
            tracing::debug!(%error, "flow control could not be answered");
        }
    }

    /// Tells the server that nobody listens, handles or hands back what is here, and waits for handlers.
    async fn wind_up(&mut self) {
        let deadline = Instant::now() + self.shared.inner.config.connection.drain_timeout();
        if self.work.during(self.subscriber.drain()).await.is_ok() {
            // What the server sent before it knew.
            loop {
                let next = timeout_at(deadline, self.subscriber.next());
                let Ok(Some(message)) = self.work.during(next).await else {
                    break;
                };
                if frame(&message) == Frame::Data {
                    self.queue.push(Delivery::new(message, Arc::clone(&self.settler)));
                }
            }
        }
        while self.shared.stop_kind() == Stop::Drain
            && let Some(item) = self.queue.pop()
        {
            if let Item::Delivery(delivery) = item
                && (self.work.room().await.is_err() || self.work.begin(delivery).is_err())
            {
                break;
            }
        }
        let waiting = std::mem::take(&mut self.queue);
        if waiting.messages > 0 {
            tracing::debug!(messages = waiting.messages, "handed back");
        }
        drop(waiting);
        self.work.finish().await;
    }
}

impl Shared {
    /// Asks the server for the consumer; why the subscription has ended if it is gone.
    async fn probe(&self) -> Option<EndReason> {
        match self.inner.consumer_info(&self.stream, &self.consumer).await {
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::ConsumerNotFound => Some(EndReason::ConsumerDeleted),
            Err(error) if error.kind() == ErrorKind::StreamNotFound => Some(EndReason::StreamDeleted),
            // Whoever cannot answer now may answer next time.
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::{HeaderMap, StatusCode};

    fn message(code: Option<u16>, text: &str, reply: Option<&str>, stalled: Option<&str>) -> Message {
        Message {
            subject: "_INBOX.a".into(),
            reply: reply.map(Into::into),
            payload: bytes::Bytes::new(),
            headers: stalled.map(|subject| {
                let mut headers = HeaderMap::new();
                headers.insert(STALLED, subject);
                headers
            }),
            status: code.and_then(|code| StatusCode::from_u16(code).ok()),
            description: Some(text.to_owned()),
            length: 0,
        }
    }

    #[test]
    fn frames_are_told_apart() {
        assert_eq!(frame(&message(None, "", Some("$JS.ACK.a"), None)), Frame::Data);
        assert_eq!(
            frame(&message(Some(100), "Idle Heartbeat", None, None)),
            Frame::Heartbeat { stalled: None }
        );
        assert_eq!(
            frame(&message(Some(100), "Idle Heartbeat", None, Some("$JS.FC.a"))),
            Frame::Heartbeat {
                stalled: Some("$JS.FC.a".into())
            }
        );
        assert_eq!(
            frame(&message(Some(100), "FlowControl Request", Some("$JS.FC.b"), None)),
            Frame::FlowControl("$JS.FC.b".into())
        );
        assert_eq!(
            frame(&message(Some(409), "Consumer Deleted", None, None)),
            Frame::End(EndReason::ConsumerDeleted)
        );
        assert!(matches!(
            frame(&message(Some(409), "Leadership Change", None, None)),
            Frame::End(EndReason::Status { code: 409, .. })
        ));
    }
}
