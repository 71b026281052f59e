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
    /// Publishes of this process in a row are stored, each by one operation.
    Stored {
        /// Whose.
        source: Arc<Source>,
        /// The sequence of the first.
        seq: u64,
        /// How many.
        count: u64,
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
            Self::Stored { .. } => "Stored",
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

    /// Adds that a publish of this process is stored by `op`.
    pub(crate) fn stored(&mut self, op: u64, seq: u64, source: &Arc<Source>) {
        if let Some((
            first,
            Out::Stored {
                source: known,
                seq: start,
                count,
            },
        )) = self.queue.back_mut()
            && *first + *count == op
            && *start + *count == seq
            && Arc::ptr_eq(known, source)
        {
            *count += 1;
            return;
        }
        let (source, count) = (source.clone(), 1);
        self.push(op, Out::Stored { source, seq, count });
    }

    /// The next thing to do when everything up to `committed` is.
    pub(crate) fn pop(&mut self, committed: u64) -> Option<Out> {
        let (op, out) = self.queue.front_mut()?;
        let ready = (committed + 1).checked_sub(*op).filter(|ready| *ready > 0)?;
        if let Out::Stored { source, seq, count } = out
            && ready < *count
        {
            let part = Out::Stored {
                source: source.clone(),
                seq: *seq,
                count: ready,
            };
            *op += ready;
            *seq += ready;
            *count -= ready;
            return Some(part);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(out: Option<Out>) -> (u64, u64) {
        match out {
            Some(Out::Stored { seq, count, .. }) => (seq, count),
            out => panic!("{out:?}"),
        }
    }

    #[test]
    fn publishes_in_a_row_are_one_entry_that_leaves_as_far_as_it_is_committed() {
        let mut outbox = Outbox::default();
        let (one, other) = (Arc::<Source>::default(), Arc::<Source>::default());
        for n in 1..=5 {
            outbox.stored(n, n + 10, &one);
        }
        outbox.push(5, Out::Confirm { reply: Bytes::new() });
        outbox.stored(6, 16, &one);
        outbox.stored(7, 17, &other);
        // Something else was staged between.
        outbox.stored(9, 18, &other);
        assert!(outbox.pop(0).is_none());
        assert_eq!(run(outbox.pop(2)), (11, 2));
        assert!(outbox.pop(2).is_none());
        assert_eq!(run(outbox.pop(8)), (13, 3));
        assert!(matches!(outbox.pop(8), Some(Out::Confirm { .. })));
        assert_eq!(run(outbox.pop(8)), (16, 1));
        assert_eq!(run(outbox.pop(8)), (17, 1));
        assert!(outbox.pop(8).is_none());
        assert_eq!(run(outbox.pop_any()), (18, 1));
        assert!(outbox.is_empty());
    }
}
