//! Snapshots and restores of streams: `STREAM.SNAPSHOT` and `STREAM.RESTORE`.
//!
//! * [`snapshot`]: what a stream holds goes out in chunks, as fast as their receiver answers them.
//! * [`upload`]: chunks of a restore that wait; [`build`]: the stream that is made of them; [`restore`]: the task between.
//!
//! What holds:
//!
//! * A snapshot is of the stream as it was committed when the request was answered: messages up to the last sequence in that
//!   answer, consumers as they were. Messages that go while it runs are left out; nothing waits for it.
//! * A stream that is being restored has its name and its subjects from the moment its state is read, and is there for
//!   everybody at once when all of it is durable. A restore that fails, or that the server does not survive, leaves nothing:
//!   unfinished streams are marked in the store and removed when it is opened.
//! * What comes in is bounded: in the queue, in one block, in one entry. Input decides about lengths nowhere.
//!
//! The format is `windjet_protocol::jetstream::backup`; `docs/backup.md` has every byte.

mod build;
mod restore;
mod snapshot;
mod upload;

use windjet_protocol::jetstream::backup::{ConsumerPositions, PendingDelivery};
use windjet_protocol::jetstream::{ConsumerConfig, DeliverPolicy, SequenceInfo};
use windjet_store::{ConsumerState, Pending, Position};

pub(super) use restore::begin as begin_restore;
pub(crate) use restore::{Restored, tell};
pub(crate) use snapshot::Snapshot;

/// Snapshots and restores that run on a server at the same time.
pub(super) const RUNNING_MAX: usize = 64;

/// A consumer's state as a backup up to `last` has it.
pub(crate) fn positions(state: &ConsumerState, last: u64) -> ConsumerPositions {
    let at = |p: Position| SequenceInfo {
        stream_seq: p.stream_seq.min(last),
        consumer_seq: p.consumer_seq,
        last_active: None,
    };
    let pending = state.pending.range(..=last).map(|(seq, p)| {
        let delivery = PendingDelivery {
            sequence: p.consumer_seq,
            timestamp: p.time_ns,
        };
        (*seq, delivery)
    });
    // The store counts deliveries, a backup those after the first.
    let redelivered = state.redelivered.range(..=last);
    ConsumerPositions {
        delivered: at(state.delivered),
        ack_floor: at(state.floor),
        pending: pending.collect(),
        redelivered: redelivered.map(|(seq, n)| (*seq, n.saturating_sub(1))).collect(),
    }
}

/// The state that a consumer with this configuration goes on from.
fn state(positions: &ConsumerPositions, config: &ConsumerConfig) -> ConsumerState {
    let at = |info: &SequenceInfo| Position {
        stream_seq: info.stream_seq,
        consumer_seq: info.consumer_seq,
    };
    let (mut delivered, mut floor) = (at(&positions.delivered), at(&positions.ack_floor));
    // It was told to begin behind the end of the stream, which a backup does not say in its positions.
    let start = config.opt_start_seq.saturating_sub(1);
    if config.deliver_policy == DeliverPolicy::ByStartSequence && delivered.consumer_seq == 0 {
        delivered.stream_seq = delivered.stream_seq.max(start);
        floor.stream_seq = floor.stream_seq.max(start);
    }
    let pending = positions.pending.iter().map(|(seq, p)| {
        let pending = Pending {
            consumer_seq: p.sequence,
            time_ns: p.timestamp,
        };
        (*seq, pending)
    });
    let redelivered = positions.redelivered.iter();
    ConsumerState {
        delivered,
        floor,
        pending: pending.collect(),
        redelivered: redelivered.map(|(seq, n)| (*seq, n.saturating_add(1))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_there_and_back() {
        let before = ConsumerState {
            delivered: Position {
                stream_seq: 9,
                consumer_seq: 12,
            },
            floor: Position {
                stream_seq: 3,
                consumer_seq: 4,
            },
            pending: [(
                5,
                Pending {
                    consumer_seq: 6,
                    time_ns: 7,
                },
            )]
            .into(),
            redelivered: [(5, 2), (6, 1)].into(),
        };
        let written = positions(&before, 20);
        assert_eq!(written.redelivered, [(5, 1), (6, 0)].into());
        assert_eq!(state(&written, &ConsumerConfig::default()), before);
        let cut = positions(&before, 4);
        assert_eq!((cut.delivered.stream_seq, cut.delivered.consumer_seq), (4, 12));
        assert!(cut.pending.is_empty() && cut.redelivered.is_empty());
    }

    #[test]
    fn a_start_behind_the_end_of_the_stream_is_kept() {
        let config = ConsumerConfig {
            deliver_policy: DeliverPolicy::ByStartSequence,
            opt_start_seq: 500,
            ..ConsumerConfig::default()
        };
        let state = state(&ConsumerPositions::default(), &config);
        assert_eq!((state.delivered.stream_seq, state.floor.stream_seq), (499, 499));
    }
}
