//! What the service does with a message.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::Message;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a subscription's handler may answer to have a message redelivered.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// A consumer's handler. It settles the message, now or later.
///
/// ```
/// use windjet_mq::{Handler, Message};
///
/// let handler = Handler::new(|message: Message| async move {
///     // write the row, then
///     if let Err(error) = message.double_ack(message.ctx()).await {
///         eprintln!("{}: {error:#}", message.topic_key());
///     }
/// });
/// ```
#[derive(Clone)]
pub struct Handler(Arc<dyn Fn(Message) -> BoxFuture<'static, ()> + Send + Sync>);

impl Handler {
    /// A handler out of an asynchronous function.
    pub fn new<F, Fut>(handle: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(move |message| Box::pin(handle(message))))
    }

    /// Calls the handler; a panic in it ends neither the delivery nor the process, and leaves the message unsettled.
    ///
    /// # Errors
    /// When the handler panicked.
    pub async fn call(&self, message: Message) -> Result<(), Panicked> {
        guarded(|| (self.0)(message)).await
    }
}

/// A subscription's handler.
///
/// # Contract
/// 1. To ask for redelivery by returning an error, settle the message in no other way beforehand.
/// 2. Having called [`Message::nak`], return `Ok`: an error would ask a second time.
/// 3. Having acknowledged, return `Ok`: what an error does then is not defined.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(Message) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>);

impl Listener {
    /// A listener out of an asynchronous function.
    pub fn new<F, Fut>(handle: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        Self(Arc::new(move |message| Box::pin(handle(message))))
    }

    /// Calls the listener; a panic in it counts as an error.
    ///
    /// # Errors
    /// What the listener answered, or that it panicked.
    pub async fn call(&self, message: Message) -> Result<(), HandlerError> {
        guarded(|| (self.0)(message)).await?
    }
}

async fn guarded<T>(call: impl FnOnce() -> BoxFuture<'static, T>) -> Result<T, Panicked> {
    let future = std::panic::catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked)?;
    AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map_err(|_| Panicked)
}

/// The handler panicked.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the handler panicked")]
pub struct Panicked;

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}
