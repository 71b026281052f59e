//! Requests and replies.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, Engine};
use crate::error::Result;
use crate::handler::HandlerError;
use crate::message::Message;
use crate::rpc::RespondOptions;

/// Sends requests; each call waits.
#[derive(Debug, Clone)]
pub struct Requester {
    requester: crate::rpc::Requester,
    engine: Engine,
}

/// One request, in the hands of a handler.
#[derive(Debug)]
pub struct Call {
    call: Arc<crate::rpc::Call>,
    engine: Engine,
}

/// A subscription to requests. Dropped, it goes on until the client is closed.
#[derive(Debug)]
pub struct Subscription {
    subscription: crate::rpc::Subscription,
    engine: Engine,
}

impl Requester {
    pub(super) fn new(requester: crate::rpc::Requester, engine: Engine) -> Self {
        Self { requester, engine }
    }

    /// Sends a request and waits for its reply, as long as configured.
    ///
    /// # Errors
    /// As [`crate::rpc::Requester::request`].
    pub fn request(&self, subject: &str, message: Message) -> Result<async_nats::Message> {
        let (requester, subject) = (self.requester.clone(), subject.to_owned());
        self.engine
            .wait(async move { requester.request(&subject, message).await })?
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// As [`crate::rpc::Requester::request`].
    pub fn request_bytes(&self, subject: &str, payload: impl Into<Bytes>) -> Result<async_nats::Message> {
        self.request(subject, Message::raw(payload))
    }

    /// Sends a value as JSON and decodes the reply as JSON.
    ///
    /// # Errors
    /// As [`crate::rpc::Requester::request_json_into`].
    pub fn request_json_into<T: Serialize + ?Sized, R: DeserializeOwned + Send + 'static>(
        &self,
        subject: &str,
        value: &T,
    ) -> Result<R> {
        let message = Message::json(value)?;
        let (requester, subject) = (self.requester.clone(), subject.to_owned());
        self.engine
            .wait(async move { requester.request_into_json(&subject, message).await })?
    }
}

impl Call {
    /// Replies with a message.
    ///
    /// # Errors
    /// As [`crate::rpc::Call::respond`].
    pub fn respond(&self, message: Message) -> Result<()> {
        let call = Arc::clone(&self.call);
        self.engine.wait(async move { call.respond(&message).await })?
    }

    /// Replies with bytes.
    ///
    /// # Errors
    /// As [`crate::rpc::Call::respond`].
    pub fn respond_bytes(&self, payload: impl Into<Bytes>) -> Result<()> {
        self.respond(Message::raw(payload))
    }

    /// Replies with a value as JSON.
    ///
    /// # Errors
    /// As [`crate::rpc::Call::respond_json`].
    pub fn respond_json<T: Serialize + ?Sized>(&self, value: &T) -> Result<()> {
        self.respond(Message::json(value)?)
    }
}

impl Deref for Call {
    type Target = crate::rpc::Call;

    fn deref(&self) -> &crate::rpc::Call {
        &self.call
    }
}

impl Subscription {
    /// Whether it still answers.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.subscription.is_valid()
    }

    /// Stops it; what has arrived is still answered. `false` when that was not done within `wait`.
    pub fn drain(self, wait: Duration) -> bool {
        let subscription = self.subscription;
        self.engine
            .wait(async move { subscription.drain(wait).await })
            .unwrap_or(false)
    }
}

pub(super) fn respond<E>(
    client: &Client,
    subject: &str,
    options: RespondOptions,
    handler: impl Fn(&Call) -> std::result::Result<(), E> + Send + Sync + 'static,
) -> Result<Subscription>
where
    E: Into<HandlerError> + Send + 'static,
{
    let (handler, engine) = (Arc::new(handler), client.engine.clone());
    let answer = move |call: Arc<crate::rpc::Call>| {
        let (handler, engine) = (Arc::clone(&handler), engine.clone());
        let work = move || handler(&Call { call, engine }).map_err(Into::into);
        async move {
            match tokio::task::spawn_blocking(work).await {
                Ok(answer) => answer,
                // To the guard around every handler.
                Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
                Err(ended) => Err(HandlerError::from(ended)),
            }
        }
    };
    let subject = subject.to_owned();
    let subscription =
        client.run(|kit| async move { kit.responder().subscribe(&subject, options, answer).await })??;
    Ok(Subscription {
        subscription,
        engine: client.engine.clone(),
    })
}
