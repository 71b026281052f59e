//! What the store keeps of a consumer: its configuration, opaque, and its position.
//!
//! A consumer journals its *net* change since its last record ([`ConsumerChange`]): what was delivered and acknowledged in
//! between costs nothing but the floor. A change sets and clears keys, so that replaying a history over its own end gives
//! the same end. The store never interprets a position; whether a message is pending is the caller's business.

use std::collections::BTreeMap;

use crate::codec::{Cursor, Put};
use crate::record::SeqRange;

/// A pair of sequences: the stream's and the consumer's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Sequence in the stream.
    pub stream_seq: u64,
    /// Sequence of deliveries of this consumer.
    pub consumer_seq: u64,
}

/// One message that was delivered and not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The delivery's own sequence.
    pub consumer_seq: u64,
    /// When it was delivered last, nanoseconds since the Unix epoch.
    pub time_ns: i64,
}

/// The durable state of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumerState {
    /// The newest delivery.
    pub delivered: Position,
    /// Everything up to here is settled.
    pub floor: Position,
    /// Delivered and not settled, by stream sequence.
    pub pending: BTreeMap<u64, Pending>,
    /// How many times a message was delivered, for those delivered more than once or given up.
    pub redelivered: BTreeMap<u64, u64>,
}

/// A net change of a [`ConsumerState`]. Applied in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumerChange {
    /// Forget everything first.
    pub reset: bool,
    /// New value of `delivered`.
    pub delivered: Option<Position>,
    /// New value of `floor`.
    pub floor: Option<Position>,
    /// Keys to take out of `pending`.
    pub pending_cleared: Vec<SeqRange>,
    /// Keys to set in `pending`.
    pub pending_set: Vec<(u64, Pending)>,
    /// Keys to take out of `redelivered`.
    pub redelivered_cleared: Vec<SeqRange>,
    /// Keys to set in `redelivered`.
    pub redelivered_set: Vec<(u64, u64)>,
}

impl ConsumerState {
    /// Applies a change.
    pub fn apply(&mut self, change: &ConsumerChange) {
        if change.reset {
            *self = Self::default();
        }
        if let Some(p) = change.delivered {
            self.delivered = p;
        }
        if let Some(p) = change.floor {
            self.floor = p;
        }
        for range in &change.pending_cleared {
            clear(&mut self.pending, range);
        }
        self.pending.extend(change.pending_set.iter().copied());
        for range in &change.redelivered_cleared {
            clear(&mut self.redelivered, range);
        }
        self.redelivered.extend(change.redelivered_set.iter().copied());
    }

    /// The change that turns an empty state into this one.
    pub(crate) fn as_change(&self) -> ConsumerChange {
        ConsumerChange {
            reset: true,
            delivered: Some(self.delivered),
            floor: Some(self.floor),
            pending_set: self.pending.iter().map(|(k, v)| (*k, *v)).collect(),
            redelivered_set: self.redelivered.iter().map(|(k, v)| (*k, *v)).collect(),
            ..ConsumerChange::default()
        }
    }
}

fn clear<V>(map: &mut BTreeMap<u64, V>, range: &SeqRange) {
    if range.len() == 1 {
        map.remove(&range.first);
    } else if !range.is_empty() {
        let keys: Vec<u64> = map.range(range.first..=range.last).map(|(k, _)| *k).collect();
        for key in keys {
            map.remove(&key);
        }
    }
}

fn put_position(out: &mut Vec<u8>, p: Option<Position>) {
    out.put_u8(u8::from(p.is_some()));
    let p = p.unwrap_or_default();
    out.put_u64(p.stream_seq);
    out.put_u64(p.consumer_seq);
}

fn position(c: &mut Cursor<'_>) -> Option<Option<Position>> {
    let some = c.u8()? != 0;
    let p = Position {
        stream_seq: c.u64()?,
        consumer_seq: c.u64()?,
    };
    Some(some.then_some(p))
}

fn list<T>(c: &mut Cursor<'_>, mut one: impl FnMut(&mut Cursor<'_>) -> Option<T>) -> Option<Vec<T>> {
    let n = c.u32()?;
    (0..n).map(|_| one(c)).collect()
}

impl ConsumerChange {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(u8::from(self.reset));
        put_position(out, self.delivered);
        put_position(out, self.floor);
        for ranges in [&self.pending_cleared, &self.redelivered_cleared] {
            out.put_u32(ranges.len() as u32);
            for r in ranges {
                out.put_u64(r.first);
                out.put_u64(r.last);
            }
        }
        out.put_u32(self.pending_set.len() as u32);
        for (seq, p) in &self.pending_set {
            out.put_u64(*seq);
            out.put_u64(p.consumer_seq);
            out.put_i64(p.time_ns);
        }
        out.put_u32(self.redelivered_set.len() as u32);
        for (seq, n) in &self.redelivered_set {
            out.put_u64(*seq);
            out.put_u64(*n);
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let c = &mut Cursor::new(bytes);
        let range = |c: &mut Cursor<'_>| {
            Some(SeqRange {
                first: c.u64()?,
                last: c.u64()?,
            })
        };
        let reset = c.u8()? != 0;
        let delivered = position(c)?;
        let floor = position(c)?;
        let pending_cleared = list(c, range)?;
        let redelivered_cleared = list(c, range)?;
        let pending_set = list(c, |c| {
            Some((
                c.u64()?,
                Pending {
                    consumer_seq: c.u64()?,
                    time_ns: c.i64()?,
                },
            ))
        })?;
        let redelivered_set = list(c, |c| Some((c.u64()?, c.u64()?)))?;
        Some(Self {
            reset,
            delivered,
            floor,
            pending_cleared,
            pending_set,
            redelivered_cleared,
            redelivered_set,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> ConsumerChange {
        ConsumerChange {
            reset: false,
            delivered: Some(Position {
                stream_seq: 9,
                consumer_seq: 12,
            }),
            floor: None,
            pending_cleared: vec![SeqRange { first: 2, last: 4 }],
            pending_set: vec![(
                9,
                Pending {
                    consumer_seq: 12,
                    time_ns: -1,
                },
            )],
            redelivered_cleared: vec![SeqRange::one(3)],
            redelivered_set: vec![(9, 2)],
        }
    }

    #[test]
    fn a_change_reads_back_as_it_was_written() {
        let mut bytes = Vec::new();
        change().encode(&mut bytes);
        assert_eq!(ConsumerChange::decode(&bytes), Some(change()));
        assert_eq!(ConsumerChange::decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn applying_a_history_again_over_its_end_changes_nothing() {
        let first = ConsumerChange {
            pending_set: (1..6)
                .map(|s| {
                    (
                        s,
                        Pending {
                            consumer_seq: s,
                            time_ns: 0,
                        },
                    )
                })
                .collect(),
            ..ConsumerChange::default()
        };
        let mut state = ConsumerState::default();
        state.apply(&first);
        state.apply(&change());
        let end = state.clone();
        state.apply(&first);
        state.apply(&change());
        assert_eq!(state, end);
        assert_eq!(state.pending.keys().copied().collect::<Vec<_>>(), [1, 5, 9]);
        let mut copy = ConsumerState::default();
        copy.apply(&end.as_change());
        assert_eq!(copy, end);
    }
}
