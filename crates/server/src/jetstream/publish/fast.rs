//! Fast batches: many messages with few acknowledgements, each stored when it comes.
//!
//! What a message is in its batch stands in its reply subject ([`Control`]). [`FastBatches::accept`] says what to do with it;
//! where it is to be checked and stored like any other, [`FastBatches::finish`] is told what became of it and says what is
//! answered. All answers go to the reply subject of the message that is dealt with, and wait like every answer until what was
//! staged before them is committed: an acknowledgement of a batch sequence means that everything up to it is.
//!
//! `accept` changes nothing where it answers [`Step::Store`], so a message that the store cannot take yet is simply
//! accepted again later.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::{SmallVec, smallvec};
use windjet_protocol::header::names;
use windjet_protocol::jetstream::publish::BatchFlow;
use windjet_protocol::jetstream::{API_LEVEL, ApiError, ErrorCode};

use super::check::{Incoming, Stop, check_size};
use super::headers::{number, without};
use super::rules::Rules;

/// What the reply subject of a message in a fast batch ends with.
const SUFFIX: &[u8] = b".$FI";
/// Longest id.
const ID_MAX: usize = 64;
/// Messages from one acknowledgement to the next when the client does not say.
const FLOW_DEFAULT: u64 = 10;
/// The most that a client may say.
const FLOW_MAX: u64 = 65_535;
/// Messages without an acknowledgement, over all open batches of a stream.
const UNACKED: u64 = 500;

/// What a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Start,
    Append,
    /// End with this message.
    Commit,
    /// End without storing this message.
    Close,
    Ping,
}

/// What stands in a reply subject: `<prefix>.<id>.<flow>.<gap>.<seq>.<op>.$FI`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control<'r> {
    id: &'r [u8],
    flow: u64,
    /// Whether the batch goes on when something is missing or refused.
    lenient: bool,
    seq: u64,
    op: Op,
}

impl<'r> Control<'r> {
    /// Reads a reply subject; `None` when the message is in no fast batch.
    pub(crate) fn parse(reply: &'r [u8]) -> Option<Result<Self, ErrorCode>> {
        let rest = reply.strip_suffix(SUFFIX)?;
        Some(Self::read(rest).ok_or(ErrorCode::BatchPublishPatternInvalid))
    }

    fn read(rest: &'r [u8]) -> Option<Self> {
        let mut tokens = rest.rsplitn(6, |byte| *byte == b'.');
        let op = match tokens.next()? {
            b"0" => Op::Start,
            b"1" => Op::Append,
            b"2" => Op::Commit,
            b"3" => Op::Close,
            b"4" => Op::Ping,
            _ => return None,
        };
        let seq = number(tokens.next()?)?;
        let lenient = match tokens.next()? {
            b"ok" => true,
            b"fail" => false,
            _ => return None,
        };
        let flow = number(tokens.next()?).filter(|flow| (1..=FLOW_MAX).contains(flow));
        let id = tokens.next()?;
        tokens.next()?;
        let fits = match op {
            Op::Start => seq == 1,
            Op::Append | Op::Close => seq > 1,
            Op::Commit | Op::Ping => seq > 0,
        };
        fits.then_some(Self {
            id,
            flow: flow.unwrap_or(FLOW_DEFAULT),
            lenient,
            seq,
            op,
        })
    }

    /// The batch's id.
    pub(crate) fn id(&self) -> &'r [u8] {
        self.id
    }

    /// Whether the message opens a batch.
    pub(crate) fn opens(&self) -> bool {
        self.op == Op::Start || (self.op == Op::Commit && self.seq == 1)
    }
}

/// The answer that ends a batch: an acknowledgement with the batch's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Final {
    /// Sequence of the last message that the batch stored, 0 for none.
    pub(crate) seq: u64,
    /// Messages of the batch.
    pub(crate) count: u64,
    /// Whether its only message was stored before, under `seq`.
    pub(crate) duplicate: bool,
}

/// What is answered to one message, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    /// Messages about the batch.
    pub(crate) flow: SmallVec<[BatchFlow; 2]>,
    /// The batch is over.
    pub(crate) end: Option<Final>,
    /// The message was refused as if it stood alone.
    pub(crate) error: Option<ApiError>,
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }
}

/// What to do with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Check and store it, and say to [`FastBatches::finish`] what became of it.
    Store,
    /// Answer; the message is not stored.
    Answer(Answer),
}

impl From<ErrorCode> for Step {
    fn from(code: ErrorCode) -> Self {
        code.error().into()
    }
}

impl From<ApiError> for Step {
    fn from(error: ApiError) -> Self {
        Self::Answer(error.into())
    }
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has this sequence, kept or not.
    Stored(u64),
    /// It was stored before with this sequence.
    Duplicate(u64),
    /// It was refused.
    Refused(ApiError),
}

