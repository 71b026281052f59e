//! Batches of messages, from what arrives to what is answered.
//!
//! [`crate::jetstream::publish`] says what a message of a batch means; this does it. A complete atomic batch becomes one group
//! of the store, so that after a crash all of it is there or nothing, and readers never see a part. When the store cannot
//! take it now it stays complete here, and the publish that completed it waits in its place. A message of a fast batch is
//! stored like any other.
//!
//! One deadline serves all open batches: not later than the first that is over, and reckoned anew only when it has come.

use std::sync::Arc;

use bytes::Bytes;
use windjet_protocol::jetstream::advisory::{BatchAbandonReason as Reason, BatchAbandoned, EventBody};
use windjet_protocol::jetstream::publish::{BatchFlow, PubAck, encode_pub_error};
use windjet_protocol::jetstream::{ApiError, ErrorCode};
use windjet_store::{Append, StageError};

use super::inbox::Item;
use super::ingest::{Known, refusal};
use super::outbox::Out;
use super::task::{Task, earlier};
use crate::jetstream::JetStream;
use crate::jetstream::account::advise;
use crate::jetstream::consumer::Now;
use crate::jetstream::local::Outcome;
use crate::jetstream::publish::batch::{Accepted, Batch, Batches};
use crate::jetstream::publish::check::{Incoming, Stop};
use crate::jetstream::publish::counter::Total;
use crate::jetstream::publish::fast::{self, Answer, Control, FastBatches, Step, stored_block};
use crate::jetstream::publish::rules::Rules;

/// How long batches are kept on while publishes wait for the store: what keeps them open may be among those.
const PATIENCE: u64 = 100_000_000;

/// See the module's page.
#[derive(Debug)]
pub(super) struct OpenBatches {
    atomic: Batches,
    fast: FastBatches,
    /// Nanoseconds without a message after which a batch is over.
    timeout: u64,
    /// When it is time to look for batches that are over, in the monotonic clock.
    due: Option<u64>,
    /// A complete batch that the store could not take yet; the first publish that waits completed it.
    complete: Option<Batch>,
}

impl OpenBatches {
    pub(super) fn new(js: &JetStream) -> Self {
        let (atomic, fast) = js.batch_limits();
        Self {
            timeout: atomic.timeout.min(fast.timeout),
            atomic: Batches::new(atomic, js.atomic_batches.clone()),
            fast: FastBatches::new(fast, js.fast_batches.clone()),
            due: None,
            complete: None,
        }
    }

    /// A new configuration: what it does not allow any more is given up.
    pub(super) fn configure(&mut self, rules: &Rules) {
        if !rules.atomic || rules.sealed {
            self.atomic.clear();
        }
        if !rules.fast || rules.sealed {
            self.fast.clear();
        }
    }

    /// When something is due.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.due
    }

    /// A message of a batch came.
    fn touched(&mut self, now: Now) {
        if !self.atomic.is_empty() || !self.fast.is_empty() {
            self.due = earlier(self.due, Some(now.mono.saturating_add(self.timeout)));
        }
    }
}

impl Task {
    /// Takes a message of an atomic batch; false when the store cannot take the batch now.
    pub(super) fn publish_atomic(
        &mut self,
        rules: &Rules,
        message: &Incoming<'_>,
        item: &Item,
        now: Now,
    ) -> bool {
        let batch = match self.batches.complete.take() {
            Some(batch) => batch,
            None => match self.accept_atomic(rules, message, item, now) {
                Some(batch) => batch,
                None => return true,
            },
        };
        match self.store_batch(rules, &batch) {
            None => {
                self.batches.complete = Some(batch);
                return false;
            }
            Some(Err(error)) => self.answer_publish(item, Outcome::Refused(error)),
            Some(Ok(seq)) if item.source().is_some() => {
                self.answer_publish(item, Outcome::Stored { seq });
            }
            Some(Ok(seq)) => {
                let body = self.acknowledgement(PubAck {
                    seq,
                    batch: Some(batch.id.as_str().into()),
                    count: batch.len() as u64,
                    ..PubAck::default()
                });
                self.send_atomic(item, body);
            }
        }
        true
    }

