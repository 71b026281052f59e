//! Where messages for code in this process go: no subject, no encoding, no subscription.
//!
//! A pull request of this process names a [`Mailbox`] as the place for its messages. The state machine of a consumer knows
//! replies as bytes only, so a mailbox, and the answer to a confirmed ack, has an address: bytes that begin with a space,
//! which no subject on the wire can have. The stream's task keeps what addresses mean ([`Locals`]), and hands over what is
//! sent to one.
//!
//! A mailbox has no bound of its own: what is in it was asked for by requests, which are bounded. Its owner is woken once a
//! turn of the stream's task, however many messages came. An owner that goes closes it; from then on it takes nothing, so
//! that the consumer keeps the message, and what was in it and not looked at is given back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use windjet_protocol::header::block;
use windjet_protocol::jetstream::status::{PENDING_BYTES, PENDING_MESSAGES};

use super::consumer::{Delivery, Place};

/// First byte of an address.
const MARK: u8 = b' ';

/// Numbers of mailboxes, confirmations and holders: beyond those of connections.
static NEXT: AtomicU64 = AtomicU64::new(1 << 63);

/// A number that no connection and no other part of this process has.
pub(crate) fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The address with a number.
pub(crate) fn address(number: u64) -> [u8; 9] {
    let mut address = [MARK; 9];
    address[1..].copy_from_slice(&number.to_be_bytes());
    address
}

/// The number of an address; `None` for a subject.
pub(crate) fn parse(to: &[u8]) -> Option<u64> {
    let (mark, number) = to.split_first()?;
    (*mark == MARK).then_some(())?;
    number.try_into().ok().map(u64::from_be_bytes)
}

/// A message as it was handed over.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    pub(crate) subject: Bytes,
    pub(crate) headers: Bytes,
    pub(crate) payload: Bytes,
    pub(crate) place: Place,
    /// As much as it counts against a request's bytes.
    pub(crate) size: u64,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// `409 Consumer Deleted`.
    pub(crate) status: String,
    /// Messages that it did not get.
    pub(crate) messages: u64,
    /// Bytes of its budget that are left.
    pub(crate) bytes: u64,
}

impl Ended {
    fn read(headers: &[u8]) -> Self {
        let number = |name| {
            let value = block::find(headers, name)?;
            std::str::from_utf8(value).ok()?.parse().ok()
        };
        Self {
            status: String::from_utf8_lossy(block::status_text(headers).unwrap_or_default())
                .trim()
                .to_owned(),
            messages: number(PENDING_MESSAGES).unwrap_or(0),
            bytes: number(PENDING_BYTES).unwrap_or(0),
        }
    }
}

/// What is in a mailbox.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A message.
    Message(Handed),
    /// A request is over.
    Ended(Ended),
    /// The stream's task is over: nothing comes any more.
    Gone,
}

#[derive(Debug, Default)]
struct State {
    letters: VecDeque<Letter>,
    /// Of all messages that were ever put in.
    bytes: u64,
    waker: Option<Waker>,
    /// The owner is gone.
    closed: bool,
    /// The task is gone.
    gone: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) number: u64,
    state: Mutex<State>,
}

