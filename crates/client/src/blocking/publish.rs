//! Publishing.

use bytes::Bytes;
use serde::Serialize;

use super::Engine;
use crate::message::Message;
use crate::publisher::{Ack, Progress, PublishError};

type Published<T> = Result<T, PublishError>;

/// Publishes into streams; each call waits.
#[derive(Debug, Clone)]
pub struct Publisher {
    publisher: crate::Publisher,
    engine: Engine,
}

/// An asynchronous publish on its way.
#[derive(Debug)]
#[must_use = "a pending publish says whether the message was stored"]
pub struct Pending {
    pending: crate::Pending,
    engine: Engine,
}

impl Publisher {
    pub(super) fn new(publisher: crate::Publisher, engine: Engine) -> Self {
        Self { publisher, engine }
    }

    /// Publishes a message and waits until the stream has stored it.
    ///
    /// # Errors
    /// As [`crate::Publisher::publish`].
    pub fn publish(&self, subject: &str, message: Message) -> Published<Ack> {
        let (publisher, subject) = (self.publisher.clone(), subject.to_owned());
        self.engine
            .wait(async move { publisher.publish(&subject, message).await })
            .map_err(PublishError::lost)?
    }

    /// Publishes a value as JSON.
    ///
    /// # Errors
    /// As [`crate::Publisher::publish_json`].
    pub fn publish_json<T: Serialize + ?Sized>(&self, subject: &str, value: &T) -> Published<Ack> {
        self.publish(subject, Message::json(value).map_err(PublishError::unsent)?)
    }

    /// Publishes bytes as they are.
    ///
    /// # Errors
    /// As [`crate::Publisher::publish_bytes`].
    pub fn publish_bytes(&self, subject: &str, payload: impl Into<Bytes>) -> Published<Ack> {
        self.publish(subject, Message::raw(payload))
    }

    /// Sends a message on its way, without waiting for its acknowledgement.
    ///
    /// # Errors
    /// As [`crate::Publisher::publish_async`].
    pub fn publish_async(&self, subject: &str, message: Message) -> Published<Pending> {
        let (publisher, subject) = (self.publisher.clone(), subject.to_owned());
        let pending = self
            .engine
            .wait(async move { publisher.publish_async(&subject, message).await })
            .map_err(PublishError::lost)??;
        Ok(Pending {
            pending,
            engine: self.engine.clone(),
        })
    }

    /// Waits until no asynchronous publish is on its way.
    ///
    /// # Errors
    /// As [`crate::Publisher::publish_async_complete`].
    pub fn publish_async_complete(&self) -> crate::Result<()> {
        let publisher = self.publisher.clone();
        self.engine
            .wait(async move { publisher.publish_async_complete().await })?
    }
}

impl Pending {
    /// How far it was when it was sent.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.pending.progress()
    }

    /// Waits for the acknowledgement.
    ///
    /// # Errors
    /// As [`crate::Publisher::publish`].
    pub fn wait(self) -> Published<Ack> {
        let pending = self.pending;
        self.engine
            .wait(async move { pending.await })
            .map_err(PublishError::lost)?
    }
}
