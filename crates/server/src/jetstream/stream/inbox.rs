//! What waits for a stream: publishes, acks and pull requests, management calls, and the word that the journal has news.
//!
//! Everybody may put something in; the stream's task takes each lane whole. Bytes of publishes lie one after the other in
//! one buffer a batch, so that a message costs no allocation and nothing keeps a connection's read buffer alive. A lane has
//! a bound: publishes are refused when theirs is full ([`Push::Full`]), acks and pull requests have a lane of their own, so
//! that what frees a queue is never behind what fills it.

use std::sync::Arc;
use std::task::Wake;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use windjet_protocol::jetstream::{ApiError, ErrorCode, Nanos, PullRequest};

use super::call::Call;
use crate::jetstream::consumer::Place;
use crate::jetstream::local::Source;
use crate::jetstream::mailbox::{Confirm, Mailbox};
use crate::router::Message;
use crate::server::Shared;

/// Publishes that may wait.
const PUBLISHES_MAX: usize = 100_000;
/// Their bytes.
const PUBLISH_BYTES_MAX: usize = 128 << 20;
/// Acks and pull requests that may wait, in bytes; each counts at least [`ENTRY`].
const SIGNAL_BYTES_MAX: usize = 64 << 20;
/// Acks and pull requests of this process that may wait.
const LOCALS_MAX: usize = 262_144;
/// Calls of clients that may wait, as many as nats-server queues requests.
const CALLS_MAX: usize = 10_000;
/// What an entry counts besides its bytes.
const ENTRY: usize = 64;
/// Capacity that a lane's buffer keeps over a turn at most.
const KEPT: usize = 64 << 10;

/// What a message on a consumer's own subjects is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// An ack of any form.
    Ack,
    /// A pull request.
    Next,
    /// The answer to a flow control request.
    Flow,
}

/// One message in a batch; places are offsets into the batch's bytes.
#[derive(Debug)]
struct Entry {
    start: usize,
    subject: u32,
    reply: u32,
    headers: u32,
    payload: u32,
    /// The payload where it is shared already.
    shared: Option<Bytes>,
    tag: Tag,
}

/// What a message is beside its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tag {
    /// Connection that sent it, 0 for the server itself.
    pub(crate) origin: u64,
    /// What waits for the outcome in this process: its place in the batch's list, from 1 on; 0 for nobody.
    source: u32,
    /// Number of the consumer, for signals.
    pub(crate) consumer: u32,
    /// What it is, for signals.
    pub(crate) signal: Signal,
}

/// A lane as its taker gets it.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// What was given back: it comes before the rest.
    back: Option<Box<Item>>,
    bytes: Bytes,
    entries: std::vec::IntoIter<Entry>,
    sources: Option<Arc<Vec<Arc<Source>>>>,
}

/// One message of a batch, as slices of it.
#[derive(Debug)]
pub(crate) struct Item {
    /// Subject.
    pub(crate) subject: Bytes,
    /// Where the answer goes; empty for nowhere.
    pub(crate) reply: Bytes,
    /// Header block, empty for none.
    pub(crate) headers: Bytes,
    /// Payload.
    pub(crate) payload: Bytes,
    /// The rest.
    pub(crate) tag: Tag,
    /// All that wait for outcomes of the batch. A publisher counts references to its own at the same time, on another core;
    /// these are counted here only.
    sources: Option<Arc<Vec<Arc<Source>>>>,
}

impl Item {
    /// What waits for the outcome in this process.
    pub(crate) fn source(&self) -> Option<&Arc<Source>> {
        let at = self.tag.source.checked_sub(1)?;
        self.sources.as_ref()?.get(at as usize)
    }
}

impl Batch {
    /// Entries left.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + usize::from(self.back.is_some())
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back what was taken last: it comes again next.
    pub(crate) fn put_back(&mut self, item: Item) {
        debug_assert!(self.back.is_none());
        self.back = Some(Box::new(item));
    }
}

impl Iterator for Batch {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        if let Some(item) = self.back.take() {
            return Some(*item);
        }
        let mut entry = self.entries.next()?;
        let mut at = entry.start;
        let mut take = |len: u32| {
            let slice = self.bytes.slice(at..at + len as usize);
            at += len as usize;
            slice
        };
        let (subject, reply, headers) = (take(entry.subject), take(entry.reply), take(entry.headers));
        let payload = match entry.shared.take() {
            Some(shared) => shared,
            None => take(entry.payload),
        };
        let sources = if entry.tag.source == 0 {
            None
        } else {
            self.sources.clone()
        };
        Some(Item {
            subject,
            reply,
            headers,
            payload,
            tag: entry.tag,
            sources,
        })
    }
}

