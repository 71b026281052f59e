//! What the store keeps of a consumer: the configuration in an envelope, and the net change of its position.
//!
//! The envelope is JSON: `{"config":{…},"created":"…","initial_up_to":n}`. `config` is the configuration as it is shown,
//! without what only answers show; `created` is when it was made; `initial_up_to` is the last sequence of the stream when a
//! `last_per_subject` consumer was made, absent otherwise. Unknown members are ignored.
//!
//! A delivery that is settled before the change is taken leaves nothing but the two positions.
//!
//! Of a consumer that gives back what a vanished connection held, the number of a delivery that was handed back with a delay has
//! its highest bit set: nobody holds it, so neither the end of a connection nor a restart brings it sooner.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use windjet_protocol::jetstream::{ConsumerConfig, Timestamp};
use windjet_store::{ConsumerChange, ConsumerState, Pending, SeqRange};

use super::rare::{Empty, Rare};
use super::tracked::Entry;
use super::{Consumer, Now, Unsettled};

/// In the number of a pending delivery: it waits out a delay.
const DELAYED: u64 = 1 << 63;

/// The number of a pending delivery, and whether it waits out a delay.
pub(super) fn numbered(stored: u64) -> (u64, bool) {
    (stored & !DELAYED, stored & DELAYED != 0)
}

/// The stored configuration.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Envelope<'a> {
    pub(super) config: Cow<'a, ConsumerConfig>,
    pub(super) created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) initial_up_to: Option<u64>,
}

/// What changed since the last record.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Whether nothing is written down, because nothing of this consumer is stored.
    off: bool,
    dirty: bool,
    reset: bool,
    lists: Rare<Lists>,
}

/// Messages whose records are out of date.
#[derive(Debug, Default)]
pub(super) struct Lists {
    touched: Vec<u64>,
    cleared: Vec<u64>,
    forgotten: Vec<u64>,
}

impl Empty for Lists {
    const EMPTY: &'static Self = &Self {
        touched: Vec::new(),
        cleared: Vec::new(),
        forgotten: Vec::new(),
    };

    fn is_spent(&self) -> bool {
        self.touched.is_empty() && self.cleared.is_empty() && self.forgotten.is_empty()
    }
}

impl Log {
    pub(super) fn new(stored: bool) -> Self {
        Self {
            off: !stored,
            ..Self::default()
        }
    }

    /// The positions changed.
    pub(super) fn mark(&mut self) {
        self.dirty = !self.off;
    }

    /// A message was delivered, again or for the first time, or has another deadline.
    pub(super) fn touch(&mut self, seq: u64) {
        self.add(|lists| &mut lists.touched, seq);
    }

    /// A message that the store knows as pending is settled.
    pub(super) fn clear(&mut self, seq: u64) {
        self.add(|lists| &mut lists.cleared, seq);
    }

    /// The number of deliveries that the store knows is out of date.
    pub(super) fn forget(&mut self, seq: u64) {
        self.add(|lists| &mut lists.forgotten, seq);
    }

    fn add(&mut self, list: impl Fn(&mut Lists) -> &mut Vec<u64>, seq: u64) {
        if self.off {
            return;
        }
        self.dirty = true;
        let list = list(&mut self.lists);
        if list.last() != Some(&seq) {
            list.push(seq);
        }
    }

    /// Everything before is forgotten.
    pub(super) fn reset(&mut self) {
        if !self.off {
            *self = Self {
                dirty: true,
                reset: true,
                ..Self::default()
            };
        }
    }
}

fn ranges(mut seqs: Vec<u64>) -> Vec<SeqRange> {
    seqs.sort_unstable();
    let mut out: Vec<SeqRange> = Vec::new();
    for seq in seqs {
        match out.last_mut() {
            Some(range) if seq <= range.last + 1 => range.last = seq,
            _ => out.push(SeqRange::one(seq)),
        }
    }
    out
}

/// What the store keeps as the configuration of a consumer that comes from elsewhere.
pub(crate) fn stored(config: &ConsumerConfig, created: Timestamp) -> Vec<u8> {
    let envelope = Envelope {
        config: Cow::Borrowed(config),
        created,
        initial_up_to: None,
    };
    // As below.
    serde_json::to_vec(&envelope).unwrap_or_default()
}

