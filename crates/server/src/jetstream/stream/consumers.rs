//! The consumers of a stream, as its task keeps them: who is ready, who is due, who must be stored.
//!
//! A consumer is called only when something happens that concerns it. Those that may deliver stand in a queue and take
//! turns, each with a budget; those with a deadline stand in an ordered set; those with something to store are stored
//! together, at the latest 100 ms after the first of them changed, and at once when a client waits for an answer.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use windjet_protocol::jetstream::RetentionPolicy;
use windjet_store::{Found, Message, Op, ReadError, SeqRange, StreamReader};

use super::inbox::Inbox;
use super::post::{Post, Posted, Receivers};
use super::records::Held;
use super::task::{Feed, Task, earlier};
use crate::jetstream::JetStream;
use crate::jetstream::consumer::{
    Budget, Consumer, Delivered, Delivery, Due, Fetched, Home, Now, Port, Progress,
};
use crate::jetstream::fault::{Fault, planted};
use crate::jetstream::mailbox::{self, Locals, Unconfirmed};
use crate::jetstream::medium::off_thread;

/// How long a change may wait before it is stored.
pub(super) const STORE_WITHIN: u64 = 100_000_000;
/// Bytes of a change at which it is stored.
const STORE_AT: usize = 64 << 10;
/// When a consumer whose receivers are full tries again.
const FULL_RETRY: u64 = 2_000_000;
/// When a message that could not be read is tried again.
const READ_RETRY: u64 = 1_000_000_000;
/// Consumers that deliver in one turn.
const TURNS: usize = 64;

/// A consumer with what the task knows of it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) consumer: Box<Consumer>,
    /// The deadline under which it stands in the set, if any.
    armed: Option<u64>,
    /// Whether it stands in the queue.
    queued: bool,
    /// Sequences it needs no more, since the last record.
    pub(super) settled: Vec<SeqRange>,
    /// A record that the store had no room for.
    pub(super) held: Held,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    pub(super) slots: BTreeMap<u32, Slot>,
    pub(super) by_name: BTreeMap<Arc<str>, u32>,
    next: u32,
    ready: VecDeque<u32>,
    due: BTreeSet<(u64, u32)>,
    /// Waiting for a message from the disk, by sequence.
    blocked: BTreeMap<u64, Vec<u32>>,
    pub(super) dirty: HashSet<u32>,
    pub(super) store_at: Option<u64>,
    /// Answers to acks that wait for the next record of their consumer.
    pub(super) confirms: Vec<Bytes>,
    fetched: Fetcher,
    /// Mailboxes of this process.
    pub(super) locals: Locals,
    /// What they share, once there was one.
    home: Option<Arc<Home>>,
}

/// A sequence that was read, with its message if it is still there.
type Read = (u64, Result<Option<Message>, ReadError>);

/// Messages that are not in memory, on their way.
#[derive(Debug, Default)]
struct Fetcher {
    here: BTreeMap<u64, Option<Message>>,
    asked: HashSet<u64>,
    back: Arc<Mutex<Vec<Read>>>,
}

impl Fetcher {
    fn fetch(&mut self, reader: &StreamReader, js: &Arc<JetStream>, inbox: &Arc<Inbox>, seq: u64) -> Fetched {
        if let Some(message) = self.here.remove(&seq) {
            return message.map_or(Fetched::Absent, Fetched::Message);
        }
        match reader.read(seq) {
            Found::InMemory(message) => Fetched::Message(message),
            Found::Absent => Fetched::Absent,
            Found::NeedsDisk(ticket) => {
                if self.asked.insert(seq) {
                    let (reads, back, inbox) = (js.reads.clone(), self.back.clone(), inbox.clone());
                    tokio::spawn(async move {
                        let _permit = reads.acquire_owned().await;
                        let read = off_thread(move || ticket.read()).await;
                        let interrupted = |_| Err(ReadError::Io(std::io::ErrorKind::Interrupted.into()));
                        back.lock().push((seq, read.unwrap_or_else(interrupted)));
                        inbox.wake();
                    });
                }
                Fetched::Later
            }
        }
    }
}

/// The outside of one consumer during a call.
pub(super) struct Outside<'t, 'a> {
    post: &'t mut Post<'a>,
    receivers: &'t mut Receivers,
    reader: &'t StreamReader,
    js: &'t Arc<JetStream>,
    inbox: &'t Arc<Inbox>,
    fetched: &'t mut Fetcher,
    confirms: &'t mut Vec<Bytes>,
    pub(super) locals: &'t mut Locals,
    settled: &'t mut Vec<SeqRange>,
    /// Whether the stream removes what is settled.
    retains: bool,
}

