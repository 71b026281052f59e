//! What must be known about a stream to decide on a publish.

use windjet_protocol::jetstream::ApiError;
use windjet_store::{Duplicate, Subject};

use super::counter::Known;

/// A question that only committed state can answer, while something is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotYet;

/// A stream as its owner knows it: committed and staged operations together.
///
/// Most of this is what [`windjet_store::StreamWriter`] answers. An answer of [`NotYet`] makes the publish wait until what is
/// staged is committed; the same question is asked again then.
pub(crate) trait View {
    /// The highest sequence given out.
    fn last_seq(&self) -> u64;
    /// Live messages.
    fn messages(&self) -> u64;
    /// Their sizes.
    fn bytes(&self) -> u64;
    /// Count and newest live sequence of a subject.
    fn subject(&self, subject: &[u8]) -> Subject;
    /// The first live sequence of a subject at or after `from`.
    fn subject_next(&self, subject: &[u8], from: u64) -> Option<u64>;
    /// A number that stands for a subject, other numbers for all others.
    fn subject_key(&self, subject: &[u8]) -> u128;
    /// The same for the subject of a live message.
    fn subject_key_of(&self, seq: u64) -> Option<u128>;
    /// The newest live sequence over all subjects that match a pattern with wildcards.
    fn last_match(&self, pattern: &[u8]) -> Result<Option<u64>, NotYet>;
    /// The first live sequence at or after `from`.
    fn next_live(&self, from: u64) -> Option<u64>;
    /// Size of a live message.
    fn size_of(&self, seq: u64) -> Option<u32>;
    /// The message with this id, in the window of duplicates.
    fn duplicate(&self, id: &[u8]) -> Option<Duplicate>;
    /// Id of the message that was stored or skipped last, empty if it had none.
    fn last_msg_id(&self) -> &[u8];
    /// Whether any consumer would want a message on `subject`.
    fn interested(&self, subject: &[u8]) -> bool;
    /// Whether the server has used up its storage of the stream's kind.
    fn server_full(&self) -> bool;
    /// Whether `size` more bytes are over the account's limits.
    fn account_full(&self, size: u64) -> bool;
    /// The number of a subject of counters; see [`super::counter::Totals::get`].
    fn counter(&self, subject: &[u8]) -> Result<Known, ApiError>;
    /// The live schedule on a subject.
    fn schedule(&self, subject: &[u8]) -> Option<u64>;
    /// Messages and bytes as a full stream counts them that refuses: what makes room for itself counts twice within an atomic
    /// batch.
    fn gross(&self) -> (u64, u64) {
        (self.messages(), self.bytes())
    }
    /// Whether the atomic batch that is being decided has a message on `subject` already.
    fn written(&self, subject: &[u8]) -> bool {
        let _ = subject;
        false
    }
}
