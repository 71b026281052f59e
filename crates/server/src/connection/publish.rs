//! The publish path of a connection, and what it remembers by subject.
//!
//! Permission and matches of a subject are looked up once and kept while the account's generation stands: a repeated
//! publish costs one hash look-up here. The order of the checks is that of nats-server: reserved replies, permission,
//! mapping, matching, delivery, no-responders.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use windjet_protocol::transform::Mapped;
use windjet_protocol::wire::encode;

use super::Connection;
use crate::account::Account;
use crate::auth::Permissions;
use crate::router::{Matches, Message, Subscription, Turn, route};
use crate::trace::{self, Begun};

/// Subjects remembered per connection.
const REMEMBERED_MAX: usize = 512;
/// Bytes of subjects and receivers remembered per connection, unless one subject alone takes more: a control line may
/// be long, and so may a list of receivers.
const REMEMBERED_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Remembered {
    permitted: bool,
    matches: Arc<Matches>,
}

impl Remembered {
    /// Bytes that it holds, roughly, with the subject it stands under.
    fn weight(&self, subject: &[u8]) -> usize {
        subject.len() + self.matches.len() * size_of::<Arc<Subscription>>()
    }
}

/// What a publisher remembers by subject.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    generation: u64,
    /// Weight of all that is remembered.
    bytes: usize,
    by_subject: HashMap<Box<[u8]>, Remembered, RandomState>,
}

impl Routes {
    fn get(&mut self, account: &Account, permissions: Option<&Permissions>, subject: &[u8]) -> &Remembered {
        let generation = account.generation();
        if self.generation != generation {
            self.forget();
            self.generation = generation;
        }
        if !self.by_subject.contains_key(subject) {
            let permitted = permissions.is_none_or(|permissions| permissions.can_publish(subject));
            let (_, matches) = account.matches(subject);
            let remembered = Remembered {
                permitted,
                matches: Arc::new(matches),
            };
            let weight = remembered.weight(subject);
            if self.by_subject.len() >= REMEMBERED_MAX || self.bytes + weight > REMEMBERED_BYTES_MAX {
                self.forget();
            }
            self.bytes += weight;
            self.by_subject.insert(subject.into(), remembered);
        }
        &self.by_subject[subject]
    }

    fn forget(&mut self) {
        self.by_subject.clear();
        self.bytes = 0;
    }
}

/// What became of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Published {
    /// This many subscriptions took it.
    Delivered(usize),
    /// The publisher may not publish to the subject.
    Denied,
    /// The subject was mapped to this one, which the publisher may not publish to.
    DeniedAs(Bytes),
    /// The subject was mapped to this one, which nobody took.
    UntakenAs(Bytes),
    /// The publisher may not use the reply subject.
    ReplyDenied,
    /// It was to be traced only, and could not be: nobody gets it and nothing is said of it.
    Withheld,
}

/// The publishing side of one client: where it publishes and what it may.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Account of the client.
    pub(crate) account: Arc<Account>,
    /// What the client may do; `None` means everything.
    pub(crate) permissions: Option<Arc<Permissions>>,
    /// Whether the account is the system account.
    pub(crate) system: bool,
    routes: Routes,
}

impl Publisher {
    /// A publisher into `account`.
    pub(crate) fn new(account: Arc<Account>, permissions: Option<Arc<Permissions>>, system: bool) -> Self {
        Self {
            account,
            permissions,
            system,
            routes: Routes::default(),
        }
    }