impl Port for Outside<'_, '_> {
    fn deliver(&mut self, delivery: &Delivery<'_>) -> Delivered {
        if let Some(mailbox) = mailbox::parse(delivery.to) {
            return if self.locals.deliver(mailbox, delivery) {
                Delivered::Taken
            } else {
                Delivered::NoInterest
            };
        }
        let posted = self.post.deliver(
            self.receivers,
            delivery.to,
            delivery.subject,
            delivery.ack,
            delivery.headers,
            delivery.payload,
        );
        match posted {
            Posted::Taken => Delivered::Taken,
            Posted::Nobody => Delivered::NoInterest,
            Posted::Full => Delivered::Full,
        }
    }

    fn status(&mut self, to: &[u8], reply: Option<&[u8]>, headers: &[u8]) {
        match mailbox::parse(to) {
            Some(mailbox) => self.locals.status(mailbox, headers),
            None => drop(self.post.send(to, reply, headers, &Bytes::new())),
        }
    }

    fn wanted(&self, subject: &[u8]) -> bool {
        if let Some(mailbox) = mailbox::parse(subject) {
            return self.locals.wants(mailbox);
        }
        self.post.account.is_wanted(subject)
    }

    fn bound(&self, subject: &[u8], group: Option<&[u8]>) -> bool {
        self.post.account.is_bound(subject, group)
    }

    fn advise(&mut self, subject: &[u8], body: Vec<u8>) {
        self.post.send(subject, None, b"", &Bytes::from(body));
    }

    fn fetch(&mut self, seq: u64) -> Fetched {
        self.fetched.fetch(self.reader, self.js, self.inbox, seq)
    }

    fn settled(&mut self, first: u64, last: u64) {
        if !self.retains || planted(Fault::AckedStays) {
            return;
        }
        match self.settled.last_mut() {
            Some(range) if range.last + 1 == first => range.last = last,
            _ => self.settled.push(SeqRange { first, last }),
        }
    }

    fn confirm(&mut self, reply: &[u8]) {
        self.confirms.push(Bytes::copy_from_slice(reply));
    }
}

impl Slot {
    /// What it needed no more and was not recorded yet.
    pub(super) fn into_settled(self) -> Vec<SeqRange> {
        let mut settled = self.held.into_settled();
        settled.extend(self.settled);
        settled
    }
}

impl Consumers {
    /// The earliest deadline of all.
    pub(super) fn deadline(&self) -> Option<u64> {
        earlier(self.due.first().map(|(due, _)| *due), self.store_at)
    }

    /// A consumer by name.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Adds a consumer; its number.
    pub(super) fn insert(&mut self, consumer: Consumer) -> u32 {
        let number = self.next;
        self.next += 1;
        self.by_name.insert(consumer.name().into(), number);
        let slot = Slot {
            consumer: Box::new(consumer),
            armed: None,
            queued: false,
            settled: Vec::new(),
            held: Held::default(),
        };
        self.slots.insert(number, slot);
        number
    }

    /// Takes a consumer out.
    pub(super) fn remove(&mut self, number: u32) -> Option<Slot> {
        let slot = self.slots.remove(&number)?;
        self.by_name.remove(slot.consumer.name());
        if let Some(due) = slot.armed {
            self.due.remove(&(due, number));
        }
        self.dirty.remove(&number);
        Some(slot)
    }

    /// Notes what a call left behind: readiness, deadline, something to store.
    fn after(&mut self, number: u32, now: Now) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        if !slot.queued && slot.consumer.is_ready(now) {
            slot.queued = true;
            self.ready.push_back(number);
        }
        self.arm(number);
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        if slot.consumer.is_dirty() || !slot.settled.is_empty() {
            let large = slot.consumer.change_size() > STORE_AT;
            self.dirty.insert(number);
            let due = if large { now.mono } else { now.mono + STORE_WITHIN };
            self.store_at = earlier(self.store_at, Some(due));
        }
    }

    fn arm(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        let due = slot.consumer.next_deadline();
        if slot.armed != due {
            if let Some(old) = slot.armed {
                self.due.remove(&(old, number));
            }
            if let Some(due) = due {
                self.due.insert((due, number));
            }
            slot.armed = due;
        }
    }

    /// A consumer has something to store.
    pub(super) fn touch(&mut self, number: u32, now: Now) {
        self.dirty.insert(number);
        self.after(number, now);
    }

    /// An ack will not be confirmed: the journal has failed.
    pub(super) fn unconfirmed(&mut self, reply: &[u8]) {
        if let Some(number) = mailbox::parse(reply) {
            self.locals.confirm(number, Err(Unconfirmed::Unknown));
        }
    }

    /// Everything must be stored now: somebody asks about it.
    pub(super) fn store_now(&mut self, now: Now) {
        if !self.dirty.is_empty() {
            self.store_at = Some(now.mono);
        }
    }
}

