//! [`QueueFilter`]: a permission entry of the form `subject` or `subject queue`.
//!
//! The queue part is matched like a subject, so `foo *.prod` speaks about every queue group of two tokens that ends
//! in `prod`. Which entry decides what is up to the permission check; this type only parses and matches.

use std::fmt;
use std::str::FromStr;

use super::{SubjectError, SubjectFilter};

/// A subject filter with an optional filter on the queue group name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueFilter {
    /// Which subjects the entry is about.
    pub subject: SubjectFilter,
    /// Which queue groups it is about; `None` when the entry names no queue.
    pub queue: Option<SubjectFilter>,
}

impl QueueFilter {
    /// Whether the entry names a queue pattern and that pattern matches this group name.
    #[must_use]
    pub fn matches_queue(&self, group: &[u8]) -> bool {
        self.queue.as_ref().is_some_and(|pattern| pattern.matches(group))
    }
}

impl FromStr for QueueFilter {
    type Err = SubjectError;

    /// Splits at runs of whitespace; leading and trailing whitespace is ignored.
    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let mut words = text.split_whitespace();
        let subject = words.next().ok_or(SubjectError::Empty)?.parse()?;
        let queue = words.next().map(str::parse).transpose()?;
        if words.next().is_some() {
            return Err(SubjectError::TooManyWords);
        }
        Ok(Self { subject, queue })
    }
}

impl fmt::Display for QueueFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.subject)?;
        if let Some(queue) = &self.queue {
            write!(f, " {queue}")?;
        }
        Ok(())
    }
}