#[derive(Debug, Clone, Copy)]
struct Open {
    /// Messages from one acknowledgement to the next, as the client wants it.
    flow: u64,
    /// As it is now.
    every: u64,
    /// The highest batch sequence.
    last: u64,
    /// The highest that was acknowledged.
    acked: u64,
    /// Sequence of the last stored message.
    stored: u64,
    /// When the last message came.
    touched: u64,
}

impl Open {
    fn ack(&self) -> BatchFlow {
        BatchFlow::Ack {
            seq: self.acked,
            msgs: self.every,
        }
    }

    fn gap(&self, seq: u64) -> BatchFlow {
        BatchFlow::Gap {
            last_seq: self.last + 1,
            seq,
        }
    }

    fn end(&self) -> Option<Final> {
        Some(Final {
            seq: self.stored,
            count: self.last,
            duplicate: false,
        })
    }

    /// The acknowledgement that is due, if one is. With it the distance to the next one moves towards what the client wants
    /// and the number of open batches allows.
    fn advance(&mut self, open: usize) -> Option<BatchFlow> {
        let behind = self.last.saturating_sub(self.acked);
        if behind < self.every {
            return None;
        }
        self.acked += behind / self.every * self.every;
        let target = self.flow.min((UNACKED / open.max(1) as u64).max(1));
        self.every = if self.every < target {
            target.min(self.every * 2)
        } else {
            target.max(self.every / 2)
        };
        Some(self.ack())
    }
}

/// Limits of fast batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open batches of a stream.
    pub(crate) per_stream: usize,
    /// Open batches of the server.
    pub(crate) total: u64,
    /// Nanoseconds without a message after which a batch is forgotten.
    pub(crate) timeout: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_stream: 1000,
            total: 50_000,
            timeout: 10_000_000_000,
        }
    }
}

/// The open fast batches of a stream.
#[derive(Debug)]
pub(crate) struct FastBatches {
    limits: Limits,
    /// Open batches of the server.
    total: Arc<AtomicU64>,
    open: HashMap<Box<[u8]>, Open>,
}

impl FastBatches {
    /// None are open.
    pub(crate) fn new(limits: Limits, total: Arc<AtomicU64>) -> Self {
        Self {
            limits,
            total,
            open: HashMap::new(),
        }
    }

    /// Whether none are open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Says what to do with a message, at the moment `now` of a monotonic clock. What is stored of it is
    /// [`stored_block`].
    pub(crate) fn accept(
        &mut self,
        rules: &Rules,
        control: Result<&Control<'_>, ErrorCode>,
        message: &Incoming<'_>,
        now: u64,
    ) -> Step {
        // A message that is too long does not count in its batch.
        if let Err(Stop::Refuse(error)) = check_size(rules, message) {
            return error.into();
        }
        if !rules.fast {
            return ErrorCode::BatchPublishDisabled.into();
        }
        let control = match control {
            Ok(control) => control,
            Err(code) => return code.into(),
        };
        if control.id.is_empty() || control.id.len() > ID_MAX {
            return ErrorCode::BatchPublishIdInvalid.into();
        }
        let level = message.headers.required_level;
        if level.is_some_and(|level| number(level).is_none_or(|level| level > u64::from(API_LEVEL))) {
            return ErrorCode::RequiredApiLevel.into();
        }
        let count = self.open.len();
        let Some(open) = self.open.get_mut(control.id) else {
            let room =
                count < self.limits.per_stream && self.total.load(Ordering::Relaxed) < self.limits.total;
            return match (control.opens(), room) {
                (true, true) => Step::Store,
                (true, false) => ErrorCode::BatchPublishTooManyInflight.into(),
                (false, _) => ErrorCode::BatchPublishIdUnknown.into(),
            };
        };
        if control.op == Op::Ping {
            return self.ping(control, now);
        }
        let expected = open.last + 1;
        if control.seq < expected || (control.seq > expected && !control.lenient) {
            let flow = smallvec![open.gap(control.seq)];
            let end = open.end();
            self.forget(control.id);
            return Step::Answer(Answer {
                flow,
                end,
                error: None,
            });
        }
        if control.op != Op::Close {
            return Step::Store;
        }
        let mut answer = Answer::default();
        if control.seq > expected {
            answer.flow.push(open.gap(control.seq));
        }
        open.last = control.seq - 1;
        answer.end = open.end();
        self.forget(control.id);
        Step::Answer(answer)
    }