impl Consumer {
    /// Everything that the store would keep of its position, whether it is stored or not.
    pub(crate) fn state(&self, now: Now) -> ConsumerState {
        let pending = self.tracked.seqs(0, u64::MAX).into_iter().filter_map(|seq| {
            let entry = self.tracked.get(seq)?;
            Some((seq, self.pending(seq, entry, now)))
        });
        let counted = self.tracked.counted(0, u64::MAX).into_iter();
        ConsumerState {
            delivered: self.delivered,
            floor: self.floor,
            pending: pending.collect(),
            redelivered: counted.map(|seq| (seq, self.tracked.deliveries(seq))).collect(),
        }
    }

    /// Which messages are not settled.
    pub(crate) fn unsettled(&self) -> Unsettled {
        Unsettled {
            floor: self.floor.stream_seq,
            delivered: self.delivered.stream_seq,
            pending: self.tracked.seqs(0, u64::MAX),
        }
    }

    fn pending(&self, seq: u64, entry: Entry, now: Now) -> Pending {
        let sent = entry.due.saturating_sub(self.wait(self.tracked.deliveries(seq)));
        Pending {
            consumer_seq: entry.dseq(),
            time_ns: now.wall.saturating_add(sent.saturating_sub(now.nanos())),
        }
    }

    /// What the store keeps as the consumer's configuration.
    pub(crate) fn stored_config(&self) -> Vec<u8> {
        let envelope = Envelope {
            config: Cow::Borrowed(&*self.config),
            created: self.created,
            initial_up_to: self.initial_up_to,
        };
        // Serialising fails only for maps whose keys are no strings, which a configuration has not.
        serde_json::to_vec(&envelope).unwrap_or_default()
    }

    /// Whether there is a change to take.
    pub(crate) fn is_dirty(&self) -> bool {
        self.log.dirty
    }

    /// About how many bytes the change has by now.
    pub(crate) fn change_size(&self) -> usize {
        let lists = &self.log.lists;
        lists.touched.len() * 24 + (lists.cleared.len() + lists.forgotten.len()) * 16
    }

    /// The net change since the last one, if there is any. The caller stages it.
    pub(crate) fn take_change(&mut self, now: Now) -> Option<ConsumerChange> {
        if !self.log.dirty {
            return None;
        }
        let Log { reset, mut lists, .. } = std::mem::take(&mut self.log);
        let Lists {
            mut touched,
            cleared,
            forgotten,
        } = if lists.is_spent() {
            Lists::default()
        } else {
            std::mem::take(&mut *lists)
        };
        touched.sort_unstable();
        touched.dedup();
        let mut change = ConsumerChange {
            reset,
            delivered: Some(self.delivered),
            floor: Some(self.floor),
            pending_cleared: ranges(cleared),
            redelivered_cleared: ranges(forgotten),
            ..ConsumerChange::default()
        };
        for seq in touched {
            let pending = self.tracked.get(seq).map(|entry| {
                let mut pending = self.pending(seq, entry, now);
                if self.holders.is_some() && entry.delayed() {
                    pending.consumer_seq |= DELAYED;
                }
                pending
            });
            let (entry, count) = self.tracked.visit(seq);
            if let (Some(entry), Some(pending)) = (entry, pending) {
                entry.set_stored();
                change.pending_set.push((seq, pending));
            }
            if let Some(count) = count {
                count.stored = true;
                change.redelivered_set.push((seq, count.deliveries));
            }
        }
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let range = |first, last| SeqRange { first, last };
        assert_eq!(ranges(vec![5, 3, 4, 9, 4]), [range(3, 5), range(9, 9)]);
        assert_eq!(ranges(Vec::new()), []);
    }

    #[test]
    fn a_consumer_that_is_not_stored_writes_nothing_down() {
        let mut log = Log::new(false);
        log.touch(1);
        log.mark();
        log.reset();
        assert!(!log.dirty && log.lists.is_spent());
    }
}
