//! The replies one connection has been granted by `allow_responses`.
//!
//! Every message delivered to the connection with a reply subject that it may not publish to anyway grants it
//! `max` publishes to that subject until the grant expires. Two messages with one reply subject add up (in
//! nats-server the second one uses the first grant up; that is not repeated here), and the time starts anew.
//!
//! The table holds at most [`GRANTS_MAX`] replies. When a new one does not fit, the oldest goes: a client that
//! never answers cannot make the table grow, and it can only lose its own grants.
//!
//! Deliveries come from other connections' tasks, publishes from the own one, hence the lock inside. It is held for
//! a few map operations, and only for connections whose user has `allow_responses`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::options::ResponsePermission;

/// Most reply subjects that stand granted to one connection at a time.
pub const GRANTS_MAX: usize = 65_536;

/// Replies granted to one connection. See the module's page.
#[derive(Debug)]
pub struct ReplyGrants {
    per_message: u64,
    expires: Option<Duration>,
    capacity: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    grants: HashMap<Arc<[u8]>, Grant, foldhash::fast::RandomState>,
    /// Replies in the order of their last grant, which is also the order of expiry. An entry whose stamp is not the
    /// grant's is out of date and skipped.
    order: VecDeque<(Arc<[u8]>, u64)>,
    next_stamp: u64,
}

#[derive(Debug)]
struct Grant {
    left: u64,
    granted_at: Instant,
    stamp: u64,
}

impl ReplyGrants {
    /// An empty table that grants what `permission` says.
    pub fn new(permission: ResponsePermission) -> Self {
        Self::with_capacity(permission, GRANTS_MAX)
    }

    fn with_capacity(permission: ResponsePermission, capacity: usize) -> Self {
        let per_message = match permission.max {
            0 => 1,
            max => u64::try_from(max).unwrap_or(u64::MAX),
        };
        Self {
            per_message,
            expires: permission.expires,
            capacity,
            table: Mutex::default(),
        }
    }

    /// Grants publishes to `reply` because a message with it was delivered.
    ///
    /// The caller asks [`super::Permissions::can_publish`] first: replies that are allowed anyway need no grant.
    pub fn grant(&self, reply: &[u8], now: Instant) {
        let mut table = self.table.lock();
        let stamp = table.next_stamp;
        table.next_stamp += 1;
        table.drop_expired(self.expires, now);
        if let Some((key, grant)) = table.grants.get_key_value(reply) {
            let (key, left) = (key.clone(), grant.left.saturating_add(self.per_message));
            table.insert(key, left, now, stamp);
        } else {
            while table.grants.len() >= self.capacity {
                table.drop_oldest();
            }
            table.insert(reply.into(), self.per_message, now, stamp);
        }
        table.compact();
    }

    /// Uses up one granted publish to `subject`, if there is one that has not expired.
    pub fn take(&self, subject: &[u8], now: Instant) -> bool {
        let mut table = self.table.lock();
        let Some(grant) = table.grants.get_mut(subject) else {
            return false;
        };
        let fresh = !is_expired(grant.granted_at, self.expires, now);
        if fresh && grant.left > 1 {
            if self.per_message != u64::MAX {
                grant.left -= 1;
            }
        } else {
            table.grants.remove(subject);
            table.compact();
        }
        fresh
    }

    /// Replies that stand granted, expired ones that were not yet met included.
    pub fn len(&self) -> usize {
        self.table.lock().grants.len()
    }

    /// Whether no reply stands granted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Table {
    fn insert(&mut self, reply: Arc<[u8]>, left: u64, granted_at: Instant, stamp: u64) {
        self.order.push_back((reply.clone(), stamp));
        let grant = Grant {
            left,
            granted_at,
            stamp,
        };
        self.grants.insert(reply, grant);
    }

    fn drop_expired(&mut self, expires: Option<Duration>, now: Instant) {
        while let Some((reply, stamp)) = self.order.front() {
            match self.grants.get(reply) {
                Some(grant) if grant.stamp == *stamp && !is_expired(grant.granted_at, expires, now) => break,
                _ => self.drop_oldest(),
            }
        }
    }

