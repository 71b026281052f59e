//! How settlements reach the server, and the count of open deliveries.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::client::{Request, RequestErrorKind};
use async_nats::message::OutboundMessage;
use async_nats::{Client, Subject};
use bytes::Bytes;
use futures_util::{FutureExt as _, Sink};

use super::{SettleError, SettleErrorKind};

/// What becomes of a delivery that is dropped unsettled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDrop {
    /// It is handed back at once.
    #[default]
    Return,
    /// It is handed back, to be delivered again after this long.
    ReturnAfter(Duration),
    /// It is left to the ack wait.
    Leave,
    /// It wants no acknowledgement: its consumer has ack policy `none`.
    Settled,
}

/// Deliveries that were dropped unsettled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Dropped {
    /// Handed back.
    pub returned: u64,
    /// Not handed back, because the connection's queue was full or closed.
    pub abandoned: u64,
}

/// Sends settlements for the deliveries of one consumer.
#[derive(Debug)]
pub(crate) struct Settler {
    client: Client,
    on_drop: OnDrop,
    open: AtomicUsize,
    returned: AtomicU64,
    abandoned: AtomicU64,
}

impl Settler {
    pub(crate) fn new(client: Client, on_drop: OnDrop) -> Self {
        Self {
            client,
            on_drop,
            open: AtomicUsize::new(0),
            returned: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        }
    }

    pub(crate) fn on_drop(&self) -> OnDrop {
        self.on_drop
    }

    /// Deliveries that are neither settled nor dropped.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn dropped(&self) -> Dropped {
        Dropped {
            returned: self.returned.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
        }
    }

    pub(super) fn opened(&self) {
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) async fn send(&self, reply: Subject, payload: Bytes) -> Result<(), SettleError> {
        let sent = self.client.publish(reply, payload).await;
        sent.map_err(|error| SettleError::with(SettleErrorKind::NotSent, error))
    }

    /// Sends and waits for the empty answer. A subscription of its own, because the client's shared inbox keeps a
    /// request without an answer forever.
    pub(super) async fn ask(
        &self,
        reply: Subject,
        payload: Bytes,
        wait: Duration,
    ) -> Result<(), SettleError> {
        let request = Request::new()
            .payload(payload)
            .timeout(Some(wait))
            .inbox(self.client.new_inbox());
        match self.client.send_request(reply, request).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                Err(SettleError::with(SettleErrorKind::NoResponders, error))
            }
            Err(error) => Err(SettleError::with(SettleErrorKind::NotConfirmed, error)),
        }
    }

    /// Hands a dropped delivery back without waiting.
    pub(super) fn hand_back(&self, reply: Subject) {
        let delay = match self.on_drop {
            OnDrop::Return => None,
            OnDrop::ReturnAfter(delay) => Some(delay),
            OnDrop::Leave | OnDrop::Settled => return,
        };
        let message = OutboundMessage {
            subject: reply,
            reply: None,
            payload: nak(delay),
            headers: None,
        };
        if try_send(&self.client, message) {
            self.returned.fetch_add(1, Ordering::Relaxed);
        } else {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a dropped delivery could not be handed back; it comes again after the ack wait");
        }
    }
}

/// The payload that hands a message back.
pub(super) fn nak(delay: Option<Duration>) -> Bytes {
    match delay {
        None | Some(Duration::ZERO) => Bytes::from_static(b"-NAK"),
        Some(delay) => format!("-NAK {{\"delay\":{}}}", delay.as_nanos()).into(),
    }
}

/// Queues a message for the connection if that is possible now.
fn try_send(client: &Client, message: OutboundMessage) -> bool {
    let mut sink = client.clone();
    let ready = tokio::task::unconstrained(std::future::poll_fn(|cx| Pin::new(&mut sink).poll_ready(cx)));
    matches!(ready.now_or_never(), Some(Ok(()))) && Pin::new(&mut sink).start_send(message).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_in_nanoseconds() {
        assert_eq!(&nak(None)[..], b"-NAK");
        assert_eq!(&nak(Some(Duration::ZERO))[..], b"-NAK");
        assert_eq!(
            &nak(Some(Duration::from_millis(1500)))[..],
            b"-NAK {\"delay\":1500000000}"
        );
    }
}