impl Mailbox {
    /// An empty one.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            number: number(),
            state: Mutex::default(),
        })
    }

    /// Puts a letter in; false when nobody will look. Does not wake.
    fn put(&self, letter: Letter) -> bool {
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        if let Letter::Message(handed) = &letter {
            state.bytes += handed.size;
        }
        state.letters.push_back(letter);
        true
    }

    fn wake(&self) {
        let waker = self.state.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the owner is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Whether the stream's task is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// The task is over.
    pub(crate) fn end(&self) {
        self.state.lock().gone = true;
        self.wake();
    }

    /// The next letter.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Letter> {
        let mut state = self.state.lock();
        if let Some(letter) = state.letters.pop_front() {
            return Poll::Ready(letter);
        }
        if state.gone {
            return Poll::Ready(Letter::Gone);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Ready when so many messages, or so many bytes of them, are there, or nothing more will come.
    pub(crate) fn poll_for(&self, wanted: usize, bytes: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        // Whatever is no message is the end of the only request.
        let over = !matches!(state.letters.back(), None | Some(Letter::Message(_)));
        if over || state.gone || state.letters.len() >= wanted || state.bytes >= bytes {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// The next letter, if there is one already.
    pub(crate) fn take(&self) -> Option<Letter> {
        self.state.lock().letters.pop_front()
    }

    /// Takes nothing more; what was in it.
    pub(crate) fn close(&self) -> VecDeque<Letter> {
        let mut state = self.state.lock();
        state.closed = true;
        state.waker = None;
        std::mem::take(&mut state.letters)
    }
}

/// Why an ack was not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unconfirmed {
    /// The consumer does not know the message.
    NotDelivered,
    /// There is no such consumer any more.
    Gone,
    /// The journal failed.
    Unknown,
}

/// Where the answer to a confirmed ack goes.
pub(crate) type Confirm = oneshot::Sender<Result<(), Unconfirmed>>;

/// What the addresses mean that are in use at one stream.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    mailboxes: HashMap<u64, Arc<Mailbox>, RandomState>,
    confirms: HashMap<u64, Confirm, RandomState>,
    /// Mailboxes that were put something in during this turn.
    touched: Vec<Arc<Mailbox>>,
}

impl Locals {
    /// Makes a mailbox known.
    pub(crate) fn open(&mut self, mailbox: Arc<Mailbox>) {
        self.mailboxes.entry(mailbox.number).or_insert(mailbox);
    }

    /// A mailbox's owner is gone.
    pub(crate) fn close(&mut self, number: u64) {
        self.mailboxes.remove(&number);
    }

    /// Whether anybody looks into the mailbox with a number.
    pub(crate) fn wants(&self, number: u64) -> bool {
        self.mailboxes
            .get(&number)
            .is_some_and(|mailbox| !mailbox.is_closed())
    }

    /// Hands a message over; false when nobody is there.
    pub(crate) fn deliver(&mut self, number: u64, delivery: &Delivery<'_>) -> bool {
        let size =
            delivery.subject.len() + delivery.ack.len() + delivery.headers.len() + delivery.payload.len();
        let handed = Handed {
            subject: delivery.subject.clone(),
            headers: delivery.headers.clone(),
            payload: delivery.payload.clone(),
            place: delivery.place,
            size: size as u64,
        };
        self.put(number, Letter::Message(handed))
    }

    /// A request is over.
    pub(crate) fn status(&mut self, number: u64, headers: &[u8]) {
        self.put(number, Letter::Ended(Ended::read(headers)));
    }

    fn put(&mut self, number: u64, letter: Letter) -> bool {
        let Some(mailbox) = self.mailboxes.get(&number) else {
            return false;
        };
        if !mailbox.put(letter) {
            return false;
        }
        // Consecutive messages mostly go to one mailbox; a second wake-up does no harm.
        if self
            .touched
            .last()
            .is_none_or(|last| last.number != mailbox.number)
        {
            self.touched.push(mailbox.clone());
        }
        true
    }

    /// Wakes whoever was handed something.
    pub(crate) fn flush(&mut self) {
        for mailbox in self.touched.drain(..) {
            mailbox.wake();
        }
    }

    /// Gives a confirmation an address.
    pub(crate) fn expect(&mut self, confirm: Confirm) -> u64 {
        let number = number();
        self.confirms.insert(number, confirm);
        number
    }

    /// Answers a confirmed ack.
    pub(crate) fn confirm(&mut self, number: u64, result: Result<(), Unconfirmed>) {
        if let Some(confirm) = self.confirms.remove(&number) {
            // Whoever asked may have gone; the ack counts all the same.
            let _ = confirm.send(result);
        }
    }
}

impl Drop for Locals {
    fn drop(&mut self) {
        for mailbox in self.mailboxes.values() {
            mailbox.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_no_subject_and_a_subject_no_address() {
        let address = address(7);
        assert_eq!(parse(&address), Some(7));
        assert_eq!(parse(b"_INBOX.abc"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b" short"), None);
        assert!(!windjet_protocol::subject::is_valid_publish(&address));
    }

    #[test]
    fn a_closed_mailbox_takes_nothing_and_gives_back_what_it_had() {
        let mailbox = Mailbox::new();
        let mut locals = Locals::default();
        locals.open(mailbox.clone());
        locals.status(
            mailbox.number,
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n",
        );
        let left = mailbox.close();
        assert!(matches!(
            left.front(),
            Some(Letter::Ended(Ended { status, messages: 3, bytes: 0 })) if status == "408 Request Timeout"
        ));
        assert!(!locals.wants(mailbox.number));
        assert!(!locals.put(mailbox.number, Letter::Gone));
    }
}
