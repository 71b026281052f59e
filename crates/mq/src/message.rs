//! A message in the hands of the service, and the ways to settle it.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Ctx, Error, Topic};

/// How a broker settles one delivery. Every method has a default, for deliveries that need none.
#[async_trait]
pub trait Settle: Send + Sync {
    /// Acknowledges and waits for the broker's confirmation.
    async fn double_ack(&self, _ctx: &Ctx) -> Result<(), Error> {
        Ok(())
    }

    /// Acknowledges without waiting for a confirmation.
    async fn ack(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Asks for redelivery as soon as possible.
    async fn nak(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Asks for redelivery no sooner than the delay; without one of its own it is [`Settle::nak`].
    async fn nak_with_delay(&self, _delay: Duration) -> Result<(), Error> {
        self.nak().await
    }
}

/// A delivery that needs no settling.
#[derive(Debug, Clone, Copy)]
pub struct Unsettled;

impl Settle for Unsettled {}

/// A message received from the queue.
///
/// It is settled by one of [`double_ack`](Self::double_ack), [`ack`](Self::ack), [`nak`](Self::nak) and
/// [`nak_with_delay`](Self::nak_with_delay). Dropped without that, it comes back from the broker after the ack wait.
pub struct Message {
    ctx: Ctx,
    key: Arc<str>,
    data: Bytes,
    received: SystemTime,
    settle: Arc<dyn Settle>,
    hooks: Arc<Hooks>,
}

impl Message {
    /// A message on a topic, for tests of handlers and for brokers.
    pub fn new(ctx: Ctx, topic: &Topic, data: Bytes, received: SystemTime, settle: Arc<dyn Settle>) -> Self {
        Self::with_key(ctx, topic.key().into(), data, received, settle)
    }

    /// A message under a key as it was delivered.
    pub fn with_key(
        ctx: Ctx,
        key: Arc<str>,
        data: Bytes,
        received: SystemTime,
        settle: Arc<dyn Settle>,
    ) -> Self {
        Self {
            ctx,
            key,
            data,
            received,
            settle,
            hooks: Arc::default(),
        }
    }

    /// The message's context.
    #[must_use]
    pub fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    /// The payload as it was published.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// When it was received here, by the local clock.
    #[must_use]
    pub fn received(&self) -> SystemTime {
        self.received
    }

    /// The delivered form of the topic, undecoded: free, and what a log line names the message by.
    #[must_use]
    pub fn topic_key(&self) -> &str {
        &self.key
    }

    /// The topic it was published on. Decodes the key on every call.
    #[must_use]
    pub fn topic(&self) -> Topic {
        Topic::parse_key(&self.key)
    }

    /// Acknowledges and waits until the broker has confirmed it. Use it where a lost acknowledgement costs work.
    ///
    /// # Errors
    /// When the broker did not confirm. The message may come back.
    ///
    /// # Cancel safety
    /// May be dropped at any point; the outcome is then unknown, and the message counts as settled here.
    pub async fn double_ack(&self, ctx: &Ctx) -> Result<(), Error> {
        let _settled = Settled(&self.hooks);
        self.settle.double_ack(ctx).await
    }

    /// Acknowledges without waiting for a confirmation.
    ///
    /// # Errors
    /// When it could not be sent. The message comes back.
    ///
    /// # Cancel safety
    /// As [`Message::double_ack`].
    pub async fn ack(&self) -> Result<(), Error> {
        let _settled = Settled(&self.hooks);
        self.settle.ack().await
    }

    /// Asks for redelivery as soon as possible.
    ///
    /// # Errors
    /// When it could not be sent. The message comes back after the ack wait.
    ///
    /// # Cancel safety
    /// As [`Message::double_ack`].
    pub async fn nak(&self) -> Result<(), Error> {
        let _settled = Settled(&self.hooks);
        self.settle.nak().await
    }

    /// Asks for redelivery no sooner than the delay.
    ///
    /// # Errors
    /// As [`Message::nak`].
    ///
    /// # Cancel safety
    /// As [`Message::double_ack`].
    pub async fn nak_with_delay(&self, delay: Duration) -> Result<(), Error> {
        let _settled = Settled(&self.hooks);
        self.settle.nak_with_delay(delay).await
    }

    /// Has `hook` run once, after the first settle call returned, whatever it returned: a message that failed to be
    /// settled comes back as a new delivery. Several hooks all run, each once. Registered after that, it runs now.
    pub fn on_settled(&self, hook: impl FnOnce() + Send + 'static) {
        let mut hook = Some(hook);
        {
            let mut state = self.hooks.0.lock();
            if let State::Open(hooks) = &mut *state
                && let Some(hook) = hook.take()
            {
                hooks.push(Box::new(hook));
            }
        }
        if let Some(hook) = hook {
            hook();
        }
    }

    /// What settles this delivery, for the loop that called the handler.
    #[cfg(any(feature = "memory", feature = "embedded"))]
    pub(crate) fn settler(&self) -> Settler {
        Settler {
            settle: Arc::clone(&self.settle),
            hooks: Arc::clone(&self.hooks),
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic_key", &self.key)
            .field("bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// Settles a message that has been given away.
#[cfg(any(feature = "memory", feature = "embedded"))]
pub(crate) struct Settler {
    settle: Arc<dyn Settle>,
    hooks: Arc<Hooks>,
}

#[cfg(any(feature = "memory", feature = "embedded"))]
impl Settler {
    pub(crate) async fn nak(&self) -> Result<(), Error> {
        let _settled = Settled(&self.hooks);
        self.settle.nak().await
    }
}

#[derive(Default)]
struct Hooks(Mutex<State>);

enum State {
    Open(Vec<Box<dyn FnOnce() + Send>>),
    Settled,
}

impl Default for State {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

/// Runs the hooks when the settle call is over, or its future dropped.
struct Settled<'a>(&'a Hooks);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        let state = mem::replace(&mut *self.0.0.lock(), State::Settled);
        if let State::Open(hooks) = state {
            for hook in hooks {
                hook();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{ErrorKind, TenantId};

    struct Refuses;

    #[async_trait]
    impl Settle for Refuses {
        async fn double_ack(&self, _ctx: &Ctx) -> Result<(), Error> {
            Err(Error::new(ErrorKind::Unavailable, "no confirmation"))
        }
    }

    fn message(settle: Arc<dyn Settle>) -> Message {
        let topic = Topic::new(TenantId::parse("acme").unwrap(), "events");
        Message::new(
            Ctx::new(),
            &topic,
            Bytes::from_static(b"x"),
            SystemTime::UNIX_EPOCH,
            settle,
        )
    }

    fn counter(message: &Message) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let hook = Arc::clone(&count);
        message.on_settled(move || {
            hook.fetch_add(1, Ordering::Relaxed);
        });
        count
    }

    #[tokio::test]
    async fn hooks_run_once_after_the_first_settle_call_whatever_it_returned() {
        let message = message(Arc::new(Refuses));
        let (first, second) = (counter(&message), counter(&message));
        assert_eq!(first.load(Ordering::Relaxed), 0);
        assert!(
            message
                .double_ack(&Ctx::new())
                .await
                .unwrap_err()
                .is(ErrorKind::Unavailable)
        );
        message.ack().await.unwrap();
        assert_eq!(
            (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)),
            (1, 1)
        );
        assert_eq!(
            counter(&message).load(Ordering::Relaxed),
            1,
            "a late hook runs at once"
        );
    }

    #[tokio::test]
    async fn a_delivery_that_needs_no_settling_accepts_every_call() {
        for call in 0..4 {
            let message = message(Arc::new(Unsettled));
            let count = counter(&message);
            match call {
                0 => message.double_ack(&Ctx::new()).await.unwrap(),
                1 => message.ack().await.unwrap(),
                2 => message.nak().await.unwrap(),
                _ => message.nak_with_delay(Duration::from_secs(1)).await.unwrap(),
            }
            assert_eq!(count.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_message_knows_its_topic() {
        let message = message(Arc::new(Unsettled));
        assert_eq!(message.topic_key(), "acme.events");
        assert_eq!(
            message.topic(),
            Topic::new(TenantId::parse("acme").unwrap(), "events")
        );
    }
}