    fn ping(&mut self, control: &Control<'_>, now: u64) -> Step {
        let count = self.open.len();
        let Some(open) = self.open.get_mut(control.id) else {
            return ErrorCode::BatchPublishIdUnknown.into();
        };
        let mut answer = Answer::default();
        open.touched = now;
        if control.seq <= open.last {
            answer.flow.push(open.ack());
            return Step::Answer(answer);
        }
        answer.flow.push(open.gap(control.seq.saturating_add(1)));
        if control.lenient {
            open.last = control.seq;
            let ack = open.advance(count).unwrap_or_else(|| open.ack());
            answer.flow.push(ack);
        } else {
            answer.end = open.end();
            self.forget(control.id);
        }
        Step::Answer(answer)
    }

    /// Says what is answered to a message that [`FastBatches::accept`] wanted stored.
    pub(crate) fn finish(&mut self, control: &Control<'_>, outcome: Outcome, now: u64) -> Answer {
        let mut answer = Answer::default();
        let known = self.open.get(control.id).copied();
        let commit = control.op == Op::Commit;
        if known.is_none() {
            if let (Outcome::Refused(error), false) = (&outcome, control.lenient) {
                if !commit {
                    answer.flow.push(self.opened(control).ack());
                }
                answer.error = Some(error.clone());
                return answer;
            }
            if commit {
                return single(control, outcome);
            }
        }
        let mut open = known.unwrap_or_else(|| self.begin(control, &mut answer));
        let count = self.open.len();
        open.touched = now;
        if control.seq > open.last + 1 {
            answer.flow.push(open.gap(control.seq));
            open.last = control.seq - 1;
        }
        match outcome {
            Outcome::Refused(error) => {
                let seq = control.seq;
                answer.flow.push(BatchFlow::Error { seq, error });
                if control.lenient && !commit {
                    open.last = seq;
                }
            }
            Outcome::Stored(seq) => {
                (open.last, open.stored) = (control.seq, seq);
                if !commit {
                    answer.flow.extend(open.advance(count));
                }
            }
            Outcome::Duplicate(_) => {
                open.last = control.seq;
                answer.flow.extend(open.advance(count));
            }
        }
        // A refused message is not counted where it is the last, because it says so or because nothing may be missing.
        if commit || open.last < control.seq {
            answer.end = open.end();
            self.forget(control.id);
        } else {
            self.open.insert(control.id.into(), open);
        }
        answer
    }

    /// A batch that begins now.
    fn opened(&self, control: &Control<'_>) -> Open {
        let every = if self.open.is_empty() {
            control.flow.min(UNACKED)
        } else {
            1
        };
        Open {
            flow: control.flow,
            every,
            last: 0,
            acked: 0,
            stored: 0,
            touched: 0,
        }
    }

    /// Opens a batch and tells how often it is acknowledged.
    fn begin(&mut self, control: &Control<'_>, answer: &mut Answer) -> Open {
        let open = self.opened(control);
        answer.flow.push(open.ack());
        self.total.fetch_add(1, Ordering::Relaxed);
        self.open.insert(control.id.into(), open);
        open
    }

    fn forget(&mut self, id: &[u8]) {
        if self.open.remove(id).is_some() {
            self.total.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// When the first batch is forgotten if nothing comes.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let touched = self.open.values().map(|open| open.touched).min()?;
        Some(touched.saturating_add(self.limits.timeout))
    }

    /// Forgets batches whose time is over; nobody is told.
    pub(crate) fn expire(&mut self, now: u64) {
        let timeout = self.limits.timeout;
        let before = self.open.len();
        self.open
            .retain(|_, open| open.touched.saturating_add(timeout) > now);
        let gone = (before - self.open.len()) as u64;
        self.total.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Forgets all batches.
    pub(crate) fn clear(&mut self) {
        self.total.fetch_sub(self.open.len() as u64, Ordering::Relaxed);
        self.open.clear();
    }
}

impl Drop for FastBatches {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The header block of a message in a fast batch as it is checked and stored: without the API level it asked for.
pub(crate) fn stored_block<'m>(message: &Incoming<'m>) -> Cow<'m, [u8]> {
    match message.headers.required_level {
        Some(_) => without(Cow::Borrowed(message.block), names::REQUIRED_API_LEVEL),
        None => Cow::Borrowed(message.block),
    }
}

/// A batch of one message, which never was open.
fn single(control: &Control<'_>, outcome: Outcome) -> Answer {
    let mut answer = Answer::default();
    let (seq, count, duplicate) = match outcome {
        Outcome::Stored(seq) => (seq, 1, false),
        Outcome::Duplicate(seq) if !control.lenient => (seq, 1, true),
        Outcome::Duplicate(_) => (0, 1, false),
        Outcome::Refused(error) => {
            answer.flow.push(BatchFlow::Error { seq: 1, error });
            (0, 0, false)
        }
    };
    answer.end = Some(Final {
        seq,
        count,
        duplicate,
    });
    answer
}

#[cfg(test)]
#[path = "fast_tests.rs"]
mod tests;
