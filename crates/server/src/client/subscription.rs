//! The receiving end of a subscription.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::{Mailbox, Message};
use crate::connection::Connection;
use crate::router;

/// A live subscription of an in-process client. Dropping it ends it.
///
/// It is a [`Stream`] of messages that ends after [`Subscription::unsubscribe`], after the last message of
/// [`Subscription::unsubscribe_after`], and when the client or the server closes.
#[derive(Debug)]
pub struct Subscription {
    pub(super) connection: Arc<Connection>,
    pub(super) entry: Arc<router::Subscription>,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Subscription {
    /// The next message; `None` once the subscription is over and everything was received.
    ///
    /// # Cancel safety
    ///
    /// A dropped call takes no message.
    pub async fn next(&mut self) -> Option<Message> {
        std::future::poll_fn(|context| self.mailbox.poll_take(context)).await
    }

    /// The next message, if one waits already.
    pub fn try_next(&mut self) -> Option<Message> {
        self.mailbox.take()
    }

    /// Ends the subscription now. What has been delivered already can still be received.
    pub fn unsubscribe(&self) {
        self.connection.forget(&self.entry);
    }

    /// Ends the subscription once it has been handed `count` messages, counted from its beginning; at once when it has
    /// been handed so many already.
    pub fn unsubscribe_after(&self, count: u64) {
        if count == 0 || self.entry.set_limit(count) {
            self.unsubscribe();
        }
    }

    /// Messages that were lost to this subscription because its mailbox was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.mailbox.dropped()
    }

    /// Messages that wait to be received.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.mailbox.len()
    }
}

impl Stream for Subscription {
    type Item = Message;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        self.mailbox.poll_take(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.unsubscribe();
        self.mailbox.discard();
    }
}