impl Task {
    /// What all consumers share, as it is now.
    pub(super) fn home(&mut self) -> Arc<Home> {
        let burst = match u64::try_from(self.config.max_msg_size) {
            Ok(size) if size > 0 => size,
            _ => u64::try_from(self.server.options().max_payload).unwrap_or(1 << 20),
        };
        let max_msgs_per_subject = self.config.max_msgs_per_subject;
        if let Some(home) = &self.consumers.home
            && (home.burst, home.max_msgs_per_subject) == (burst, max_msgs_per_subject)
        {
            return home.clone();
        }
        let home = Arc::new(Home {
            account: self.account.name().to_owned(),
            stream: self.stream.name.to_string(),
            domain: self.account.domain().map(str::to_owned),
            reader: self.stream.reader.clone(),
            max_msgs_per_subject,
            burst,
        });
        self.consumers.home = Some(home.clone());
        home
    }

    /// Calls one consumer with the outside, and notes what that leaves.
    pub(super) fn with_consumer<T>(
        &mut self,
        number: u32,
        now: Now,
        what: impl FnOnce(&mut Consumer, &mut Outside<'_, '_>) -> T,
    ) -> Option<T> {
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        let answer = self.with_consumer_in(&mut post, number, now, what);
        post.finish();
        self.consumers.locals.flush();
        answer
    }

