//! What is in a stream, and what a stream is doing.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::config::{ExternalStream, StreamConfig, SubjectTransform};
use crate::jetstream::serde_util::{is_zero, null_default};
use crate::jetstream::{ApiError, Nanos, Timestamp};

/// What is in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamState {
    /// Live messages.
    pub messages: u64,
    /// Bytes of live messages: subject, headers, payload and a fixed surcharge each, whatever they take on disk.
    pub bytes: u64,
    /// Sequence of the first live message; of the next message when there is none; 0 when there never was one.
    pub first_seq: u64,
    /// Time of the first live message, or the zero time.
    pub first_ts: Timestamp,
    /// Highest sequence ever given out.
    pub last_seq: u64,
    /// Time at which it was given out, or the zero time.
    pub last_ts: Timestamp,
    /// Distinct subjects of live messages.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_subjects: u64,
    /// Live messages by subject, when asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subjects: BTreeMap<String, u64>,
    /// Sequences from first to last that are not live.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_deleted: u64,
    /// Those sequences, when asked for.
    #[serde(skip_serializing_if = "DeletedSequences::is_empty")]
    pub deleted: DeletedSequences,
    /// Messages found damaged or missing when the stream was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostMessages>,
    /// Consumers, without those that only serve mirrors and sources.
    pub consumer_count: u64,
}

/// Sequences of deleted messages, kept as ranges and written as a list of numbers.
///
/// A stream may have a hundred million of them, so they are never expanded in memory here; the text is written
/// number by number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeletedSequences(Vec<RangeInclusive<u64>>);

impl DeletedSequences {
    /// Appends a range. Ranges come in ascending order; what is empty, or begins before the end of the last one, is
    /// cut to what is new.
    pub fn push(&mut self, range: RangeInclusive<u64>) {
        let (start, end) = range.into_inner();
        match self.0.last_mut() {
            Some(last) if start <= last.end().saturating_add(1) => {
                *last = *last.start()..=end.max(*last.end());
            }
            _ if start <= end => self.0.push(start..=end),
            _ => {}
        }
    }

    /// The ranges in ascending order, with a gap between any two.
    pub fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.0
    }

    /// The sequences in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|range| range.end() - range.start() + 1).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<RangeInclusive<u64>> for DeletedSequences {
    fn from_iter<I: IntoIterator<Item = RangeInclusive<u64>>>(ranges: I) -> Self {
        let mut deleted = Self::default();
        ranges.into_iter().for_each(|range| deleted.push(range));
        deleted
    }
}

impl Serialize for DeletedSequences {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for DeletedSequences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = DeletedSequences;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of sequences")
            }

            fn visit_unit<E>(self) -> Result<DeletedSequences, E> {
                Ok(DeletedSequences::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<DeletedSequences, A::Error> {
                let mut deleted = DeletedSequences::default();
                while let Some(seq) = numbers.next_element()? {
                    deleted.push(seq..=seq);
                }
                Ok(deleted)
            }
        }
        deserializer.deserialize_any(Numbers)
    }
}

/// Messages found damaged or missing when a stream was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LostMessages {
    /// Their sequences.
    #[serde(deserialize_with = "null_default")]
    pub msgs: Vec<u64>,
    /// Their bytes, as far as known.
    pub bytes: u64,
}

/// Who leads a stream or consumer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterInfo {
    /// Name of the cluster; none on a single node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Name of the server that leads; on a single node, of the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub leader: String,
}

/// A mirror or source at work.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamSourceInfo {
    /// Name of the origin.
    pub name: String,
    /// Where the origin is, when not here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalStream>,
    /// Messages at the origin that are still to be copied.
    pub lag: u64,
    /// Last sequence of the origin that was taken; sources only.
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// Time since the last message or sign of life; −1 before the first.
    pub active: Nanos,
    /// Why nothing is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// Messages that are taken.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_subject: String,
    /// Messages that are taken, and their subjects here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subject_transforms: Vec<SubjectTransform>,
}

impl StreamSourceInfo {
    /// The value of `active` before the first contact.
    pub const NEVER_ACTIVE: Nanos = Nanos(-1);
}

/// A stream as answers show it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamInfo {
    /// Its configuration.
    pub config: StreamConfig,
    /// When it was created. Tells two streams apart that had the same name at different times.
    pub created: Timestamp,
    /// What is in it.
    pub state: StreamState,
    /// Domain of the server, if it has one; not in answers to a create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Who leads it; in answers to an info request only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// The mirror at work, if the stream is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<StreamSourceInfo>,
    /// The sources at work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<StreamSourceInfo>,
    /// When this was put together.
    pub ts: Timestamp,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn state_of_a_new_stream_shows_zeros_and_no_options() {
        assert_eq!(
            serde_json::to_string(&StreamState::default()).unwrap(),
            concat!(
                r#"{"messages":0,"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z","last_seq":0,"#,
                r#""last_ts":"0001-01-01T00:00:00Z","consumer_count":0}"#
            )
        );
    }

    #[test]
    fn deleted_sequences_join_and_are_written_one_by_one() {
        let deleted: DeletedSequences = [2..=3, 4..=4, 9..=10, 10..=12, RangeInclusive::new(20, 19)]
            .into_iter()
            .collect();
        assert_eq!(deleted.ranges(), [2..=4, 9..=12]);
        assert_eq!(deleted.len(), 7);
        let text = serde_json::to_string(&deleted).unwrap();
        assert_eq!(text, "[2,3,4,9,10,11,12]");
        assert_eq!(serde_json::from_str::<DeletedSequences>(&text).unwrap(), deleted);
        assert!(
            serde_json::from_str::<DeletedSequences>("null")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn ranges_reach_to_the_last_sequence_there_can_be() {
        let deleted: DeletedSequences = [u64::MAX - 1..=u64::MAX, 5..=u64::MAX].into_iter().collect();
        assert_eq!(deleted.ranges(), [u64::MAX - 1..=u64::MAX]);
    }

    proptest! {
        #[test]
        fn ranges_equal_the_set_of_their_numbers(mut numbers in proptest::collection::btree_set(0u64..200, 0..80)) {
            let deleted: DeletedSequences = numbers.iter().map(|seq| *seq..=*seq).collect();
            prop_assert_eq!(deleted.len(), numbers.len() as u64);
            prop_assert!(deleted.ranges().windows(2).all(|pair| pair[0].end() + 1 < *pair[1].start()));
            for seq in deleted.iter() {
                prop_assert!(numbers.remove(&seq));
            }
            prop_assert!(numbers.is_empty());
        }
    }
}
