//! One consumer over many queues: a durable and a delivery task for each.
//!
//! A task takes one message after the other and waits for the handler, so a queue keeps its order and a handler that waits
//! holds back its own queue. A queue's task ends with the registration's stop, with the broker, or by itself; the last is
//! reported once for all queues.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use windjet_server::jetstream::{
    AckError, ApiError, ConsumeOptions, Delivery, FetchError, JetStreamContext, Messages,
};

use super::engine::{AGAIN, failed, headers, is_missing};
use super::names::Wanted;
use crate::{Ctx, Error, ErrorKind, Handler, Listener, Message, Settle};

/// How many messages a consumer has fetched ahead when nobody says.
pub(super) const PREFETCH: usize = 500;

/// Between two tries of what failed and may succeed.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How pulling ended.
#[derive(Debug)]
enum Ended {
    /// Too much waited; there is room soon.
    Soon,
    /// The consumer could not be looked up, which says nothing of whether it is there.
    Later(ApiError),
    /// For good, and why.
    Good(Error),
}

impl Ended {
    fn deleted(durable: &str) -> Self {
        let text = format!("consumer {durable} was deleted");
        Self::Good(Error::new(ErrorKind::ConsumerNotFound, text))
    }

    fn lookup(error: ApiError, durable: &str) -> Self {
        match is_missing(&error) {
            true => Self::deleted(durable),
            false => Self::Later(error),
        }
    }

    fn fetch(error: FetchError, durable: &str) -> Self {
        match error {
            FetchError::Deleted | FetchError::NoConsumer { .. } => Self::deleted(durable),
            error if error.is_retryable() => Self::Soon,
            error => Self::Good(failed("pull", error)),
        }
    }
}

/// What a consumer does with messages.
#[derive(Debug, Clone)]
pub(super) enum Mode {
    Handle(Handler),
    Listen(Listener),
}

/// A consumer as the broker knows it: held on every queue, later ones included, until it stops.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) id: u64,
    pub(super) wanted: Wanted,
    /// What the message keys are cut off.
    pub(super) prefix: &'static str,
    pub(super) ctx: Ctx,
    pub(super) stop: CancellationToken,
    /// What it does and what it fetches ahead in all, once it delivers.
    pub(super) mode: OnceLock<(Mode, usize)>,
    /// Taken by the first delivery that ends by itself.
    pub(super) failed: Mutex<Option<oneshot::Sender<Error>>>,
}

impl Registration {
    pub(super) fn new(id: u64, ctx: &Ctx, wanted: Wanted, prefix: &'static str) -> Self {
        Self {
            id,
            wanted,
            prefix,
            ctx: ctx.clone(),
            stop: CancellationToken::new(),
            mode: OnceLock::new(),
            failed: Mutex::new(None),
        }
    }

    /// What one of so many queues fetches ahead.
    fn share(&self, queues: usize) -> usize {
        let (mode, prefetch) = match self.mode.get() {
            Some((mode, prefetch)) => (Some(mode), *prefetch),
            None => (None, 0),
        };
        match (mode, prefetch) {
            // A consumer that says nothing has the default for each queue, a subscription splits it.
            (Some(Mode::Handle(_)), 0) => PREFETCH,
            (_, 0) => (PREFETCH / queues.max(1)).max(1),
            (_, prefetch) => (prefetch / queues.max(1)).max(1),
        }
    }

    fn is_over(&self) -> bool {
        self.stop.is_cancelled()
            || (matches!(self.mode.get(), Some((Mode::Listen(_), _))) && self.ctx.is_canceled())
    }

    /// Says that delivery of a queue ended by itself, unless somebody wanted it to or it was said before.
    fn ended(&self, label: &str, closed: &CancellationToken, cause: Error) {
        if self.is_over() || closed.is_cancelled() {
            return;
        }
        let error = Error::wrap(
            ErrorKind::DeliveryEnded,
            format!("{label}: consumer delivery ended"),
            cause,
        );
        tracing::error!(component = "mq", consumer = self.wanted.durable, "{error:#}");
        if let Some(failed) = self.failed.lock().take() {
            // Nobody listening is the caller's choice.
            let _ = failed.send(error);
        }
    }
}

/// Starts delivery of one queue, one of so many.
pub(super) fn start(
    registration: Arc<Registration>,
    js: JetStreamContext,
    (stream, label): (String, String),
    queues: usize,
    closed: CancellationToken,
) {
    let share = registration.share(queues);
    tokio::spawn(deliver(registration, js, stream, label, share, closed));
}

