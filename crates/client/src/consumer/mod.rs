//! Consumers: messages to handlers, and back to the server what becomes of them.
//!
//! [`Consumers::pull`] binds a pull consumer by name. [`PullConsumer::fetch`] gives deliveries to settle by hand;
//! [`PullConsumer::process`] runs a handler until it is stopped, and [`PullConsumer::start`] does so in a task of the client.
//! The `subscribe` methods run a handler on a push consumer; see [`Subscription`].
//!
//! # What happens to one delivery
//!
//! The payload is expanded, the handler runs behind a panic guard, the message is settled by its answer:
//!
//! | answer | what is sent |
//! |---|---|
//! | `Ok(())` | an acknowledgement, unless the handler settled it itself |
//! | `Ok(Disposition)` | what it says |
//! | `Err` | the message is handed back, with the [`RetryDelay`] of the consumer |
//! | [`HandlerError::DlqRouted`] | nothing; it counts as success |
//! | [`HandlerError::ClaimInFlight`] | the message is handed back with the delay it names |
//! | [`HandlerError::Undecodable`] | what [`OnUndecodable`] says; the default hands it back |
//!
//! A failed acknowledgement is not followed by anything: the message comes again after its ack wait.
//!
//! # Stopping
//!
//! A stop ends the fetching, lets handlers finish, and hands back what was received and not begun. Dropping the future of
//! `process` aborts running handlers; their messages are handed back at once.

mod dispatch;
mod ordered;
mod pipeline;
pub mod pool;
mod pull;
mod push;
mod vitals;

use std::sync::Arc;

pub use ordered::{OrderedConfig, OrderedSubscription};
pub use pipeline::{OnUndecodable, RetryDelay};
pub use pull::{FetchOptions, ProcessOptions, PullConsumer, Worker};
pub use push::{Bind, EndReason, PushOptions, Subscription, SubscriptionKind, WorkerSetup};
pub use vitals::Vitals;

use crate::client::Inner;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::handler::HandlerError;
use crate::handler::{BoxHandler, Handler};
use crate::names::{validate_durable_name, validate_stream_name};
use crate::pull::Target;

/// Makes consumers of a [`Client`](crate::Client).
#[derive(Debug, Clone)]
pub struct Consumers {
    inner: Arc<Inner>,
}

impl Consumers {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Calls `handler` with every message of a stream in order, in a task of the client.
    ///
    /// # Errors
    /// When a name is not valid, or there is no such stream.
    ///
    /// # Cancel safety
    /// Dropped early, nothing stays behind.
    pub async fn ordered(
        &self,
        stream: &str,
        config: OrderedConfig,
        handler: impl Handler,
    ) -> Result<OrderedSubscription> {
        ordered::subscribe(&self.inner, stream, config, BoxHandler::new(handler)).await
    }

    /// A pull consumer that exists.
    ///
    /// # Errors
    /// When a name is not valid, or there is no such consumer.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn pull(&self, stream: &str, durable: &str) -> Result<PullConsumer> {
        validate_stream_name(stream)?;
        validate_durable_name(durable)?;
        if self.inner.is_closed() {
            return Err(Error::new(
                crate::ErrorKind::Closed,
                format!("binding {stream}/{durable}"),
            ));
        }
        let info = self.inner.consumer_info(stream, durable).await?;
        let target = Target::new(stream, durable)
            .map_err(|error| {
                Error::new(crate::ErrorKind::InvalidDurableName, "binding a consumer").because(error)
            })?
            .domain(&self.inner.config.connection.domain);
        PullConsumer::bind(Arc::clone(&self.inner), target, &info)
    }

    /// Runs `handler` on the messages of a push durable.
    ///
    /// # Errors
    /// When a name is not valid, there is no such durable and [`PushOptions::bind`] does not say to make it, or it cannot
    /// be bound this way: it pulls, delivers another subject, belongs to a queue group, or somebody is bound to it.
    ///
    /// # Cancel safety
    /// Dropped early, a durable may have been made or not; nothing else stays behind.
    pub async fn subscribe_bound(
        &self,
        stream: &str,
        durable: &str,
        subject: &str,
        handler: impl Handler,
        options: PushOptions,
    ) -> Result<Subscription> {
        let handler = BoxHandler::new(handler);
        push::subscribe_bound(&self.inner, stream, durable, None, subject, handler, options).await
    }

    /// As [`Consumers::subscribe_bound`], as a member of the durable's queue group: each message goes to one member.
    ///
    /// # Errors
    /// As [`Consumers::subscribe_bound`]; when the durable has another queue group or none.
    ///
    /// # Cancel safety
    /// As [`Consumers::subscribe_bound`].
    pub async fn queue_subscribe_bound(
        &self,
        stream: &str,
        durable: &str,
        queue: &str,
        subject: &str,
        handler: impl Handler,
        options: PushOptions,
    ) -> Result<Subscription> {
        let handler = BoxHandler::new(handler);
        push::subscribe_bound(
            &self.inner,
            stream,
            durable,
            Some(queue),
            subject,
            handler,
            options,
        )
        .await
    }

    /// Runs `handler` on every message of `subject`, from the first that is stored, by a consumer of its own on the stream
    /// that stores the subject. The consumer goes when the subscription ends. Settings for it may be given by
    /// [`Bind::CreateIfMissing`].
    ///
    /// # Errors
    /// [`ErrorKind::StreamNotFound`](crate::ErrorKind::StreamNotFound) when no stream stores the subject;
    /// [`ErrorKind::InvalidSubscription`](crate::ErrorKind::InvalidSubscription) when several do.
    ///
    /// # Cancel safety
    /// Dropped early, a consumer that nobody uses may stay for some seconds.
    pub async fn subscribe(
        &self,
        subject: &str,
        handler: impl Handler,
        options: PushOptions,
    ) -> Result<Subscription> {
        push::subscribe(&self.inner, None, subject, BoxHandler::new(handler), options).await
    }

    /// As a member of a queue group: binds the durable that is named as the group, and makes it if it does not exist.
    ///
    /// # Errors
    /// As [`Consumers::subscribe`] and [`Consumers::queue_subscribe_bound`].
    ///
    /// # Cancel safety
    /// As [`Consumers::subscribe_bound`].
    pub async fn queue_subscribe(
        &self,
        queue: &str,
        subject: &str,
        handler: impl Handler,
        options: PushOptions,
    ) -> Result<Subscription> {
        push::subscribe(
            &self.inner,
            Some(queue),
            subject,
            BoxHandler::new(handler),
            options,
        )
        .await
    }

    /// Makes a stream and a durable as told and works on it, in one call. For laboratories and small services; in
    /// production, operations own streams.
    ///
    /// # Errors
    /// When a name is not valid or the durable's filter is not `subject`, before anything is made;
    /// [`ErrorKind::ConsumerRecreateRequired`](crate::ErrorKind::ConsumerRecreateRequired) when a setting of an existing
    /// durable differs that cannot be changed, before anybody is bound to it.
    ///
    /// # Cancel safety
    /// Dropped early, stream and durable may have been made or not; nothing else stays behind.
    pub async fn set_up_worker(
        &self,
        setup: WorkerSetup,
        handler: impl Handler,
        options: PushOptions,
    ) -> Result<Subscription> {
        push::set_up(&self.inner, setup, BoxHandler::new(handler), options).await
    }
}
