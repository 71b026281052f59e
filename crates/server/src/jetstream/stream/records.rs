//! Storing what consumers know: their records, and what an interest stream need not keep.
//!
//! A consumer gives a change away once. When the store has no room for it at that moment, the change is held and staged
//! before any later one: an answer to an ack that rests on it is not sent before.

use windjet_protocol::jetstream::RetentionPolicy;
use windjet_store::{ConsumerChange, Op, SeqRange, StageError};

use super::consumers::STORE_WITHIN;
use super::outbox::Out;
use super::task::{Feed, Task};
use crate::jetstream::consumer::Now;
use crate::jetstream::fault::{Fault, planted};

/// What one consumer stores at once.
#[derive(Debug)]
pub(super) struct Record {
    change: Option<ConsumerChange>,
    /// Sequences that it needs no more.
    settled: Vec<SeqRange>,
}

/// A record that could not be staged, if there is one.
#[derive(Debug, Default)]
pub(super) struct Held(Option<Box<Record>>);

impl Held {
    /// The held record, or else a new one.
    fn take_or(&mut self, fresh: impl FnOnce() -> Option<Record>) -> Option<Record> {
        self.0.take().map(|held| *held).or_else(fresh)
    }

    /// A record was not staged: it is kept where that may change.
    fn keep(&mut self, record: Record, error: StageError) {
        if error.is_retryable() {
            self.0 = Some(Box::new(record));
        }
    }

    /// What the held record says is needed no more.
    pub(super) fn into_settled(self) -> Vec<SeqRange> {
        self.0.map(|held| held.settled).unwrap_or_default()
    }
}

impl Task {
    /// Stages what consumers must store, where that is due or a client waits for it.
    pub(super) fn store_consumers(&mut self, now: Now) {
        let due = self.consumers.store_at.is_some_and(|due| due <= now.mono);
        if !due && self.consumers.confirms.is_empty() {
            return;
        }
        let numbers: Vec<u32> = self.consumers.dirty.iter().copied().collect();
        let (mut left, mut lost) = (false, false);
        for number in numbers {
            match self.store_consumer(number, now) {
                Ok(()) => {
                    self.consumers.dirty.remove(&number);
                }
                Err(error) => {
                    left = true;
                    if !error.is_retryable() {
                        lost = true;
                        tracing::debug!(stream = %self.stream.name, "a consumer's position is not stored: {error}");
                        self.consumers.dirty.remove(&number);
                    }
                }
            }
        }
        self.consumers.store_at = (!self.consumers.dirty.is_empty()).then_some(now.mono + STORE_WITHIN / 10);
        if left && !self.consumers.dirty.is_empty() {
            return;
        }
        let confirms = std::mem::take(&mut self.consumers.confirms);
        if lost {
            // Nothing is stored any more: an ack that is not durable is not confirmed.
            for reply in confirms {
                self.consumers.unconfirmed(&reply);
            }
            return;
        }
        let op = self.writer.staged_op();
        let op = if planted(Fault::ConfirmedBeforeDurable) {
            0
        } else {
            op
        };
        for reply in confirms {
            self.outbox.push(op, Out::Confirm { reply });
        }
    }

    /// Stages what one consumer must store: first what the store had no room for.
    fn store_consumer(&mut self, number: u32, now: Now) -> Result<(), StageError> {
        let Some(slot) = self.consumers.slots.get_mut(&number) else {
            return Ok(());
        };
        let mut held = std::mem::take(&mut slot.held);
        let name = slot.consumer.name().to_owned();
        let result = loop {
            let Some(slot) = self.consumers.slots.get_mut(&number) else {
                return Ok(());
            };
            let record = held.take_or(|| {
                let settled = std::mem::take(&mut slot.settled);
                let change = slot.consumer.take_change(now);
                (change.is_some() || !settled.is_empty()).then_some(Record { change, settled })
            });
            let Some(record) = record else { break Ok(()) };
            if let Err(error) = self.stage_record(&name, &record) {
                held.keep(record, error);
                break Err(error);
            }
        };
        if let Some(slot) = self.consumers.slots.get_mut(&number) {
            slot.held = held;
        }
        result
    }

