//! Sending from a stream's turn: one [`Turn`] for everything, flushed once at its end.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::account::Account;
use crate::router::{Matches, Message, Sink, Turn, route};
use crate::server::Shared;

/// Subjects remembered.
const REMEMBERED_MAX: usize = 256;

/// Receivers by subject, good for one generation of the account's subscriptions.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    generation: u64,
    by_subject: HashMap<Box<[u8]>, Arc<Matches>, RandomState>,
}

impl Receivers {
    fn get(&mut self, account: &Account, subject: &[u8]) -> Arc<Matches> {
        let generation = account.generation();
        if self.generation != generation {
            self.by_subject.clear();
            self.generation = generation;
        }
        if let Some(matches) = self.by_subject.get(subject) {
            return matches.clone();
        }
        let matches = Arc::new(account.matches(subject).1);
        if self.by_subject.len() >= REMEMBERED_MAX {
            self.by_subject.clear();
        }
        self.by_subject.insert(subject.into(), matches.clone());
        matches
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Posted {
    /// So many took it, at least one.
    Taken,
    /// Nobody took it.
    Nobody,
    /// A receiver has too much waiting already: nothing was sent.
    Full,
}

/// The sending side of a stream's turn.
pub(super) struct Post<'a> {
    pub(super) account: &'a Arc<Account>,
    pub(super) turn: Turn<'a>,
}

impl<'a> Post<'a> {
    pub(super) fn new(server: &'a Shared, account: &'a Arc<Account>) -> Self {
        Self {
            account,
            turn: Turn::new(server, None),
        }
    }

    /// Sends to a subject that is used once.
    pub(super) fn send(&mut self, to: &[u8], reply: Option<&[u8]>, headers: &[u8], payload: &Bytes) -> usize {
        let (_, matches) = self.account.matches(to);
        let message = Message::with_shared(to, reply, headers, payload);
        route(&matches, &message, &mut self.turn)
    }

    /// Sends to a subject that is used again and again, shown as `shown`, unless a receiver is nearly full.
    pub(super) fn deliver(
        &mut self,
        receivers: &mut Receivers,
        to: &[u8],
        shown: &[u8],
        reply: &[u8],
        headers: &[u8],
        payload: &Bytes,
    ) -> Posted {
        let matches = receivers.get(self.account, to);
        if matches.is_empty() {
            return Posted::Nobody;
        }
        let room = self.turn.max_pending / 2;
        let full = matches.plain.iter().any(|s| match &s.sink {
            Sink::Connection(connection) => connection.outbound.pending() > room,
            _ => false,
        });
        if full {
            return Posted::Full;
        }
        let mut message = Message::with_shared(shown, Some(reply), headers, payload);
        message.via = Some(to);
        match route(&matches, &message, &mut self.turn) {
            0 => Posted::Nobody,
            _ => Posted::Taken,
        }
    }

    /// Flushes.
    pub(super) fn finish(&mut self) {
        let (msgs, bytes) = (self.turn.out_msgs, self.turn.out_bytes);
        self.account.sent.add(msgs, bytes);
        self.turn.finish();
    }
}
