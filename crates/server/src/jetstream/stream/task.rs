//! The task of a stream.
//!
//! A turn, in this order: what the journal has done becomes visible (consumers are told, replies leave); management calls;
//! acks and pull requests; publishes; what is due by time; what origins have; deliveries; what consumers must store; one submit. Each lane has a
//! budget, so that none starves another; when something is left, the task yields and goes on. With nothing to do it sleeps
//! until something arrives, the journal calls, or the earliest deadline; an idle stream has no timer.
//!
//! Publishes that the store cannot take now (its buffers are full, a purge is under way) wait here in their order, and the
//! task takes no more from the inbox meanwhile: its bound is what slows publishers down.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use windjet_protocol::jetstream::publish::{PubAck, encode_pub_error};
use windjet_protocol::jetstream::{ApiError, ApiResponse, ErrorCode, StorageType, StreamConfig};
use windjet_store::StreamWriter;

use super::Stream;
use super::batches::OpenBatches;
use super::call::{Answer, Call};
use super::consumers::Consumers;
use super::inbox::{Batch, LocalSignal, Want};
use super::ingest::Ingest;
use super::limits::Limits;
use super::outbox::{Out, Outbox};
use super::post::{Post, Receivers};
use super::sink::Subscriptions;
use super::source::Copies;
use super::upkeep::Upkeep;
use crate::jetstream::JetStream;
use crate::jetstream::account::JsAccount;
use crate::jetstream::consumer::Now;
use crate::jetstream::local::Outcome;
use crate::jetstream::mailbox;
use crate::jetstream::offline;
use crate::jetstream::quota::Quota;
use crate::server::Shared;

/// Publishes of one turn at most.
const PUBLISHES: usize = 4096;
/// Publishes that may bear the same time.
const MOMENT: usize = 64;
/// Rounds of submit and commit in one turn: a memory stream commits at once.
const ROUNDS: usize = 4;

/// The owner of a stream.
pub(crate) struct Task {
    pub(super) server: Arc<Shared>,
    pub(super) js: Arc<JetStream>,
    pub(super) account: Arc<JsAccount>,
    pub(super) stream: Arc<Stream>,
    pub(super) writer: StreamWriter,
    pub(super) config: Arc<StreamConfig>,
    pub(super) subscriptions: Subscriptions,
    pub(super) outbox: Outbox,
    pub(super) receivers: Receivers,
    pub(super) consumers: Consumers,
    pub(super) ingest: Ingest,
    pub(super) batches: OpenBatches,
    pub(super) upkeep: Upkeep,
    pub(super) limits: Limits,
    /// What it takes, against the bounds of account and server.
    pub(super) quota: Quota,
    /// Publishes taken from the inbox that are not stored yet.
    pub(super) waiting: Batch,
    /// The store could not take the first of them.
    pub(super) blocked: bool,
    /// Calls that wait for a purge to be committed before they are looked at.
    pub(super) held: VecDeque<Call>,
    /// What was staged and must be shown to consumers once committed.
    pub(super) feed: VecDeque<(u64, Feed)>,
    /// Whether the creation was announced, or needs not to be.
    pub(super) announced: bool,
    /// Mirror and sources, if it has any.
    pub(super) copies: Option<Box<Copies>>,
    /// Where a purge that is under way continues.
    pub(super) skip_to: Option<u64>,
    /// The journal has failed: nothing is written any more.
    pub(super) failed: bool,
    /// The stream is deleted or the server goes down; the task ends after this turn.
    pub(super) ended: bool,
    /// Who is told that it has ended, once the store's writer is free again.
    pub(super) end_told: Vec<oneshot::Sender<()>>,
}

/// Something that consumers must hear of once it is committed.
#[derive(Debug)]
pub(super) enum Feed {
    /// A message, and what must be known to republish it.
    Appended {
        seq: u64,
        /// The newest sequence of its subject before.
        before: u64,
    },
    /// Messages went: by limits, deletion, expiry.
    Removed(windjet_store::SeqRange),
    /// Messages that match went by a purge or a rollup.
    Purged { filter: Bytes },
}

