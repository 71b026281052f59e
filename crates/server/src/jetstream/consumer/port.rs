//! What a consumer asks of the outside.

use windjet_protocol::jetstream::Timestamp;
use windjet_store::Message;

/// A moment: monotonic for waits, wall clock for what is stored and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    /// Nanoseconds of a clock that never jumps, from any origin.
    pub(crate) mono: u64,
    /// Nanoseconds since the Unix epoch.
    pub(crate) wall: i64,
}

impl Now {
    /// The monotonic clock, for waits that began before its origin.
    pub(super) fn nanos(self) -> i64 {
        i64::try_from(self.mono).unwrap_or(i64::MAX)
    }

    /// The wall clock, for what is shown.
    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_unix_nanos(self.wall)
    }
}

/// A message on its way to a client.
#[derive(Debug)]
pub(crate) struct Delivery<'a> {
    /// Where it is routed: the pull request's reply, or the deliver subject.
    pub(crate) to: &'a [u8],
    /// What the client sees as its subject.
    pub(crate) subject: &'a bytes::Bytes,
    /// Where the ack goes; `None` without acks is not used: ordered consumers read their position from it.
    pub(crate) ack: &'a [u8],
    /// Header block, empty for none.
    pub(crate) headers: &'a bytes::Bytes,
    /// Payload; shared with the store.
    pub(crate) payload: &'a bytes::Bytes,
    /// What the ack's subject says, in numbers.
    pub(crate) place: Place,
}

/// Which message it is, and which of its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Sequence in the stream.
    pub(crate) stream_seq: u64,
    /// Number of the delivery.
    pub(crate) consumer_seq: u64,
    /// How often the message was delivered, this time included.
    pub(crate) delivered: u64,
    /// When it was stored, in nanoseconds since 1970.
    pub(crate) time: i64,
    /// Messages still to come.
    pub(crate) pending: u64,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// Somebody has it.
    Taken,
    /// Nobody is there any more.
    NoInterest,
    /// The receiver's buffer is full: nothing was sent; try again when told.
    Full,
}

/// A stored message, or why it is not here.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// Here it is.
    Message(Message),
    /// It is gone.
    Absent,
    /// It is being read from the disk; the consumer is called again when it is there.
    Later,
}

/// The outside of a consumer. All calls return at once.
pub(crate) trait Port {
    /// Sends a message.
    fn deliver(&mut self, delivery: &Delivery<'_>) -> Delivered;
    /// Sends a status or flow control message: a header block without payload. Not lost on a live connection.
    fn status(&mut self, to: &[u8], reply: Option<&[u8]>, headers: &[u8]);
    /// Whether any subscription would receive a message on `subject` (pull replies).
    fn wanted(&self, subject: &[u8]) -> bool;
    /// Whether there is a subscription on exactly `subject`, plain or in exactly the queue group `group` (push).
    fn bound(&self, subject: &[u8], group: Option<&[u8]>) -> bool;
    /// Whether anybody listens to `subject`, so that an advisory is worth building.
    fn listens(&self, subject: &[u8]) -> bool {
        self.wanted(subject)
    }
    /// Publishes an advisory or metric, already JSON.
    fn advise(&mut self, subject: &[u8], body: Vec<u8>);
    /// The stored message with a sequence.
    fn fetch(&mut self, seq: u64) -> Fetched;
    /// This consumer no longer needs these sequences (inclusive): acknowledged, terminated, or delivered without ack.
    fn settled(&mut self, first: u64, last: u64);
    /// Answers an ack that wanted an answer with an empty message, once everything this consumer changed so far is durable.
    fn confirm(&mut self, reply: &[u8]);
}