    /// Publishes one message in `turn`. `accepted` runs once the checks have passed, before anything is delivered. The
    /// trace of a message that is traced stays in the turn: the caller sends it with [`trace::finish`] when it has said
    /// all that there is to say to the publisher.
    pub(crate) fn publish(
        &mut self,
        connection: &Connection,
        message: &Message<'_>,
        turn: &mut Turn<'_>,
        accepted: impl FnOnce(&mut Turn<'_>),
    ) -> Published {
        if message.headers.is_empty() {
            return self.publish_as_is(connection, message, turn, accepted);
        }
        let Some(asked) = trace::asked(message) else {
            return self.publish_as_is(connection, message, turn, accepted);
        };
        match trace::begin(asked, connection, self, message) {
            Begun::Ordinary => self.publish_as_is(connection, message, turn, accepted),
            Begun::Disabled(headers) => {
                self.publish_as_is(connection, &message.with_headers(&headers), turn, accepted)
            }
            Begun::Withheld => Published::Withheld,
            Begun::Denied(destination) => Published::DeniedAs(destination),
            Begun::Traced(trace) => {
                turn.trace = Some(trace);
                let published = self.publish_as_is(connection, message, turn, accepted);
                if let Some(trace) = &mut turn.trace {
                    trace.published(&published, message);
                }
                published
            }
        }
    }

    fn publish_as_is(
        &mut self,
        connection: &Connection,
        message: &Message<'_>,
        turn: &mut Turn<'_>,
        accepted: impl FnOnce(&mut Turn<'_>),
    ) -> Published {
        if message.reply.is_some_and(is_reserved_reply) {
            return Published::ReplyDenied;
        }
        if is_reserved_subject(message.subject, self.system) {
            return Published::Denied;
        }
        if self.account.has_mappings() {
            return self.publish_mapped(connection, message, turn, accepted);
        }
        let remembered = self
            .routes
            .get(&self.account, self.permissions.as_deref(), message.subject);
        if !remembered.permitted && !connection.take_grant(message.subject) {
            return Published::Denied;
        }
        accepted(turn);
        Published::Delivered(route(&remembered.matches, message, turn))
    }

    /// The same for an account with mappings: permission and receivers are those of the mapped subject.
    fn publish_mapped(
        &mut self,
        connection: &Connection,
        message: &Message<'_>,
        turn: &mut Turn<'_>,
        accepted: impl FnOnce(&mut Turn<'_>),
    ) -> Published {
        let mut mapped = Vec::new();
        let subject = match self.account.map(message.subject, &mut mapped) {
            Mapped::Unchanged => message.subject,
            Mapped::To => {
                if let Some(trace) = &mut turn.trace {
                    trace.mapped(&mapped);
                }
                &mapped
            }
            Mapped::Dropped => {
                accepted(turn);
                return Published::Delivered(0);
            }
        };
        let remembered = self
            .routes
            .get(&self.account, self.permissions.as_deref(), subject);
        if !remembered.permitted && !connection.take_grant(subject) {
            return Published::DeniedAs(Bytes::copy_from_slice(subject));
        }
        accepted(turn);
        let taken = route(
            &remembered.matches,
            &message.renamed(subject, message.reply),
            turn,
        );
        if taken == 0 {
            return Published::UntakenAs(Bytes::copy_from_slice(subject));
        }
        Published::Delivered(taken)
    }
}

/// Replies that only the server makes.
fn is_reserved_reply(reply: &[u8]) -> bool {
    match reply.first() {
        Some(b'_') => reply.starts_with(b"_R_.") || reply.starts_with(b"_GR_."),
        Some(b'$') => reply.starts_with(b"$JS.ACK.") || reply.starts_with(b"$GR."),
        _ => false,
    }
}

/// Subjects that clients may not publish to.
pub(crate) fn is_reserved_subject(subject: &[u8], system: bool) -> bool {
    match subject.first() {
        Some(b'_') => subject.starts_with(b"_GR_."),
        Some(b'$') => subject.starts_with(b"$GR.") || (!system && subject.starts_with(b"$NRG.")),
        _ => false,
    }
}

/// The answer to a request that nobody serves, to the requester's own subscription on the reply. See 4.1 of the core
/// protocol: only a plain subscription of the requesting connection itself counts.
pub(crate) fn answer_no_responders(
    connection: &Arc<Connection>,
    account: &Account,
    subject: &[u8],
    reply: &[u8],
    turn: &mut Turn<'_>,
) {
    let (_, matches) = account.matches(reply);
    let own = matches
        .plain
        .iter()
        .find(|s| s.owner == connection.id && !s.is_closed());
    let Some(own) = own else { return };
    let mut headers = Vec::with_capacity(34 + subject.len());
    headers.extend_from_slice(b"NATS/1.0 503\r\nNats-Subject: ");
    headers.extend_from_slice(subject);
    headers.extend_from_slice(b"\r\n\r\n");
    // Not a delivery: it counts neither for the subscription's limit nor in the statistics.
    connection.send(&mut turn.touched, |out| {
        encode::hmsg(out, reply, &own.sid, None, &headers, &[]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_subjects_are_bounded_by_bytes_too() {
        let account = Account::new("A", "A");
        let mut routes = Routes::default();
        for n in 0..100 {
            let subject = format!("{n}.{}", "x".repeat(100 << 10));
            assert!(routes.get(&account, None, subject.as_bytes()).permitted);
            let held: usize = routes.by_subject.keys().map(|subject| subject.len()).sum();
            assert_eq!(held, routes.bytes);
            assert!(held <= REMEMBERED_BYTES_MAX);
        }
        let alone = "x".repeat(2 << 20);
        assert!(routes.get(&account, None, alone.as_bytes()).matches.is_empty());
        assert_eq!(routes.by_subject.len(), 1);
    }
}
