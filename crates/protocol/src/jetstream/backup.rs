//! Backups of streams: what travels in the chunks of a snapshot and of a restore.
//!
//! [`s2`] is the compression around it, [`archive`] the entries in it, and the bodies of the entries that are no messages
//! are here. `docs/backup.md` has every byte. All of it is pure, and total over hostile input: what is read is bounded by
//! what its reader asks for, never by what the input says.

pub mod archive;
pub mod s2;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ConsumerConfig;
use super::consumer::info::SequenceInfo;

/// Name of the first entry: the state of the stream.
pub const STATE_ENTRY: &str = "state.json";

/// What the name of a consumer's entry begins with.
pub const CONSUMER_ENTRY: &str = "consumers/";

/// What the first entry says of the stream; other members of its JSON are for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct BackupState {
    /// Messages, when the backup was begun.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first sequence.
    pub first_seq: u64,
    /// The last sequence ever given out.
    pub last_seq: u64,
    /// Entries of consumers that follow.
    pub consumer_count: i64,
}

/// Why a state cannot be that of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidState {
    /// Fewer than no consumers.
    #[error("negative consumer count")]
    NegativeConsumers,
    /// The first sequence is behind the last one.
    #[error("inconsistent message count or sequence range")]
    Range,
    /// More messages than sequences.
    #[error("message count exceeds sequence range")]
    Messages,
}

impl BackupState {
    /// The highest sequence that a backup may have: there must be room for those to come.
    pub const LAST_SEQ_MAX: u64 = i64::MAX.unsigned_abs();

    /// Whether counts and sequences go together.
    ///
    /// # Errors
    ///
    /// When they do not.
    pub fn check(&self) -> Result<(), InvalidState> {
        if self.consumer_count < 0 {
            return Err(InvalidState::NegativeConsumers);
        }
        if self.last_seq > Self::LAST_SEQ_MAX {
            return Err(InvalidState::Range);
        }
        let first = self.first_seq.max(1);
        if first > self.last_seq {
            let empty = self.messages == 0 && first == self.last_seq + 1;
            return if empty { Ok(()) } else { Err(InvalidState::Range) };
        }
        if self.messages > self.last_seq - first + 1 {
            return Err(InvalidState::Messages);
        }
        Ok(())
    }
}

/// The entry of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerBackup {
    /// Its configuration, without what only answers show.
    pub config: Option<ConsumerConfig>,
    /// Where it stands.
    pub state: Option<ConsumerPositions>,
}

/// Where a consumer stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerPositions {
    /// The newest delivery.
    pub delivered: SequenceInfo,
    /// Everything up to here is settled.
    pub ack_floor: SequenceInfo,
    /// Delivered and not settled, by stream sequence.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pending: BTreeMap<u64, PendingDelivery>,
    /// How many times a message was delivered again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub redelivered: BTreeMap<u64, u64>,
}

/// A delivery that is not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingDelivery {
    /// Number of the delivery.
    #[serde(rename = "Sequence", alias = "sequence")]
    pub sequence: u64,
    /// When, nanoseconds since the Unix epoch. nats-server has the time of the message here.
    #[serde(rename = "Timestamp", alias = "timestamp")]
    pub timestamp: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_contradict_themselves_are_refused() {
        let state = |messages, first_seq, last_seq| BackupState {
            messages,
            first_seq,
            last_seq,
            ..BackupState::default()
        };
        for good in [
            state(0, 0, 0),
            state(0, 1, 0),
            state(0, 10, 9),
            state(0, 5, 9),
            state(5, 5, 9),
            state(2, 0, 2),
        ] {
            assert_eq!(good.check(), Ok(()), "{good:?}");
        }
        assert_eq!(state(1, 20, 9).check(), Err(InvalidState::Range));
        assert_eq!(state(0, 20, 9).check(), Err(InvalidState::Range));
        assert_eq!(state(0, u64::MAX, u64::MAX - 1).check(), Err(InvalidState::Range));
        assert_eq!(state(6, 5, 9).check(), Err(InvalidState::Messages));
        assert_eq!(state(3, 0, 2).check(), Err(InvalidState::Messages));
        let negative = BackupState {
            consumer_count: -1,
            ..state(0, 1, 0)
        };
        assert_eq!(negative.check(), Err(InvalidState::NegativeConsumers));
    }

    #[test]
    fn a_consumer_is_written_as_nats_server_reads_it() {
        let text = concat!(
            r#"{"config":{"name":"C","deliver_policy":"all","ack_policy":"explicit","replay_policy":"instant","num_replicas":0},"#,
            r#""state":{"delivered":{"consumer_seq":11,"stream_seq":15},"ack_floor":{"consumer_seq":0,"stream_seq":2},"#,
            r#""pending":{"3":{"Sequence":1,"Timestamp":1796227734585845451}},"redelivered":{"3":1}}}"#
        );
        let read: ConsumerBackup = serde_json::from_str(text).unwrap();
        let state = read.state.clone().unwrap();
        assert_eq!(
            (state.delivered.stream_seq, state.delivered.consumer_seq),
            (15, 11)
        );
        assert_eq!(state.pending[&3].sequence, 1);
        assert_eq!(state.redelivered[&3], 1);
        let again: ConsumerBackup = serde_json::from_slice(&serde_json::to_vec(&read).unwrap()).unwrap();
        assert_eq!(again, read);
        assert_eq!(
            serde_json::to_value(&read).unwrap()["state"]["pending"]["3"]["Sequence"],
            1
        );
    }
}
