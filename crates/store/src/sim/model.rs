//! What a stream should be: plain maps, and operations that change them.

use std::collections::BTreeMap;

use crate::consumer::{ConsumerChange, ConsumerState};
use crate::index::filter_matches;
use crate::record::SeqRange;

/// A message of the model.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) time: i64,
    pub(super) subject: Vec<u8>,
    pub(super) headers: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} B",
            String::from_utf8_lossy(&self.subject),
            self.payload.len()
        )
    }
}

/// A stream of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    pub(super) exists: bool,
    pub(super) deleted: bool,
    pub(super) config: Vec<u8>,
    pub(super) last_seq: u64,
    pub(super) last_time: i64,
    pub(super) messages: BTreeMap<u64, Stored>,
    pub(super) ids: BTreeMap<Vec<u8>, (u64, i64)>,
    pub(super) consumers: BTreeMap<String, (Vec<u8>, ConsumerState)>,
}

/// An operation with what the store answered to it.
#[derive(Debug, Clone)]
pub(super) enum Done {
    Create {
        config: Vec<u8>,
    },
    Append {
        seq: u64,
        stored: Stored,
        id: Option<Vec<u8>>,
        remove: Vec<SeqRange>,
        purge: Option<(Vec<u8>, u64)>,
    },
    Group(Vec<Done>),
    Skip {
        seq: u64,
        time: i64,
        id: Option<Vec<u8>>,
    },
    Remove(Vec<SeqRange>),
    /// Removal and, when it is acknowledged, no byte left; with the ends of the payloads.
    Erase {
        ranges: Vec<SeqRange>,
        marks: Vec<Vec<u8>>,
    },
    Purge {
        filter: Vec<u8>,
        below: u64,
    },
    Update {
        config: Vec<u8>,
    },
    Delete,
    ConsumerPut {
        name: String,
        config: Vec<u8>,
    },
    ConsumerDelete {
        name: String,
    },
    ConsumerChange {
        name: String,
        change: ConsumerChange,
        remove: Vec<SeqRange>,
    },
}

impl State {
    pub(super) fn apply(&mut self, op: &Done) {
        match op {
            Done::Create { config } => {
                self.exists = true;
                self.config.clone_from(config);
            }
            Done::Append {
                seq,
                stored,
                id,
                remove,
                purge,
            } => {
                self.advance(*seq, stored.time);
                self.messages.insert(*seq, stored.clone());
                if let Some(id) = id {
                    self.ids.insert(id.clone(), (*seq, stored.time));
                }
                self.remove(remove);
                if let Some((filter, below)) = purge {
                    self.purge(filter, *below);
                }
            }
            Done::Group(all) => all.iter().for_each(|op| self.apply(op)),
            Done::Skip { seq, time, id } => {
                self.advance(*seq, *time);
                if let Some(id) = id {
                    self.ids.insert(id.clone(), (*seq, *time));
                }
            }
            Done::Remove(ranges) | Done::Erase { ranges, .. } => self.remove(ranges),
            Done::Purge { filter, below } => self.purge(filter, *below),
            Done::Update { config } => self.config.clone_from(config),
            Done::Delete => self.deleted = true,
            Done::ConsumerPut { name, config } => {
                self.consumers
                    .entry(name.clone())
                    .or_default()
                    .0
                    .clone_from(config);
            }
            Done::ConsumerDelete { name } => {
                self.consumers.remove(name);
            }
            Done::ConsumerChange { name, change, remove } => {
                if let Some((_, state)) = self.consumers.get_mut(name) {
                    state.apply(change);
                }
                self.remove(remove);
            }
        }
    }

    fn advance(&mut self, seq: u64, time: i64) {
        self.last_seq = seq;
        self.last_time = time;
    }

    fn remove(&mut self, ranges: &[SeqRange]) {
        for range in ranges {
            self.messages.retain(|seq, _| !range.contains(*seq));
        }
    }

    fn purge(&mut self, filter: &[u8], below: u64) {
        self.messages
            .retain(|seq, m| *seq >= below || !(filter.is_empty() || filter_matches(filter, &m.subject)));
    }
}

/// One incarnation of a stream, from its creation until the store no longer knows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Life {
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) weak: bool,
    /// The state that is certain, and the operations after it with their numbers.
    pub(super) base: State,
    pub(super) ops: Vec<(u64, Done)>,
    /// The newest state, everything issued included.
    pub(super) newest: State,
    /// Every operation up to this number was acknowledged.
    pub(super) acked: u64,
    /// The highest sequence acknowledged.
    pub(super) acked_seq: u64,
    /// Payload ends of messages whose erasure was acknowledged.
    pub(super) erased: Vec<Vec<u8>>,
    /// Duplicate answers that were given: id and sequence.
    pub(super) asserted: Vec<(Vec<u8>, u64)>,
}

impl Life {
    pub(super) fn push(&mut self, op: u64, done: Done) {
        self.newest.apply(&done);
        self.ops.push((op, done));
    }

    /// The state of what was acknowledged.
    pub(super) fn committed(&self) -> State {
        self.state_at(self.acked)
    }

    /// The state with operations up to `op`, which is not below what was acknowledged.
    pub(super) fn state_at(&self, last: u64) -> State {
        let mut state = self.base.clone();
        self.ops
            .iter()
            .take_while(|(op, _)| *op <= last)
            .for_each(|(_, op)| state.apply(op));
        state
    }

    /// Notes what was acknowledged. It becomes the base, unless a power cut may take it back.
    pub(super) fn settle(&mut self, acked: u64) {
        for (op, done) in &self.ops {
            if let Done::Erase { marks, .. } = done
                && (self.acked + 1..=acked).contains(op)
            {
                self.erased.extend_from_slice(marks);
            }
        }
        self.acked = acked;
        if self.weak {
            self.acked_seq = self.acked_seq.max(self.committed().last_seq);
            return;
        }
        let n = self.ops.partition_point(|(op, _)| *op <= acked);
        for (_, op) in self.ops.drain(..n) {
            self.base.apply(&op);
        }
        self.acked_seq = self.acked_seq.max(self.base.last_seq);
    }
}
