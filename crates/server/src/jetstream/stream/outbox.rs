//! Replies that rest on staged operations, in the order in which they must leave.
//!
//! Everything that asserts something about the stream waits here for the operation it rests on: acknowledgements and
//! refusals of publishes, confirmed acks, and what management calls do next. One queue a stream, so that results of one
//! source leave in order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::task::Task;
use crate::jetstream::local::{Outcome, Source};

/// What happens once an operation is committed.
pub(crate) enum Out {
    /// A publish over the wire is answered with this body.
    Reply {
        /// Where to.
        reply: Bytes,
        /// Header block, empty for none.
        headers: &'static [u8],
        /// The body.
        body: Bytes,
    },
    /// A plain acknowledgement of a publish over the wire; its body is made when it leaves.
    Ack {
        /// Where to.
        reply: Bytes,
        /// The sequence.
        seq: u64,
    },
    /// A confirmed ack is answered with an empty message.
    Confirm {
        /// Where to.
        reply: Bytes,
    },
    /// A publish of this process has its outcome.
    Local {
        /// Whose.
        source: Arc<Source>,
        /// What.
        outcome: Outcome,
    },
    /// Whatever else.
    Then(Box<dyn FnOnce(&mut Task) + Send>),
}

impl fmt::Debug for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reply { .. } => "Reply",
            Self::Ack { .. } => "Ack",
            Self::Confirm { .. } => "Confirm",
            Self::Local { .. } => "Local",
            Self::Then(_) => "Then",
        })
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<(u64, Out)>,
}

impl Outbox {
    /// Adds something that waits for `op`.
    pub(crate) fn push(&mut self, op: u64, out: Out) {
        debug_assert!(self.queue.back().is_none_or(|(last, _)| *last <= op));
        self.queue.push_back((op, out));
    }

    /// The next thing to do when everything up to `committed` is.
    pub(crate) fn pop(&mut self, committed: u64) -> Option<Out> {
        if self.queue.front()?.0 > committed {
            return None;
        }
        self.queue.pop_front().map(|(_, out)| out)
    }

    /// The next thing, committed or not: the journal has failed.
    pub(crate) fn pop_any(&mut self) -> Option<Out> {
        self.queue.pop_front().map(|(_, out)| out)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