#[derive(Debug, Default)]
struct Lane {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// What entries wait in this process, each once where its entries follow one another.
    sources: Vec<Arc<Source>>,
    /// Counted against the bound.
    weight: usize,
}

impl Lane {
    #[allow(clippy::too_many_arguments)]
    fn push(
        &mut self,
        subject: &[u8],
        reply: &[u8],
        headers: &[u8],
        payload: Result<&[u8], Bytes>,
        origin: u64,
        source: Option<&Arc<Source>>,
        consumer: u32,
        signal: Signal,
    ) {
        let source = source.map_or(0, |source| {
            if !self.sources.last().is_some_and(|last| Arc::ptr_eq(last, source)) {
                self.sources.push(source.clone());
            }
            // There are not more than entries, which are bounded.
            self.sources.len() as u32
        });
        let start = self.bytes.len();
        for part in [subject, reply, headers] {
            self.bytes.extend_from_slice(part);
        }
        let (len, shared) = match payload {
            Ok(payload) => {
                self.bytes.extend_from_slice(payload);
                (payload.len(), None)
            }
            Err(shared) => (shared.len(), Some(shared)),
        };
        self.weight += ENTRY + subject.len() + reply.len() + headers.len() + len;
        // Lengths fit: a message is far below 4 GiB, which the wire's parser and the client see to.
        self.entries.push(Entry {
            start,
            subject: subject.len() as u32,
            reply: reply.len() as u32,
            headers: headers.len() as u32,
            payload: len as u32,
            shared,
            tag: Tag {
                origin,
                source,
                consumer,
                signal,
            },
        });
    }

    fn take(&mut self) -> Batch {
        let capacity = self.bytes.capacity().min(KEPT);
        let entries = self.entries.capacity().min(KEPT / 64);
        let bytes = std::mem::take(&mut self.bytes);
        if self.entries.len() > 16 {
            self.bytes.reserve(capacity);
        }
        self.weight = 0;
        let taken = std::mem::take(&mut self.entries);
        if taken.len() > 16 {
            self.entries.reserve(entries);
        }
        Batch {
            back: None,
            bytes: Bytes::from(bytes),
            entries: taken.into_iter(),
            sources: if self.sources.is_empty() {
                None
            } else {
                Some(Arc::new(std::mem::take(&mut self.sources)))
            },
        }
    }
}

/// An ack or a pull request of this process.
#[derive(Debug)]
pub(crate) enum LocalSignal {
    /// Messages are wanted.
    Pull {
        /// How many, and how.
        request: Box<PullRequest>,
        /// Where they go.
        mailbox: Arc<Mailbox>,
        /// Who holds them.
        holder: u64,
    },
    /// A delivery is settled, or its holder is still at work.
    Settle {
        /// Which.
        place: Place,
        /// How.
        what: Settle,
        /// Who waits for it to be durable.
        confirm: Option<Confirm>,
        /// Who held it.
        holder: u64,
    },
    /// Nobody looks into a mailbox any more.
    Closed {
        /// Its number.
        mailbox: u64,
    },
}

/// How a delivery is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settle {
    /// Done.
    Done,
    /// Not done: again, after a while or at once.
    Nak(Option<Nanos>),
    /// Still at work.
    Progress,
    /// Never again, with a reason.
    Term(Box<str>),
}

#[derive(Debug, Default)]
struct State {
    publishes: Lane,
    signals: Lane,
    /// With the number of the consumer that each is for.
    locals: Vec<(u32, LocalSignal)>,
    calls: Vec<Call>,
    closed: bool,
}

/// What became of an attempt to put something in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Push {
    /// It waits.
    Queued,
    /// It waits, and the lane is more than half full: the sender ought to slow down.
    Crowded,
    /// The lane is full: it was not taken.
    Full,
    /// The stream is gone: it was not taken.
    Closed,
}

/// A call that was not taken.
#[derive(Debug)]
pub(crate) struct Untaken {
    call: Box<Call>,
    full: bool,
}