    /// Removes the front of the order, and its grant unless that was renewed since.
    fn drop_oldest(&mut self) {
        if let Some((reply, stamp)) = self.order.pop_front()
            && self.grants.get(&reply).is_some_and(|grant| grant.stamp == stamp)
        {
            self.grants.remove(&reply);
        }
    }

    /// Keeps the order at no more than twice the grants, plus a little, for a constant price per grant.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.grants.len() + 64 {
            let grants = &self.grants;
            self.order
                .retain(|(reply, stamp)| grants.get(reply).is_some_and(|grant| grant.stamp == *stamp));
        }
    }
}

fn is_expired(granted_at: Instant, expires: Option<Duration>, now: Instant) -> bool {
    expires.is_some_and(|expires| now.saturating_duration_since(granted_at) > expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(max: i64, expires: Option<Duration>) -> ReplyGrants {
        ReplyGrants::new(ResponsePermission { max, expires })
    }

    #[test]
    fn a_delivery_grants_as_many_publishes_as_configured() {
        let now = Instant::now();
        let grants = grants(2, None);
        assert!(!grants.take(b"_INBOX.1", now));
        grants.grant(b"_INBOX.1", now);
        assert!(grants.take(b"_INBOX.1", now));
        assert!(grants.take(b"_INBOX.1", now));
        assert!(!grants.take(b"_INBOX.1", now));
        assert!(grants.is_empty());
    }

    #[test]
    fn zero_means_the_default_of_one_and_negative_means_no_limit() {
        let now = Instant::now();
        let one = grants(0, None);
        one.grant(b"r", now);
        assert!(one.take(b"r", now));
        assert!(!one.take(b"r", now));

        let many = grants(-1, None);
        many.grant(b"r", now);
        assert!((0..1000).all(|_| many.take(b"r", now)));
    }

    #[test]
    fn two_deliveries_with_one_reply_add_up() {
        let now = Instant::now();
        let grants = grants(1, None);
        grants.grant(b"r", now);
        grants.grant(b"r", now);
        assert!(grants.take(b"r", now));
        assert!(grants.take(b"r", now));
        assert!(!grants.take(b"r", now));
    }

    #[test]
    fn a_grant_ends_with_its_time_and_a_new_delivery_renews_it() {
        let start = Instant::now();
        let grants = grants(5, Some(Duration::from_secs(10)));
        grants.grant(b"r", start);
        grants.grant(b"s", start);
        assert!(grants.take(b"r", start + Duration::from_secs(10)));
        assert!(!grants.take(b"r", start + Duration::from_secs(11)));

        grants.grant(b"s", start + Duration::from_secs(9));
        assert!(grants.take(b"s", start + Duration::from_secs(18)));
    }

    #[test]
    fn expired_grants_are_dropped_by_later_deliveries() {
        let start = Instant::now();
        let grants = grants(1, Some(Duration::from_secs(1)));
        for n in 0..100_u32 {
            grants.grant(&n.to_be_bytes(), start);
        }
        grants.grant(b"late", start + Duration::from_secs(2));
        assert_eq!(grants.len(), 1);
    }

    #[test]
    fn the_oldest_grant_makes_room_when_the_table_is_full() {
        let now = Instant::now();
        let permission = ResponsePermission {
            max: 1,
            expires: None,
        };
        let grants = ReplyGrants::with_capacity(permission, 3);
        for reply in [b"a", b"b", b"c"] {
            grants.grant(reply, now);
        }
        grants.grant(b"a", now);
        grants.grant(b"d", now);
        assert_eq!(grants.len(), 3);
        assert!(
            !grants.take(b"b", now),
            "the oldest was b, since a was granted again"
        );
        assert!(grants.take(b"a", now) && grants.take(b"c", now) && grants.take(b"d", now));
    }

    #[test]
    fn granting_one_reply_over_and_over_does_not_grow_the_table() {
        let now = Instant::now();
        let grants = grants(1, None);
        grants.grant(b"stays", now);
        for _ in 0..10_000 {
            grants.grant(b"again", now);
        }
        assert_eq!(grants.len(), 2);
        assert!(grants.table.lock().order.len() < 100);
    }
}