    /// The batch that this message completes, if it does; otherwise it is answered.
    fn accept_atomic(
        &mut self,
        rules: &Rules,
        message: &Incoming<'_>,
        item: &Item,
        now: Now,
    ) -> Option<Batch> {
        let known = Known::new(
            &self.writer,
            &self.consumers,
            &self.quota,
            &self.ingest,
            &self.upkeep,
        );
        let accepted = self.batches.atomic.accept(rules, &known, message, now.mono);
        self.batches.touched(now);
        match accepted {
            Accepted::Commit(batch) => return Some(batch),
            Accepted::Staged if item.source().is_some() => self.answer_publish(item, Outcome::Staged),
            Accepted::Staged => self.send_atomic(item, Bytes::new()),
            Accepted::Refused { error, advisory } => {
                self.answer_publish(item, Outcome::Refused(error));
                if let Some(reason) = advisory {
                    self.abandoned(message.headers.batch_id.unwrap_or_default(), reason);
                }
            }
        }
        None
    }

    /// Decides on a complete batch and stages it; the sequence of its last message, or `None` when the store cannot take it
    /// now.
    fn store_batch(&mut self, rules: &Rules, batch: &Batch) -> Option<Result<u64, ApiError>> {
        // A purge under way is not in what the writer answers yet.
        if matches!(self.writer.check_space(), Err(StageError::Barrier)) {
            return None;
        }
        let planned = loop {
            let known = Known::new(
                &self.writer,
                &self.consumers,
                &self.quota,
                &self.ingest,
                &self.upkeep,
            );
            match batch.decide(rules, &known) {
                Ok(planned) => break planned,
                Err(Stop::Refuse(error)) => return Some(Err(error)),
                Err(Stop::Wait) => return None,
                Err(Stop::Read(seq)) => {
                    let Some(message) = self.read_committed(seq) else {
                        return Some(Err(ErrorCode::CounterBroken.error()));
                    };
                    let total = Total::read(&message.headers(), &message.payload());
                    self.ingest.totals.put(&message.subject(), seq, total);
                }
                // A batch refuses duplicates, and skips nothing: what nobody wants is planned as well.
                Err(Stop::Duplicate(_) | Stop::Skip { .. }) => {
                    return Some(Err(ErrorCode::AtomicPublishDuplicateMsgId.error()));
                }
            }
        };
        let ids = !self.writer.options().dedup_window.is_zero();
        let appends: Vec<Append<'_>> = planned
            .iter()
            .map(|planned| Append {
                subject: planned.subject,
                headers: &planned.plan.block,
                payload: &planned.plan.payload,
                time: None,
                id: planned.plan.id.filter(|_| ids),
                remove: planned.plan.remove.ranges(),
                purge: planned.plan.purge(planned.subject, planned.seq),
            })
            .collect();
        let tickets = match self.writer.stage_group(&appends) {
            Ok(tickets) => tickets,
            Err(error @ StageError::TooLong { .. }) => {
                return Some(Err(ErrorCode::StoreFailed.with(error)));
            }
            Err(error) => return refusal(&error).map(Err),
        };
        drop(appends);
        let mut last = 0;
        for (planned, ticket) in planned.into_iter().zip(tickets) {
            last = ticket.seq;
            self.staged(planned.subject, planned.plan, ticket, planned.skipped);
        }
        Some(Ok(last))
    }

