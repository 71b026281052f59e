//! One message in the hands of the application, and the ways to settle it.
//!
//! A [`Delivery`] owns a message that JetStream delivered and is settled exactly once: acknowledged, handed back, or
//! given up for good. The first settlement wins; a second one is refused with [`SettleErrorKind::AlreadySettled`] and
//! sends nothing. [`Delivery::progress`] is no settlement and may be sent any number of times before one.
//!
//! # What it guarantees
//!
//! * A settlement that could not be sent, or whose future was dropped before it was, leaves the delivery open: it can
//!   be settled again.
//! * [`Delivery::ack_confirmed`] returns only after the server said that the acknowledgement has taken effect. When
//!   that answer does not come the outcome is unknown ([`SettleError::outcome_unknown`]); the delivery then accepts
//!   nothing but another `ack_confirmed`, which is safe to repeat.
//! * A delivery dropped unsettled is handed back at once, as [`OnDrop`] says, so that it need not wait for the ack
//!   wait. Drop cannot wait: when the connection's queue is full the hand-back is given up and counted.
//!
//! # What it does not do
//!
//! It does not keep the ack wait from passing; whoever works longer calls [`Delivery::progress`]. A plain
//! acknowledgement is sent and not confirmed, as in every client: when the connection breaks at that moment the message
//! comes again.
//!
//! Called by: every consumer of this crate, and by handlers.

mod error;
mod metadata;
mod settler;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;

pub use error::{SettleError, SettleErrorKind};
pub use metadata::Metadata;
pub(crate) use settler::Settler;
pub use settler::{Dropped, OnDrop};

const OPEN: u8 = 0;
/// A settlement is being sent.
const BUSY: u8 = 1;
const SETTLED: u8 = 2;
/// An acknowledgement was sent that asked for an answer, and none has come.
const UNCONFIRMED: u8 = 3;

/// A message that JetStream delivered, to be settled once.
pub struct Delivery {
    message: Message,
    /// Why the payload could not be expanded.
    fault: Option<Box<crate::Error>>,
    state: AtomicU8,
    settler: Arc<Settler>,
}

impl Delivery {
    /// A delivery of `message`, which counts as open until it is settled.
    pub(crate) fn new(message: Message, settler: Arc<Settler>) -> Self {
        let needs_ack = settler.on_drop() != OnDrop::Settled && message.reply.is_some();
        if needs_ack {
            settler.opened();
        }
        Self {
            message,
            fault: None,
            state: AtomicU8::new(if needs_ack { OPEN } else { SETTLED }),
            settler,
        }
    }

    /// The message as the core client knows it.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The payload as a value, decoded as the headers say.
    ///
    /// # Errors
    /// As [`decode`](crate::message::codec::decode).
    pub fn decode<T: serde::de::DeserializeOwned>(&self) -> crate::Result<T> {
        crate::message::codec::decode_msg(&self.message, None)
    }

    /// Expands a compressed payload, once. What goes wrong is kept for [`Delivery::fault`].
    pub(crate) fn expand(&mut self) {
        if let Err(error) = crate::message::compression::expand(&mut self.message) {
            self.fault = Some(Box::new(error));
        }
    }

    /// Why the payload could not be expanded, as a new error.
    pub(crate) fn fault(&self) -> Option<crate::Error> {
        let fault = self.fault.as_ref()?;
        Some(crate::Error::new(
            fault.kind(),
            "expanding the payload of a message",
        ))
    }

