//! The bounded queue between the router and one in-process subscription.
//!
//! The router never waits for a receiver. A mailbox that is full drops the newest message, counts it, and says so once
//! in the log; [`super::Subscription::dropped`] tells the receiver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::Message;
use crate::connection::Connection;
use crate::router::{self, Counted, Subscription, Undelivered};

/// Messages that wait for one subscription unless the subscriber chooses otherwise.
pub(crate) const CAPACITY_MSGS: usize = 65_536;
/// Bytes that wait for one subscription unless the subscriber chooses otherwise.
pub(crate) const CAPACITY_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    bytes: usize,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    waker: AtomicWaker,
    dropped: AtomicU64,
    warned: AtomicBool,
    ended: AtomicBool,
    max_msgs: usize,
    max_bytes: usize,
    /// The client that owns the subscription.
    connection: Arc<Connection>,
}

impl Mailbox {
    /// An empty mailbox of a client.
    pub(crate) fn new(connection: Arc<Connection>, max_msgs: usize, max_bytes: usize) -> Self {
        Self {
            queue: Mutex::default(),
            waker: AtomicWaker::new(),
            dropped: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            max_msgs,
            max_bytes,
            connection,
        }
    }

    /// The client that owns the subscription.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Puts a message in, unless the subscription is over or the mailbox full.
    pub(crate) fn push(
        &self,
        subscription: &Arc<Subscription>,
        message: &router::Message<'_>,
    ) -> Result<(), Undelivered> {
        let size = message.size() + message.subject.len();
        let mut queue = self.queue.lock();
        if queue.messages.len() >= self.max_msgs
            || queue.bytes + size > self.max_bytes
            || !self.count(0, size)
        {
            drop(queue);
            self.overflow(subscription);
            return Err(Undelivered::Full);
        }
        let counted = subscription.count();
        if counted == Counted::Closed {
            self.count(size, 0);
            return Err(subscription.open().err().unwrap_or(Undelivered::Closed));
        }
        queue.bytes += size;
        queue.messages.push_back(Message {
            subject: Bytes::copy_from_slice(message.subject),
            reply: message.reply.map(Bytes::copy_from_slice),
            header_block: Bytes::copy_from_slice(message.headers),
            payload: message.shared_payload(),
        });
        drop(queue);
        self.connection.handed.add(1, message.size() as u64);
        if let Some(reply) = message.reply {
            self.connection.grant(reply);
        }
        if counted == Counted::Last {
            self.connection.forget(subscription);
        }
        self.waker.wake();
        Ok(())
    }

    /// Tells the server's memory count of a change; false, with nothing counted, when it is over the budget.
    fn count(&self, before: usize, now: usize) -> bool {
        let memory = &self.connection.server.memory;
        memory.changed(before, now) || !memory.changed(now, before)
    }

    fn overflow(&self, subscription: &Subscription) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                subject = %String::from_utf8_lossy(&subscription.subject),
                "an in-process subscription is full: messages are dropped until it is read"
            );
        }
    }

    /// The next message; `None` once the subscription is over and everything was taken.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        if let Some(message) = self.take() {
            return Poll::Ready(Some(message));
        }
        self.waker.register(context.waker());
        // Asked before the queue: the last message is put in under the queue's lock after the end was marked.
        let ended = self.ended.load(Ordering::Acquire);
        match self.take() {
            Some(message) => Poll::Ready(Some(message)),
            None if ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// The next message, if one waits.
    pub(crate) fn take(&self) -> Option<Message> {
        let mut queue = self.queue.lock();
        let message = queue.messages.pop_front()?;
        queue.bytes = queue.bytes.saturating_sub(message.size());
        self.count(message.size(), 0);
        Some(message)
    }

    /// Ends the mailbox: what is in it can still be taken.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Throws away what nobody will take. The mailbox itself may live on in publishers' remembered matches.
    pub(crate) fn discard(&self) {
        let mut queue = self.queue.lock();
        queue.messages = VecDeque::new();
        self.count(std::mem::take(&mut queue.bytes), 0);
    }

    /// Messages that found the mailbox full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().messages.len()
    }
}