    /// Takes a message of a fast batch; false when the store cannot take it now.
    pub(super) fn publish_fast(
        &mut self,
        rules: &Rules,
        control: Result<Control<'_>, ErrorCode>,
        message: &Incoming<'_>,
        item: &Item,
        now: Now,
    ) -> bool {
        let control = match &control {
            Ok(control) => Ok(control),
            Err(code) => Err(*code),
        };
        let step = self.batches.fast.accept(rules, control, message, now.mono);
        let mut answer = match (step, control) {
            (Step::Answer(mut answer), _) => {
                if self.config.no_ack {
                    answer.error = None;
                }
                answer
            }
            // What has no place in a batch is not stored.
            (Step::Store, Err(code)) => code.error().into(),
            (Step::Store, Ok(control)) => {
                let block = stored_block(message);
                let stored = Incoming::new(message.subject, &block, message.payload);
                let outcome = match self.offer(rules, &stored) {
                    None => return false,
                    Some(Outcome::Stored { seq }) => fast::Outcome::Stored(seq),
                    Some(Outcome::Duplicate { seq }) => fast::Outcome::Duplicate(seq),
                    Some(Outcome::Refused(error)) => fast::Outcome::Refused(error),
                    Some(Outcome::Unknown | Outcome::Staged) => {
                        fast::Outcome::Refused(ErrorCode::StoreFailed.with("unknown outcome"))
                    }
                };
                self.batches.fast.finish(control, outcome, now.mono)
            }
        };
        self.batches.touched(now);
        if self.config.no_ack && control.is_ok_and(Control::opens) {
            // Such a stream does not say that a batch began.
            answer
                .flow
                .retain(|flow| !matches!(flow, BatchFlow::Ack { seq: 0, .. }));
        }
        let id = control.map(Control::id).unwrap_or_default();
        self.answer_fast(item, id, answer);
        true
    }

    fn answer_fast(&mut self, item: &Item, id: &[u8], answer: Answer) {
        for flow in &answer.flow {
            // Writing numbers and strings to memory does not fail.
            let body = serde_json::to_vec(flow).unwrap_or_default();
            self.send_answer(item, body.into());
        }
        if let Some(end) = answer.end {
            let body = self.acknowledgement(PubAck {
                seq: end.seq,
                duplicate: end.duplicate,
                batch: Some(String::from_utf8_lossy(id)),
                count: end.count,
                ..PubAck::default()
            });
            self.send_answer(item, body);
        }
        if let Some(error) = answer.error {
            let mut body = Vec::new();
            encode_pub_error(&self.stream.name, &error, &mut body);
            self.send_answer(item, body.into());
        }
    }

    fn acknowledgement(&self, ack: PubAck<'_>) -> Bytes {
        let mut body = Vec::new();
        PubAck {
            stream: (&*self.stream.name).into(),
            domain: self.account.domain().map(Into::into),
            ..ack
        }
        .encode(&mut body);
        body.into()
    }

    /// Answers when all that is staged now is committed.
    fn send_answer(&mut self, item: &Item, body: Bytes) {
        if item.reply.is_empty() {
            return;
        }
        let out = Out::Reply {
            reply: item.reply.clone(),
            headers: b"",
            body,
        };
        self.outbox.push(self.writer.staged_op(), out);
    }

    /// The same, unless the stream answers nothing.
    fn send_atomic(&mut self, item: &Item, body: Bytes) {
        if !self.config.no_ack {
            self.send_answer(item, body);
        }
    }

    /// Gives up batches to which nothing was added for too long.
    pub(super) fn batches_due(&mut self, now: Now) {
        if self.batches.due.is_none_or(|due| due > now.mono) {
            return;
        }
        if !self.waiting.is_empty() {
            self.batches.due = Some(now.mono.saturating_add(PATIENCE));
            return;
        }
        for id in self.batches.atomic.expire(now.mono) {
            self.abandoned(&id, Reason::Timeout);
        }
        self.batches.fast.expire(now.mono);
        let (atomic, fast) = (&self.batches.atomic, &self.batches.fast);
        self.batches.due = earlier(atomic.next_timeout(), fast.next_timeout());
    }

    /// Tells that an atomic batch was given up, behind the answers before.
    fn abandoned(&mut self, id: &[u8], reason: Reason) {
        let body = BatchAbandoned {
            account: None,
            stream: self.stream.name.to_string(),
            domain: self.account.domain().map(str::to_owned),
            batch: String::from_utf8_lossy(id).into_owned(),
            reason,
        };
        self.then(move |task| {
            let subject = body.subject();
            let own = &task.account.account;
            advise(&task.server, own, || body.clone(), &subject);
            let system = task.server.accounts.system();
            if let Some(system) = system.filter(|system| !Arc::ptr_eq(system, own)) {
                let copy = || BatchAbandoned {
                    account: Some(own.name.to_string()),
                    ..body.clone()
                };
                advise(&task.server, &system, copy, &subject);
            }
        });
    }
}