impl Untaken {
    /// Why, for whoever asked.
    pub(crate) fn error(&self) -> ApiError {
        if self.full {
            ErrorCode::InsufficientResources.error()
        } else {
            ErrorCode::StreamNotFound.error()
        }
    }

    /// Tells whoever asked.
    pub(crate) fn refuse(self, server: &Shared) {
        let error = self.error();
        self.call.refuse(server, &error);
    }
}

/// What the stream's task takes at the start of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Everything.
    All,
    /// No publishes: some wait for room in the store.
    NoPublishes,
    /// Acks and pull requests: publishes that came before are not gone through yet, and calls come behind them.
    Signals,
}

/// All that the stream's task takes at the start of a turn.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Management calls in the order of arrival.
    pub(crate) calls: Vec<Call>,
    /// Acks and pull requests.
    pub(crate) signals: Batch,
    /// Those of this process.
    pub(crate) locals: Vec<(u32, LocalSignal)>,
    /// Publishes.
    pub(crate) publishes: Batch,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    notify: Notify,
}

impl Inbox {
    /// Waits for something to arrive, or for news from the journal.
    ///
    /// # Cancel safety
    /// Nothing is lost: the word is kept for the next call.
    pub(crate) async fn arrived(&self) {
        self.notify.notified().await;
    }

    /// Wakes the task.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Puts a publish in, from the wire.
    pub(crate) fn publish(&self, message: &Message<'_>, origin: u64) -> Push {
        self.publish_with(message, Ok(message.payload), origin, None)
    }

    /// Puts a publish in whose payload is shared, and for whose outcome `source` waits.
    pub(crate) fn publish_shared(&self, message: &Message<'_>, payload: Bytes, source: &Arc<Source>) -> Push {
        self.publish_with(message, Err(payload), 0, Some(source))
    }

    fn publish_with(
        &self,
        message: &Message<'_>,
        payload: Result<&[u8], Bytes>,
        origin: u64,
        source: Option<&Arc<Source>>,
    ) -> Push {
        let mut state = self.state.lock();
        if state.closed {
            return Push::Closed;
        }
        let lane = &mut state.publishes;
        let (count, weight) = (lane.entries.len(), lane.weight);
        if count >= PUBLISHES_MAX || weight >= PUBLISH_BYTES_MAX {
            return Push::Full;
        }
        let reply = message.reply.unwrap_or_default();
        lane.push(
            message.subject,
            reply,
            message.headers,
            payload,
            origin,
            source,
            0,
            Signal::Ack,
        );
        drop(state);
        if count == 0 {
            self.wake();
        }
        if count > PUBLISHES_MAX / 2 || weight > PUBLISH_BYTES_MAX / 2 {
            Push::Crowded
        } else {
            Push::Queued
        }
    }

    /// Puts an ack, a pull request or a flow control answer of a consumer in.
    pub(crate) fn signal(&self, signal: Signal, consumer: u32, message: &Message<'_>, origin: u64) -> Push {
        let mut state = self.state.lock();
        if state.closed {
            return Push::Closed;
        }
        let lane = &mut state.signals;
        if lane.weight >= SIGNAL_BYTES_MAX {
            return Push::Full;
        }
        let first = lane.entries.is_empty();
        let crowded = lane.weight > SIGNAL_BYTES_MAX / 2;
        let reply = message.reply.unwrap_or_default();
        let payload = Ok(message.payload);
        lane.push(
            message.subject,
            reply,
            message.headers,
            payload,
            origin,
            None,
            consumer,
            signal,
        );
        drop(state);
        if first {
            self.wake();
        }
        if crowded { Push::Crowded } else { Push::Queued }
    }

    /// Puts an ack or a pull request of this process in. That somebody is gone is always taken.
    pub(crate) fn signal_local(&self, consumer: u32, signal: LocalSignal) -> Push {
        let mut state = self.state.lock();
        if state.closed {
            return Push::Closed;
        }
        let count = state.locals.len();
        if count >= LOCALS_MAX && !matches!(signal, LocalSignal::Closed { .. }) {
            return Push::Full;
        }
        state.locals.push((consumer, signal));
        drop(state);
        if count == 0 {
            self.wake();
        }
        Push::Queued
    }