impl Task {
    /// The moment.
    pub(super) fn now(&self) -> Now {
        self.js.now()
    }

    /// Does something when all that is staged now is committed.
    pub(super) fn then(&mut self, what: impl FnOnce(&mut Self) + Send + 'static) {
        self.outbox
            .push(self.writer.staged_op(), Out::Then(Box::new(what)));
    }

    /// Answers a call that changed something, or that asserts something about what is staged: with what it came to, or that
    /// this is unknown, because the journal failed first.
    pub(super) fn reply<T: ApiResponse>(&self, answer: Answer<T>, result: Result<T, ApiError>) {
        let result = if self.failed {
            Err(outcome_unknown())
        } else {
            result
        };
        answer.send(&self.server, result);
    }

    /// One turn; answers whether there is more to do at once.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let mut more = false;
        self.commit(now);
        let taken = self.stream.inbox.take(self.want());
        let held = std::mem::take(&mut self.held);
        for call in held.into_iter().chain(taken.calls) {
            if self.ended {
                call.refuse(&self.server, &ErrorCode::StreamNotFound.error());
            } else {
                self.call(call, now);
            }
        }
        if !self.ended {
            self.signals(taken.signals, now);
            self.local_signals(taken.locals, now);
            more |= self.publishes(taken.publishes);
            self.due(now);
            more |= self.copy(now);
        } else {
            leave(taken.locals);
            // They came with the call that ended it, and are told so at the end.
            if self.waiting.is_empty() {
                self.waiting = taken.publishes;
            }
        }
        for round in 0..ROUNDS {
            if !self.ended {
                more |= self.deliver(now);
                self.store_consumers(now);
            }
            self.writer.submit();
            let before = self.writer.committed_op();
            self.commit(now);
            if self.writer.committed_op() == before {
                break;
            }
            more |= round + 1 == ROUNDS;
        }
        more || self.stream.inbox.has_work(self.want())
    }

    /// Takes what waits, or what came: nothing is fetched from the inbox while something waits. Not more than [`PUBLISHES`], so that
    /// outcomes, acks and deliveries need not wait for a long queue to be gone through. True when the rest may follow at once.
    fn publishes(&mut self, came: Batch) -> bool {
        debug_assert!(came.is_empty() || self.waiting.is_empty());
        let mut items = std::mem::take(&mut self.waiting);
        if items.is_empty() {
            items = came;
        }
        let mut now = self.now();
        let rules = self.ingest.rules.clone();
        self.blocked = false;
        for done in 0..PUBLISHES {
            let Some(item) = items.next() else {
                break;
            };
            // A message bears the time of a moment after its arrival. Asking for each would cost as much as its checksum.
            if done % MOMENT == MOMENT - 1 {
                now = self.now();
            }
            if let Some(back) = self.publish(&rules, item, now) {
                items.put_back(back);
                self.blocked = true;
                break;
            }
        }
        self.waiting = items;
        !self.blocked && !self.waiting.is_empty()
    }

    fn want(&self) -> Want {
        match (self.waiting.is_empty(), self.blocked) {
            (true, _) => Want::All,
            (false, true) => Want::NoPublishes,
            (false, false) => Want::Signals,
        }
    }

    /// Makes visible what is committed: consumers first, then replies.
    fn commit(&mut self, now: Now) {
        let before = self.writer.committed_op();
        let committed = match self.writer.commit() {
            Ok(op) => op,
            Err(_) => {
                self.fail();
                return;
            }
        };
        if committed > before {
            self.quota.count(self.writer.bytes());
            self.stream.tell_followers();
            self.watch_limits(false);
        }
        self.show(committed, now);
        if self.outbox.is_empty() {
            return;
        }
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        let mut body = Vec::new();
        while let Some(out) = self.outbox.pop(committed) {
            match out {
                Out::Ack { reply, seq } => {
                    body.clear();
                    PubAck {
                        stream: (&*self.stream.name).into(),
                        domain: self.account.domain().map(Into::into),
                        seq,
                        ..PubAck::default()
                    }
                    .encode(&mut body);
                    post.send(&reply, None, b"", &Bytes::copy_from_slice(&body));
                }
                Out::Reply { reply, headers, body } => {
                    post.send(&reply, None, headers, &body);
                }
                Out::Confirm { reply } => match mailbox::parse(&reply) {
                    Some(number) => self.consumers.locals.confirm(number, Ok(())),
                    None => drop(post.send(&reply, None, b"", &Bytes::new())),
                },
                Out::Local { source, outcome } => source.settle(outcome),
                Out::Stored { source, seq, count } => source.settle_stored(seq, count),
                Out::Then(then) => {
                    // What it sends must come behind what was sent before.
                    post.finish();
                    then(self);
                }
            }
        }
        post.finish();
    }

    /// The journal has failed: everybody who waited then is told that the outcome is unknown. What comes later is decided by
    /// a store that takes nothing, and those answers are certain.
    fn fail(&mut self) {
        let before = std::mem::replace(&mut self.failed, true);
        if !before {
            tracing::error!(stream = %self.stream.name, "the journal failed: the stream takes nothing until the store is opened again");
        }
        self.feed.clear();
        self.ingest.forget();
        let (server, account) = (self.server.clone(), self.account.account.clone());
        let mut post = Post::new(&server, &account);
        let mut text = Vec::new();
        encode_pub_error(&self.stream.name, &outcome_unknown(), &mut text);
        let body = Bytes::from(text);
        while let Some(out) = self.outbox.pop_any() {
            match out {
                Out::Reply { reply, headers, body } if before => {
                    post.send(&reply, None, headers, &body);
                }
                Out::Local { source, outcome } if before => source.settle(outcome),
                Out::Ack { reply, .. } | Out::Reply { reply, .. } => {
                    post.send(&reply, None, b"", &body);
                }
                Out::Local { source, .. } => source.settle(Outcome::Unknown),
                Out::Stored { source, count, .. } => (0..count).for_each(|_| source.settle(Outcome::Unknown)),
                // Any message would say that the ack is durable.
                Out::Confirm { reply } => self.consumers.unconfirmed(&reply),
                Out::Then(then) => {
                    post.finish();
                    then(self);
                }
            }
        }
        post.finish();
    }

    /// The earliest moment at which something is due, in the monotonic clock.
    fn deadline(&self) -> Option<u64> {
        let mut due = self.upkeep.deadline();
        due = earlier(due, self.consumers.deadline());
        due = earlier(due, self.batches.deadline());
        due = earlier(due, self.copies.as_ref().and_then(|copies| copies.deadline()));
        if !self.waiting.is_empty() {
            // The store calls when it has room; on a full disk it tries by itself, and so does this.
            due = earlier(due, Some(self.now().mono + 100_000_000));
        }
        due
    }

    async fn run(mut self: Box<Self>) {
        let waker = Waker::from(self.stream.inbox.clone());
        self.writer.set_waker(waker);
        let stop = self.server.stop.clone();
        let mut stopping = false;
        loop {
            let more = self.turn();
            if self.ended {
                break;
            }
            // A server that is dropped rather than shut down tells nobody: its token is all there is.
            if stop.is_cancelled() && !std::mem::replace(&mut stopping, true) {
                let now = self.now();
                self.call(Call::Shutdown(oneshot::channel().0), now);
                continue;
            }
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            match self.deadline() {
                None => tokio::select! {
                    () = self.stream.inbox.arrived() => {}
                    () = stop.cancelled(), if !stopping => {}
                },
                Some(due) => tokio::select! {
                    () = self.stream.inbox.arrived() => {}
                    () = self.js.sleep_until(due) => {}
                    () = stop.cancelled(), if !stopping => {}
                },
            }
        }
        self.finish().await;
    }

    /// Waits for what is staged, so that replies leave, and lets everybody go.
    async fn finish(mut self: Box<Self>) {
        self.subscriptions = Subscriptions::default();
        let left = self.stream.inbox.close();
        leave(left.locals);
        for call in left.calls {
            call.refuse(&self.server, &ErrorCode::StreamNotFound.error());
        }
        self.writer.submit();
        while !self.outbox.is_empty() && !self.failed {
            let now = self.now();
            self.commit(now);
            if self.outbox.is_empty() || self.failed {
                break;
            }
            tokio::select! {
                () = self.stream.inbox.arrived() => {}
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        self.stream.tell_followers();
        // Publishes that were not looked at any more; over the wire their senders hear nothing, as from a server that died.
        for item in std::mem::take(&mut self.waiting).chain(left.publishes) {
            if let Some(source) = item.source() {
                source.settle(Outcome::Unknown);
            }
        }
        let told = std::mem::take(&mut self.end_told);
        drop(self);
        for done in told {
            // Whoever asked may have given up.
            let _ = done.send(());
        }
    }
}

/// Requests that come too late are told so; acks are not confirmed.
fn leave(signals: Vec<(u32, LocalSignal)>) {
    for (_, signal) in signals {
        if let LocalSignal::Pull { mailbox, .. } = signal {
            mailbox.end();
        }
    }
}

/// What is told of everything that was staged when the journal failed.
fn outcome_unknown() -> ApiError {
    ErrorCode::StoreFailed.with("i/o failure in the journal; the outcome is unknown")
}

/// The earlier of two moments, if any.
pub(super) fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Starts the task. The stream's subscriptions are in place when this returns.
pub(crate) fn spawn(mut task: Task) {
    let subjects = task.config.subjects.clone();
    task.subscriptions
        .replace(&task.account.account, &task.stream, &subjects);
    let (server, account, stream) = (task.server.clone(), task.account.clone(), task.stream.clone());
    let tasks = server.tasks.clone();
    // In a box: as values, futures within futures would hold the task four times.
    let task = Box::new(task);
    tasks.spawn(async move {
        // What a defect left half done goes with the task; nothing of it is looked at again.
        if AssertUnwindSafe(task.run()).catch_unwind().await.is_err() {
            offline::task_failed(&server, &account, &stream);
        }
    });
}

/// Where a stream comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was in the store when the server started.
    Found,
    /// Somebody asked for it, and its creation is to be announced.
    Created,
    /// It was restored just now, with consumers that are kept in memory. The restore announces it.
    Restored,
}

