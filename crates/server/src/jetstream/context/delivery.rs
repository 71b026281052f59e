//! A message in the hands of this process, and what may be said about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use windjet_protocol::header::block;
use windjet_protocol::jetstream::{Nanos, Timestamp};

use crate::jetstream::consumer::Place;
use crate::jetstream::mailbox::{self, Handed, Unconfirmed};
use crate::jetstream::stream::Stream;
use crate::jetstream::stream::inbox::{LocalSignal, Push, Settle};

/// Who holds deliveries. When it goes, a consumer with `windjet.requeue_on_disconnect` delivers again at once what was
/// not settled.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) number: u64,
    pub(super) stream: Arc<Stream>,
}

impl Holder {
    pub(super) fn new(stream: Arc<Stream>) -> Arc<Self> {
        let number = mailbox::number();
        Arc::new(Self { number, stream })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.stream.client_gone(self.number);
    }
}

/// A consumer as those see it who took messages from it.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) holder: Arc<Holder>,
    /// The consumer's number.
    pub(super) consumer: u32,
    /// Whether it takes acks.
    pub(super) acks: bool,
}

impl Origin {
    /// Gives back what was handed over and nobody looked at.
    pub(super) fn give_back(&self, handed: &Handed) {
        if self.acks {
            let signal = LocalSignal::Settle {
                place: handed.place,
                what: Settle::Nak(None),
                confirm: None,
                holder: self.holder.number,
            };
            // Where it is not taken, the message comes again when its ack wait is over.
            let _ = self.holder.stream.inbox.signal_local(self.consumer, signal);
        }
    }
}

/// Why something said about a delivery was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AckError {
    /// The stream, its consumer or the server is gone.
    #[error("the consumer is gone")]
    Gone,
    /// Too many acks wait for the stream: say it again a little later.
    #[error("too many acks wait for the stream")]
    Full,
    /// The consumer takes no acks (`ack_policy` is `none`), so that nothing can be confirmed.
    #[error("the consumer takes no acks")]
    NoAcks,
    /// The consumer says that it did not deliver the message: it was reset to before it meanwhile.
    #[error("the consumer did not deliver this message")]
    NotDelivered,
    /// The store failed before the ack was durable: the message may be delivered again or not.
    #[error("the outcome is unknown: the store failed")]
    OutcomeUnknown,
}

/// A message that a consumer delivered to this process.
///
/// It is settled by [`Delivery::ack`] or one of its siblings. One that is dropped unsettled is delivered again when its ack
/// wait is over.
#[non_exhaustive]
pub struct Delivery {
    /// Subject under which it is stored.
    pub subject: Bytes,
    /// Header block in wire form, empty for none.
    pub headers: Bytes,
    /// The payload.
    pub payload: Bytes,
    /// Sequence in the stream.
    pub stream_sequence: u64,
    /// Number of the delivery, counted by the consumer.
    pub consumer_sequence: u64,
    /// How often it was delivered, this time included; from 1.
    pub delivered: u64,
    /// Messages of the consumer that were still to come after it.
    pub pending: u64,
    /// When it was stored.
    pub timestamp: Timestamp,
    origin: Origin,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("subject", &self.subject)
            .field("stream_sequence", &self.stream_sequence)
            .field("consumer_sequence", &self.consumer_sequence)
            .field("delivered", &self.delivered)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl Delivery {
    pub(super) fn new(handed: Handed, origin: Origin) -> Self {
        let place = handed.place;
        Self {
            subject: handed.subject,
            headers: handed.headers,
            payload: handed.payload,
            stream_sequence: place.stream_seq,
            consumer_sequence: place.consumer_seq,
            delivered: place.delivered,
            pending: place.pending,
            timestamp: Timestamp::from_unix_nanos(place.time),
            origin,
        }
    }

    /// The subject as text; what is no UTF-8 in it is replaced.
    #[must_use]
    pub fn subject_str(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.subject)
    }

    /// The first value of a header, if it is there and text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        block::find(&self.headers, name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// It is done. Durable within 100 ms; [`Delivery::double_ack`] waits for that.
    ///
    /// # Errors
    /// When it was not taken: the message will be delivered again.
    pub fn ack(&self) -> Result<(), AckError> {
        self.settle(Settle::Done)
    }

    /// It is done, durably so when this returns: it is never delivered again, whatever happens.
    ///
    /// # Errors
    /// When that is not so, or not known.
    ///
    /// # Cancel safety
    /// Dropped early, the message is settled all the same, and this becomes durable soon.
    pub async fn double_ack(&self) -> Result<(), AckError> {
        if !self.origin.acks {
            return Err(AckError::NoAcks);
        }
        let (confirm, confirmed) = oneshot::channel();
        self.send(Settle::Done, Some(confirm))?;
        match confirmed.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Unconfirmed::NotDelivered)) => Err(AckError::NotDelivered),
            Ok(Err(Unconfirmed::Gone)) => Err(AckError::Gone),
            Ok(Err(Unconfirmed::Unknown)) | Err(_) => Err(AckError::OutcomeUnknown),
        }
    }

    /// It is not done: deliver it again, after `delay` or at once.
    ///
    /// # Errors
    /// When it was not taken: the message is delivered again when its ack wait is over.
    pub fn nak(&self, delay: Option<Duration>) -> Result<(), AckError> {
        let delay = delay.map(|delay| Nanos(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX)));
        self.settle(Settle::Nak(delay))
    }

    /// Work on it goes on: its ack wait begins anew.
    ///
    /// # Errors
    /// When it was not taken.
    pub fn progress(&self) -> Result<(), AckError> {
        self.settle(Settle::Progress)
    }

    /// Never deliver it again, for this reason.
    ///
    /// # Errors
    /// When it was not taken: the message will be delivered again.
    pub fn term(&self, reason: &str) -> Result<(), AckError> {
        self.settle(Settle::Term(reason.trim().into()))
    }

    fn settle(&self, what: Settle) -> Result<(), AckError> {
        if !self.origin.acks {
            // As over the wire: nobody listens, and nothing is to be settled.
            return Ok(());
        }
        self.send(what, None)
    }

    fn send(&self, what: Settle, confirm: Option<mailbox::Confirm>) -> Result<(), AckError> {
        let holder = &self.origin.holder;
        let signal = LocalSignal::Settle {
            place: Place {
                stream_seq: self.stream_sequence,
                consumer_seq: self.consumer_sequence,
                delivered: self.delivered,
                time: self.timestamp.unix_nanos(),
                pending: self.pending,
            },
            what,
            confirm,
            holder: holder.number,
        };
        match holder.stream.inbox.signal_local(self.origin.consumer, signal) {
            Push::Queued | Push::Crowded => Ok(()),
            Push::Full => Err(AckError::Full),
            Push::Closed => Err(AckError::Gone),
        }
    }
}