    /// Whether the stream's task has ended or is about to.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Puts a management call in; gives it back when the stream is gone, or when as many wait as may. What the server itself
    /// has to tell is always taken, and once where one word says it all.
    pub(crate) fn call(&self, call: Call) -> Result<(), Untaken> {
        let mut state = self.state.lock();
        let full = call.is_asked() && state.calls.len() >= CALLS_MAX;
        if state.closed || full {
            let call = Box::new(call);
            return Err(Untaken { call, full });
        }
        if matches!(call, Call::Interest) && matches!(state.calls.last(), Some(Call::Interest)) {
            return Ok(());
        }
        state.calls.push(call);
        drop(state);
        self.wake();
        Ok(())
    }

    /// Takes the lanes that are wanted.
    pub(crate) fn take(&self, want: Want) -> Taken {
        let mut state = self.state.lock();
        Taken {
            calls: if want == Want::Signals {
                Vec::new()
            } else {
                std::mem::take(&mut state.calls)
            },
            locals: std::mem::take(&mut state.locals),
            signals: if state.signals.entries.is_empty() {
                Batch::default()
            } else {
                state.signals.take()
            },
            publishes: if want == Want::All && !state.publishes.entries.is_empty() {
                state.publishes.take()
            } else {
                Batch::default()
            },
        }
    }

    /// Whether something waits that is wanted.
    pub(crate) fn has_work(&self, want: Want) -> bool {
        let state = self.state.lock();
        (want != Want::Signals && !state.calls.is_empty())
            || !state.signals.entries.is_empty()
            || !state.locals.is_empty()
            || (want == Want::All && !state.publishes.entries.is_empty())
    }

    /// Takes nothing more; what waits is returned.
    pub(crate) fn close(&self) -> Taken {
        self.state.lock().closed = true;
        self.take(Want::All)
    }
}

/// The store wakes the stream through this.
impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.notify.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use windjet_protocol::jetstream::consumer::requests::ConsumerDeleteResponse;

    use super::*;
    use crate::jetstream::stream::call::Answer;

    fn asked() -> Call {
        let (sender, _) = oneshot::channel::<Result<ConsumerDeleteResponse, ApiError>>();
        Call::ConsumerDelete("c".into(), Answer::Local(sender))
    }

    #[test]
    fn calls_of_clients_are_bounded_and_words_of_the_server_are_not_refused() {
        let inbox = Inbox::default();
        for _ in 0..CALLS_MAX {
            inbox.call(asked()).unwrap();
        }
        let untaken = inbox.call(asked()).unwrap_err();
        assert!(untaken.error().is(ErrorCode::InsufficientResources));
        inbox.call(Call::Gone(7)).unwrap();
        inbox.call(Call::Interest).unwrap();
        inbox.call(Call::Interest).unwrap();
        assert_eq!(inbox.take(Want::All).calls.len(), CALLS_MAX + 2);
        inbox.call(asked()).unwrap();
        inbox.close();
        let untaken = inbox.call(asked()).unwrap_err();
        assert!(untaken.error().is(ErrorCode::StreamNotFound));
    }

    #[test]
    fn a_batch_gives_back_what_was_put_in() {
        let inbox = Inbox::default();
        let message = Message::new(b"s.a", Some(b"r"), b"NATS/1.0\r\n\r\n", b"one");
        assert_eq!(inbox.publish(&message, 3), Push::Queued);
        let shared = Message::new(b"s.b", None, b"", b"");
        let source = Arc::<Source>::default();
        assert_eq!(
            inbox.publish_shared(&shared, Bytes::from_static(b"two"), &source),
            Push::Queued
        );
        let mut batch = inbox.take(Want::All).publishes;
        let first = batch.next().unwrap();
        batch.put_back(first);
        assert_eq!(batch.len(), 2);
        let items: Vec<_> = batch.collect();
        let shown: Vec<_> = items
            .iter()
            .map(|item| {
                (
                    &item.subject[..],
                    &item.reply[..],
                    &item.headers[..],
                    &item.payload[..],
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                (&b"s.a"[..], &b"r"[..], &b"NATS/1.0\r\n\r\n"[..], &b"one"[..]),
                (&b"s.b"[..], &b""[..], &b""[..], &b"two"[..]),
            ]
        );
        assert_eq!(items[0].tag.origin, 3);
        assert!(items[0].source().is_none());
        assert!(items[1].source().is_some_and(|known| Arc::ptr_eq(known, &source)));
    }
}