impl Task {
    /// The task of a stream that exists in the store.
    pub(crate) fn new(
        server: Arc<Shared>,
        js: Arc<JetStream>,
        account: Arc<JsAccount>,
        stream: Arc<Stream>,
        writer: StreamWriter,
        origin: Origin,
    ) -> Self {
        let config = stream.config();
        let ingest = Ingest::new(&config, &js);
        let memory = config.storage == StorageType::Memory;
        let quota = Quota::new(js.clone(), account.clone(), memory, writer.bytes());
        let mut task = Self {
            consumers: Consumers::default(),
            upkeep: Upkeep::default(),
            limits: Limits::default(),
            quota,
            batches: OpenBatches::new(&js),
            server,
            js,
            account,
            stream,
            writer,
            config,
            subscriptions: Subscriptions::default(),
            outbox: Outbox::default(),
            receivers: Receivers::default(),
            ingest,
            waiting: Batch::default(),
            blocked: false,
            held: VecDeque::new(),
            feed: VecDeque::new(),
            announced: origin != Origin::Created,
            copies: None,
            skip_to: None,
            failed: false,
            ended: false,
            end_told: Vec::new(),
        };
        let now = task.now();
        task.watch_limits(true);
        task.restore_consumers(origin == Origin::Restored, now);
        task.begin_upkeep(now);
        task.begin_copies();
        task
    }
}
