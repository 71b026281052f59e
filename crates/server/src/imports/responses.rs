//! The open requests that came into an account through service imports.
//!
//! Each has a reply subject `_R_.<table>.<token>` in the exporting account; one subscription of the table receives all of
//! them and routes each answer to the requester under the reply subject that it chose.
//!
//! Bound: an entry goes with its last answer. Entries of requesters that went away are found by looking at a few of
//! the oldest ones whenever a new one is opened, so the table stays within a small multiple of what is really open. However
//! fast requests come in that nobody answers, there are at most [`OPEN_MAX`] entries: the oldest one gives way, its
//! requester hears nothing, and the log says so once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::DEPTH_MAX;
use crate::account::Account;
use crate::options::ResponseType;
use crate::router::{Beyond, Message, Service, Sink, Subscription, Turn, route};
use crate::trace::{self, ServiceCrossing};

/// Old entries looked at when a new one is opened.
const LOOKED_AT: usize = 2;
/// Requests of one account that may be open at a time.
const OPEN_MAX: usize = 1 << 18;
/// An unanswered request younger than this is never given up.
const KEPT_FOR: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Open {
    requester: Weak<Account>,
    reply: Bytes,
    response_type: ResponseType,
    since: Instant,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Open, RandomState>,
    /// Tokens, the oldest first; some of them answered.
    by_age: VecDeque<u64>,
    next: u64,
    /// Whether an open request had to give way.
    overflowed: bool,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Responses {
    prefix: String,
    table: Mutex<Table>,
}

impl Responses {
    /// A table for `account`, with its subscription in place. `name` must be unique on the server.
    pub(crate) fn attach(account: &Arc<Account>, name: &str) -> Arc<Self> {
        let responses = Arc::new(Self {
            prefix: format!("_R_.{name}."),
            table: Mutex::default(),
        });
        let sink: Arc<dyn Service> = responses.clone();
        let pattern = Bytes::from(format!("{}*", responses.prefix));
        account.subscribe(Arc::new(Subscription::new(
            pattern,
            None,
            Bytes::new(),
            0,
            account,
            Sink::Service(sink),
        )));
        responses
    }

    /// Opens an entry; the answer is the reply subject that the service sees.
    pub(crate) fn open(&self, requester: &Arc<Account>, reply: &[u8], response_type: ResponseType) -> String {
        let now = Instant::now();
        let mut table = self.table.lock();
        table.give_up_some(now);
        if table.make_room(OPEN_MAX) {
            tracing::warn!(
                max = OPEN_MAX,
                "too many requests through service imports wait for an answer: the oldest ones are given up"
            );
        }
        let token = table.next;
        table.next += 1;
        table.by_age.push_back(token);
        let requester = Arc::downgrade(requester);
        table.open.insert(
            token,
            Open {
                requester,
                reply: Bytes::copy_from_slice(reply),
                response_type,
                since: now,
            },
        );
        format!("{}{token}", self.prefix)
    }

    /// Removes the entry of a reply subject made by [`Responses::open`].
    pub(crate) fn forget(&self, reply: &str) {
        if let Some(token) = self.token(reply.as_bytes()) {
            self.table.lock().open.remove(&token);
        }
    }

    fn token(&self, subject: &[u8]) -> Option<u64> {
        std::str::from_utf8(subject)
            .ok()?
            .strip_prefix(&self.prefix)?
            .parse()
            .ok()
    }
}

impl Table {
    /// Sees to it that one more entry keeps the table within `max`. True when an open one had to go for the first time.
    fn make_room(&mut self, max: usize) -> bool {
        // Tokens of answered requests wait behind an old one that is still open.
        if self.by_age.len() >= 2 * max {
            let open = &self.open;
            self.by_age.retain(|token| open.contains_key(token));
        }
        let mut gave_way = false;
        while self.open.len() >= max {
            let Some(oldest) = self.by_age.pop_front() else {
                break;
            };
            gave_way |= self.open.remove(&oldest).is_some();
        }
        gave_way && !std::mem::replace(&mut self.overflowed, true)
    }

    /// Looks at the oldest entries: drops those that nobody waits for, puts the others at the end.
    fn give_up_some(&mut self, now: Instant) {
        for _ in 0..LOOKED_AT {
            let Some(token) = self.by_age.pop_front() else {
                return;
            };
            let Some(entry) = self.open.get(&token) else {
                continue;
            };
            if now.saturating_duration_since(entry.since) < KEPT_FOR {
                self.by_age.push_front(token);
                return;
            }
            let waited_for = entry.response_type != ResponseType::Singleton
                && entry
                    .requester
                    .upgrade()
                    .is_some_and(|account| !account.matches(&entry.reply).1.is_empty());
            if waited_for {
                self.by_age.push_back(token);
            } else {
                self.open.remove(&token);
            }
        }
    }
}

impl Service for Responses {
    fn receive(&self, message: &Message<'_>, turn: &mut Turn<'_>) -> bool {
        let Some(token) = self.token(message.key()) else {
            return false;
        };
        let found = {
            let mut table = self.table.lock();
            let Some(entry) = table.open.get(&token) else {
                return false;
            };
            let found = (entry.requester.clone(), entry.reply.clone());
            let last = match entry.response_type {
                ResponseType::Singleton => true,
                ResponseType::Stream => false,
                ResponseType::Chunked => message.payload.is_empty(),
            };
            if last {
                table.open.remove(&token);
            }
            found
        };
        let (Some(requester), reply) = (found.0.upgrade(), found.1) else {
            return false;
        };
        if turn.depth >= DEPTH_MAX {
            return false;
        }
        // An answer goes on without its trace: the requester's account is not the service's to look into.
        let crossing = trace::cross_service(turn, &requester, message.key(), &reply, false);
        if matches!(crossing, ServiceCrossing::Ends) {
            return false;
        }
        let mut headers = Vec::new();
        let mut answer = message.carried(&reply);
        if let ServiceCrossing::Suspended(_) = crossing {
            headers.extend_from_slice(message.headers);
            trace::hide_destination(&crossing, &mut headers, String::new);
            answer.headers = &headers;
        }
        let (_, matches) = requester.matches(&reply);
        turn.depth += 1;
        let taken = route(&matches, &answer, turn);
        turn.depth -= 1;
        if let ServiceCrossing::Suspended(trace) = crossing {
            turn.trace = Some(trace);
        }
        taken > 0
    }

    fn beyond(&self, subject: &[u8]) -> Beyond {
        let table = self.table.lock();
        let entry = self.token(subject).and_then(|token| table.open.get(&token));
        match entry.and_then(|entry| Some((entry.requester.upgrade()?, entry))) {
            Some((requester, entry)) => Beyond::Into(requester, entry.reply.to_vec()),
            None => Beyond::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(table: &mut Table, token: u64) {
        table.by_age.push_back(token);
        let entry = Open {
            requester: Weak::new(),
            reply: Bytes::new(),
            response_type: ResponseType::Singleton,
            since: Instant::now(),
        };
        table.open.insert(token, entry);
    }

    /// Entries younger than two minutes were never given up, so that a service that does not answer let the table grow
    /// with every request of that time.
    #[test]
    fn the_oldest_open_request_gives_way_and_that_is_said_once() {
        let mut table = Table::default();
        for token in 0..10 {
            assert_eq!(table.make_room(4), token == 4);
            open(&mut table, token);
        }
        let mut left: Vec<u64> = table.open.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [6, 7, 8, 9]);
        assert_eq!(table.by_age, [6, 7, 8, 9]);
    }

    #[test]
    fn answered_requests_leave_nothing_behind_an_old_open_one() {
        let mut table = Table::default();
        open(&mut table, 0);
        for token in 1..100 {
            table.make_room(4);
            open(&mut table, token);
            table.open.remove(&token);
            assert!(table.by_age.len() <= 8, "{}", table.by_age.len());
        }
        assert!(table.open.contains_key(&0));
    }
}