    /// Where the message stands in its stream and consumer; `None` for what did not come from JetStream.
    #[must_use]
    pub fn metadata(&self) -> Option<Metadata<'_>> {
        Metadata::parse(self.message.reply.as_deref()?)
    }

    /// The pin under which a consumer with pinned clients delivered this.
    #[must_use]
    pub fn pin_id(&self) -> Option<&str> {
        let pin = self.message.headers.as_ref()?.get("Nats-Pin-Id")?.as_str();
        (!pin.is_empty()).then_some(pin)
    }

    /// Whether it is settled, or an acknowledgement is under way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// Acknowledges the message.
    ///
    /// # Errors
    /// When it is settled already, or the acknowledgement could not be sent; in the second case it stays open.
    ///
    /// # Cancel safety
    /// Dropped before it returned, the acknowledgement was not sent and the delivery is open.
    pub async fn ack(&self) -> Result<(), SettleError> {
        self.settle(Bytes::from_static(b"+ACK")).await
    }

    /// Acknowledges the message and waits for the server to say that this has taken effect.
    ///
    /// # Errors
    /// When it is settled already, or the answer did not come within `wait`: the outcome is then unknown, and this
    /// method may be called again.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the outcome is unknown, and this method may be called again.
    pub async fn ack_confirmed(&self, wait: Duration) -> Result<(), SettleError> {
        if self.is_rehearsal() {
            return Ok(());
        }
        let turn = self.begin(&[OPEN, UNCONFIRMED])?;
        let reply = self.reply()?;
        // From here on the server may have it, whatever becomes of this future.
        let turn = turn.falls_back_to(UNCONFIRMED);
        self.settler.ask(reply, Bytes::from_static(b"+ACK"), wait).await?;
        turn.finish();
        Ok(())
    }

    /// Hands the message back, to be delivered again at once.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    ///
    /// # Cancel safety
    /// As [`Delivery::ack`].
    pub async fn nak(&self) -> Result<(), SettleError> {
        self.settle(Bytes::from_static(b"-NAK")).await
    }

    /// Hands the message back, to be delivered again after `delay`.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    ///
    /// # Cancel safety
    /// As [`Delivery::ack`].
    pub async fn nak_after(&self, delay: Duration) -> Result<(), SettleError> {
        self.settle(settler::nak(Some(delay))).await
    }

    /// Gives the message up: it is not delivered again.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    ///
    /// # Cancel safety
    /// As [`Delivery::ack`].
    pub async fn term(&self) -> Result<(), SettleError> {
        self.settle(Bytes::from_static(b"+TERM")).await
    }

    /// Gives the message up with a reason, which the server tells in its advisory. Line breaks become blanks; an empty
    /// reason is none.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    ///
    /// # Cancel safety
    /// As [`Delivery::ack`].
    pub async fn term_with_reason(&self, reason: &str) -> Result<(), SettleError> {
        let reason = reason.replace(['\r', '\n'], " ");
        let reason = reason.trim();
        if reason.is_empty() {
            return self.term().await;
        }
        self.settle(format!("+TERM {reason}").into()).await
    }

    /// Tells the server that work goes on: its ack wait begins anew. No settlement.
    ///
    /// # Errors
    /// When the delivery is settled, or this could not be sent.
    ///
    /// # Cancel safety
    /// Dropped before it returned, nothing was sent.
    pub async fn progress(&self) -> Result<(), SettleError> {
        if self.is_rehearsal() {
            return Ok(());
        }
        if self.is_settled() {
            return Err(SettleError::already());
        }
        self.settler
            .send(self.reply()?, Bytes::from_static(b"+WPI"))
            .await
    }

    /// Leaves the delivery to its ack wait, if it is open.
    pub(crate) fn forget(&self) {
        let open = self
            .state
            .compare_exchange(OPEN, SETTLED, Ordering::AcqRel, Ordering::Acquire);
        if open.is_ok() {
            self.settler.closed();
        }
    }

    /// A copy that can settle nothing.
    pub(crate) fn detached(&self) -> Self {
        let message = Message {
            reply: None,
            ..self.message.clone()
        };
        Self::new(message, Arc::clone(&self.settler))
    }

    /// Gives the message away without settling it: the caller takes over, or leaves it to the ack wait.
    #[must_use]
    pub fn into_message(mut self) -> Message {
        self.mark_settled();
        std::mem::replace(
            &mut self.message,
            Message {
                subject: "".into(),
                reply: None,
                payload: Bytes::new(),
                headers: None,
                status: None,
                description: None,
                length: 0,
            },
        )
    }

    async fn settle(&self, payload: Bytes) -> Result<(), SettleError> {
        if self.is_rehearsal() {
            return Ok(());
        }
        let turn = self.begin(&[OPEN])?;
        self.settler.send(self.reply()?, payload).await?;
        turn.finish();
        Ok(())
    }

    /// Whether it only plays a delivery, as in a local replay: settling is taken and goes nowhere.
    fn is_rehearsal(&self) -> bool {
        self.message.reply.is_none() && self.settler.on_drop() == OnDrop::Settled
    }

    fn reply(&self) -> Result<async_nats::Subject, SettleError> {
        self.message.reply.clone().ok_or_else(SettleError::no_reply)
    }

    /// Takes the right to settle, if the state is one of `from`.
    fn begin(&self, from: &[u8]) -> Result<Turn<'_>, SettleError> {
        if self.message.reply.is_none() {
            return Err(SettleError::no_reply());
        }
        for &state in from {
            let taken = self
                .state
                .compare_exchange(state, BUSY, Ordering::AcqRel, Ordering::Acquire);
            if taken.is_ok() {
                return Ok(Turn {
                    delivery: self,
                    back: state,
                });
            }
        }
        Err(SettleError::already())
    }

    fn mark_settled(&self) {
        if self.state.swap(SETTLED, Ordering::AcqRel) != SETTLED {
            self.settler.closed();
        }
    }
}

/// The right to settle. Dropped unfinished, the delivery falls back.
struct Turn<'a> {
    delivery: &'a Delivery,
    back: u8,
}

impl Turn<'_> {
    fn falls_back_to(mut self, state: u8) -> Self {
        self.back = state;
        self
    }

    fn finish(self) {
        self.delivery.mark_settled();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A no-op after `finish`.
        let _ = self
            .delivery
            .state
            .compare_exchange(BUSY, self.back, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Deref for Delivery {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("subject", &self.message.subject)
            .field("bytes", &self.message.payload.len())
            .field("metadata", &self.metadata())
            .field("settled", &self.is_settled())
            .finish()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        match *self.state.get_mut() {
            SETTLED => return,
            // An unconfirmed acknowledgement may have counted; to hand the message back would contradict it.
            UNCONFIRMED => {}
            _ => {
                if let Some(reply) = self.message.reply.clone() {
                    self.settler.hand_back(reply);
                }
            }
        }
        self.settler.closed();
    }
}