async fn deliver(
    registration: Arc<Registration>,
    js: JetStreamContext,
    stream: String,
    label: String,
    share: usize,
    closed: CancellationToken,
) {
    loop {
        match pull(&registration, &js, &stream, share, &closed).await {
            None => return,
            Some(Ended::Soon) => tokio::time::sleep(AGAIN).await,
            Some(Ended::Later(error)) => {
                tracing::warn!(component = "mq", queue = label, %error, "consumer cannot be looked up; tried again");
                tokio::select! {
                    () = registration.stop.cancelled() => return,
                    () = closed.cancelled() => return,
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
            Some(Ended::Good(cause)) => return registration.ended(&label, &closed, cause),
        }
    }
}

/// Hands messages over until that ends; why, unless somebody wanted it. A handler that runs is waited for, stop or not.
async fn pull(
    registration: &Registration,
    js: &JetStreamContext,
    stream: &str,
    share: usize,
    closed: &CancellationToken,
) -> Option<Ended> {
    let durable = &registration.wanted.durable;
    let consumer = match js.consumer(stream, durable).await {
        Ok(consumer) => consumer,
        Err(error) => return Some(Ended::lookup(error, durable)),
    };
    let options = ConsumeOptions::default().max_messages(share);
    let mut messages = match consumer.messages(options) {
        Ok(messages) => messages,
        Err(error) => return Some(Ended::fetch(error, durable)),
    };
    loop {
        match next(registration, &mut messages, closed).await? {
            Ok(delivery) => hand_over(registration, delivery).await,
            Err(error) => return Some(Ended::fetch(error, durable)),
        }
    }
}

/// The next message; `None` when no more is wanted.
async fn next(
    registration: &Registration,
    messages: &mut Messages,
    closed: &CancellationToken,
) -> Option<Result<Delivery, FetchError>> {
    let listens = matches!(registration.mode.get(), Some((Mode::Listen(_), _)));
    tokio::select! {
        biased;
        () = registration.stop.cancelled() => None,
        () = closed.cancelled() => None,
        () = registration.ctx.canceled(), if listens => None,
        next = messages.next() => Some(next.unwrap_or(Err(FetchError::Shutdown))),
    }
}

async fn hand_over(registration: &Registration, delivery: Delivery) {
    let subject = delivery.subject_str();
    let key: Arc<str> = subject
        .strip_prefix(registration.prefix)
        .unwrap_or(&subject)
        .into();
    let (data, now) = (delivery.payload.clone(), SystemTime::now());
    match registration.mode.get() {
        Some((Mode::Handle(handler), _)) => {
            let ctx = registration.ctx.clone();
            let message = Message::with_key(ctx, key.clone(), data, now, Arc::new(Taken(delivery)));
            if let Err(error) = handler.call(message).await {
                tracing::error!(component = "mq", topic = &*key, %error, "message left to its ack wait");
            }
        }
        Some((Mode::Listen(listener), _)) => {
            let ctx = registration.ctx.extract(&headers(&delivery.headers));
            let message = Message::with_key(ctx, key.clone(), data, now, Arc::new(Taken(delivery)));
            let settler = message.settler();
            if let Err(error) = listener.call(message).await {
                tracing::warn!(component = "mq", topic = &*key, %error, "message is delivered again");
                if let Err(error) = settler.nak().await {
                    tracing::warn!(component = "mq", topic = &*key, %error, "message left to its ack wait");
                }
            }
        }
        None => {}
    }
}

/// Settles one delivery.
#[derive(Debug)]
struct Taken(Delivery);

/// Says something of a delivery; where too much waits for the stream, as soon as there is room.
async fn say(what: &'static str, say: impl Fn() -> Result<(), AckError>) -> Result<(), Error> {
    loop {
        match say() {
            Ok(()) => return Ok(()),
            Err(AckError::Full) => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(failed(what, error)),
        }
    }
}

#[async_trait]
impl Settle for Taken {
    async fn double_ack(&self, ctx: &Ctx) -> Result<(), Error> {
        ctx.check("double ack")?;
        loop {
            let confirmed = tokio::select! {
                confirmed = self.0.double_ack() => confirmed,
                () = ctx.canceled() => return Err(Error::canceled("double ack")),
            };
            match confirmed {
                Ok(()) => return Ok(()),
                Err(AckError::Full) => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(failed("double ack", error)),
            }
        }
    }

    async fn ack(&self) -> Result<(), Error> {
        say("ack", || self.0.ack()).await
    }

    async fn nak(&self) -> Result<(), Error> {
        say("nak", || self.0.nak(None)).await
    }

    async fn nak_with_delay(&self, delay: Duration) -> Result<(), Error> {
        say("nak", || self.0.nak(Some(delay))).await
    }
}

#[cfg(test)]
mod tests {
    use windjet_server::jetstream::ErrorCode;

    use super::*;

    #[test]
    fn only_what_is_missing_ends_a_delivery() {
        for code in [ErrorCode::StreamNotFound, ErrorCode::ConsumerNotFound] {
            let ended = Ended::lookup(code.error(), "worker");
            assert!(
                matches!(&ended, Ended::Good(error) if error.is(ErrorKind::ConsumerNotFound)),
                "{ended:?}"
            );
        }
        let ended = Ended::lookup(ErrorCode::InsufficientResources.error(), "worker");
        assert!(matches!(ended, Ended::Later(_)), "{ended:?}");
    }
}
