//! A stream import at work.

use std::sync::Weak;

use windjet_protocol::transform::ImportTransform;

use super::DEPTH_MAX;
use crate::account::Account;
use crate::router::{Beyond, Message, Service, Turn, route};
use crate::trace::{self, StreamCrossing};

/// Carries messages of the exporting account into the importing one.
#[derive(Debug)]
pub(super) struct StreamImport {
    /// The importing account.
    pub(super) into: Weak<Account>,
    /// From the exporter's subjects to the importer's.
    pub(super) rename: ImportTransform,
    /// Whether message traces may follow.
    pub(super) allow_trace: bool,
}

impl Service for StreamImport {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let Some(into) = self.into.upgrade() else {
            return false;
        };
        let mut subject = Vec::with_capacity(message.subject.len() + 16);
        if turn.depth >= DEPTH_MAX || !self.rename.apply(message.key(), &mut subject) {
            return false;
        }
        let (_, matches) = into.matches(&subject);
        if matches.is_empty() {
            return false;
        }
        let outer = turn.trace.is_some().then(|| {
            let crossing = StreamCrossing {
                account: into.name.clone(),
                to: String::from_utf8_lossy(&subject).into_owned(),
                allow_trace: self.allow_trace,
            };
            trace::through(turn, Some(crossing))
        });
        turn.depth += 1;
        let taken = route(&matches, &message.carried(&subject), turn);
        turn.depth -= 1;
        if let Some(outer) = outer {
            trace::through(turn, outer);
        }
        taken > 0
    }

    fn beyond(&self, subject: &[u8]) -> Beyond {
        let mut renamed = Vec::with_capacity(subject.len() + 16);
        match self.into.upgrade() {
            Some(into) if self.rename.apply(subject, &mut renamed) => Beyond::Into(into, renamed),
            _ => Beyond::Nowhere,
        }
    }
}