    /// The same within a turn of sending that goes on.
    pub(super) fn with_consumer_in<'a, T>(
        &mut self,
        post: &mut Post<'a>,
        number: u32,
        now: Now,
        what: impl FnOnce(&mut Consumer, &mut Outside<'_, 'a>) -> T,
    ) -> Option<T> {
        let consumers = &mut self.consumers;
        let slot = consumers.slots.get_mut(&number)?;
        let mut outside = Outside {
            post,
            receivers: &mut self.receivers,
            reader: &self.stream.reader,
            js: &self.js,
            inbox: &self.stream.inbox,
            fetched: &mut consumers.fetched,
            confirms: &mut consumers.confirms,
            locals: &mut consumers.locals,
            settled: &mut slot.settled,
            retains: self.config.retention != RetentionPolicy::Limits,
        };
        let answer = what(&mut slot.consumer, &mut outside);
        consumers.after(number, now);
        Some(answer)
    }

    /// Calls every consumer.
    pub(super) fn each_consumer(
        &mut self,
        now: Now,
        mut what: impl FnMut(&mut Consumer, &mut Outside<'_, '_>),
    ) {
        let numbers: Vec<u32> = self.consumers.slots.keys().copied().collect();
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        for number in numbers {
            self.with_consumer_in(&mut post, number, now, &mut what);
        }
        post.finish();
        self.consumers.locals.flush();
    }

    /// Tells consumers what was committed, and republishes.
    pub(super) fn show(&mut self, committed: u64, now: Now) {
        let mut republished = Vec::new();
        while self.feed.front().is_some_and(|(op, _)| *op <= committed) {
            let Some((_, feed)) = self.feed.pop_front() else {
                break;
            };
            match feed {
                Feed::Appended { seq, before } => {
                    if self.ingest.republishes() {
                        republished.push((seq, before));
                    }
                    if self.consumers.slots.is_empty() {
                        continue;
                    }
                    // Gone again already: its removal follows and says nothing new.
                    let Some(subject) = self.stream.reader.subject_of(seq) else {
                        continue;
                    };
                    let numbers: Vec<u32> = self.consumers.slots.keys().copied().collect();
                    for number in numbers {
                        if let Some(slot) = self.consumers.slots.get_mut(&number)
                            && slot.consumer.filters_match(&subject)
                        {
                            slot.consumer.appended(seq, &subject);
                            self.consumers.after(number, now);
                        }
                    }
                }
                Feed::Removed(range) => {
                    self.each_consumer(now, |consumer, port| consumer.removed(port, &[range], now));
                }
                Feed::Purged { filter } => {
                    self.each_consumer(now, |consumer, _| consumer.purged(&filter, now));
                }
            }
        }
        if !republished.is_empty() {
            self.republish(&republished);
        }
    }

    /// A message is damaged: it counts as deleted and lost from now on.
    fn lose(&mut self, seq: u64) {
        tracing::error!(stream = %self.stream.name, seq, "a message is damaged and counts as lost");
        let range = SeqRange {
            first: seq,
            last: seq,
        };
        match self.writer.stage(Op::Lost(&[range])) {
            Ok(ticket) => self.feed.push_back((ticket.op, Feed::Removed(range))),
            // It is found damaged again when it is read the next time.
            Err(error) => {
                tracing::warn!(stream = %self.stream.name, seq, "the loss is not stored yet: {error}");
            }
        }
    }

    /// Deliveries, consumer by consumer; answers whether there is more to do at once.
    pub(super) fn deliver(&mut self, now: Now) -> bool {
        let back = std::mem::take(&mut *self.consumers.fetched.back.lock());
        for (seq, read) in back {
            self.consumers.fetched.asked.remove(&seq);
            let waiting = self.consumers.blocked.remove(&seq).unwrap_or_default();
            let message = match read {
                Ok(message) => message,
                Err(ReadError::Damaged { .. }) => {
                    self.lose(seq);
                    None
                }
                Err(error) => {
                    // The medium's trouble may pass: nobody goes past the message meanwhile.
                    tracing::error!(stream = %self.stream.name, seq, "a message cannot be read now: {error}");
                    let again = now.mono + READ_RETRY;
                    self.consumers
                        .due
                        .extend(waiting.iter().map(|number| (again, *number)));
                    continue;
                }
            };
            if !waiting.is_empty() {
                self.consumers.fetched.here.insert(seq, message);
            }
            for number in waiting {
                if let Some(slot) = self.consumers.slots.get_mut(&number)
                    && !slot.queued
                {
                    slot.queued = true;
                    self.consumers.ready.push_back(number);
                }
            }
        }
        if self.consumers.ready.is_empty() {
            return false;
        }
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        for _ in 0..TURNS.min(self.consumers.ready.len()) {
            let Some(number) = self.consumers.ready.pop_front() else {
                break;
            };
            if let Some(slot) = self.consumers.slots.get_mut(&number) {
                // Set again below where there is more to do.
                slot.queued = true;
            }
            let mut budget = Budget::default();
            let progress = self.with_consumer_in(&mut post, number, now, |consumer, port| {
                consumer.deliver(port, &mut budget, now)
            });
            let Some(slot) = self.consumers.slots.get_mut(&number) else {
                continue;
            };
            slot.queued = false;
            match progress {
                Some(Progress::More) => {
                    slot.queued = true;
                    self.consumers.ready.push_back(number);
                }
                Some(Progress::Blocked(seq)) => {
                    self.consumers.blocked.entry(seq).or_default().push(number);
                }
                Some(Progress::Full) => {
                    self.consumers.due.insert((now.mono + FULL_RETRY, number));
                }
                Some(Progress::Idle) | None => {}
            }
        }
        // What was read for a consumer that no longer wants it.
        if self.consumers.blocked.is_empty() {
            self.consumers.fetched.here.clear();
        }
        post.finish();
        self.consumers.locals.flush();
        !self.consumers.ready.is_empty()
    }

    /// Consumers whose deadline has passed.
    pub(super) fn consumers_due(&mut self, now: Now) {
        while let Some((due, number)) = self.consumers.due.first().copied() {
            if due > now.mono {
                break;
            }
            self.consumers.due.remove(&(due, number));
            match self.consumers.slots.get_mut(&number) {
                Some(slot) if slot.armed == Some(due) => slot.armed = None,
                // The retry of one whose receivers were full.
                Some(slot) => {
                    if !slot.queued {
                        slot.queued = true;
                        self.consumers.ready.push_back(number);
                    }
                    continue;
                }
                None => continue,
            }
            let what = self.with_consumer(number, now, |consumer, port| consumer.expire(port, now));
            // At once: as long as it is there, its deadline is armed again and is the next in this loop.
            if what == Some(Due::Delete) {
                self.delete_consumer(number, now);
            }
        }
    }
}