    fn stage_record(&mut self, name: &str, record: &Record) -> Result<(), StageError> {
        let remove = match self.config.retention {
            RetentionPolicy::Limits => Vec::new(),
            RetentionPolicy::WorkQueue => record.settled.clone(),
            RetentionPolicy::Interest => self.unneeded(&record.settled),
        };
        let ticket = match &record.change {
            Some(change) => self.writer.stage(Op::ConsumerChange {
                name,
                change,
                remove: &remove,
            })?,
            None if !remove.is_empty() => self.writer.stage(Op::Remove(&remove))?,
            None => return Ok(()),
        };
        for range in remove {
            self.feed.push_back((ticket.op, Feed::Removed(range)));
        }
        Ok(())
    }

    /// What of `ranges` no consumer needs, as ranges: on an interest stream.
    pub(super) fn unneeded(&self, ranges: &[SeqRange]) -> Vec<SeqRange> {
        let mut out: Vec<SeqRange> = Vec::new();
        for range in ranges {
            let mut at = range.first;
            while let Some(seq) = self.writer.next_live(at).filter(|seq| *seq <= range.last) {
                at = seq + 1;
                let Some(subject) = self.stream.reader.subject_of(seq) else {
                    continue;
                };
                let needed = self
                    .consumers
                    .slots
                    .values()
                    .any(|slot| slot.consumer.filters_match(&subject) && slot.consumer.needs(seq));
                if needed {
                    continue;
                }
                match out.last_mut() {
                    Some(last) if last.last + 1 == seq => last.last = seq,
                    _ => out.push(SeqRange {
                        first: seq,
                        last: seq,
                    }),
                }
            }
        }
        out
    }

    /// Removes from an interest stream what nobody needs, all over.
    pub(super) fn remove_unneeded(&mut self) {
        if self.config.retention != RetentionPolicy::Interest {
            return;
        }
        let state = self.stream.reader.state();
        let all = SeqRange {
            first: state.first_seq,
            last: state.last_seq,
        };
        let gone = self.unneeded(&[all]);
        if gone.is_empty() {
            return;
        }
        match self.writer.stage(Op::Remove(&gone)) {
            Ok(ticket) => {
                for range in gone {
                    self.feed.push_back((ticket.op, Feed::Removed(range)));
                }
            }
            Err(error) => self.upkeep.retry_unneeded(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windjet_store::Position;

    fn record(stream_seq: u64) -> Record {
        let delivered = Some(Position {
            stream_seq,
            ..Position::default()
        });
        let change = ConsumerChange {
            delivered,
            ..ConsumerChange::default()
        };
        Record {
            change: Some(change),
            settled: vec![SeqRange {
                first: stream_seq,
                last: stream_seq,
            }],
        }
    }

    fn first(record: Option<Record>) -> Option<u64> {
        record.and_then(|record| record.settled.first().map(|range| range.first))
    }

    #[test]
    fn a_record_without_room_is_staged_before_any_later_one() {
        let mut held = Held::default();
        let taken = held.take_or(|| Some(record(1))).unwrap();
        held.keep(taken, StageError::Busy);
        assert_eq!(first(held.take_or(|| Some(record(2)))), Some(1));
        assert_eq!(first(held.take_or(|| Some(record(2)))), Some(2));
        held.keep(record(3), StageError::DiskFull);
        assert_eq!(held.into_settled().len(), 1);
    }

    #[test]
    fn a_record_of_a_store_that_failed_is_given_up() {
        let mut held = Held::default();
        held.keep(record(1), StageError::Failed);
        assert!(held.take_or(|| None).is_none());
    }
}
