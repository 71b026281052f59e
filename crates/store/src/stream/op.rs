//! The operations that a stream's owner stages.

use crate::consumer::ConsumerChange;
use crate::options::StreamOptions;
use crate::record::SeqRange;

/// A message to store, with everything that happens in the same step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Append<'a> {
    /// The subject; not empty, below 64 KiB.
    pub subject: &'a [u8],
    /// The headers as they will be returned, empty for none.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
    /// The time to store, for messages that have one already; otherwise the clock's. Never lower than the stream's last.
    pub time: Option<i64>,
    /// The dedup id, remembered for the stream's window.
    pub id: Option<&'a [u8]>,
    /// Messages that go in the same step: evictions, a marker's original. Sequences without a live message are allowed.
    pub remove: &'a [SeqRange],
    /// A purge in the same step, of messages below the new one: a rollup.
    pub purge: Option<Purge<'a>>,
}

/// Which messages a purge removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Purge<'a> {
    /// Only those that match; empty means all.
    pub filter: &'a [u8],
    /// Only those with a lower sequence.
    pub below: u64,
}

/// One change of a stream, whole or absent after a crash.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Op<'a> {
    /// Stores a message.
    Append(Append<'a>),
    /// Uses up a sequence and remembers a dedup id without storing a message.
    Skip {
        /// The dedup id.
        id: Option<&'a [u8]>,
    },
    /// Continues at a higher sequence; those in between count as deleted. The newest message's time stays.
    SkipTo {
        /// The last sequence to use up.
        seq: u64,
    },
    /// Removes messages.
    Remove(&'a [SeqRange]),
    /// Removes messages and overwrites their bytes, wherever they stand in the store, before the operation counts as
    /// committed; operations behind it wait with it. Subject, headers and payload go. The first one after an opening takes
    /// the longest, since what the journal's old parts hold is then not known and all of them are overwritten. A memory
    /// stream only lets go of the memory.
    Erase(&'a [SeqRange]),
    /// Removes matching messages. Nothing else can be staged until it is committed.
    Purge(Purge<'a>),
    /// Records that messages cannot be read any more: they count as deleted and lost.
    Lost(&'a [SeqRange]),
    /// Changes the settings. Name, storage and first sequence stay.
    Update(&'a StreamOptions),
    /// Ends the stream.
    Delete,
    /// Makes a consumer or gives it a new configuration.
    ConsumerPut {
        /// Its name.
        name: &'a str,
        /// Its configuration, not looked into.
        config: &'a [u8],
    },
    /// Removes a consumer.
    ConsumerDelete {
        /// Its name.
        name: &'a str,
    },
    /// Changes a consumer's position, and removes messages in the same step.
    ConsumerChange {
        /// Its name.
        name: &'a str,
        /// The net change.
        change: &'a ConsumerChange,
        /// Messages that go with it, on a work queue or an interest stream.
        remove: &'a [SeqRange],
    },
}

/// A staged operation. It is durable, by the stream's durability, when [`crate::StreamWriter::commit`] answers a number
/// that is not lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// Number of the operation; consecutive per stream while the store is open.
    pub op: u64,
    /// The stream's last sequence with the operation: the message's own for an append.
    pub seq: u64,
    /// The stream's last time with the operation: the message's own for an append.
    pub time: i64,
}
