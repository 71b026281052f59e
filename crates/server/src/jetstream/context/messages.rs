//! Consuming: messages one after the other, asked for before they are needed.
//!
//! A window of messages, and of bytes if wanted, is asked for and not yet taken out. When half of it was taken out, as much
//! is asked for again: one request for many messages, and there is always something on its way.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use windjet_protocol::jetstream::{ConsumerConfig, PriorityPolicy, PullRequest};

use super::consumer::{ConsumeError, PriorityRequest, Pulling};
use super::delivery::Delivery;
use crate::jetstream::mailbox::{Ended, Letter};

/// How to consume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumeOptions {
    /// Messages asked for and not yet taken out, at most. Default 500.
    pub max_messages: usize,
    /// Their bytes at most, as they count over the wire; a larger message ends consuming. Default `None`: no bound.
    pub max_bytes: Option<usize>,
    /// Conditions of a priority group. Its pin is kept up to date.
    pub group: Option<PriorityRequest>,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self {
            max_messages: 500,
            max_bytes: None,
            group: None,
        }
    }
}

impl ConsumeOptions {
    /// At most so many messages in advance.
    #[must_use]
    pub fn max_messages(mut self, messages: usize) -> Self {
        self.max_messages = messages;
        self
    }

    /// At most so many bytes in advance.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Ask as a member of a priority group.
    #[must_use]
    pub fn group(mut self, group: PriorityRequest) -> Self {
        self.group = Some(group);
        self
    }
}

/// The messages of a consumer: a [`Stream`] that ends with an error when the consumer or its stream goes, or the server
/// shuts down.
///
/// Dropping it gives back at once what was asked for in advance and not taken out. What was taken out stays with whoever has
/// it.
#[must_use = "nothing is asked for until it is polled"]
pub struct Messages {
    pulling: Pulling,
    options: ConsumeOptions,
    pinned: bool,
    /// Asked for and not yet taken out.
    messages: u64,
    bytes: u64,
    ended: bool,
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("options", &self.options)
            .field("messages", &self.messages)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Messages {
    pub(super) fn new(pulling: Pulling, mut options: ConsumeOptions, config: &ConsumerConfig) -> Self {
        // What the consumer allows in one request is the window.
        let limit = |limit: i64| usize::try_from(limit).ok().filter(|limit| *limit > 0);
        let most = limit(config.max_batch).unwrap_or(usize::MAX);
        options.max_messages = options.max_messages.clamp(1, most);
        options.max_bytes = match (options.max_bytes, limit(config.max_bytes)) {
            (Some(bytes), Some(most)) => Some(bytes.min(most)),
            (bytes, most) => bytes.or(most),
        };
        Self {
            pulling,
            options,
            pinned: config.priority_policy == PriorityPolicy::PinnedClient,
            messages: 0,
            bytes: 0,
            ended: false,
        }
    }

    /// The next message; `None` after an error.
    ///
    /// # Cancel safety
    /// A dropped call takes no message.
    pub async fn next(&mut self) -> Option<Result<Delivery, ConsumeError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Asks again, if half of the window was taken out.
    fn refill(&mut self) -> Result<(), ConsumeError> {
        let (most, most_bytes) = (
            self.options.max_messages as u64,
            self.options.max_bytes.map_or(0, |bytes| bytes as u64),
        );
        if most_bytes > 0 && self.bytes == 0 {
            // Requests whose bytes are used up exactly end without a word.
            self.messages = 0;
        }
        let low = self.messages <= most / 2 || (most_bytes > 0 && self.bytes <= most_bytes / 2);
        if !low {
            return Ok(());
        }
        let (messages, bytes) = (
            most.saturating_sub(self.messages).max(1),
            most_bytes.saturating_sub(self.bytes),
        );
        if most_bytes > 0 && bytes == 0 {
            return Ok(());
        }
        let mut request = PullRequest {
            batch: i64::try_from(messages).unwrap_or(i64::MAX),
            max_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            ..PullRequest::default()
        };
        if let Some(group) = &self.options.group {
            group.apply(&mut request);
        }
        self.pulling.ask(request)?;
        self.messages += messages;
        self.bytes += bytes;
        Ok(())
    }

    /// A request is over; an error when nothing will come any more.
    fn over(&mut self, ended: &Ended) -> Result<(), ConsumeError> {
        let whole = self
            .options
            .max_bytes
            .is_some_and(|max| ended.bytes >= max as u64);
        self.messages = self.messages.saturating_sub(ended.messages);
        self.bytes = self.bytes.saturating_sub(ended.bytes);
        match ConsumeError::of(&ended.status) {
            None => Ok(()),
            // The rest of a request was too small; the next one has more.
            Some(ConsumeError::TooLarge) if !whole => Ok(()),
            Some(ConsumeError::Refused(status)) if status.starts_with("423 ") => {
                // Another client is pinned now: without a pin this one stands by.
                if let Some(group) = &mut self.options.group {
                    group.pin = None;
                }
                if ended.messages == 0 {
                    // The request was refused whole and does not say how large it was.
                    self.messages = 0;
                    self.bytes = 0;
                }
                Ok(())
            }
            Some(error) => Err(error),
        }
    }

    fn end(&mut self, error: ConsumeError) -> Poll<Option<Result<Delivery, ConsumeError>>> {
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for Messages {
    type Item = Result<Delivery, ConsumeError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            let letter = match this.pulling.mailbox.take() {
                Some(letter) => letter,
                None => {
                    if let Err(error) = this.refill() {
                        return this.end(error);
                    }
                    match this.pulling.mailbox.poll(cx) {
                        Poll::Ready(letter) => letter,
                        Poll::Pending => return Poll::Pending,
                    }
                }
            };
            match letter {
                Letter::Message(handed) => {
                    this.messages = this.messages.saturating_sub(1);
                    this.bytes = this.bytes.saturating_sub(handed.size);
                    let delivery = Delivery::new(handed, this.pulling.origin.clone());
                    if this.pinned
                        && let Some(group) = &mut this.options.group
                    {
                        group.pin = delivery
                            .header("Nats-Pin-Id")
                            .map(str::to_owned)
                            .or(group.pin.take());
                    }
                    // A refusal shows when there is nothing left to hand out.
                    let _ = this.refill();
                    return Poll::Ready(Some(Ok(delivery)));
                }
                Letter::Ended(ended) => {
                    if let Err(error) = this.over(&ended) {
                        return this.end(error);
                    }
                }
                Letter::Gone => {
                    let why = this.pulling.closed();
                    return this.end(why);
                }
            }
        }
    }
}
